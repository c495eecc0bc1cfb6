"""Power series in the exact checker against sums written out, and losses of Toeplitz matrices against numbers on paper."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from flint import arb

from factorize.checker.arithmetic import series
from factorize.checker.arithmetic.balls import Balls, of_doubles
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.spec import weighing_of

SLACK = 2.0**-44
ONES = of_doubles(np.ones(3))


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


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ({"kind": "mean"}, 2),
        ({"kind": "max"}, 3),
        ({"kind": "weighted", "weights": [1.0, 2.0, 4.0]}, 1 + 2 * 2 + 4 * 3),
        ({"kind": "lambda_tau", "tau": 2}, 1 / 2 + 2 + 1 / 2),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_losses_of_prefix_sums_with_independent_noise(objective: dict[str, Any], expected: float) -> None:
    """B = A: rows of one, two and three ones."""
    found = series.losses(of_doubles(np.array([1.0, 0.0, 0.0])), ONES, weighing_of(objective, 3))
    ends = (found.total, 6), (found.largest, 3), (found.last, 3), (found.objective, expected)
    for (low, high), true in ends:
        assert true * (1 - 4 * SLACK) <= low <= true * (1 - 0.9 * SLACK)
        assert true * (1 + 0.9 * SLACK) <= high <= true * (1 + 4 * SLACK)


def test_coefficients_that_are_off() -> None:
    guess = np.array([3.0, -1.0, 0.25])
    assert series._squares(guess, 0.5, -1).tolist() == [2.5**2, 0.5**2, 0.0]
    assert series._squares(guess, 0.5, 1).tolist() == [3.5**2, 1.5**2, 0.75**2]


def test_products_of_doubles_do_not_wrap_around() -> None:
    for n in (1, 2, 3, 5, 8):
        assert np.allclose(
            series.approximate_product(np.ones(n), np.arange(1.0, n + 1)), np.cumsum(np.arange(1, n + 1))
        )
