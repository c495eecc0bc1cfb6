"""Outward rounding against exact rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from factorize.numbers.rounding import square_root_up, sum_of_squares_up

moderate = st.floats(-1e100, 1e100, allow_nan=False)


@given(st.lists(moderate, min_size=1, max_size=40))
def test_sum_of_squares_is_above_and_tight(values: list[float]) -> None:
    true = sum(Fraction(v) ** 2 for v in values)
    stated = Fraction(sum_of_squares_up(np.array(values)))
    assert stated >= true
    assert stated <= true * (1 + Fraction(1, 2**50)) + Fraction(len(values)) / Fraction(10) ** 280


@given(st.floats(0, 1e300))
def test_roots_are_above_and_tight(value: float) -> None:
    root = square_root_up(value)
    assert Fraction(root) ** 2 >= Fraction(value)
    below = np.nextafter(root, 0)
    assert root == 0 or Fraction(float(np.nextafter(below, 0))) ** 2 < Fraction(value)


def test_a_plain_float_sum_would_fall_short() -> None:
    rng = np.random.default_rng(0)
    short = 0
    for _ in range(200):
        column = rng.normal(size=64)
        column /= np.linalg.norm(column)
        true = sum(Fraction(v) ** 2 for v in column)
        short += Fraction(float(column @ column)) < true
        assert Fraction(sum_of_squares_up(column)) >= true
    assert short > 20
