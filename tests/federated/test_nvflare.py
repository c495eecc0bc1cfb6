"""The components in NVFlare: its own filter, models and workflow loop, driven in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from fleet import CLIENTS, CLIP, MODEL, PLANNED, SEPARATION, N, assert_proved, rounds_in, update
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.fuel.utils import fobs
from nvflare_job import FULL, KILLED

from factorize.adapters.federated import FederatedRounds
from factorize.adapters.nvflare import ClippedUpdates, CorrelatedAggregator, CorrelatedFedAvg
from factorize.errors import InvalidParameter, InvalidParticipation


def context(step: int) -> FLContext:
    found = FLContext()
    found.set_prop(AppConstants.CURRENT_ROUND, step, private=True, sticky=False)
    return found


def answer(client: int, step: int, **changes: Any) -> FLModel:
    given: dict[str, Any] = {"params": update(client, step), "params_type": ParamsType.DIFF}
    return FLModel(current_round=step, **{"meta": {"client_name": str(client)}, **given, **changes})


def shareable(client: int, model: FLModel) -> Shareable:
    """Return an answer as the server gets it: NVFlare knows who sent it, and the round that was asked for."""
    found = FLModelUtils.to_shareable(model)
    found.set_peer_props({ReservedKey.IDENTITY_NAME: str(client)})
    found.add_cookie(AppConstants.CONTRIBUTION_ROUND, model.current_round)
    return found


def aggregated(aggregator: CorrelatedAggregator, step: int, clients: list[int]) -> dict[str, np.ndarray]:
    """Return what a round of NVFlare's scatter and gather makes of answers."""
    aggregator.reset(context(step))
    for client in clients:
        aggregator.accept(shareable(client, answer(client, step)), context(step))
    dxo = from_shareable(aggregator.aggregate(context(step)))
    assert dxo.data_kind == DataKind.WEIGHT_DIFF
    return dxo.data


def turn(step: int) -> list[int]:
    return [step % 4 * PLANNED + i for i in range(PLANNED)]


def test_a_restarted_server_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    rounds, _ = rounds_in(tmp_path / "whole")
    whole = [aggregated(CorrelatedAggregator(rounds, list(MODEL)), step, turn(step)) for step in range(N)]
    rounds, _ = rounds_in(tmp_path / "killed")
    parts = [aggregated(CorrelatedAggregator(rounds, list(MODEL)), step, turn(step)) for step in range(3)]
    rounds.stop()
    rounds, _ = rounds_in(tmp_path / "killed")
    aggregator = CorrelatedAggregator(rounds, list(MODEL))
    again = aggregated(aggregator, 2, [15])  # it was killed before it saved the model: with other answers
    assert all(again[name].tobytes() == parts[2][name].tobytes() for name in MODEL) and rounds.step == 3
    parts += [aggregated(aggregator, step, turn(step)) for step in range(3, N)]
    assert all(a[name].tobytes() == b[name].tobytes() for a, b in zip(whole, parts, strict=True) for name in MODEL)
    with pytest.raises(InvalidParticipation, match="set its start_round to 6"):
        aggregated(aggregator, 1, [])


def test_what_is_wrong_is_refused_and_the_round_goes_on(tmp_path: Path) -> None:
    rounds, _ = rounds_in(tmp_path)
    aggregator = CorrelatedAggregator(rounds, list(MODEL))
    aggregated(aggregator, 0, [0])
    nan = {**update(4, 1), "bias": np.full(3, np.nan, np.float32)}
    for wrong in (
        *(
            answer(0, 1),
            answer(1, 1),
            answer(1, 1),
            answer(4, 1, params=nan),
            answer(5, 1, params_type=ParamsType.FULL),
        ),
        *(answer(6, 1, params={"bias": MODEL["bias"]}), answer(7, 0)),
        answer(8, 1, params=MODEL["weights"]),
    ):
        aggregator.accept_model(wrong)
    assert rounds.refused == {"too early": 1, "not admitted": 1, "twice": 1, "not finite": 1, "shape": 3}
    aggregator.fl_ctx = context(1)
    aggregator.aggregate_model()
    assert rounds.step == 2


