"""The strategy in Flower's own loop: `Strategy.start` over a grid whose nodes answer in this process."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterable
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleet import CLIENTS, CLIP, MODEL, PLANNED, SEPARATION, N, assert_proved, rounds_in, update
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    Krum,
    QFedAvg,
    strategy_utils,
)
from flwr.supercore.task_identity import TaskIdentity

from factorize.adapters.flower import CorrelatedNoise, authenticated_node
from factorize.adapters.gradients.clipped_sums import clipped
from factorize.errors import InvalidParameter, InvalidParticipation

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as of a server app's process
Answer = Callable[[int, int, dict[str, np.ndarray]], Any]


def record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def honest(node: int, step: int, model: dict[str, np.ndarray]) -> ArrayRecord:
    return record({name: array + update(node, step)[name] for name, array in model.items()})


app = ClientApp()


@app.query("client_id")
def client_id(message: Message, context: Context) -> Message:
    """Answer as docs/federated.md says."""
    found = ConfigRecord({"client-id": context.node_config["client-id"]})
    return Message(RecordDict({"config": found}), reply_to=message)


class Nodes(Grid):
    """Nodes 1 to 16, who answer at once."""

    def __init__(self, answer: Answer = honest, step: int = 0) -> None:
        self.answer, self.step, self.asked = answer, step, list[list[int]]()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        given = list(messages)
        if given and given[0].metadata.message_type == "query.client_id":
            return [found for message in given if (found := self.named(message)) is not None]
        if given:
            self.asked.append(sorted(message.metadata.dst_node_id for message in given))
        replies = []
        for message in given:
            arrays = next(iter(message.content.array_records.values()))
            model = dict(zip(arrays, arrays.to_numpy_ndarrays(), strict=True))
            found = self.answer(message.metadata.dst_node_id, self.step, model)
            if isinstance(found, Error):
                replies.append(Message(found, reply_to=message))
            elif found is not None:
                metrics = MetricRecord({"num-examples": float(message.metadata.dst_node_id), "loss": 1.0})
                replies.append(Message(RecordDict({"arrays": found, "metrics": metrics}), reply_to=message))
        self.step += bool(given)
        random.shuffle(replies)
        return replies

    def named(self, message: Message) -> Message | None:
        """Return what the app of a client answers, with phones that come back under other nodes."""
        node = message.metadata.dst_node_id
        context = Context(1, node, {"client-id": f"phone-{node % 100}"}, RecordDict(), {})
        return app(message, context)

    def get_node_ids(self) -> list[int]:
        return list(range(1, CLIENTS + 1))

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    run = property(set_run)

    def create_message(self, *given: Any, **more: Any) -> Message:
        raise NotImplementedError

    push_messages = pull_messages = create_message


def trained(strategy: CorrelatedNoise, nodes: Nodes, rounds: int, arrays: ArrayRecord | None = None) -> Any:
    return strategy.start(nodes, record(MODEL) if arrays is None else arrays, num_rounds=rounds)


def test_a_run_keeps_its_timers_and_is_proved(tmp_path: Path) -> None:
    rounds, receipt = rounds_in(tmp_path)
    nodes = Nodes()
    result = trained(CorrelatedNoise(FedAvg(), rounds), nodes, N)
    assert list(result.arrays) == list(MODEL) and not result.train_metrics_clientapp
    assert not result.evaluate_metrics_clientapp, "what clients measure has no noise"
    assert len(nodes.asked) == N
    for node in nodes.get_node_ids():
        turns = [step for step, asked in enumerate(nodes.asked) if node in asked]
        assert len(turns) <= 2 and all(np.diff(turns) >= SEPARATION)
    with pytest.raises(InvalidParticipation, match="the whole budget is spent"):
        trained(CorrelatedNoise(FedAvg(), rounds), nodes, 1)
    assert_proved(tmp_path, receipt)


def test_the_noisy_mean_is_of_equal_weights(tmp_path: Path) -> None:
    """Flower's averages weight by `num-examples`, which no clip norm bounds."""
    released = []
    for name, answer in (("some", honest), ("none", lambda *_: None)):
        rounds, _ = rounds_in(tmp_path / name)
        nodes = Nodes(answer)
        result = trained(CorrelatedNoise(FedAvg(), rounds), nodes, 1)
        released.append(np.concatenate([array.ravel() for array in result.arrays.to_numpy_ndarrays()]))
        if name == "some":
            total = sum(clipped(list(update(node, 0).values()), CLIP) for node in nodes.asked[0])
    assert np.allclose(released[0] - released[1], np.asarray(total) / PLANNED, atol=1e-5)


