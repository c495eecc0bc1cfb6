"""The contract of doors on the rounds of a server, as Flower's strategy and NVFlare's aggregator drive them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from door_contract import (
    BATCHES,
    CLIP,
    OTHER_SEED,
    RULES,
    SEED,
    SIZE,
    Door,
    Mistake,
    N,
    check,
    check_more,
    factors,
    of_going_back,
    take_a_step,
)
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from factorize.adapters.federated import FederatedRounds
from factorize.adapters.flower import CorrelatedNoise
from factorize.adapters.nvflare import CorrelatedAggregator, CorrelatedFedAvg
from factorize.errors import InvalidParticipation
from factorize.privacy import PrivacyTarget
from factorize.training.receipt import Receipt

pytestmark = pytest.mark.single_use
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as of a server app's process
MODEL = {"weights": np.ones((2, 2), np.float32), "bias": np.zeros(2, np.float32)}
CLIENTS = BATCHES * SIZE + 1


@dataclass
class Run:
    """A server, and what it is driven by."""

    rounds: FederatedRounds
    driver: Any


class Rounds(Door):
    """What both adapters drive. An update that is refused counts as zeros, and the round goes on."""

    not_here = {
        "mixing_loss": "a client computes its own update and is the unit of privacy; the server sees no loss",
        "partial_optimizer": "the noise is on the whole update, and the server's optimizer sees nothing else",
        "narrow": "right: an update in half precision is clipped and summed in float64",
    }
    wrong: ClassVar[dict[str, dict[str, np.ndarray]]] = {
        "not_real": {name: array + 1j for name, array in MODEL.items()},
        "wrong_rows": {"weights": np.ones((3, 2), np.float32), "bias": MODEL["bias"]},
    }
    reasons: ClassVar[dict[str, str]] = {"not_real": "type", "wrong_rows": "shape"}

    def begin(
        self,
        folder: Path,
        *,
        seed: int = SEED,
        name: str = "one",
        clip: float = CLIP,
        state: Any = None,
        **options: Any,
    ) -> Run:
        folder.mkdir(parents=True, exist_ok=True)
        if state is not None:
            (folder / "state").write_bytes(state)
        target = options.pop("target", PrivacyTarget(epsilon=4.0, delta=1e-5))
        settings: dict[str, Any] = {"clients": CLIENTS, "clients_a_round": SIZE + 1, **options}
        model = list(MODEL.values())
        held = factors(name, "min_sep")
        rounds = FederatedRounds(folder / "state", held, target, model, clip_norm=clip, seed=seed, **settings)
        return Run(rounds, self.driver(rounds))

    @abstractmethod
    def driver(self, rounds: FederatedRounds) -> Any:
        """Return the framework's part of a server."""

    @abstractmethod
    def round(self, run: Run, updates: dict[int, dict[str, np.ndarray]]) -> None:
        """Have a round with the updates of these clients."""

    def step(self, run: Run) -> bytes:
        return self._released(run, {})

    def taken(self, run: Run) -> int:
        return run.rounds.step

    def saved(self, run: Run) -> bytes:
        return run.rounds.path.read_bytes()

    def secrets(self, run: Run) -> list[Any]:
        return [run.rounds]

    def end(self, run: Run) -> None:
        run.rounds._noise.close()  # for these tests alone, which compare the bits of two runs
        run.rounds.stop()

    def mistaken(self, run: Run, name: str, words: str) -> bytes:
        """The client that is in no other round answers wrongly, beside those that answer as they should."""
        found = self._released(run, {CLIENTS: self.wrong[name]})
        assert run.rounds.refused == {self.reasons[name]: 1}
        return found

    def more(self) -> dict[str, Mistake]:
        return {
            "a client that comes back under another id": Mistake("refused", self._renamed, "fleet is full"),
            'a client that is 7 in one round and "7" in another': Mistake(
                "refused", self._retyped, "another type of id"
            ),
            "an id in another Unicode form": Mistake("right", self._composed),
            "a client's second answer in a round": Mistake("refused", self._twice, "twice"),
            "clients that are gone when a round begins": Mistake("refused", self._gone, "no round was spent"),
            "an example whose gradient is not finite": Mistake("right", self._infinite),
            "numbers of examples and metrics that clients send": Mistake("right", self._weighted),
            "a receipt of another run": Mistake("refused", self._receipt, "receipt of another run"),
            "a second server on one state": Mistake("refused", self._second_server, "already continues"),
            **of_going_back(self, self._go_back),
            "a state older than the receipt": Mistake("refused", self._old_state, "the receipt has 2 rounds"),
            "a server that is killed in a round": Mistake("right", self._killed),
            "an epsilon above 20, or a delta above 1/examples": Mistake("said", self._weak),
            "updates that nobody clipped": Mistake("right", self._unclipped),
            "a model of other shapes than the rounds were made for": Mistake("refused", self._other_model, "shapes"),
            "more rounds than are left": Mistake("refused", self._many, f"past n={N}"),
            "one text for a list of clients": Mistake(
                "refused", lambda folder: self.begin(folder).rounds.admit("phone-7"), "is one text"
            ),
            "an old state, or the same seed in another folder, without a receipt": Mistake("said", self._no_receipt),
            "a person whose data two clients have, and clients that pass on what others sent": Mistake(
                "believed", self._together
            ),
        }

    @abstractmethod
    def _other_model(self, folder: Path) -> None:
        """Ask for a round of another model, where nobody is."""

    @abstractmethod
    def _many(self, folder: Path) -> None:
        """Ask for a round more than n."""

    @abstractmethod
    def _gone(self, folder: Path) -> None:
        """Begin a round when nobody is there."""

    def _counted(self, run: Run) -> None:
        """Raise what the server counted, which is all that a client hears of."""
        raise InvalidParticipation(f"{dict(run.rounds.refused)}: counted by reason")

    def _renamed(self, folder: Path) -> None:
        run = self.begin(folder)
        run.rounds.admit(range(CLIENTS))
        run.rounds.close()
        run.rounds.admit([CLIENTS + 1])
        self._counted(run)

    def _retyped(self, folder: Path) -> None:
        run = self.begin(folder)
        run.rounds.admit([7])
        run.rounds.admit(["7"])
        self._counted(run)

    def _composed(self, folder: Path) -> None:
        run = self.begin(folder)
        assert run.rounds.admit(["t\u00e9l", "te\u0301l"]) == 2 * run.rounds.known

    def _twice(self, folder: Path) -> None:
        run = self.begin(folder)
        run.rounds.admit([7])
        assert run.rounds.add(7, list(MODEL.values())) and not run.rounds.add(7, list(MODEL.values()))
        self._counted(run)

    def _infinite(self, folder: Path) -> None:
        run = self.begin(folder / "one")
        found = self._released(run, {CLIENTS: {name: np.full_like(array, np.inf) for name, array in MODEL.items()}})
        self.end(run)
        assert run.rounds.refused == {"not finite": 1} and found == self.step(self.begin(folder / "two"))

    def _weighted(self, folder: Path) -> None:
        """Both drivers of these tests give the clients different numbers of examples, and the sum has equal weights."""
        run = self.begin(folder)
        self._released(run, {})
        self.end(run)
        assert run.rounds.last is not None
        noise = self.begin(folder / "alone").rounds
        noise.admit([1, 2])
        for client in (1, 2):
            noise.add(client, list(MODEL.values()))
        assert [part.tobytes() for part in noise.close()] == [part.tobytes() for part in run.rounds.last[1]]

    def _receipt(self, folder: Path) -> None:
        self.begin(folder / "one", receipt=Receipt(folder / "receipt.json"))
        take_a_step(folder / "receipt.json")
        self.begin(folder / "two", clip=2 * CLIP, receipt=Receipt(folder / "receipt.json"))

    def _second_server(self, folder: Path) -> None:
        self.begin(folder)
        self.begin(folder, seed=OTHER_SEED)

    def _go_back(self, run: Run, state: bytes) -> None:
        run.rounds.stop()
        self.begin(run.rounds.path.parent, state=state)

    def _old_state(self, folder: Path) -> None:
        run = self.begin(folder, receipt=Receipt(folder / "receipt.json"))
        self.step(run)
        old = self.saved(run)
        self.step(run)
        self.end(run)
        self.begin(folder, state=old, receipt=Receipt(folder / "receipt.json"))

    def _killed(self, folder: Path) -> None:
        run = self.begin(folder / "killed")
        first = self.step(run)
        run.rounds.admit([3, 4])
        self.end(run)
        run = self.begin(folder / "killed")
        found = [first, self.step(run)]
        self.end(run)
        whole = self.begin(folder / "whole")
        assert found == [self.step(whole), self.step(whole)]
        self.end(whole)

    def _unclipped(self, folder: Path) -> None:
        """One client moves the sum by the clip norm, however long its update is."""
        means = []
        for name, times in (("one", 1), ("two", 1e30)):
            run = self.begin(folder / name)
            run.rounds.admit([1])
            run.rounds.add(1, [times * array for array in MODEL.values()])
            means.append(np.concatenate([part.ravel() for part in run.rounds.close()]))
            self.end(run)
        assert np.allclose(means[0], means[1], atol=1e-6)

    def _no_receipt(self, folder: Path) -> None:
        assert "there is no receipt" in str(self.begin(folder / "one").rounds.statement)
        held = self.begin(folder / "two", seed=OTHER_SEED, receipt=Receipt(folder / "receipt.json"))
        assert "no receipt" not in str(held.rounds.statement)

    def _together(self, folder: Path) -> None:
        run = self.begin(folder)
        self._released(run, {CLIENTS: MODEL})
        assert not run.rounds.refused

    def _weak(self, folder: Path) -> None:
        run = self.begin(folder, target=PrivacyTarget(epsilon=30.0, delta=0.5))
        assert "epsilon 30 is above 20" in str(run.rounds.statement) and "delta 0.5 is" in str(run.rounds.statement)

    def _released(self, run: Run, more: dict[int, dict[str, np.ndarray]]) -> bytes:
        first = run.rounds.step % BATCHES * SIZE
        self.round(run, {client: MODEL for client in range(first + 1, first + SIZE + 1)} | more)
        assert run.rounds.last is not None
        return b"".join(part.tobytes() for part in run.rounds.last[1])


