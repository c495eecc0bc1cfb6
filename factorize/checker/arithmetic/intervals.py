"""Interval arithmetic in fixed point: integers in units of 2^-256, rounded down at one end and up at the other.

What is computed on the way may be in finer units, in which sums and products are the same.

For what is defined by a recursion (decaying workloads, matrices with buffers), whose exact values would need more bits
at every step. Arrays are object arrays of Python integers.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from factorize.checker.arithmetic.integers import Numbers, integers

PLACES = 256


class NotEnclosed(Exception):
    """Rounding grew so much that a method says nothing: no finding against a claim, and none for it."""


class Dyadic(NamedTuple):
    """The number value * 2^exponent, exactly."""

    value: int
    exponent: int

    def plus(self, other: Dyadic) -> Dyadic:
        """Add exactly."""
        unit = min(self.exponent, other.exponent)
        return Dyadic((self.value << self.exponent - unit) + (other.value << other.exponent - unit), unit)

    def times(self, other: Dyadic) -> Dyadic:
        """Multiply exactly."""
        return Dyadic(self.value * other.value, self.exponent + other.exponent)


def dyadic(number: float) -> Dyadic:
    """Return a double as it is."""
    exact = integers(np.array([number]))
    return Dyadic(int(exact.values[0]), exact.exponent)


def shifted(values: Any, exponent: int) -> Any:
    """Multiply an integer, or an array of them, by 2^exponent, rounding down."""
    return values << exponent if exponent >= 0 else values >> -exponent


def pair(value: Fraction) -> tuple[float, float]:
    """Return a number as two doubles, within 2^-104 of itself."""
    high = float(value)
    return high, float(value - Fraction(high))


def reciprocals(numbers: np.ndarray) -> np.ndarray:
    """Return 1 / x as pairs of doubles, shape (n, 2), within 2^-104 of themselves."""
    return np.array([pair(1 / Fraction(number)) for number in numbers.tolist()]).reshape(-1, 2)


class Interval(NamedTuple):
    """Entries between low and high, in units of 2^-256."""

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def zeros(cls, *shape: int) -> Interval:
        """Return zeros."""
        return cls.of_integers(np.full(shape, 0, dtype=object))

    @classmethod
    def of_integers(cls, values: np.ndarray) -> Interval:
        """Return given integers."""
        units = values.astype(object) << PLACES
        return cls(units, units.copy())

    def plus(self, other: Interval) -> Interval:
        """Add."""
        return Interval(self.low + other.low, self.high + other.high)

    def times(self, factor: Dyadic) -> Interval:
        """Multiply by one number."""
        low, high = (self.low, self.high) if factor.value >= 0 else (self.high, self.low)
        return Interval(shifted(low * factor.value, factor.exponent), -shifted(-(high * factor.value), factor.exponent))

    def over(self, divisor: int) -> Interval:
        """Divide by a positive integer."""
        return Interval(self.low // divisor, -(-self.high // divisor))

    def finer(self, places: int) -> Interval:
        """Return the same in a unit that is smaller by so many binary places."""
        return Interval(self.low << places, self.high << places) if places else self

    def coarser(self, places: int) -> Interval:
        """Return what holds it in a unit that is larger by so many binary places."""
        return Interval(self.low >> places, -(-self.high >> places)) if places else self

    def numbers(self) -> Numbers:
        """Return midpoints and one radius for all entries."""
        middle = (self.low + self.high) >> 1
        widest = int((self.high - self.low).max())
        return Numbers(middle, -PLACES, (widest + 1) // 2)