def test_whole_weights_count_as_what_training_has_changed(tmp_path: Path) -> None:
    rounds, _ = rounds_in(tmp_path / "whole")
    aggregator = CorrelatedAggregator(rounds, list(MODEL))
    aggregator.model = list(MODEL.values())
    trained = {name: MODEL[name] + array for name, array in update(0, 0).items()}
    for client, params in enumerate((trained, {**trained, "bias": np.float32(1.0)}, {**trained, "bias": "text"})):
        aggregator.accept_model(answer(client, 0, params=params, params_type=ParamsType.FULL))
    aggregator.fl_ctx = context(0)
    found = aggregator.aggregate_model().params
    alone, _ = rounds_in(tmp_path / "alone")
    alone.admit(["0"])
    alone.add("0", [trained[name] - MODEL[name] for name in MODEL])
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found.values(), alone.close(), strict=True))
    assert rounds.refused == {"shape": 2}


def test_what_the_aggregator_does_not_name_is_left_out_of_answers(tmp_path: Path) -> None:
    """As counters of batch norm, which a client of torch sends with the rest of its state."""
    found = []
    for name, more in (("with", {"num_batches_tracked": np.array(7)}), ("without", {})):
        rounds, _ = rounds_in(tmp_path / name)
        aggregator = CorrelatedAggregator(rounds, list(MODEL))
        aggregator.model = list(MODEL.values())
        own: dict[str, Any] = update(0, 0)
        if more:  # a tensor that NVFlare has left on the disk
            own["bias"] = SimpleNamespace(materialize=own["bias"].copy)
        aggregator.accept_model(answer(0, 0, params={**own, **more}))
        aggregator.accept_model(answer(1, 0, params={**update(1, 0), **more}, params_type=ParamsType.FULL))
        assert not rounds.refused
        found.append([part.tobytes() for part in aggregator.aggregate_model().params.values()])
    assert found[0] == found[1]


def test_settings_that_make_no_workflow_are_refused(tmp_path: Path) -> None:
    aggregator: Any = CorrelatedAggregator(rounds_in(tmp_path)[0], list(MODEL))
    for given, said in (
        ({"aggregator": "aggregator"}, r"aggregator is of type str; give CorrelatedAggregator"),
        ({"aggregator": aggregator, "seconds": None}, "seconds is of type NoneType.*give 0 to wait for all"),
    ):
        with pytest.raises(InvalidParameter, match=said):
            CorrelatedFedAvg(**given)
    for clip_norm in (0.0, -1.0, float("nan"), "1"):
        with pytest.raises(InvalidParameter, match="clip_norm"):
            ClippedUpdates(clip_norm)  # type: ignore[arg-type]


def test_a_client_has_the_name_that_nvflare_knows(tmp_path: Path) -> None:
    aggregator = CorrelatedAggregator(rounds_in(tmp_path)[0], list(MODEL))
    first, second = answer(1, 0, meta={"client_name": "2"}), answer(1, 0, meta={"client_name": "3"})
    assert aggregator.accept(shareable(1, first), context(0)) and not aggregator.accept(
        shareable(1, second), context(0)
    )
    failed, nameless = shareable(4, answer(4, 0)), FLModelUtils.to_shareable(answer(5, 0))
    failed.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
    assert not aggregator.accept(failed, context(0)) and not aggregator.accept(nameless, context(0))
    empty = Shareable()
    empty.set_peer_props({ReservedKey.IDENTITY_NAME: "6"})
    ragged = shareable(7, answer(7, 0, params={"weights": [[1.0], [1.0, 2.0]], "bias": MODEL["bias"]}))
    assert not aggregator.accept(empty, context(0)) and not aggregator.accept(ragged, context(0))
    assert aggregator.rounds.refused == {"twice": 1, "shape": 2} and aggregator.rounds.eligible(["1", "4"]) == [
        "1",
        "4",
    ]
    aggregator.aggregate(context(0))
    assert aggregator.rounds.eligible(["1", "2", "4", "6", "7"]) == ["2", "4"]


