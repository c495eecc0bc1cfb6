"""What rounding takes from a product of doubles, beside rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from factorize.numbers.error_free import rest_of_product

NUMBERS = st.floats(1e-120, 1e120) | st.floats(-1e120, -1e-120)


@given(NUMBERS, NUMBERS)
@example(1 + 2.0**-52, 1 + 2.0**-52)
@example(0.1, 0.1)
@example(2.0**27 + 1, 2.0**27 - 1)
def test_the_product_and_its_rest_are_exact(a: float, b: float) -> None:
    assert Fraction(a * b) + Fraction(rest_of_product(a, b, a * b)) == Fraction(a) * Fraction(b)


def test_arrays_broadcast() -> None:
    a, b = np.array([[0.1], [0.3]]), np.array([0.7, 1 / 3, 2.0])
    rest = rest_of_product(a, b, a * b)
    assert rest.shape == (2, 3)
    for (i, j), value in np.ndenumerate(rest):
        assert value == rest_of_product(float(a[i, 0]), float(b[j]), float(a[i, 0] * b[j]))
