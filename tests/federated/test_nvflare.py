"""The components in NVFlare: its own filter, models and workflow loop, driven in this process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fleet import CLIENTS, CLIP, MODEL, PLANNED, SEPARATION, N, factors, rounds_in, update
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from factorize.adapters.nvflare import ClippedUpdates, CorrelatedAggregator, CorrelatedFedAvg
from factorize.checker.receipt import check_receipt
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


def test_a_run_is_proved_and_stops_at_its_budget(tmp_path: Path) -> None:
    rounds, receipt = rounds_in(tmp_path)
    aggregator = CorrelatedAggregator(rounds, list(MODEL))
    for step in range(N):
        assert list(aggregated(aggregator, step, turn(step))) == list(MODEL)
    with pytest.raises(InvalidParticipation, match="spends the whole budget"):
        aggregated(aggregator, N, turn(N))
    receipt.close()
    factors().save(tmp_path / "factors.safetensors")
    text = (tmp_path / "receipt.json").read_bytes()
    report = check_receipt(text, [(tmp_path / "factors.safetensors").read_bytes()])
    assert report.supported and not report.unseen, (report.failed, report.unseen)


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
    ):
        aggregator.accept_model(wrong)
    assert rounds.refused == {"too early": 1, "not admitted": 1, "twice": 1, "not finite": 1, "shape": 2}
    aggregator.fl_ctx = context(1)
    aggregator.aggregate_model()
    assert rounds.step == 2


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
    """NVFlare's loop over clients that answer at once."""

    def prepare(self) -> None:
        self.engine = SimpleNamespace(get_clients=lambda: [SimpleNamespace(name=str(i)) for i in range(CLIENTS)])
        self.fl_ctx, self.abort_signal, self.asked = FLContext(), SimpleNamespace(triggered=False), list[list[str]]()
        self.saved = list[FLModel]()

    def send_model(self, *, targets: Any, data: FLModel, callback: Any, **_: Any) -> None:
        self.asked.append(targets)
        for client in targets:
            assert callback(answer(int(client), data.current_round))

    def get_num_standing_tasks(self) -> int:
        return 0

    def event(self, *_: Any, **__: Any) -> None:
        pass

    fire_event_with_data = event

    def save_model(self, model: FLModel) -> None:
        self.saved.append(FLModel(params={name: array.copy() for name, array in model.params.items()}))


def test_the_workflow_asks_whom_the_timers_allow(tmp_path: Path) -> None:
    rounds, _ = rounds_in(tmp_path)
    aggregator = CorrelatedAggregator(rounds, list(MODEL))
    workflow = Workflow(aggregator=aggregator, model={name: array.copy() for name, array in MODEL.items()})
    workflow.prepare()
    workflow.run()
    assert len(workflow.asked) == len(workflow.saved) == rounds.step == N and not rounds.refused
    for client in map(str, range(CLIENTS)):
        turns = [step for step, asked in enumerate(workflow.asked) if client in asked]
        assert len(turns) <= 2 and all(np.diff(turns) >= SEPARATION)
    last = workflow.saved[-1].params["weights"] - workflow.saved[-2].params["weights"]
    assert rounds.last is not None and np.allclose(last, rounds.last[1][0], atol=1e-6)


def test_the_filter_clips_what_leaves_a_client() -> None:
    own, data = ClippedUpdates(CLIP), update(3, 0)
    shareable = DXO(DataKind.WEIGHT_DIFF, data=dict(data)).to_shareable()
    found = from_shareable(own.process(shareable, FLContext())).data
    norm = np.sqrt(sum(float((array**2).sum()) for array in data.values()))
    assert all(np.allclose(found[name], data[name] * CLIP / norm) and found[name].dtype == np.float32 for name in data)
    bad = DXO(DataKind.WEIGHT_DIFF, data={"bias": np.array([np.inf])}).to_shareable()
    with pytest.raises(InvalidParameter, match="not finite"):
        own.process(bad, FLContext())