def run_on(folder: Path, killed: int = -1) -> list[bytes]:
    """Train from where the state is, and return the bits of the model; the process is killed in a round."""

    def answer(node: int, step: int, model: dict[str, np.ndarray]) -> ArrayRecord:
        if step == killed:
            os.kill(os.getpid(), signal.SIGKILL)
        return honest(1, step, model)

    rounds, _ = rounds_in(folder)
    strategy = CorrelatedNoise(FedProx(proximal_mu=0.1), rounds)
    found = trained(strategy, Nodes(answer, rounds.step), N - rounds.step, strategy.resumed(record(MODEL))).arrays
    bits = [part.tobytes() for part in found.to_numpy_ndarrays()]
    assert bits == [part.tobytes() for part in strategy.resumed(found).to_numpy_ndarrays()]
    return bits


@pytest.mark.parametrize("killed", [0, 3, 5])
def test_a_killed_server_goes_on_with_the_same_bits(tmp_path: Path, killed: int) -> None:
    process = get_context("fork").Process(target=run_on, args=(tmp_path / "killed", killed))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert run_on(tmp_path / "killed") == run_on(tmp_path / "whole")


def test_what_is_wrong_is_refused_and_the_round_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wrong: list[Any] = [
        Error(0, "crashed"),
        record({"weights": np.full((2, 3), np.nan, np.float32), "bias": MODEL["bias"]}),
        record({"weights": MODEL["weights"].T.copy(), "bias": MODEL["bias"]}),
        record({"weights": MODEL["weights"]}),
    ]
    rounds, _ = rounds_in(tmp_path)
    left = iter(wrong)
    trained(CorrelatedNoise(FedAvg(), rounds), Nodes(lambda *_: next(left)), 1)
    assert rounds.refused == {"not finite": 1, "shape": 2} and rounds.step == 1
    assert "one record with the model's names is needed, not [['weights']]" in caplog.text
    np.savez(several := BytesIO(), MODEL["weights"])
    huge = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }" + b" " * 50
    unread = iter([b"no array", b"PK\x03\x04", several.getvalue(), huge])  # each breaks numpy's reader in its own way

    def spoilt(*_: Any) -> ArrayRecord:
        broken = Array("float32", (2, 3), "numpy.ndarray", next(unread))
        return ArrayRecord({"weights": broken, "bias": Array(MODEL["bias"])})

    trained(CorrelatedNoise(FedAvg(), rounds), Nodes(spoilt), 1)
    assert rounds.refused["shape"] == 2 + PLANNED and rounds.step == 2


def test_what_the_model_does_not_have_is_left_out_of_answers(tmp_path: Path) -> None:
    """As counters of batch norm, which a client of torch sends with the rest of its state, in whatever order."""

    def more(node: int, step: int, model: dict[str, np.ndarray]) -> ArrayRecord:
        own = honest(1, step, model)
        return ArrayRecord({"counter": Array(np.array(3)), **{name: own[name] for name in reversed(list(own))}})

    found = []
    for name, answer in (("with", more), ("without", lambda _, *given: honest(1, *given))):
        rounds, _ = rounds_in(tmp_path / name)
        model = trained(CorrelatedNoise(FedAvg(), rounds), Nodes(answer), 1).arrays
        found.append([part.tobytes() for part in model.to_numpy_ndarrays()])
        assert not rounds.refused and rounds.step == 1
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", [FedAdam, FedAvgM])
def test_other_strategies_see_the_noisy_mean_alone(tmp_path: Path, kind: Any) -> None:
    rounds, _ = rounds_in(tmp_path)
    result = trained(CorrelatedNoise(kind(), rounds), Nodes(), 3)
    assert rounds.step == 3 and all(np.isfinite(array).all() for array in result.arrays.to_numpy_ndarrays())


