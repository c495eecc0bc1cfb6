"""The O(n) solver behind `dense`: certified optima whose loss is that of an explicit inversion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specs import spec_of

from factorize import solvers
from factorize.errors import SolveFailed
from factorize.solvers.single import structured
from factorize.spec import Spec

N = 160


def asked(workload: dict[str, Any], **parts: Any) -> Spec:
    return spec_of({"n": N} | workload, "dense", **parts)


COOLDOWN = {"kind": "linear_cooldown", "steps": 40, "final": 0.05}
WARM_UP = [min(1.0, (i + 1) / 20) for i in range(N)]
RESTS = [0.0] * 3 + [1.0] * 50 + [0.0] * 20 + [0.2, 0.0, 0.5] + [0.7] * (N - 77) + [0.0]
MIDDLE = [0.0] * 60 + [1.0] * 20 + [0.0] * (N - 80)
STRUCTURED = [
    asked({"kind": "prefix"}),
    asked({"kind": "decay", "rate": 0.9}),
    asked({"kind": "schedule", "learning_rates": {"kind": "cosine_to_last", "final": 1e-6}}),
    asked({"kind": "weight_decay", "rate": 0.01, "mode": "decoupled", "learning_rates": COOLDOWN}),
    asked({"kind": "weight_decay", "rate": 0.01, "mode": "decoupled", "momentum": 0.9, "learning_rates": COOLDOWN}),
    asked({"kind": "weight_decay", "rate": 0.001, "mode": "coupled", "momentum": 0.9}),
    asked({"kind": "weight_decay", "rate": 0.02, "mode": "coupled", "momentum": 0.7, "learning_rates": COOLDOWN}),
    asked({"kind": "weight_decay", "rate": 0.3, "mode": "coupled"}),
    asked({"kind": "momentum", "momentum": 0.9}),
    asked({"kind": "momentum", "momentum": 0.95, "learning_rates": COOLDOWN}),
    asked({"kind": "momentum", "momentum": 0.9, "nesterov": True}),
    asked({"kind": "momentum", "momentum": 0.95, "nesterov": True, "learning_rates": COOLDOWN}),
    asked({"kind": "momentum", "momentum": 0.9, "nesterov": True, "learning_rates": WARM_UP}),
    asked({"kind": "srg", "momentum": 0.9, "decay": 0.5}),
    asked({"kind": "srg", "momentum": 0.9, "decay": 0.0}),
    asked({"kind": "mu2", "output": "w"}),
    asked({"kind": "mu2", "output": "x"}),
    asked({"kind": "prefix"}, objective={"kind": "lambda_tau", "tau": 7}),
    asked({"kind": "schedule", "learning_rates": COOLDOWN}, objective={"kind": "lambda_tau", "tau": 16}),
    asked({"kind": "prefix"}, objective={"kind": "weighted", "weights": [1 + i % 3 for i in range(N)]}),
    asked({"kind": "schedule", "learning_rates": {"kind": "cosine_to_last"}}),
    asked({"kind": "weight_decay", "rate": 0.1, "mode": "decoupled", "learning_rates": RESTS}),
    asked({"kind": "decay", "rate": 0.8}, objective={"kind": "weighted", "weights": [float(i % 3) for i in range(N)]}),
    asked({"kind": "schedule", "learning_rates": RESTS}, objective={"kind": "weighted", "weights": MIDDLE}),
]


def name(case: Spec) -> str:
    return f"{case.workload.kind}-{case.objective.kind}"


@pytest.mark.parametrize("case", STRUCTURED, ids=name)
def test_optima_are_certified(case: Spec) -> None:
    assert structured.own(case)
    found = solvers.solve(case)
    certificate = found.certificate
    assert certificate.converged, certificate.warnings
    assert certificate.relative_gap is not None
    assert -1e-12 < certificate.relative_gap <= 1e-9
    assert certificate.sensitivity.value <= 1
    target = case.objective.weigh(case.workload.dense())
    loss = float(np.sum((target @ np.linalg.inv(found.strategy.dense())) ** 2)) * case.objective.scale(N)
    assert certificate.loss.objective == pytest.approx(loss, rel=1e-8)


STEEP = [10.0, 10.0, 1e-3, 1e-3, 1e-3, 100.0, *[1.0] * (N - 6)]
"""Rates whose optimum leaves columns below norm 1: raising them costs 2 %."""


def test_columns_that_no_constraint_holds_stay_below_one() -> None:
    certificate = solvers.solve(asked({"kind": "momentum", "momentum": 0.5, "learning_rates": STEEP})).certificate
    assert certificate.relative_gap is not None and certificate.relative_gap <= 1e-9


def test_decompositions_take_over_where_the_factor_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise FloatingPointError("the pivot of step 3 is lost to rounding")

    monkeypatch.setattr("factorize.solvers.single.streaming.streaming_factor", lost)
    case = asked({"kind": "momentum", "momentum": 0.9})
    assert solvers.solve(case).certificate.converged
    monkeypatch.setattr(structured, "LARGEST_REPLACED", 1)
    with pytest.raises(SolveFailed, match="milder"):
        solvers.solve(case)


def test_the_optimum_of_2048_prefix_sums() -> None:
    certificate = solvers.solve(asked({"kind": "prefix", "n": 2048})).certificate
    assert certificate.loss.total_squared == pytest.approx(20610.2158960, rel=2e-9)
    assert certificate.converged


@pytest.mark.parametrize(
    "workload",
    [
        {"kind": "srg", "momentum": 0.9, "decay": 0.95},
        {
            "kind": "momentum",
            "momentum": 0.9,
            "nesterov": True,
            "learning_rates": {"kind": "cosine_to_last", "final": 1e-3},
        },
        {"kind": "schedule", "learning_rates": {"kind": "cosine_to_last"}},
    ],
    ids=["srg", "nesterov", "schedule"],
)
def test_large_ones_are_certified_to_the_tolerance(workload: dict[str, Any]) -> None:
    certificate = solvers.solve(asked(workload | {"n": 1024})).certificate
    assert certificate.relative_gap is not None
    assert 0 <= certificate.relative_gap <= 1e-9
    assert certificate.lower_bound is not None
    assert certificate.lower_bound.rule.endswith("by log-determinants")