class Workflow(CorrelatedFedAvg):
    """NVFlare's loop over clients that answer at once, of whom one crashes in each round."""

    def prepare(self) -> None:
        self.engine = SimpleNamespace(get_clients=lambda: [SimpleNamespace(name=str(i)) for i in range(CLIENTS)])
        self.fl_ctx, self.abort_signal, self.asked = FLContext(), SimpleNamespace(triggered=False), list[list[str]]()
        self.saved, self.told = list[FLModel](), list[dict[str, Any]]()

    def broadcast(self, task: Task, fl_ctx: FLContext, targets: list[str], **_: Any) -> None:
        assert targets and task.timeout == 60, "nobody would be everybody, and who never answers would hold the round"
        self.asked.append(targets)
        self.told.append(from_shareable(task.data).meta)
        for client in targets:
            step = task.data.get_header(AppConstants.CURRENT_ROUND)
            sent = ClientTask(Client(client, ""), task)
            sent.result = FLModelUtils.to_shareable(answer(int(client), step))
            if client == targets[0]:
                sent.result.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
            task.result_received_cb(client_task=sent, fl_ctx=fl_ctx)

    def get_num_standing_tasks(self) -> int:
        return 0

    def event(self, *_: Any, **__: Any) -> None:
        pass

    fire_event_with_data = event

    def panic(self, reason: str) -> None:
        raise AssertionError(reason)

    def save_model(self, model: FLModel) -> None:
        self.told.append(model.meta)
        self.saved.append(FLModel(params={name: array.copy() for name, array in model.params.items()}))


def workflow_of(rounds: FederatedRounds, model: dict[str, np.ndarray] = MODEL, **options: Any) -> Workflow:
    aggregator = CorrelatedAggregator(rounds, list(MODEL))
    workflow = Workflow(aggregator=aggregator, model=dict(model), seconds=60, **options)
    workflow.prepare()
    return workflow


def test_the_workflow_asks_whom_the_timers_allow(tmp_path: Path) -> None:
    rounds, _ = rounds_in(tmp_path, clients_a_round=7)
    workflow = workflow_of(rounds)
    workflow.run()
    assert [len(asked) for asked in workflow.asked] == [7, 7, 2, 7, 7, 2] and not rounds.refused
    assert len(workflow.saved) == rounds.step == N
    for client in map(str, range(CLIENTS)):
        turns = [step for step, asked in enumerate(workflow.asked) if client in asked]
        assert len(turns) <= 2 and all(np.diff(turns) >= SEPARATION)
    last = workflow.saved[-1].params["weights"] - workflow.saved[-2].params["weights"]
    assert rounds.last is not None and np.allclose(last, rounds.last[1][0], atol=1e-6)
    last_model = {name: array.copy() for name, array in workflow.saved[-1].params.items()}
    rounds.stop()
    over = workflow_of(rounds_in(tmp_path, clients_a_round=7)[0])  # a server that was killed before it saved the model
    over.run()
    assert [*over.saved[0].params] == list(MODEL) and not over.asked
    assert all(np.allclose(over.saved[0].params[name], last_model[name], atol=1e-6) for name in MODEL)
    told = {name for meta in workflow.told for name in meta}
    assert told == {AppConstants.CURRENT_ROUND}, "who answered has no noise, and nobody is told how many"


class Plain(Workflow):
    """The loop of NVFlare's own `FedAvg`, over the same clients."""

    def __init__(self, **settings: Any) -> None:
        FedAvg.__init__(self, num_clients=PLANNED, num_rounds=1, **settings)

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        return FedAvg.sample_clients(self, num_clients)

    send_model, update_model = FedAvg.send_model, FedAvg.update_model


