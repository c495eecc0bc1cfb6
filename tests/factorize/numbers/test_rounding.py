"""Outward rounding against exact rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from factorize.numbers.rounding import square_root_up


@given(st.floats(0, 1e300))
def test_roots_are_above_and_tight(value: float) -> None:
    root = square_root_up(value)
    assert Fraction(root) ** 2 >= Fraction(value)
    below = np.nextafter(root, 0)
    assert root == 0 or Fraction(float(np.nextafter(below, 0))) ** 2 < Fraction(value)