def test_a_strategy_without_models_is_refused(tmp_path: Path) -> None:
    """A strategy of another module has the same name, as in older tutorials."""
    rounds = rounds_in(tmp_path)[0]
    older = type("FedAvg", (), {"__module__": "flwr.server.strategy.fedavg"})
    for strategy in (older(), CorrelatedNoise(FedAvg(), rounds)):
        with pytest.raises(
            InvalidParameter, match=r"of [a-z.]+ is not a subclass of FedAvg of flwr.serverapp.strategy"
        ):
            CorrelatedNoise(strategy, rounds)


def loss_of_clients(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
    return MetricRecord({"loss": sum(content["metrics"]["loss"] for content in contents)})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: QFedAvg(client_learning_rate=0.1), "QFedAvg makes no model of the noisy mean.*training loss"),
        (FedXgbBagging, "FedXgbBagging makes no model of the noisy mean.*one Array"),
        (Bulyan, "Bulyan makes no model of the noisy mean.*not a model with the same arrays"),
        (lambda: FedAvg(train_metrics_aggr_fn=loss_of_clients), "FedAvg makes no model .*KeyError: 'loss'"),
        (FedXgbCyclic, "FedXgbCyclic asks 1 clients where 4 are chosen"),
    ],
)
def test_a_strategy_that_would_fail_after_a_round_is_refused_before_it(tmp_path: Path, make: Any, said: str) -> None:
    rounds, _ = rounds_in(tmp_path)
    nodes = Nodes()
    with pytest.raises(InvalidParameter, match=said):
        trained(CorrelatedNoise(make(), rounds), nodes, 1)
    assert rounds.step == 0 and not rounds.known and not nodes.asked


@pytest.mark.parametrize(
    "around", [DifferentialPrivacyClientSideAdaptiveClipping, DifferentialPrivacyServerSideAdaptiveClipping]
)
def test_a_strategy_around_the_noise_is_refused_before_a_client_is_asked(tmp_path: Path, around: Any) -> None:
    """Flower's adaptive clipping follows the norms of the replies, which have no noise yet."""
    rounds, _ = rounds_in(tmp_path)
    nodes, strategy = Nodes(), around(CorrelatedNoise(FedAvg(), rounds), 0.1, PLANNED)
    with pytest.raises(InvalidParameter, match=r"DifferentialPrivacy\w+ is around CorrelatedNoise.*leave it out"):
        strategy.start(nodes, record(MODEL), num_rounds=1)
    assert rounds.step == 0 and not rounds.known and not nodes.asked


class Saving(CorrelatedNoise):
    """A strategy that keeps the models of all rounds."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        found = super().aggregate_train(server_round, replies)
        vars(self).setdefault("models", []).append(found[0])
        return found


class Weighting(CorrelatedNoise):
    """A strategy that weights replies by their numbers of examples, as Flower's does."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        return self.strategy.aggregate_train(server_round, replies)


def test_a_subclass_that_leaves_out_the_noise_is_refused(tmp_path: Path) -> None:
    rounds, _ = rounds_in(tmp_path / "saving")
    saving = Saving(FedAvg(), rounds)
    trained(saving, Nodes(), 2)
    assert rounds.step == 2 == len(vars(saving)["models"])
    nodes, evaluated = Nodes(), list[int]()
    weighting = Weighting(FedAvg(), rounds_in(tmp_path / "weighting")[0])
    with pytest.raises(InvalidParticipation, match=r"replies of round 0 .* model of Weighting has no noise.*super\(\)"):
        weighting.start(nodes, record(MODEL), num_rounds=2, evaluate_fn=lambda step, _: evaluated.append(step))
    assert len(nodes.asked) == 1 and evaluated == [0], "nobody gets a model without noise"


