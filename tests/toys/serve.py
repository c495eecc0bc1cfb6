"""Solving, checking and training with the toys, in a process that has them: prints what it has found as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from factorize.adapters.lists import make_private

import factorize
from factorize import parse_spec, solvers
from factorize.accounting.amplification import calibrate_amplified
from factorize.adapters.jobs import FactorSource, plan, samplings_of
from factorize.checker.check import check_factor_file
from factorize.checker.receipt import check_receipt
from factorize.client import load
from factorize.errors import InvalidParticipation
from factorize.factors.certificate import certify
from factorize.factors.factor_file import load as open_file
from factorize.factors.solution import Outcome
from factorize.noise.source import source_of
from factorize.training.auditor import ParticipationAuditor
from factorize.training.job import JobBatching, JobData, JobNoise, JobPrivacy, TrainingJob
from factorize.training.receipt import Receipt

FOLDER = Path(sys.argv[1])
N = 12
SPEC: dict[str, Any] = {
    "workload": {"kind": "two_decays", "n": N, "first": 0.9, "second": 0.5},
    "participation": {"kind": "halves"},
    "mechanism": {"kind": "neighbours", "share": 0.25},
}


def by_hand() -> tuple[float, float]:
    """The sensitivity and the mean loss, from dense matrices."""
    powers = np.subtract.outer(np.arange(N), np.arange(N))
    a = np.tril(0.9 ** np.maximum(powers, 0)) @ np.tril(0.5 ** np.maximum(powers, 0))
    c = np.eye(N) + 0.25 * np.eye(N, k=-1)
    gram = np.abs(c.T @ c)
    sensitivity = max(gram[np.ix_([j, j + N // 2], [j, j + N // 2])].sum() for j in range(N // 2)) ** 0.5
    return sensitivity, sensitivity**2 * float(np.sum((a @ np.linalg.inv(c)) ** 2)) / N


def in_this_process() -> dict[str, Any]:
    """Solve, certify, check exactly, and read again."""
    found = solvers.solve(parse_spec(SPEC))
    path = FOLDER / "toys.safetensors"
    found.save(path)
    report = check_factor_file(path.read_bytes())
    again = open_file(path)
    anew = certify(again.spec, again.strategy, {}, outcome=Outcome.CLOSED_FORM)
    return {
        "digest": found.digest,
        "structure": again.strategy.structure,
        "sensitivity": [anew.sensitivity.value, anew.sensitivity.kind],
        "loss": anew.loss.objective,
        "failed": report.failed,
        "supported": report.supported,
        "unseen": report.unseen,
        "checked": report.checked,
    }


def in_training() -> dict[str, Any]:
    """Calibrate, draw noise from the last row alone, and watch who takes part."""
    factors = load(FOLDER / "toys.safetensors")
    calibration = factors.calibrate(epsilon=2.0, delta=1e-6)
    rows = list(factors.noise(calibration, 5, seed=3 << 64))
    source = source_of(factors)
    recurrence = source.recurrence()
    state, scratch = np.zeros((recurrence.vectors, N)), np.zeros((recurrence.scratch, N))
    inverse = np.eye(N)
    for step, x in enumerate(inverse):
        x *= recurrence.gain(step)
        recurrence.advance(step, x, state, scratch)
    off = float(np.abs((np.eye(N) + 0.25 * np.eye(N, k=-1)) @ inverse - np.eye(N)).max())
    auditor = ParticipationAuditor.of(calibration, N)
    auditor.record([0])
    try:
        auditor.record([0])
        refused = False
    except InvalidParticipation:
        refused = True
    return {
        "vectors": source.cost.vectors,
        "steps": len(rows),
        "off": off,
        "refused": refused,
    }


def job_of(factors: Any, seed: int) -> TrainingJob:
    """A job whose batches are drawn by a coin."""
    return TrainingJob(
        JobData(examples=24),
        JobBatching(size=6, epochs=3, sampling="coin"),
        JobPrivacy(epsilon=2.0, delta=1e-6),
        JobNoise(source=FactorSource(factors, lambda n: {}), seed=seed),
    )


def under_a_coin() -> dict[str, Any]:
    """Calibrate by name, plan a job, take its steps, and prove the receipt."""
    factors = load(FOLDER / "toys.safetensors")
    privacy = {"epsilon": 2.0, "delta": 1e-6}
    poisson = calibrate_amplified(factors, dataset_size=24, batch_size=6, divisor=6, **privacy)
    planned = plan(job_of(factors, 1 << 100), samplings_of(padded=False))
    receipt = Receipt(FOLDER / "receipt.json")
    receipt.begin(planned.statement(), planned.strategies, planned.auditor, generator="sfc64", dtype="float64")
    sizes = [len(batch) for batch in planned.order]
    for batch in planned.order:
        planned.auditor.record(batch)
    early = check_receipt(receipt.path.read_bytes(), [(FOLDER / "toys.safetensors").read_bytes()])
    receipt.close()
    report = check_receipt(receipt.path.read_bytes(), [(FOLDER / "toys.safetensors").read_bytes()])
    asked = factors.calibrate(sampling="coin", dataset_size=24, divisor=6, **privacy)
    return {
        "asked": asked == planned.calibration,
        "noise": [planned.calibration.sigma_of_sums, poisson.sigma_of_sums],
        "sizes": sizes,
        "words": str(planned.statement()),
        "early": early.failed,
        "ended": "the run has ended" in report.checked,
        "failed": report.failed,
        "supported": report.supported,
    }


def by_another_solver() -> dict[str, Any]:
    """Solve for the identity, and check that exactly."""
    found = solvers.solve({"workload": {"kind": "identity", "n": N}, "mechanism": {"kind": "dense"}})
    path = FOLDER / "unit.safetensors"
    found.save(path)
    report = check_factor_file(path.read_bytes())
    return {
        "outcome": found.manifest.solver["outcome"],
        "loss": found.certificate.loss.objective,
        "lower_bound": found.certificate.lower_bound.objective,
        "supported": report.supported,
        "unseen": report.unseen,
    }


def in_lists() -> dict[str, Any]:
    """Release sums of zero, before the auditor has seen a batch and after."""
    factors, seed, released, refused = load(FOLDER / "toys.safetensors"), 1 << 101, [], 0
    planned, noise = private = make_private(job_of(factors, seed), 3)
    for batch in planned.order:
        try:
            private.release([0.0] * 3)
        except InvalidParticipation:
            refused += 1
        planned.auditor.record(batch)
        released.append(private.release([0.0] * 3))
    noise.close()
    rows = factors.noise(planned.calibration, 3, seed=seed, auditor="not_looked_at")
    return {
        "refused": refused == len(released),
        "released": released,
        "noise": [[float(value) / 6 for value in row] for row in rows],
        "left": N - len(released),
    }


if __name__ == "__main__":
    answers = {
        "from": str(Path(factorize.__file__).parents[1]),
        "by_hand": by_hand(),
        "process": in_this_process(),
        "training": in_training(),
        "coin": under_a_coin(),
        "solver": by_another_solver(),
        "adapter": in_lists(),
    }
    print(json.dumps(answers))