def record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


class Nodes(Grid):
    """Nodes that answer with an update each."""

    def __init__(self, updates: dict[int, dict[str, np.ndarray]]) -> None:
        self.updates = updates

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [self.answer(message) for message in messages]

    def answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if message.metadata.message_type == "query.client_id":
            return Message(RecordDict({"config": ConfigRecord({"client-id": node})}), reply_to=message)
        update = self.updates[node]
        fits = update["weights"].shape == MODEL["weights"].shape
        model = record({name: array + update[name] if fits else update[name] for name, array in MODEL.items()})
        content = {"arrays": model, "metrics": MetricRecord({"num-examples": float(node), "loss": 1.0})}
        return Message(RecordDict(content), reply_to=message)

    def get_node_ids(self) -> list[int]:
        return list(self.updates)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    run = property(set_run)

    def create_message(self, *given: Any, **more: Any) -> Message:
        raise NotImplementedError

    push_messages = pull_messages = create_message


class Gone(Nodes):
    """Nodes that are connected and do not answer."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return []


class Flower(Rounds):
    """`CorrelatedNoise` in the loop of Flower's strategies."""

    name = "Flower"
    not_here = {**Rounds.not_here, "early": "right: a client whose timer runs is not asked"}

    def driver(self, rounds: FederatedRounds) -> CorrelatedNoise:
        return CorrelatedNoise(FedAvg(), rounds)

    def more(self) -> dict[str, Mistake]:
        return {**super().more(), "a stop, or weights, by what clients measure": Mistake("right", self._weighted)}

    def _other_model(self, folder: Path) -> None:
        self.begin(folder).driver.start(Nodes({}), record({"bias": MODEL["bias"]}), num_rounds=1)

    def _many(self, folder: Path) -> None:
        self.begin(folder).driver.start(Nodes({}), record(MODEL), num_rounds=N + 1)

    def _gone(self, folder: Path) -> None:
        strategy = CorrelatedNoise(FedAvg(), self.begin(folder).rounds, seconds=0.0)
        strategy.start(Gone({1: MODEL, 2: MODEL}), record(MODEL), num_rounds=1)

    def round(self, run: Run, updates: dict[int, dict[str, np.ndarray]]) -> None:
        run.driver.start(Nodes(updates), record(MODEL), num_rounds=1)