def test_the_workflow_of_nvflare_itself_is_refused_before_a_client_is_asked(tmp_path: Path) -> None:
    """It sends the number of answers to all, and its clients' whole weights would count as zeros."""
    rounds, _ = rounds_in(tmp_path)
    workflow = Plain(aggregator=CorrelatedAggregator(rounds, list(MODEL)), model=dict(MODEL))
    workflow.prepare()
    with pytest.raises(InvalidParameter, match=r"number of answers.*nobody was asked. Use CorrelatedFedAvg"):
        workflow.run()
    assert rounds.step == 0 and not rounds.known and not workflow.asked


def test_a_workflow_without_a_model_is_told_where_it_comes_from(tmp_path: Path) -> None:
    rounds, _ = rounds_in(tmp_path)
    workflow = workflow_of(rounds, {})
    with pytest.raises(InvalidParameter, match=r"no parameters \['bias', 'weights'\]; .* model= or a persistor"):
        workflow.run()
    assert rounds.step == 0 and not workflow.asked


class Tensor(np.ndarray):
    """An array that adds arrays of its own kind alone, as tensors of bfloat16."""

    def new_tensor(self, array: np.ndarray) -> Tensor:
        return array.view(Tensor)

    def __add__(self, other: object) -> Any:
        assert isinstance(other, Tensor)
        return super().__add__(other)


def test_what_the_rounds_do_not_train_is_in_the_model_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the counters of batch norm, which clients do not send; and the model keeps its tensors.

    NVFlare can send tensors, which its persistor of torch tells it, and here nobody else: clients would ask for ever.
    """
    told = mock.Mock()
    monkeypatch.setattr(fobs, "register", told)
    monkeypatch.setitem(sys.modules, "nvflare.app_opt.pt.decomposers", SimpleNamespace(TensorDecomposer="of torch"))
    whole = {**{name: array.view(Tensor) for name, array in MODEL.items()}, "counter": np.array(3)}
    rounds, _ = rounds_in(tmp_path)
    workflow_of(rounds, whole, num_rounds=1).run()
    told.assert_called_once_with("of torch")
    rounds.stop()
    workflow = workflow_of(rounds_in(tmp_path)[0], whole, num_rounds=1)
    workflow.run()
    assert workflow.saved[0].params["counter"] == 3 and workflow.saved[0].params.keys() == whole.keys()
    for left in (1, 0):  # and where a persistor loads the model
        workflow._rounds.stop()
        rounds, _ = rounds_in(tmp_path)
        assert rounds.last is not None
        before = rounds.last[0][1] + rounds.last[1][1]
        workflow = Workflow(aggregator=CorrelatedAggregator(rounds, list(MODEL)), seconds=60, num_rounds=left)
        workflow.prepare()
        workflow.persistor = SimpleNamespace(load=lambda _: make_model_learnable(dict(whole), {}))
        workflow.run()
        (saved,) = workflow.saved
        assert saved.params["counter"] == 3 and saved.params.keys() == whole.keys()
        assert all(isinstance(saved.params[name], Tensor) for name in MODEL)
        change = rounds.last[1][1] if left else np.zeros(3)
        assert np.allclose(saved.params["bias"], before + change, atol=1e-6)


def test_a_round_is_not_spent_on_clients_that_are_gone(tmp_path: Path) -> None:
    rounds, _ = rounds_in(tmp_path, clients_a_round=2)
    workflow = workflow_of(rounds, num_rounds=1)
    gone = {str(i) for i in range(3, CLIENTS)}
    workflow.communicator = SimpleNamespace(get_client_disconnect_time=lambda name: 1.0 if name in gone else None)
    workflow.run()
    assert set(workflow.asked[0]) <= {"0", "1", "2"} and rounds.step == 1
    gone |= {"0", "1", "2"}
    workflow.start_round = 1
    with pytest.raises(
        InvalidParticipation, match="none of the 16 clients of the job is connected.* no round was spent"
    ):
        workflow.run()
    assert rounds.step == 1 == len(workflow.asked)


def test_a_model_without_the_parameters_that_are_named_is_refused(tmp_path: Path) -> None:
    rounds, _ = rounds_in(tmp_path)
    with pytest.raises(InvalidParameter, match=r"no parameters \['bias'\]"):
        workflow_of(rounds, {"weights": MODEL["weights"]}).run()
    assert rounds.step == 0


@pytest.mark.parametrize(("option", "said"), [("num_clients", "clients_a_round"), ("start_round", "state")])
def test_what_the_rounds_know_is_not_given_again(tmp_path: Path, option: str, said: str) -> None:
    rounds, _ = rounds_in(tmp_path)
    with pytest.raises(InvalidParameter, match=rf"{option}=2 is known from the rounds .{said}.; leave it out"):
        workflow_of(rounds, **{option: 2})
    assert workflow_of(rounds, num_rounds=2).num_rounds == 2


def simulated(folder: Path) -> int:
    """Return the exit status of NVFlare's simulator on `nvflare_job`, a server and two clients in processes of their own."""
    here = Path(__file__).parent
    with (folder / "log").open("a") as log:
        command = [sys.executable, str(here / "nvflare_job.py"), str(folder)]
        environment = {**os.environ, "PYTHONPATH": str(here)}
        return subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=600, check=False).returncode


