"""Power series in the exact checker against sums written out, and losses of Toeplitz matrices against numbers on paper."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from flint import arb

from factorize.checker.arithmetic import series
from factorize.checker.arithmetic.balls import Balls
from factorize.checker.arithmetic.near import NotEnclosed


def balls(values: list[int], exponent: int = 0, radius: int = 0) -> Balls:
    return [arb((value, exponent), arb((radius, exponent))) for value in values]


@pytest.mark.parametrize("seed", range(6))
def test_quotients_are_those_of_long_division(seed: int) -> None:
    """Also where the numbers are known within a radius, and of exponents far apart."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 9))
    above, below = (rng.integers(-(10**k), 10**k, n).astype(object).tolist() for k in (17, 1))
    below[0] = 7
    expected: list[Fraction] = []
    for t in range(n):
        expected.append((above[t] - sum((expected[s] * below[t - s] for s in range(t)), Fraction(0))) / Fraction(7))
    for radius in (0, 1):
        quotient = series.quotient(balls(above, -900, radius), balls(below, -950))
        guess, error = series.near(quotient, n)
        for found, true in zip(guess, expected, strict=True):
            assert abs(Fraction(found) - true * 2**50) <= Fraction(error)
    with pytest.raises(NotEnclosed, match="differ from 0"):
        series.quotient(balls([1]), balls([1], 0, 1))


def test_coefficients_that_are_off() -> None:
    guess = np.array([3.0, -1.0, 0.25])
    assert series._squares(guess, 0.5, -1).tolist() == [2.5**2, 0.5**2, 0.0]
    assert series._squares(guess, 0.5, 1).tolist() == [3.5**2, 1.5**2, 0.75**2]
