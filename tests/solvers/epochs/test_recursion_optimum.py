"""The optimum of recursions by filters over epochs: certified, with the loss of an explicit inversion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specs import spec_of

from factorize import solvers
from factorize.certificate.certificate import certify
from factorize.errors import SolveFailed
from factorize.solvers.epochs import recursions as recursion_optimum
from factorize.solvers.problem import Problem
from factorize.spec import Spec

N = 64
COOLDOWN = {"kind": "linear_cooldown", "steps": 16}  # the last rate is zero
HOLES = [1.0] * 20 + [0.0] * 4 + [0.5] * 20 + [0.0] * 8 + [0.1] * 12
WORKLOADS: dict[str, dict[str, Any]] = {
    "prefix": {"kind": "prefix"},
    "momentum": {"kind": "momentum", "momentum": 0.9},
    "cooldown": {"kind": "momentum", "momentum": 0.95, "learning_rates": COOLDOWN},
    "cosine": {"kind": "momentum", "momentum": 0.99, "learning_rates": {"kind": "cosine_to_last"}},
    "nesterov": {"kind": "momentum", "momentum": 0.9, "nesterov": True},
    "srg": {"kind": "srg", "momentum": 0.95, "decay": 0.95},
    "mu2": {"kind": "mu2", "output": "x"},
    "decoupled": {"kind": "weight_decay", "rate": 0.1, "mode": "decoupled", "momentum": 0.9},
    "coupled": {"kind": "weight_decay", "rate": 0.1, "mode": "coupled", "momentum": 0.9},
    "rests": {"kind": "schedule", "learning_rates": HOLES},
}


def asked(workload: dict[str, Any], k: int, n: int = N, **parts: Any) -> Spec:
    return spec_of({"n": n} | workload, "dense", k if k > 1 else "single", **parts).canonical()


def inverted(spec: Spec, found: Any) -> float:
    """The loss by explicit inversion."""
    target = spec.objective.weigh(spec.workload.dense())
    return float(np.sum((target @ np.linalg.inv(found.dense())) ** 2)) * spec.objective.scale(spec.workload.n)


@pytest.mark.parametrize("k", [1, 8])
@pytest.mark.parametrize("name", WORKLOADS)
def test_optima_are_certified(name: str, k: int) -> None:
    spec = asked(WORKLOADS[name], k)
    solution = recursion_optimum.solve(Problem(spec), lambda _step: None)
    found = certify(spec, solution.strategy, solution.dual, outcome=solution.outcome)
    assert found.converged and found.relative_gap is not None
    assert 0 <= found.relative_gap <= 1e-9
    assert found.sensitivity.kind == "exact"
    assert found.loss.objective == pytest.approx(inverted(spec, solution.strategy), rel=1e-8)


def test_numbers_out_of_range_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recursion_optimum, "LARGEST_REPLACED", 1)
    spec = asked({"kind": "momentum", "momentum": 0.9, "learning_rates": [1e-300] * 32 + [1e300] * 32}, 4)
    with pytest.raises(SolveFailed, match="rescale"):
        recursion_optimum.solve(Problem(spec), lambda _step: None)


def test_large_ones_are_certified_in_linear_time() -> None:
    certificate: Any = solvers.solve(asked(WORKLOADS["coupled"], 1, n=768)).certificate
    assert 0 <= certificate.relative_gap <= 1e-9
    assert certificate.lower_bound is not None
    assert certificate.lower_bound.rule.endswith("by log-determinants")
