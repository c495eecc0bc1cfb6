"""Power series in the exact checker against sums written out, and losses of Toeplitz matrices against numbers on paper."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from factorize.exact.arithmetic import series
from factorize.exact.arithmetic.integers import Numbers, integers

SLACK = 2.0**-44
ONES = integers(np.ones(3))


def numbers(values: list[int], exponent: int = 0, radius: int = 0) -> Numbers:
    return Numbers(np.array(values, dtype=object), exponent, radius)


@pytest.mark.parametrize("seed", range(6))
def test_products_are_sums_of_products(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 9))
    left, right = (rng.integers(-(10**k), 10**k, n).astype(object).tolist() for k in (1, 17))
    expected = [sum(left[i] * right[t - i] for i in range(t + 1)) for t in range(n)]
    assert series.product(numbers(left), numbers(right)).values.tolist() == expected
    assert series.product(numbers(right), numbers(left)).values.tolist() == expected


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
    found = series.losses(integers(np.array([1.0, 0.0, 0.0])), ONES, objective, np.ones(3))
    assert found.residual == 0
    ends = (found.total, 6), (found.largest, 3), (found.last, 3), (found.objective, expected)
    for (low, high), true in ends:
        least = 2.0**-49 if true == 17 else 0.9 * SLACK  # what is weighed is moved by the length of its sums alone
        assert true * (1 - 4 * SLACK) <= low <= true * (1 - least)
        assert true * (1 + least) <= high <= true * (1 + 4 * SLACK)


def test_coefficients_that_are_off() -> None:
    guess = np.array([3.0, -1.0, 0.25])
    assert series._ends(guess, 0.5, -1).tolist() == [2.5**2, 0.5**2, 0.0]
    assert series._ends(guess, 0.5, 1).tolist() == [3.5**2, 1.5**2, 0.75**2]


def test_losses_are_those_of_the_inverse_whatever_decoder_is_stored() -> None:
    """The last coefficient of B is off by 3 / 16, which the residual says; the losses are those of A C^-1 = A."""
    off = np.array([1.0, 1.0, 1.0 + 3 / 16])
    found = series.losses(integers(np.array([1.0, 0.0, 0.0])), ONES, {"kind": "max"}, off, Fraction(1, 16))
    assert found.residual == 3 / 16 and found.last == pytest.approx((3.0, 3.0), rel=1e-12)


def test_products_of_doubles_do_not_wrap_around() -> None:
    for n in (1, 2, 3, 5, 8):
        assert np.allclose(
            series.approximate_product(np.ones(n), np.arange(1.0, n + 1)), np.cumsum(np.arange(1, n + 1))
        )
