"""A model, a fleet and the rounds that the tests of both frameworks drive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from factorize import Factorization, Spec, solvers
from factorize.adapters.federated import FederatedRounds
from factorize.checker.receipt import check_receipt
from factorize.privacy import PrivacyTarget
from factorize.training.receipt import Receipt

N, SEPARATION, PLANNED, CLIENTS, CLIP = 6, 3, 4, 16, 0.5
MODEL = {"weights": np.ones((2, 3), np.float32), "bias": np.zeros(3, np.float32)}


def factors() -> Factorization:
    apart = {"kind": "min_sep", "min_sep": SEPARATION, "max_participations": 2}
    spec = {"workload": {"kind": "prefix", "n": N}, "participation": apart, "mechanism": {"kind": "blt", "buffers": 1}}
    return solvers.solve(Spec.model_validate(spec))


def rounds_in(folder: Path, **options: Any) -> tuple[FederatedRounds, Receipt]:
    folder.mkdir(exist_ok=True)
    receipt = Receipt(folder / "receipt.json")
    settings: dict[str, Any] = {"clients": CLIENTS, "clients_a_round": PLANNED, "clip_norm": CLIP, "seed": 1 << 90}
    target = PrivacyTarget(epsilon=4.0, delta=1e-5)
    model = list(MODEL.values())
    rounds = FederatedRounds(folder / "state", factors(), target, model, receipt=receipt, **{**settings, **options})
    return rounds, receipt


def assert_proved(folder: Path, receipt: Receipt) -> None:
    """Close a receipt of `rounds_in`, and check all of it against the factors."""
    receipt.close()
    factors().save(folder / "factors.safetensors")
    report = check_receipt((folder / "receipt.json").read_bytes(), [(folder / "factors.safetensors").read_bytes()])
    assert report.supported and not report.unseen, (report.failed, report.unseen)


def update(client: object, step: int) -> dict[str, np.ndarray]:
    """Return what a client answers in a round, the same whenever it is asked."""
    rng = np.random.default_rng([step, int(str(client))])
    return {name: rng.standard_normal(array.shape).astype(array.dtype) for name, array in MODEL.items()}
