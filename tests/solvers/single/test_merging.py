"""Learning rates and weights of zero in O(n): the same optimum as with decompositions, and bounds by resolvents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specs import spec_of

from factorize import solvers
from factorize.solvers.problem import Problem
from factorize.solvers.single import dense, recovery, structured
from factorize.spec import Spec

N = 140


def asked(workload: dict[str, Any], weights: list[float] | None = None, n: int = N) -> Spec:
    objective = {"kind": "mean"} if weights is None else {"kind": "weighted", "weights": weights}
    return spec_of({"n": n} | workload, "dense", objective=objective)


def schedule(rates: list[float] | dict[str, Any]) -> dict[str, Any]:
    return {"kind": "schedule", "learning_rates": rates}


RESTS = [0.0] * 3 + [1.0] * 50 + [0.0] * 20 + [0.2, 0.0, 0.5] + [0.7] * (N - 77) + [0.0]
SPARSE = [float(i % 3) for i in range(N)]
CASES = {
    "cosine to zero": asked(schedule({"kind": "cosine_to_last"})),
    "rests": asked(schedule(RESTS)),
    "momentum zero, rests": asked({"kind": "momentum", "momentum": 0.0, "learning_rates": RESTS}),
    "decay and rests": asked({"kind": "weight_decay", "rate": 0.1, "mode": "decoupled", "learning_rates": RESTS}),
    "weights on rests": asked(schedule(RESTS), [1.0 + i % 5 for i in range(N)]),
    "zero weights": asked({"kind": "prefix"}, SPARSE),
    "zero weights, decaying": asked({"kind": "decay", "rate": 0.8}, SPARSE),
    "zero weights and rests": asked(schedule(RESTS), SPARSE),
    "only the middle weighs": asked({"kind": "prefix"}, [0.0] * 60 + [1.0] * 20 + [0.0] * (N - 80)),
    "independent outputs": asked({"kind": "identity"}, SPARSE),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_decompositions(name: str) -> None:
    case = CASES[name]
    assert structured.supports(case) is None
    fast = solvers.solve(case).certificate
    assert fast.converged, fast.warnings
    slow = dense.solve(Problem(case), lambda _: None)
    target = case.objective.weigh(case.workload.dense())
    loss = case.objective.scale(N) * recovery.loss_of(target, slow.strategy.dense())
    assert fast.loss.objective == pytest.approx(loss, rel=3e-9)


def test_long_schedule_is_certified_without_a_decomposition() -> None:
    found = solvers.solve(asked(schedule({"kind": "cosine_to_last"}), n=700))
    certificate = found.certificate
    assert certificate.converged
    assert certificate.lower_bound is not None
    assert certificate.lower_bound.rule == "nuclear norm dual, by resolvents"
    assert found.dual["weights"][-1] == 0
    np.testing.assert_allclose(found.rows("C", 699, 700)[0], np.eye(700)[699], rtol=1e-9)


def test_long_zero_weights_are_certified_without_a_decomposition() -> None:
    weights = [0.0 if 100 < i < 180 else 1.0 + i % 2 for i in range(700)]
    certificate = solvers.solve(asked({"kind": "prefix"}, weights, 700)).certificate
    assert certificate.converged
    assert certificate.lower_bound is not None
    assert certificate.lower_bound.rule == "nuclear norm dual, by resolvents"
