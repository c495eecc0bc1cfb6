"""Objectives against their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specs import spec_of

from factorize.errors import InvalidParameter, UnsupportedProblem
from factorize.spec.objective import LambdaTau, MaxError, Mean, Weighted
from factorize.workloads.matrix import from_array


@pytest.mark.parametrize(("m", "tau", "key"), [(12, 3, "E.lambda.12.3"), (7, 3, "E.lambda.7.3")])
def test_published_lambda(vectors: dict[str, Any], m: int, tau: int, key: str) -> None:
    weighed = LambdaTau(kind="lambda_tau", tau=tau).weigh(np.eye(m))
    np.testing.assert_allclose(weighed, vectors[key]["matrix"], rtol=1e-15)


def test_noise_sums_of_the_square_root(vectors: dict[str, Any]) -> None:
    column = np.cumprod([1.0] + [(t - 0.5) / t for t in range(1, 6)])
    decoder = np.array([[column[i - j] if i >= j else 0.0 for j in range(6)] for i in range(6)])
    weighed = LambdaTau(kind="lambda_tau", tau=2).weigh(decoder)
    assert np.sum(weighed**2) == pytest.approx(vectors["M.noise_sums.sqrt.T6.tau2"]["lambda_obj"], rel=1e-12)


@given(st.integers(1, 14), st.integers(1, 16))
def test_weights_as_recursions_and_inverses(m: int, tau: int) -> None:
    rates = np.random.default_rng(m).uniform(0.5, 2, m)
    workload = spec_of({"kind": "schedule", "n": m, "learning_rates": list(rates)}).workload
    inverse = workload.bidiagonal_inverse()
    assert inverse is not None
    for objective in (Mean(), LambdaTau(kind="lambda_tau", tau=tau), Weighted(kind="weighted", weights=list(rates**3))):
        weights = objective.weigh(np.eye(m))
        space = objective.state_space(m)
        x = np.random.default_rng(tau).normal(size=m)
        state, y = np.zeros(space.feed.shape[1]), []
        for i, value in enumerate(x):
            y.append(space.read[i] @ state + space.through[i] * value)
            state = space.follow[i] @ state + space.feed[i] * value
        np.testing.assert_allclose(y, weights @ x, rtol=1e-12, atol=1e-13)
        weighted = objective.weighted_inverse(inverse)
        matrix = np.diag(weighted.p) - np.diag(weighted.q[1:], -1)
        np.testing.assert_allclose(matrix @ weights @ workload.dense(), np.eye(m), atol=1e-9)


def test_weights_whose_inverse_is_not_bidiagonal() -> None:
    decay = spec_of({"kind": "decay", "n": 4, "rate": 0.5}).workload.bidiagonal_inverse()
    assert LambdaTau(kind="lambda_tau", tau=2).weighted_inverse(decay) is None
    assert Weighted(kind="weighted", weights=[1, 0, 1, 1]).weighted_inverse(decay) is None
    assert MaxError(kind="max").weighted_inverse(decay) is None
    assert MaxError(kind="max").state_space(4) is None


def test_what_an_objective_cannot_do() -> None:
    with pytest.raises(UnsupportedProblem):
        MaxError(kind="max").weigh(np.eye(2))
    with pytest.raises(UnsupportedProblem):
        LambdaTau(kind="lambda_tau", tau=2).of_row_errors(np.ones(3))
    with pytest.raises(InvalidParameter, match="one weight per output"):
        Weighted(kind="weighted", weights=[1.0]).check(2)
    with pytest.raises(InvalidParameter, match="at least one positive"):
        Weighted(kind="weighted", weights=[0.0, 0.0]).check(2)


def test_weights_leave_something_where_a_row_with_an_entry_has_one() -> None:
    workload = from_array(np.array([[0.0, 0.0, 0.0], [1.0, -1.0, 0.0], [0.0, 0.0, 0.0]]))
    for weights, left in (([1, 0, 1], False), ([0, 1, 0], True), ([1, 2, 3], True), ([0, 0, 1], False)):
        assert Weighted(kind="weighted", weights=weights).leaves(workload) == left
    assert not Weighted(kind="weighted", weights=[0, 0, 0, 1]).leaves(workload), "there is no such row"
    assert Mean(kind="mean").leaves(workload)


def test_weights_of_a_series_whose_beginnings_are_the_rows() -> None:
    """b = (1, 2, 3): the rows' squared norms are 1, 5 and 14."""
    squares = np.array([1.0, 4.0, 9.0])
    errors = np.cumsum(squares)
    weighted = Weighted(kind="weighted", weights=[3, 0, 2])
    for objective, sought in ((Mean(), 20 / 3), (MaxError(kind="max"), 14.0), (weighted, 31.0)):
        weights = objective.series_weights(3)
        assert weights is not None
        assert objective.scale(3) * (weights @ squares) == pytest.approx(sought, rel=1e-15)
        assert objective.of_row_errors(errors) == pytest.approx(sought, rel=1e-15)
    assert LambdaTau(kind="lambda_tau", tau=2).series_weights(3) is None


@pytest.mark.parametrize("weight", [1e-300, 5e-324, 1e81, 1e308])
def test_weights_out_of_range_are_refused(weight: float) -> None:
    with pytest.raises(InvalidParameter, match=r"must be 0, or from 1e-80 to 1e\+80; divide all weights"):
        Weighted(kind="weighted", weights=[1.0, 0.0, weight]).check(3)
    Weighted(kind="weighted", weights=[1e-80, 0.0, 1e80]).check(3)
