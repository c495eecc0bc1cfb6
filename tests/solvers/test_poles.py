"""The rational approximation of x ** -0.5 and its proven error."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factorize.solvers.methods.poles import ROUNDING, zolotarev, zolotarev_with


def relative_error(found, points=4001, beyond=3.0):
    reach = np.log(found.upper / found.lower)
    x = found.lower * np.exp(np.linspace(-beyond, reach + beyond, points))
    inside = (x >= found.lower) & (x <= found.upper)
    error = np.sqrt(x) * found(x) - 1.0
    return error[inside], error[~inside]


@settings(max_examples=40, deadline=None)
@given(
    lower=st.floats(1e-30, 1e30),
    decades=st.floats(0.0, 40.0),
    error=st.sampled_from([1e-1, 1e-3, 1e-8, 1e-13]),
)
def test_delta_bounds_the_error_everywhere(lower, decades, error):
    found = zolotarev(lower, lower * 10.0**decades, error=error)
    inside, outside = relative_error(found)
    slack = 1e-15 * found.nodes.size
    assert np.abs(inside).max() <= found.delta + slack
    assert outside.max() <= found.delta + slack
    assert found.delta <= error * (1 + 1e-9) + 1.2 * ROUNDING
    assert found.lower <= lower


def test_delta_is_attained_with_opposite_signs():
    inside, _ = relative_error(zolotarev_with(1.0, 1e6, count=4), points=200_001)
    delta = zolotarev_with(1.0, 1e6, count=4).delta
    assert inside.max() == pytest.approx(delta, rel=1e-6)
    assert inside.min() == pytest.approx(-delta, rel=1e-6)
    assert np.count_nonzero(np.diff(np.sign(inside))) == 8  # 2p + 1 alternating extrema


def test_altered_weights_are_refuted():
    right = zolotarev(1e-3, 1e5, error=1e-9)
    right.refute()
    wrong = dataclasses.replace(right, weights=right.weights * (1 + 1e-7))
    with pytest.raises(FloatingPointError, match="promised"):
        wrong.refute()


@pytest.mark.parametrize("interval", [(0.0, 1.0), (2.0, 1.0), (1.0, float("inf")), (float("nan"), 1.0)])
def test_an_impossible_interval_is_refused(interval):
    with pytest.raises(ValueError, match="interval"):
        zolotarev(*interval, error=1e-6)
