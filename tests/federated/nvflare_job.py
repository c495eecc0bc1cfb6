"""A job of NVFlare and its simulator: a server that may be killed, and clients of whom some go wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
from fleet import CLIP, MODEL, rounds_in, update
from nvflare.apis.dxo import from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorRunner

from factorize.adapters.nvflare import CorrelatedAggregator, CorrelatedFedAvg

NAN, KILLED, FULL = 1, 3, 4
"""Rounds whose client goes wrong, or whose server dies before it has saved what it released."""


class Server(CorrelatedFedAvg):
    """One client a round; the process is killed once."""

    def __init__(self, folder: str) -> None:
        rounds, self.receipt = rounds_in(Path(folder), clients_a_round=1)
        model = {name: array.copy() for name, array in MODEL.items()}
        aggregator = CorrelatedAggregator(rounds, list(MODEL))
        super().__init__(aggregator=aggregator, model=model, task_check_period=0.05)
        self.folder, self.killed = Path(folder), KILLED if rounds.step == 0 else None

    def save_model(self, model: FLModel) -> None:
        """Save the model, or die."""
        if self.current_round == self.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        np.savez(self.folder / "model.npz", **model.params)


class Phone(Executor):
    """A client that writes when it was asked, and answers by its round alone."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: Any, abort_signal: Any) -> Shareable:
        """Return a weight difference, which the filter then clips."""
        step = shareable.get_header(AppConstants.CURRENT_ROUND)
        with (self.folder / "asked").open("a") as file:
            file.write(f"{step} {fl_ctx.get_identity_name()}\n")
        assert set(from_shareable(shareable).data) == set(MODEL)
        params = {**update(0, step), **({"bias": np.full(3, np.nan, np.float32)} if step == NAN else {})}
        kind = ParamsType.FULL if step == FULL else ParamsType.DIFF
        return FLModelUtils.to_shareable(FLModel(params=params, params_type=kind, meta={"client_name": "another"}))


def main(folder: Path) -> int:
    """Run the job in NVFlare's simulator, with a process for each of two clients."""
    clipping = {"path": "factorize.adapters.nvflare.ClippedUpdates", "args": {"clip_norm": CLIP}}
    filters = [{"tasks": ["train"], "filters": [clipping]}]
    executors = [{"tasks": ["train"], "executor": {"path": "nvflare_job.Phone", "args": {"folder": str(folder)}}}]
    workflow = {"id": "rounds", "path": "nvflare_job.Server", "args": {"folder": str(folder)}}
    plain = {"format_version": 2, "task_data_filters": [], "task_result_filters": [], "components": []}
    files = {
        "meta.json": {"name": "job", "resource_spec": {}, "min_clients": 2, "deploy_map": {"app": ["@ALL"]}},
        "app/config/config_fed_server.json": {
            **plain,
            "workflows": [workflow],
            "server": {"task_request_interval": 0.1},
        },
        "app/config/config_fed_client.json": {**plain, "executors": executors, "task_result_filters": filters},
    }
    for name, document in files.items():
        path = folder / "job" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))
    (folder / "job/app/custom").mkdir(exist_ok=True)  # NVFlare trusts classes that a job brings
    shutil.copy(__file__, folder / "job/app/custom")
    return SimulatorRunner(str(folder / "job"), str(folder / "workspace"), n_clients=2, threads=2).run()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
