"""Doubles near what they stand for, and the share by which they may be off (docs/sensitivity.md, "Rounding").

Of a sum of n products in any order that is n u / (1 - n u) of the magnitudes, u = 2^-53 (Higham, Accuracy and Stability
of Numerical Algorithms, section 3.1); what underflows is less than `UNDERFLOW`.

Further bounds on roundings hold for any order of the sums (docs/notes/checker.md).
A sum of k products is off by at most gamma_k = k u / (1 - k u), u = 2^-53, times the sum of their magnitudes, and by
what underflows. Bounds are computed in doubles, and multiplied by 1 + `SLACK`, which covers a few operations each.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

UNIT = 2.0**-53
UNDERFLOW = Fraction(1, 2**900)
"""More than what underflows in 2^100 products of doubles."""
TINY = 2.0**-1021
"""More than a million times what a product that underflows is off by."""
_GROWN = 1 + 2.0**-46  # covers the few operations by which an error is carried one step
_ROOT = 2.0**-1000  # more than what the squares of a row lose by underflow
_ABOVE = 1 + 2.0**-20  # covers products of several shares that are below 2^-21
_WIDEST = 2.0**-22


class NotEnclosed(Exception):
    """Rounding grew so much that a method says nothing: no finding against a claim, and none for it."""


class Near(NamedTuple):
    """Doubles, shape (n,), each within a share of the true number; the share is 0 where nothing was rounded."""

    values: np.ndarray
    off: float


class Columns(NamedTuple):
    """Columns of C, nearly, shape (n, k), and at least the norms of their differences to the true ones, shape (k,)."""

    values: np.ndarray
    far: np.ndarray


class Factor(NamedTuple):
    """A factor as a double, and what rounding took from it at most."""

    value: float
    away: float

    @classmethod
    def of(cls, exact: Fraction) -> Factor:
        """Round a rational number."""
        value = float(exact)
        return cls(value, 0.0 if exact == value else UNIT * abs(value) + TINY)


@dataclass(slots=True)
class Around:
    """Doubles, and what each of them is off by at most: numbers, or arrays of one shape."""

    values: Any
    errors: Any

    def __add__(self, other: Around) -> Around:
        """Add; what a sum rounds is known exactly (Knuth)."""
        total = self.values + other.values
        part = total - self.values
        lost = abs((self.values - (total - part)) + (other.values - part))
        return Around(total, (self.errors + other.errors + lost) * _GROWN)

    def __sub__(self, other: Around) -> Around:
        """Subtract."""
        return self + Around(-other.values, other.errors)

    def __mul__(self, factor: Factor) -> Around:
        """Multiply."""
        value, away = factor
        lost = abs(value) * self.errors + away * (abs(self.values) + self.errors)
        values = self.values * value
        return Around(values, (lost + UNIT * abs(values)) * _GROWN + TINY)

    def squared_norm(self) -> tuple[float, float]:
        """Enclose the sum of squares."""
        sizes = np.abs(self.values)
        low, high = np.maximum(sizes - self.errors, 0.0), sizes + self.errors
        slack = (np.size(sizes) + 16) * UNIT
        return float(low @ low) * (1 - slack) - _ROOT, float(high @ high) * (1 + slack) + _ROOT


def double_below(value: Fraction) -> float:
    """Return the largest double that is not above a number, which is not negative."""
    try:
        nearest = float(value)
    except OverflowError:
        return sys.float_info.max
    return math.nextafter(nearest, 0.0) if Fraction(nearest) > value else nearest


def share(*shares: float, roundings: int = 0) -> float:
    """Return the share by which a number is off that has met some shares and so many roundings.

    Raises:
        NotEnclosed: it is above 2^-22.
    """
    off = (sum(shares) + roundings * UNIT) * _ABOVE
    if not off < _WIDEST:
        raise NotEnclosed(f"rounding may change the sensitivity by {off:.3g} of itself")
    return off


SLACK = 2.0**-40
ROOT_OF_TINY = 2.0**-500
"""More than what the squares in a norm lose by underflow."""


def gamma(count: int) -> float:
    """Return gamma_k, rounded up, for k up to 2^22."""
    return count * UNIT * (1 + 2.0**-30)


def row_norms(array: np.ndarray) -> np.ndarray:
    """Return numbers not below the norms of rows, shape (rows,)."""
    squares = np.einsum("ij,ij->i", array, array)
    return np.asarray(np.sqrt(squares) * (1 + gamma(array.shape[1] + 4)) + ROOT_OF_TINY)


def column_norms(array: np.ndarray) -> np.ndarray:
    """Return numbers not below the norms of columns, shape (columns,)."""
    squares = np.einsum("ij,ij->j", array, array)
    return np.asarray(np.sqrt(squares) * (1 + gamma(len(array) + 4)) + ROOT_OF_TINY)


def norm_of(numbers: np.ndarray) -> float:
    """Return a number not below the norm of a vector; infinity where it overflows."""
    return float(row_norms(numbers[None])[0])


def outwards(ends: tuple[float, float], slack: float) -> tuple[float, float]:
    """Return ends of a number that is not negative, moved apart by a part of themselves and by what underflows."""
    low, high = ends
    return max(low * (1 - slack) - TINY, 0.0), high * (1 + slack) + TINY


def finite(*numbers: float) -> None:
    """Raise NotEnclosed where a bound has left the range of doubles."""
    if not all(math.isfinite(number) for number in numbers):
        raise NotEnclosed("numbers leave the range of doubles")
