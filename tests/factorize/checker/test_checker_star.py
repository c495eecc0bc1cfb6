"""The checker's closed forms for balls in bins: bounds beside quadrature and enumeration."""

from __future__ import annotations

import itertools
import math
import sys
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from bin_cases import INTERVALS, PAIRS
from flint import arb
from hypothesis import example, given
from hypothesis import strategies as st
from star_claims import log_star

from benchmarks.forged_claims import truncated_root
from factorize.checker.arithmetic.near import double_below
from factorize.checker.sampling import star
from factorize.checker.sampling.bins import Gram, gram
from factorize.checker.strategy import Strategy
from factorize.errors import InvalidParameter


class Known(NamedTuple):
    """K, epsilon, both deltas by quadrature (6 digits), and the closed form of theorem 7."""

    kernel: list[list[float]]
    epsilon: float
    removal: float
    addition: float
    closed: float


KNOWN = [Known(*pair) for pair in PAIRS]
ROUNDED = 1.01  # the sigma below have four digits, and delta moves by 60 times as many parts


def exact(kernel: list[list[float]]) -> Gram:
    matrix = np.array(kernel, dtype=float)
    return Gram(matrix, matrix)


@given(st.floats(0, allow_nan=False, allow_infinity=False))
@example(5e-324)
@example(1e-154 * (1 + 2.0**-52))
@example(1.0 + 2.0**-52)
@example(1e200)
def test_squares_are_rounded_down_by_less_than_a_place(value: float) -> None:
    found, exact = double_below(Fraction(value) ** 2), Fraction(value) ** 2
    assert Fraction(found) <= exact
    assert exact < Fraction(math.nextafter(found, math.inf)) if found < sys.float_info.max else exact > 1


@pytest.mark.parametrize("known", KNOWN)
def test_bounds_hold_and_closed_forms_are_the_references(known: Known) -> None:
    found = exact(known.kernel)
    assert known.removal <= math.exp(log_star(found, 1.0, known.epsilon)) < 8 * known.removal
    other = star.addition(found, 1.0, known.epsilon)
    assert float(other) == pytest.approx(known.closed, rel=5e-4)
    assert known.addition <= float(other) and float(other.rad()) < 1e-12


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("order", [2, 3, 5])
def test_the_moment_is_above_the_true_one_by_enumeration(known: Known, order: int) -> None:
    kernel = np.array(known.kernel)
    bins = range(len(kernel))
    tuples = itertools.product(bins, repeat=order)
    true = np.mean([math.exp(sum(kernel[a, b] for a, b in itertools.combinations(t, 2))) for t in tuples])
    direct = np.mean(np.exp(order / 2 * kernel).mean(axis=1) ** (order - 1))
    assert true <= direct * (1 + 1e-12)
    assert float(star.log_moment(kernel, order)) == pytest.approx(math.log(direct), abs=1e-9)
    assert float(star.log_moment(kernel, order)) >= math.log(direct) - 1e-13


@pytest.mark.parametrize("bins, sigma, epsilon, low, high", INTERVALS)
def test_random_allocation_is_between_the_bounds(
    bins: int, sigma: float, epsilon: float, low: float, high: float
) -> None:
    found = gram(Strategy("banded_toeplitz", {"coefficients": np.ones(1)}, bins), bins)
    np.testing.assert_allclose(found.high, np.eye(bins), atol=1e-12)
    assert log_star(found, sigma, epsilon) >= math.log(low / ROUNDED)


def test_one_bin_is_the_gaussian_mechanism() -> None:
    for epsilon, mu, delta in ((1.0, 0.5, 6.8296e-3), (8.0, 2.0, 4.9540e-4), (2.0, 0.25, 5.0921e-17)):
        found = exact([[mu * mu]])
        other = star.addition(found, 1.0, epsilon)
        assert float(other) == pytest.approx(delta, rel=1e-4)
        same = star.gaussian_delta(arb(epsilon), arb(mu))
        assert same.overlaps(other)
        assert float(same) == pytest.approx(delta, rel=1e-4)
        assert log_star(found, 1.0, epsilon) >= math.log(float(same.lower()))


@pytest.mark.parametrize("epsilon, delta, sigma", [(8.0, 1e-5, 2.0271), (2.0, 1e-6, 5.0541), (2.0, 1e-10, 6.6669)])
def test_sigma_of_the_star_bound_for_truncated_square_roots(epsilon: float, delta: float, sigma: float) -> None:
    """Published prefix errors 5.45, 17.7 and 23.36 at n=2048 and 8 epochs of 256 bins."""
    column = truncated_root(2048, 64 if epsilon == 8 else 32)
    found = gram(Strategy("toeplitz", {"coefficients": column}, 2048), 256)
    for factor, holds in ((1.0003, True), (0.9997, False)):
        bound = log_star(found, sigma * factor, epsilon)
        assert (bound <= math.log(delta)) == holds
        assert star.addition(found, sigma * factor, epsilon) < delta


def test_the_other_direction_is_enclosed_where_the_rounding_of_the_gram_matters() -> None:
    kernel = np.array([[2.0, 0.5], [0.5, 1.0]])
    near, far = Gram(kernel, kernel), Gram(kernel * 1.001, kernel * 0.999)
    inner, outer = star.addition(near, 1.0, 1.0), star.addition(far, 1.0, 1.0)
    assert outer.contains(inner) and outer.rad() > inner.rad()


def test_nothing_known_of_the_means_is_no_bound() -> None:
    assert star.addition(Gram(np.eye(2), np.zeros((2, 2))), 1.0, 1.0) == 1


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf, math.nan, 1e-200])
def test_a_sigma_that_is_none_is_refused(sigma: float) -> None:
    with pytest.raises(InvalidParameter, match="sigma"):
        star.scaled(exact([[1.0]]).high, sigma)
