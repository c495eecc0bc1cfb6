"""Receipts of small runs of every kind, with the bytes of their factor files and what is true of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import factorize
from factorize.accounting import calibrate_sampling
from factorize.accounting.amplification import calibrate_amplified
from factorize.accounting.joint_moments import calibrate_moments
from factorize.encoding import canonical_json, json_digest
from factorize.privacy import BestOf, PrivacyTarget
from factorize.training.auditor import ParticipationAuditor
from factorize.training.bins_audit import BinsAuditor
from factorize.training.orders import balls_in_bins, fixed_order, random_allocation
from factorize.training.receipt import Receipt
from factorize.training.sampling import BMinSep
from factorize.training.statement import PrivacyStatement

KEY = bytes(range(32))
TARGET = PrivacyTarget(epsilon=2.0, delta=1e-5)
GUARANTEED = {"epsilon": 2.0, "delta": 1e-5}


@dataclass
class Run:
    """A run: the receipt's text, the bytes of its factors, their sensitivity, and each C, shape (12, 12); one column without end."""

    text: bytes
    files: list[bytes]
    sensitivity: float
    matrices: list[np.ndarray]

    @property
    def document(self) -> dict[str, Any]:
        return dict(json.loads(self.text))


def taken(
    folder: Path,
    factors: list[Any],
    calibration: Any,
    auditor: Any,
    batches: Any,
    *,
    moments: Any = None,
    others: dict[str, float] | None = None,
    trials: int | BestOf = 1,
    users: int | None = None,
) -> Run:
    """Take the steps of a run, and return what is then on the disk."""
    statement = PrivacyStatement(
        calibration,
        factors[0].digest,
        steps=factors[0].steps,
        examples=24,
        used=24,
        sampling=calibration.sampling,
        unit="example" if users is None else "user",
        moments=moments,
        users=users,
    )
    receipt = Receipt(folder / "receipt.json", others=others, trials=trials)
    receipt.begin(statement, factors, auditor, generator="sfc64", dtype="float32")
    for batch in batches:
        auditor.record(batch)
    receipt.close()
    files = []
    for place, each in enumerate(factors):
        each.save(folder / f"{place}.safetensors")
        files.append((folder / f"{place}.safetensors").read_bytes())
    endless = (0.9 ** np.arange(400) * np.cumprod([1.0, *((k - 0.5) / k for k in range(1, 400))]))[:, None]
    matrices = [endless if each.endless else np.array(each.C) for each in factors]
    return Run(receipt.path.read_bytes(), files, factors[0].sensitivity.value, matrices)


def in_fixed_order(folder: Path, adjacency: str = "zero_out", **others: Any) -> Run:
    factors = factorize.solve("prefix", n=12, epochs=3, mechanism="buffered_linear", buffers=2)
    calibration = factors.calibrate(epsilon=2.0, delta=1e-5, divisor=6, adjacency=adjacency)
    auditor = ParticipationAuditor.of(calibration, 12)
    return taken(folder, [factors], calibration, auditor, fixed_order(24, 6, epochs=3, seed=1), **others)


def with_others(folder: Path) -> Run:
    return in_fixed_order(folder, "replace_one", others={"probe": 0.3, "pilot": 0.1})


def best_of_many(folder: Path) -> Run:
    return in_fixed_order(folder, others={"probe": 0.3}, trials=BestOf(5.0))


def apart(folder: Path) -> Run:
    factors = factorize.solve("prefix", n=12, mechanism="toeplitz", min_sep=4, max_participations=2)
    calibration = factors.calibrate(epsilon=2.0, delta=1e-5)
    batches = [[step % 8] for step in range(12)]
    return taken(folder, [factors], calibration, ParticipationAuditor.of(calibration, 12), batches)


def in_bins(folder: Path) -> Run:
    factors = factorize.solve("prefix", n=12, epochs=3, mechanism="blt", buffers=1)
    calibration = factors.calibrate(epsilon=2.0, delta=1e-5, sampling="balls_in_bins", bins=4)
    order = balls_in_bins(24, 4, 3, KEY)
    return taken(folder, [factors], calibration, BinsAuditor.of(order), order)


def drawn_anew(folder: Path) -> Run:
    factors = factorize.solve("prefix", n=12, epochs=3, mechanism="identity")
    calibration = factors.calibrate(epsilon=2.0, delta=1e-5, sampling="random_allocation", bins=4)
    order = random_allocation(24, 4, 3, KEY)
    return taken(folder, [factors], calibration, BinsAuditor.of(order), order)


def of_both_moments(folder: Path) -> Run:
    first, second = (factorize.solve("prefix", n=12, epochs=3, mechanism=kind) for kind in ("dense", "identity"))
    moments = calibrate_moments(first, second, TARGET, divisor=6)
    auditor = ParticipationAuditor.of(moments.first, 12)
    batches = fixed_order(24, 6, epochs=3, seed=1)
    return taken(folder, [first, second], moments.first, auditor, batches, moments=moments)


def sampled_by_poisson(folder: Path) -> Run:
    factors = factorize.solve("prefix", n=12, mechanism="banded", bands=2, min_sep=2)
    calibration = calibrate_amplified(factors, epsilon=2.0, delta=1e-5, dataset_size=24, batch_size=6)
    auditor = ParticipationAuditor.of(calibration, 12)
    return taken(folder, [factors], calibration, auditor, [[step % 2] for step in range(12)])


def apart_at_random(folder: Path) -> Run:
    factors = factorize.solve("prefix", n=12, mechanism="banded", bands=2, min_sep=2)
    sizes = {"dataset_size": 24, "batch_size": 6}
    calibration = calibrate_sampling(factors, TARGET, sampling="b_min_sep", **sizes)
    auditor = ParticipationAuditor.of(calibration, 12)
    return taken(folder, [factors], calibration, auditor, BMinSep(24, calibration, steps=12, seed=1 << 70))


def in_one_epoch(folder: Path) -> Run:
    factors = factorize.solve("prefix", n=12, mechanism="dense")
    calibration = factors.calibrate(epsilon=2.0, delta=1e-5)
    auditor = ParticipationAuditor.of(calibration, 12)
    return taken(folder, [factors], calibration, auditor, [[2 * step, 2 * step + 1] for step in range(12)])


def by_users(folder: Path) -> Run:
    factors = factorize.solve("prefix", n=12, epochs=3, mechanism="dense")
    calibration = factors.calibrate(epsilon=2.0, delta=1e-5)
    auditor = ParticipationAuditor.of(calibration, 12, users=[f"user {i % 12}" for i in range(24)])
    batches = [[3 * (step % 4) + 12 * (step // 4 % 2) + place for place in range(3)] for step in range(12)]
    return taken(folder, [factors], calibration, auditor, batches, users=12)


def without_end(folder: Path) -> Run:
    factors = factorize.solve("prefix", n="unbounded", mechanism="nu_toeplitz", nu=0.1)
    calibration = factors.calibrate(epsilon=2.0, delta=1e-5)
    auditor = ParticipationAuditor.of(calibration, 1 << 40)
    return taken(folder, [factors], calibration, auditor, [[step] for step in range(12)])


KINDS = [
    *(in_fixed_order, with_others, apart, in_bins, drawn_anew, sampled_by_poisson, of_both_moments),
    *(in_one_epoch, by_users, without_end, best_of_many, apart_at_random),
]


def signed(document: dict[str, Any]) -> bytes:
    """Return the bytes of a receipt whose digest is its own."""
    held = {name: value for name, value in document.items() if name != "digest"}
    return canonical_json({**held, "digest": json_digest(held)})