def test_the_simulator_goes_on_with_the_same_bits_after_its_server_was_killed(tmp_path: Path) -> None:
    assert simulated(tmp_path) != 0, "killed when round 3 was released and its model was not saved"
    receipt = json.loads((tmp_path / "receipt.json").read_bytes())
    assert receipt["steps"]["processes"] == [[0, KILLED + 1]]
    assert simulated(tmp_path) == 0, (tmp_path / "log").read_text()
    asked = [line.split() for line in (tmp_path / "asked").read_text().splitlines()]
    assert [int(step) for step, _ in asked] == [0, 1, 3, 4], "in rounds 2 and 5 no timer allows anybody"
    assert [name for _, name in asked[:2]] == [name for _, name in asked[2:]] and asked[0][1] != asked[1][1]

    expected, _ = rounds_in(tmp_path / "alone", clients_a_round=1)
    filter_of_clients, model = ClippedUpdates(CLIP), list(MODEL.values())
    for step in range(N):
        (name,) = expected.admit([str(step)])
        if step in (0, KILLED):
            sent = DXO(DataKind.WEIGHT_DIFF, data=update(0, step)).to_shareable()
            expected.add(name, list(from_shareable(filter_of_clients.process(sent, FLContext())).data.values()))
        if step == FULL:
            expected.add(name, [new - old for new, old in zip(update(0, step).values(), model, strict=True)])
        model = [old + change for old, change in zip(model, expected.close(), strict=True)]
    with np.load(tmp_path / "model.npz") as saved:
        assert [saved[name].tobytes() for name in MODEL] == [part.tobytes() for part in model]
    rounds, receipt_file = rounds_in(tmp_path, clients_a_round=1)
    assert rounds.step == N and not rounds.refused
    assert_proved(tmp_path, receipt_file)


def test_the_filter_clips_what_leaves_a_client() -> None:
    own, data = ClippedUpdates(CLIP), update(3, 0)
    shareable = DXO(DataKind.WEIGHT_DIFF, data=dict(data)).to_shareable()
    found = from_shareable(own.process(shareable, FLContext())).data
    norm = np.sqrt(sum(float((array**2).sum()) for array in data.values()))
    assert all(np.allclose(found[name], data[name] * CLIP / norm) and found[name].dtype == np.float32 for name in data)
    bad = DXO(DataKind.WEIGHT_DIFF, data={"bias": np.array([np.inf])}).to_shareable()
    with pytest.raises(InvalidParameter, match="NaN or infinite"):
        own.process(bad, FLContext())
