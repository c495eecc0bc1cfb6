"""Evidence beside a claim takes so much work at most: its bound is lower then, and never above the optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from factorize import parse_spec
from factorize.certificate.lower_bounds.bounds import lower_bound
from factorize.solvers.epochs import decompositions, recursions
from factorize.solvers.epochs.decompositions import Effort
from factorize.solvers.problem import Problem
from factorize.spec import Spec

MOMENTUM: dict[str, Any] = {"kind": "momentum", "n": 128, "momentum": 0.9, "learning_rates": {"kind": "cosine"}}
SHORT: dict[str, Any] = {"kind": "momentum", "n": 48, "momentum": 0.95}


def in_epochs(workload: dict[str, Any], epochs: int) -> Spec:
    document = {
        "workload": workload,
        "mechanism": {"kind": "identity"},
        "participation": {"kind": "fixed_epochs", "epochs": epochs},
    }
    return parse_spec(document).canonical()


def objective(spec: Spec, dual: dict[str, np.ndarray]) -> float:
    bound = lower_bound(spec, dual)
    assert bound is not None
    return bound.objective


def test_filters_end_after_their_work_and_prove_most_of_the_bound() -> None:
    spec, steps = in_epochs(MOMENTUM, 16), []

    def found(work: float) -> float:
        steps.append(0)

        def count(step: int, _gap: float | None) -> None:
            steps[-1] = step

        return objective(spec, recursions.dual_evidence(Problem(spec), 1e-7, count, work))

    whole, short = found(1e15), found(0.0)
    assert steps[1] == recursions._LEAST_STEPS < steps[0]
    assert 0.95 * whole < short <= whole * (1 + 1e-6)
    ring = recursions.ring_of(Problem(spec))
    between = found(10.5 * ring.work(recursions._POLES))
    assert steps[2] == 10 and short * (1 - 1e-9) <= between <= whole * (1 + 1e-6)


def test_decompositions_end_after_their_work_and_take_no_dear_newton_step(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, steps = in_epochs(SHORT, 4), [0]

    def count(step: int, _gap: float | None) -> None:
        steps[0] = step

    whole = objective(spec, {"factors": decompositions.dual_factors(Problem(spec), 1e-7, count, 1e12)})

    def none(*_: Any) -> None:
        raise AssertionError("Newton's method was asked")

    monkeypatch.setattr(decompositions.block_newton, "newton", none)
    with pytest.raises(AssertionError, match="was asked"):  # it would be, where work is plenty
        decompositions.dual_factors(Problem(spec), 1e-7, count, 1e12)
    short = objective(spec, {"factors": decompositions.dual_factors(Problem(spec), 1e-7, count, 1e6)})
    assert steps[0] == 12 and 0.95 * whole < short <= whole * (1 + 1e-6)


def test_effort_is_what_so_many_multiplications_allow() -> None:
    assert Effort.within(1e9, 100) == Effort(50, 721)  # 20 n^3 each, and 8 systems of u^3 / 3
    assert Effort.within(1.0, 100) == Effort(12, 0)
    assert Effort.within(1e30, 100) == Effort()
