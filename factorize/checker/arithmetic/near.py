"""Doubles near what they stand for, and the share by which they may be off (docs/sensitivity.md, "Rounding").

u = 2^-53. A sum of n products of doubles, in any order, with or without fused operations, is within n u / (1 - n u) of
the sum of the magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). What underflows is less
than `TINY`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from factorize.checker.arithmetic.intervals import NotEnclosed

U = 2.0**-53
TINY = Fraction(1, 2**900)
"""More than what underflows in 2^100 products of doubles."""
_ABOVE = 1 + 2.0**-20  # covers products of several shares that are below 2^-21
_WIDEST = 2.0**-22


class Near(NamedTuple):
    """Doubles, each within a share of the true number.

    Attributes:
        values: shape (n,).
        off: the share; 0 where nothing was rounded.
    """

    values: np.ndarray
    off: float


class Columns(NamedTuple):
    """Columns of C, nearly.

    Attributes:
        values: shape (n, k).
        far: what the difference to the true column has as norm at most, shape (k,).
    """

    values: np.ndarray
    far: np.ndarray


def share(*shares: float, roundings: int = 0) -> float:
    """Return the share by which a number is off that has met some shares and so many roundings.

    Raises:
        NotEnclosed: it is above 2^-22.
    """
    off = (sum(shares) + roundings * U) * _ABOVE
    if not off < _WIDEST:
        raise NotEnclosed(f"rounding may change the sensitivity by {off:.3g} of itself")
    return off
