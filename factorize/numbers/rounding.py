"""Roots in double precision that err on a known side, and the unit that error bounds are stated in."""

from __future__ import annotations

import math

UNIT = 2.0**-52
"""Spacing of doubles at 1; twice the unit roundoff, so that first-order error bounds stay valid with their tails."""


def square_root_up(value: float) -> float:
    """Return a double that is at least the square root of `value`, at most one unit in the last place above it."""
    root = math.sqrt(value)
    return root if _square_covers(root, value) else math.nextafter(root, math.inf)


def _square_covers(root: float, value: float) -> bool:
    from fractions import Fraction

    return Fraction(root) ** 2 >= Fraction(value)
