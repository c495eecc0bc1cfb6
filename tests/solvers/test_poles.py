"""The rational approximation of x ** -0.5 and its proven error."""

import dataclasses

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factorize.solvers.methods import poles
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


@pytest.mark.parametrize(("ratio", "count"), [(1e3, 5), (1e12, 30), (1e26, 12)])
def test_coefficients_are_within_the_counted_rounding(ratio, count):
    """Nodes and weights against 40 digits: m sc^2 and 2K'sqrt(m)/(pi p) dn/cn^2 at the midpoints."""
    found = zolotarev_with(1.0, ratio, count=count)
    with mpmath.workdps(40):
        log_nome = _log_nome(ratio, count)
        nome = mpmath.exp(-log_nome)
        modulus = (mpmath.jtheta(2, 0, nome) / mpmath.jtheta(3, 0, nome)) ** 2
        m, quarter = ratio * modulus**2, log_nome / 2 * mpmath.jtheta(3, 0, nome) ** 2
        assert float(m) <= 1.0
        centre = mpmath.jtheta(3, 0, mpmath.exp(-4 * mpmath.pi**2 * count / log_nome)) ** 2
        for j in range(count):
            u = (j + mpmath.mpf(1) / 2) * quarter / count
            sn, cn, dn = (mpmath.ellipfun(f, u, m=1 - modulus**2) for f in ("sn", "cn", "dn"))
            node = m * (sn / cn) ** 2
            weight = 2 * quarter * mpmath.sqrt(m) / (mpmath.pi * count) * dn / cn**2 / centre
            assert abs(found.nodes[j] / node - 1) + abs(found.weights[j] / weight - 1) < ROUNDING


def _log_nome(ratio, count):
    """The short double whose exponential the solver takes as its nome."""
    return mpmath.mpf(4 * count * poles._round_up(poles._log_nome(1.0, ratio) * (1 + 1e-12) / (4 * count)))


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


def test_the_number_of_poles_is_rounded_up():
    assert zolotarev(1.0, 1e8, error=1e-6, multiple=8).nodes.size % 8 == 0
