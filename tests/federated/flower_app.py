"""The server of an app of Flower for `flwr run`; between its rounds it waits for a SuperNode to restart."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from factorize.adapters.federated import FederatedRounds
from factorize.adapters.flower import CorrelatedNoise
from factorize.client import load
from factorize.privacy import PrivacyTarget
from factorize.training.receipt import Receipt

FOLDER = Path(os.environ["FLOWER_APP_FOLDER"])
PATIENCE_SECONDS = 600.0
server = ServerApp()


def wait_for(name: str) -> None:
    """Wait until the test has written a file."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (FOLDER / name).exists():
        assert time.monotonic() < end, name
        time.sleep(0.1)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Release two rounds, of which the only phone may be in one."""
    model = [np.zeros(3, np.float32)]
    receipt = Receipt(FOLDER / "receipt.json")
    target = PrivacyTarget(epsilon=4.0, delta=1e-5)
    settings = {"clients": 1, "clients_a_round": 1, "clip_norm": 1.0, "seed": 1 << 90}
    factors = load(FOLDER / "factors.safetensors")
    rounds = FederatedRounds(FOLDER / "state", factors, target, model, receipt=receipt, **settings)
    strategy = CorrelatedNoise(FedAvg(min_available_nodes=1, min_train_nodes=1), rounds, seconds=PATIENCE_SECONDS)
    result = strategy.start(grid, ArrayRecord({"weights": Array(model[0])}), num_rounds=1)
    (FOLDER / "first").touch()
    wait_for("restarted")
    strategy.start(grid, result.arrays, num_rounds=1)
    receipt.close()
    (FOLDER / "last").write_text(repr((rounds.step, rounds.known, dict(rounds.refused))))
