"""Sums and roots in double precision that err on a known side."""

from __future__ import annotations

import math

import numpy as np

UNIT = 2.0**-52
"""Spacing of doubles at 1; twice the unit roundoff, so that first-order error bounds stay valid with their tails."""

_SPLIT = 134_217_729.0  # 2^27 + 1: Veltkamp's constant, splits a double into two halves of 26 bits


def sum_of_squares_up(values: np.ndarray) -> float:
    """Return the sum of squares, rounded up: at most one unit in the last place above the true value.

    Each square is split into two doubles without error (Veltkamp and Dekker) and the parts are added exactly.

    Args:
        values: shape (n,), finite and of magnitude below 1e150.
    """
    squares = values * values
    high = values * _SPLIT
    high = high - (high - values)
    low = values - high
    errors = ((high * high - squares) + 2.0 * high * low) + low * low
    # Squares below the normal range lose bits in the split; one smallest double per entry covers all of them.
    slack = float(np.count_nonzero(np.abs(values) < 1e-130)) * 1e-290 if len(values) else 0.0
    return math.nextafter(math.fsum(np.concatenate([squares, errors])) + slack, math.inf)


def square_root_up(value: float) -> float:
    """Return a double that is at least the square root of `value`, at most one unit in the last place above it."""
    root = math.sqrt(value)
    return root if _square_covers(root, value) else math.nextafter(root, math.inf)


def _square_covers(root: float, value: float) -> bool:
    from fractions import Fraction

    return Fraction(root) ** 2 >= Fraction(value)