class Locked(FedTrimmedAvg):
    """A strategy that cannot be copied whole, and counts its rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.rounds = threading.Lock(), 0

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        with self.lock:
            self.rounds += 1
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize("make", [Locked, Krum, lambda: FedAvgM(server_momentum=0.9)])
def test_a_strategy_is_tried_without_a_trace(tmp_path: Path, make: Any) -> None:
    rounds, _ = rounds_in(tmp_path)
    strategy = make()
    before = trained(CorrelatedNoise(strategy, rounds), Nodes(), 1).arrays
    assert rounds.last is not None and list(before) == list(MODEL)
    for found, model, mean in zip(before.to_numpy_ndarrays(), *rounds.last, strict=True):
        assert np.allclose(found, model + mean), "nothing of the trial is in the first model"
    assert getattr(strategy, "rounds", 1) == 1


class Phones(Nodes):
    """Sixteen phones that have other nodes in every round."""

    def get_node_ids(self) -> list[int]:
        return [100 * self.step + phone for phone in super().get_node_ids()]


@pytest.mark.parametrize("known", ["client-id", lambda node: f"phone-{node % 100}"])
def test_a_phone_that_comes_back_under_another_node_keeps_its_timer(tmp_path: Path, known: Any) -> None:
    rounds, _ = rounds_in(tmp_path)
    phones = Phones(lambda node, step, model: honest(node % 100, step, model))
    trained(CorrelatedNoise(FedAvg(), rounds, client_id=known), phones, N)
    turns = [
        [step for step, asked in enumerate(phones.asked) if phone in [node % 100 for node in asked]]
        for phone in range(1, CLIENTS + 1)
    ]
    assert all(len(steps) <= 2 and all(np.diff(steps) >= SEPARATION) for steps in turns)
    assert len(phones.asked) == N and not rounds.refused and len(rounds.known) <= CLIENTS


def test_phones_that_nobody_knows_again_are_refused_past_the_fleet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their nodes are new in every round, and are taken for clients: no more of them than the statement has."""
    rounds, receipt = rounds_in(tmp_path)
    phones = Phones(lambda node, step, model: honest(node % 100, step, model))
    trained(CorrelatedNoise(FedAvg(), rounds, client_id=authenticated_node), phones, N)
    assert len(rounds.known) == CLIENTS == len({node for asked in phones.asked for node in asked})
    assert rounds.refused["fleet is full"] > 0 and "client_id=" in caplog.text
    assert_proved(tmp_path, receipt)


def test_what_names_no_client_is_refused_before_the_run(tmp_path: Path) -> None:
    rounds, _ = rounds_in(tmp_path)
    for nothing in (None, "", 7):
        with pytest.raises(InvalidParameter, match="A restarted SuperNode has another node id"):
            CorrelatedNoise(FedAvg(), rounds, client_id=nothing)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match=r"fraction_train=0\.5 .* have no effect: 4 clients train in each round"):
        CorrelatedNoise(FedAvg(fraction_train=0.5), rounds)


