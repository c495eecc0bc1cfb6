"""Numbers as pairs of doubles with a running bound on what was lost: sensitivities that are right to the last unit.

A sum of a million squares in double precision, rounded outwards by the usual bound, overstates by a hundred units in
the last place. Here every sum keeps its low part, so that what is left to allow for is about 2^-70 of the result, and
is 0 where nothing was rounded at all (an identity stays 1).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from factorize.errors import CertificateError
from factorize.numbers.error_free import rest_of_product
from factorize.numbers.rounding import UNIT

_LOST = 2.0**-51  # of the magnitude of a low part: its two roundings in a sum, and those of the bound itself
_SMALL, _SMALL_ERROR = 1e-130, 1e-290  # squares of smaller numbers lose bits below the normal range


class Wide(NamedTuple):
    """Real numbers within `error` of high + low, element by element.

    Attributes:
        high: nearest double, or nearly.
        low: what is left.
        error: bound on the rest; 0 where the two doubles are the number.
    """

    high: np.ndarray
    low: np.ndarray
    error: np.ndarray

    @np.errstate(over="ignore", invalid="ignore")
    def plus(self, other: Wide) -> Wide:
        """Add, element by element."""
        total, rest = _two_sum(self.high, other.high)
        lows = self.low + other.low
        rest = rest + lows
        high, low = _two_sum(total, rest)
        return Wide(high, low, self.error + other.error + _LOST * (np.abs(lows) + np.abs(rest)))

    @np.errstate(over="ignore", invalid="ignore")
    def times(self, other: Wide) -> Wide:
        """Multiply, element by element."""
        first = product(self.high, other.high)
        cross = self.high * other.low + self.low * other.high
        size, size_other = np.abs(self.high), np.abs(other.high)
        error = _LOST * (size * np.abs(other.low) + size_other * np.abs(self.low)) + np.abs(self.low * other.low)
        error = error + 2 * (size * other.error + size_other * self.error) + self.error * other.error
        underflow = (cross != 0) | (self.error != 0) | (other.error != 0)
        error = error + np.where(underflow, _SMALL_ERROR, 0.0)
        return first.plus(Wide(cross, np.zeros_like(cross), error))

    def take(self, *index: int | slice | np.ndarray) -> Wide:
        """Index all three parts."""
        return Wide(self.high[index], self.low[index], self.error[index])


def add_into(total: Wide, part: Wide) -> None:
    """Add to a total in place, bit by bit as `Wide.plus` does; the caller silences what leaves the range of doubles."""
    high, rest = _two_sum(total.high, part.high)
    lows = total.low + part.low
    rest += lows
    total.high[:], total.low[:] = _two_sum(high, rest)
    total.error[:] += part.error
    total.error[:] += _LOST * (np.abs(lows) + np.abs(rest))


def of_doubles(values: np.ndarray) -> Wide:
    """Return doubles as they are."""
    return Wide(values, np.zeros_like(values), np.zeros_like(values))


def of_constants(values: np.ndarray) -> Wide:
    """Return doubles as they are, with zeros that take no memory and cannot be written."""
    return Wide(values, *np.broadcast_to(0.0, (2, *values.shape)))


@np.errstate(over="ignore", invalid="ignore")
def product(a: np.ndarray, b: np.ndarray) -> Wide:
    """Return products of doubles without error, but for those near the underflow."""
    first = a * b
    rest = rest_of_product(a, b, first)
    tiny = (np.minimum(np.abs(a), np.abs(b)) < _SMALL) & (a != 0) & (b != 0)
    return Wide(first, rest, np.where(tiny, _SMALL_ERROR, 0.0))


def squares(values: np.ndarray) -> Wide:
    """Return squares of doubles."""
    return product(values, values)


def sum_above(numbers: Wide) -> Fraction:
    """Return an upper bound of the sum, off by its errors and about 2^-106 of itself.

    Raises:
        CertificateError: a number is not finite.
    """
    terms = check_finite(np.concatenate([numbers.high.ravel(), numbers.low.ravel(), numbers.error.ravel()]))
    total = math.fsum(terms)
    rest = math.fsum(np.append(terms, -total))
    return Fraction(total) + Fraction(rest) + abs(Fraction(rest)) / 2**52


def running_sums(numbers: Wide) -> Wide:
    """Return the sums of the first 1, 2, ... numbers, shape (n,)."""
    high, low, error = (np.empty(len(numbers.high)) for _ in range(3))
    h = low_part = lost = 0.0
    for i, (x, y, e) in enumerate(zip(*(part.tolist() for part in numbers), strict=True)):
        total = h + x
        back = total - h
        lows = low_part + y
        rest = ((h - (total - back)) + (x - back)) + lows
        h = total + rest
        low_part = rest - (h - total)
        lost += e + _LOST * (abs(lows) + abs(rest))
        high[i], low[i], error[i] = h, low_part, lost
    return Wide(high, low, error * (1 + 2.0**-20))


@np.errstate(over="ignore", invalid="ignore")
def largest(numbers: Wide) -> Fraction:
    """Return an upper bound of the largest number, off by its error.

    Raises:
        CertificateError: a number is not finite.
    """
    top = float(check_finite(numbers.high).max())
    rest = (numbers.high - top) + numbers.low
    above = rest + (_LOST * np.abs(rest) + numbers.error * (1 + 2.0**-50))
    return Fraction(top) + Fraction(float(check_finite(above).max()))


def sizes_above(numbers: Wide) -> np.ndarray:
    """Return |numbers| as doubles, from above; where a double is the number, that one.

    Raises:
        CertificateError: one is not finite.
    """
    sizes = np.abs(numbers.high) + np.abs(numbers.low) + numbers.error
    exact = (numbers.low == 0) & (numbers.error == 0)
    return check_finite(np.where(exact, np.abs(numbers.high), sizes * (1 + 4 * UNIT)))


def looseness(numbers: Wide) -> float:
    """Return how well the largest of non-negative numbers is known, relative to it; infinity where it is not."""
    highest = float(numbers.high.max())
    share = float(numbers.error.max()) / highest if 0 < highest < np.inf else np.inf
    return share if share >= 0 else np.inf


def check_finite(numbers: np.ndarray) -> np.ndarray:
    """Return the numbers.

    Raises:
        CertificateError: one is not finite.
    """
    if not np.isfinite(numbers).all():
        raise CertificateError("the sensitivity overflows double precision; scale C down")
    return numbers


def root_above(value: Fraction) -> float:
    """Return the smallest double whose square is at least `value`, 0 for what is not positive."""
    if value <= 0:
        return 0.0
    exponent = (value.numerator.bit_length() - value.denominator.bit_length()) // 2
    guess = math.ldexp(math.sqrt(value / Fraction(4) ** exponent), exponent)
    while Fraction(guess) ** 2 < value:
        guess = math.nextafter(guess, math.inf)
    while Fraction(below := math.nextafter(guess, 0.0)) ** 2 >= value:
        guess = below
    return guess


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    shifted = total - a
    return total, (a - (total - shifted)) + (b - shifted)
