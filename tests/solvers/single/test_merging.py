"""Learning rates and weights of zero in O(n): the same optimum as with decompositions, and bounds by resolvents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from specs import spec_of

from factorize import solvers
from factorize.certificate.lower_bounds.bounds import RESOLVENT_RULE
from factorize.certificate.lower_bounds.resolvents import nuclear_norm_of_recursion_below
from factorize.solvers.problem import Problem
from factorize.solvers.single import dense, recovery, structured
from factorize.solvers.single.merging import merge
from factorize.spec import Spec
from factorize.workloads.forms import FirstOrder

N = 140


def asked(workload: dict[str, Any], weights: list[float] | None = None, n: int = N) -> Spec:
    objective = {"kind": "mean"} if weights is None else {"kind": "weighted", "weights": weights}
    return spec_of({"n": n} | workload, "dense", objective=objective)


def schedule(rates: list[float] | dict[str, Any]) -> dict[str, Any]:
    return {"kind": "schedule", "learning_rates": rates}


RESTS = [0.0] * 3 + [1.0] * 50 + [0.0] * 20 + [0.2, 0.0, 0.5] + [0.7] * (N - 77) + [0.0]
SPARSE = [float(i % 3) for i in range(N)]
CASES = {
    "cosine to zero": asked(schedule({"kind": "cosine"})),
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
    found = solvers.solve(asked(schedule({"kind": "cosine"}), n=700))
    certificate = found.certificate
    assert certificate.converged
    assert certificate.lower_bound is not None
    assert certificate.lower_bound.rule == RESOLVENT_RULE
    assert found.dual["weights"][-1] == 0
    np.testing.assert_allclose(found.rows("C", 699, 700)[0], np.eye(700)[699], rtol=1e-14)


def test_long_zero_weights_are_certified_without_a_decomposition() -> None:
    weights = [0.0 if 100 < i < 180 else 1.0 + i % 2 for i in range(700)]
    certificate = solvers.solve(asked({"kind": "prefix"}, weights, 700)).certificate
    assert certificate.converged
    assert certificate.lower_bound is not None
    assert certificate.lower_bound.rule == RESOLVENT_RULE


def recursion(steps: FirstOrder) -> np.ndarray:
    n = len(steps.feed)
    rows = np.diag(steps.feed)
    for i in range(1, n):
        rows[i] += steps.follow[i] * rows[i - 1]
    return rows


SOME_ZERO = st.one_of(st.just(0.0), st.floats(0.01, 1.0))


@given(arrays(np.float64, (4, 7), elements=SOME_ZERO))
def test_bound_of_any_recursion(parts: np.ndarray) -> None:
    follow, feed, u, v = parts
    steps = FirstOrder(np.concatenate([[0.0], follow[1:]]), feed)
    norm = np.linalg.svd(np.sqrt(u)[:, None] * recursion(steps) * np.sqrt(v), compute_uv=False).sum()
    found = nuclear_norm_of_recursion_below(steps, u, v)
    assert found <= norm * (1 + 1e-14)
    assert found == pytest.approx(norm, rel=1e-12, abs=1e-14)


@given(arrays(np.float64, (3, 7), elements=SOME_ZERO))
def test_merged_groups_span_the_weighted_workload(parts: np.ndarray) -> None:
    follow, feed, weights = parts
    feed[0], weights[-1] = 1.0, 1.0
    follow[1:] = np.maximum(follow[1:], 0.1)
    steps = FirstOrder(np.concatenate([[0.0], follow[1:]]), feed)
    merged = merge(steps, weights)
    small = np.linalg.inv(np.diag(merged.p) - np.diag(merged.q[1:], -1))
    seen = merged.group >= 0
    whole = np.zeros((len(merged.rows), 7))
    whole[:, seen] = small[:, merged.group[seen]] * merged.share[seen]
    target = np.sqrt(weights)[:, None] * recursion(steps)
    np.testing.assert_allclose(whole.T @ whole, target.T @ target, rtol=1e-12, atol=1e-14)
    assert (merged.share[merged.columns] == 1).all()