class Gone(Nodes):
    """Nodes that are connected and have stopped answering, all but the first few."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def named(self, message: Message) -> Message | None:
        return super().named(message) if message.metadata.dst_node_id <= self.left else None


def test_a_round_is_not_spent_on_clients_that_are_gone(tmp_path: Path) -> None:
    rounds, _ = rounds_in(tmp_path)
    nodes = Gone(CLIENTS)
    trained(CorrelatedNoise(FedAvg(), rounds), nodes, 1)
    before, nodes.left = (tmp_path / "state").read_bytes(), 1
    told = r"1 of 16 connected nodes sent a client id within 0 s, but a round needs 2 .* no round was spent"
    with pytest.raises(InvalidParticipation, match=told):
        trained(CorrelatedNoise(FedAvg(), rounds, seconds=0.0), nodes, 1)
    with pytest.raises(InvalidParticipation, match=r"1 of .* a round needs 3"):
        trained(CorrelatedNoise(FedAvg(min_train_nodes=3), rounds, seconds=0.0), nodes, 1)
    twice = CorrelatedNoise(FedAvg(min_available_nodes=4), rounds).strategy  # by a notebook's cell that ran before
    with pytest.raises(InvalidParticipation, match=r"1 of .* a round needs 4"):
        trained(CorrelatedNoise(twice, rounds, seconds=0.0), nodes, 1)
    assert rounds.step == 1 and (tmp_path / "state").read_bytes() == before and len(nodes.asked) == 1
    nodes.left = 5
    trained(CorrelatedNoise(FedAvg(), rounds), nodes, 1)
    assert rounds.step == 2 and set(nodes.asked[1]) <= {1, 2, 3, 4, 5}


def test_who_has_no_id_of_its_own_is_refused_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Nodes):
        def named(self, message: Message) -> Message:
            node = message.metadata.dst_node_id
            ids: dict[int, Any] = {1: {}, 2: {"client-id": ""}, 3: {"client-id": 1.5}, 5: {"client-id": "phone-4"}}
            ids |= {7: {"client-id": True}, 8: {"client-id": b"phone-8"}, 9: {"client-id": "phone-4\n"}}
            if node == 6:
                return Message(Error(0, "no such query"), reply_to=message)
            if node in ids:
                return Message(RecordDict({"config": ConfigRecord(ids[node])}), reply_to=message)
            return super().named(message)

    rounds, receipt = rounds_in(tmp_path, clients_a_round=CLIENTS)
    nodes = Odd()
    trained(CorrelatedNoise(FedAvg(), rounds, client_id="client-id"), nodes, 1)
    assert nodes.asked == [[4, *range(10, CLIENTS + 1)]]
    assert rounds.refused == {"no client id": 7, "same client id": 1}
    assert (
        all(f"'node {node}'" in caplog.text for node in (1, 2, 3, 6, 7, 8, 9)) and "'phone-4' as node 4" in caplog.text
    )
    receipt.close()
    assert json.loads((tmp_path / "receipt.json").read_bytes())["steps"]["refused"] == rounds.refused


def test_why_the_apps_of_clients_failed_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A mod for a whole app fails in the query, which has no arrays; one without its strategy fails in training."""
    mod = LocalDpMod(1.0, 1.0, 5.0, 1e-5)
    whole = ClientApp(mods=[mod])
    whole.query("client_id")(client_id)

    class Modified(Nodes):
        def named(self, message: Message) -> Message:
            return whole(message, Context(1, 1, {"client-id": "phone"}, RecordDict(), {}))

    rounds, _ = rounds_in(tmp_path)
    told = r"node 1: it sent no valid client-id: its app failed: LocalDpMod .* no round was spent"
    with pytest.raises(InvalidParticipation, match=told):
        trained(CorrelatedNoise(FedAvg(), rounds, seconds=0.0), Modified(), 1)
    trained(CorrelatedNoise(FedAvg(), rounds), Nodes(lambda *_: Error(0, "no key 'clipping_norm'")), 1)
    assert "counts as zeros, since its app failed: no key 'clipping_norm'" in caplog.text
    assert rounds.step == 1 and rounds.refused == {"no client id": CLIENTS}


def test_a_run_keeps_the_kind_of_its_ids(tmp_path: Path) -> None:
    """Timers of `node 7` do not hold for `phone-7`."""
    rounds, _ = rounds_in(tmp_path)
    trained(CorrelatedNoise(FedAvg(), rounds), Nodes(), 1)
    rounds.stop()
    rounds, _ = rounds_in(tmp_path)
    with pytest.raises(InvalidParameter, match="client ids from 'client-id', not 'authenticated_node'"):
        CorrelatedNoise(FedAvg(), rounds, client_id=authenticated_node)


def test_no_round_is_spent_before_clients_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = Nodes()
    monkeypatch.setattr(late, "get_node_ids", lambda: [])
    monkeypatch.setattr(strategy_utils, "sleep", lambda _: monkeypatch.delattr(late, "get_node_ids"))
    trained(CorrelatedNoise(FedAvg(), rounds_in(tmp_path)[0]), late, 1)
    assert len(late.asked[0]) == PLANNED
