"""Doubles near exact numbers, and the share by which they may be off (docs/sensitivity.md, "Rounding").

A sum of n products in any order is off by at most n u / (1 - n u) of their magnitudes, u = 2^-53 (Higham, Accuracy and
Stability of Numerical Algorithms, section 3.1), and by underflow, which is less than `UNDERFLOW`.

Further bounds on roundings hold for any order of the sums (docs/notes/checker.md).
A sum of k products is off by at most gamma_k = k u / (1 - k u), u = 2^-53, times the sum of their magnitudes, and by
underflow. Bounds are computed in doubles, and multiplied by 1 + `SLACK`, which covers a few operations each.
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
"""More than 2^100 products of doubles can lose by underflow."""
TINY = 2.0**-1021
"""More than a million times what one product can lose by underflow."""
_STEP_SLACK = 1 + 2.0**-46  # It covers the few operations that carry an error one step on.
_SQUARE_LOSS = 2.0**-1000  # The squares of a row lose less than that by underflow.
_SHARE_SLACK = 1 + 2.0**-20  # It covers products of several shares, each below 2^-21.
_MAX_SHARE = 2.0**-22
"""The largest share by which a number may be off before a bound says too little."""


class NotEnclosed(Exception):
    """Rounding grew so much that a method finds nothing, neither for a claim nor against it."""


class Near(NamedTuple):
    """Doubles, shape (n,), each within a share of the true number; the share is 0 where nothing was rounded."""

    values: np.ndarray
    off: float


class Columns(NamedTuple):
    """Columns near those of C, shape (n, k), and upper bounds of the norms of the differences, shape (k,)."""

    values: np.ndarray
    far: np.ndarray


class Factor(NamedTuple):
    """A factor as a double, and an upper bound of its rounding error."""

    value: float
    away: float

    @classmethod
    def of(cls, exact: Fraction) -> Factor:
        """Round a rational number."""
        value = float(exact)
        return cls(value, 0.0 if exact == value else UNIT * abs(value) + TINY)


@dataclass(slots=True)
class Around:
    """Doubles and the most that each may be off by: numbers, or arrays of one shape."""

    values: Any
    errors: Any

    def __add__(self, other: Around) -> Around:
        """Add; the rounding of a sum is known exactly (Knuth)."""
        total = self.values + other.values
        part = total - self.values
        lost = abs((self.values - (total - part)) + (other.values - part))
        return Around(total, (self.errors + other.errors + lost) * _STEP_SLACK)

    def __sub__(self, other: Around) -> Around:
        """Subtract."""
        return self + Around(-other.values, other.errors)

    def __mul__(self, factor: Factor) -> Around:
        """Multiply."""
        value, away = factor
        lost = abs(value) * self.errors + away * (abs(self.values) + self.errors)
        values = self.values * value
        return Around(values, (lost + UNIT * abs(values)) * _STEP_SLACK + TINY)

    def squared_norm(self) -> tuple[float, float]:
        """Enclose the sum of squares."""
        sizes = np.abs(self.values)
        low, high = np.maximum(sizes - self.errors, 0.0), sizes + self.errors
        slack = (np.size(sizes) + 16) * UNIT
        return float(low @ low) * (1 - slack) - _SQUARE_LOSS, float(high @ high) * (1 + slack) + _SQUARE_LOSS


def double_below(value: Fraction) -> float:
    """Return the largest double that is not above a number, which is not negative."""
    try:
        nearest = float(value)
    except OverflowError:
        return sys.float_info.max
    return math.nextafter(nearest, 0.0) if Fraction(nearest) > value else nearest


def square_root_up(value: Fraction) -> float:
    """Return the smallest double whose square is at least `value`."""
    if value <= 0:
        return 0.0
    half = (value.numerator.bit_length() - value.denominator.bit_length()) // 2
    guess = math.ldexp(math.sqrt(float(value / Fraction(4) ** half)), half)
    while Fraction(guess) ** 2 >= value:
        guess = math.nextafter(guess, 0.0)
    while Fraction(guess) ** 2 < value:
        guess = math.nextafter(guess, math.inf)
    return guess


def square_root_down(value: Fraction) -> float:
    """Return the largest double whose square is at most `value`."""
    up = square_root_up(value)
    return up if Fraction(up) ** 2 == value else math.nextafter(up, 0.0)


def share(*shares: float, roundings: int = 0) -> float:
    """Return the share by which a number may be off after some shares and a number of roundings.

    Raises:
        NotEnclosed: it is above 2^-22.
    """
    off = (sum(shares) + roundings * UNIT) * _SHARE_SLACK
    if not off < _MAX_SHARE:
        raise NotEnclosed(f"rounding may change the sensitivity by a share of {off:.3g}")
    return off


SLACK = 2.0**-40
"""The share by which bounds are enlarged to cover the few operations that compute them."""
ROOT_OF_TINY = 2.0**-500
"""More than a norm can lose by the underflow of its squares."""


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
    """Return the ends of a non-negative number, moved apart by a share of themselves and by underflow."""
    low, high = ends
    return max(low * (1 - slack) - TINY, 0.0), high * (1 + slack) + TINY


def finite(*numbers: float) -> None:
    """Raise NotEnclosed where a bound has left the range of doubles."""
    if not all(math.isfinite(number) for number in numbers):
        raise NotEnclosed("numbers leave the range of doubles")