class NVFlare(Rounds):
    """`CorrelatedAggregator`, as a workflow of NVFlare calls it."""

    name = "NVFlare"

    def more(self) -> dict[str, Mistake]:
        def stop(folder: Path) -> None:
            CorrelatedFedAvg(aggregator=self.begin(folder).driver, model=dict(MODEL), stop_cond="accuracy >= 80")

        words = "needs clients' metrics"
        return {**super().more(), "a stop, or weights, by what clients measure": Mistake("refused", stop, words)}

    def _other_model(self, folder: Path) -> None:
        workflow = CorrelatedFedAvg(aggregator=self.begin(folder).driver, model=dict(MODEL))
        workflow.send_model(data=FLModel(params={**MODEL, "bias": np.zeros(3)}), targets=["site-1"])

    def _many(self, folder: Path) -> None:
        CorrelatedFedAvg(aggregator=self.begin(folder).driver, model=dict(MODEL), num_rounds=N + 1)

    def early(self, run: Run) -> None:
        """A client of the round before answers again; the server counts what it refuses."""
        run.driver.accept_model(FLModel(params=MODEL, params_type=ParamsType.DIFF, meta={"client_name": 1}))
        self._counted(run)

    def driver(self, rounds: FederatedRounds) -> CorrelatedAggregator:
        return CorrelatedAggregator(rounds, list(MODEL))

    def _gone(self, folder: Path) -> None:
        workflow = CorrelatedFedAvg(aggregator=self.begin(folder).driver, model=dict(MODEL))
        workflow.engine = SimpleNamespace(get_clients=lambda: [SimpleNamespace(name="site-1")])
        workflow.communicator = SimpleNamespace(get_client_disconnect_time=lambda name: 1.0)
        workflow.sample_clients()

    def round(self, run: Run, updates: dict[int, dict[str, np.ndarray]]) -> None:
        run.driver.fl_ctx = FLContext()
        for client, update in updates.items():
            meta = {"client_name": client, FLMetaKey.NUM_STEPS_CURRENT_ROUND: client}
            sent = FLModel(params=update, params_type=ParamsType.DIFF, metrics={"loss": 1.0}, meta=meta)
            run.driver.accept_model(sent)
        run.driver.aggregate_model()


@pytest.mark.parametrize("door", [Flower(), NVFlare()], ids=lambda door: door.name)
def test_the_table_is_true_of_rounds(door: Door, tmp_path: Path) -> None:
    check_more(door, tmp_path)


@pytest.mark.parametrize("door", [Flower(), NVFlare()], ids=lambda door: door.name)
@pytest.mark.parametrize("rule", RULES)
def test_rounds_keep_the_contract(door: Door, rule: str, tmp_path: Path) -> None:
    check(door, rule, tmp_path)
