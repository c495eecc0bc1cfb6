"""Doubles as integers, and products of integer matrices without rounding.

A double is an integer times a power of two. A matrix of doubles is kept as limbs: float64 arrays of integers below 2^18
in magnitude, most significant first. A product of two limbs sums integers that stay below 2^53, so float64 holds every
partial sum and BLAS may add them in any order; the limbs are put together as Python integers. Each product is compared
with a random vector modulo 2^64 (Freivalds), which does not go through BLAS.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from factorize.errors import CertificateError, TooLarge

WIDTH = 18
MOST_BITS = 9 * WIDTH
"""Entries further than this below the largest one are cut, and the cut goes into the radius."""


class Limbs(NamedTuple):
    """A real matrix near an integer one: |entry - sum_l parts[l] 2^(18 (L - 1 - l))| <= radius, in units of 2^exponent.

    Attributes:
        parts: shape (L, ...), float64 integers below 2^18 in magnitude.
        exponent: of the unit.
        radius: in units; 0 says that the integers are the matrix.
    """

    parts: np.ndarray
    exponent: int
    radius: int = 0

    @property
    def largest(self) -> int:
        """No entry is larger in magnitude, in units."""
        return (1 << WIDTH * len(self.parts)) + self.radius

    def take(self, *index: Any) -> Limbs:
        """Index the matrix."""
        return Limbs(self.parts[(slice(None), *index)], self.exponent, self.radius)

    def transpose(self) -> Limbs:
        """Swap the last two axes."""
        return Limbs(self.parts.swapaxes(-1, -2), self.exponent, self.radius)

    def numbers(self) -> Numbers:
        """Put the limbs together."""
        return Numbers(_join(list(self.parts)), self.exponent, self.radius)


class Numbers(NamedTuple):
    """Python integers in an object array, in units of 2^exponent, each off by at most `radius` units."""

    values: np.ndarray
    exponent: int
    radius: int = 0

    def at(self, exponent: int) -> Numbers:
        """Return the same numbers in a finer unit."""
        shift = self.exponent - exponent
        return Numbers(self.values * (1 << shift), exponent, self.radius << shift)

    def minus(self, other: Numbers) -> Numbers:
        """Return the difference."""
        unit = min(self.exponent, other.exponent)
        a, b = self.at(unit), other.at(unit)
        return Numbers(a.values - b.values, unit, a.radius + b.radius)

    def scaled(self, factors: Numbers) -> Numbers:
        """Multiply entry by entry with exact factors."""
        largest = int(abs(factors.values).max())
        return Numbers(self.values * factors.values, self.exponent + factors.exponent, self.radius * largest)

    def fraction(self, units: int) -> Fraction:
        """Return a number of units as a rational."""
        return Fraction(units) * Fraction(2) ** self.exponent


def integers(array: np.ndarray) -> Numbers:
    """Return doubles of any range as exact integers."""
    mantissa, exponent = mantissas(array)
    if not mantissa.any():
        return Numbers(mantissa.astype(object), 0)
    unit = int(exponent[mantissa != 0].min())
    shift = np.where(mantissa == 0, 0, exponent - unit)
    return Numbers(mantissa.astype(object) << shift.astype(object), unit)


def limbs(array: np.ndarray, bits: int = MOST_BITS) -> Limbs:
    """Return doubles as limbs; exact if their bits span at most `bits` places, else cut towards zero.

    Args:
        array: finite doubles of any shape.
        bits: places kept below the leading bit of the largest entry.
    """
    mantissa, exponent = mantissas(array)
    used = mantissa != 0
    if not used.any():
        return Limbs(np.zeros((1, *array.shape)), 0)
    top = int(exponent[used].max()) + 53
    low_bits = (mantissa[used] & -mantissa[used]).astype(np.float64)
    lowest = int((exponent[used] + np.frexp(low_bits)[1] - 1).min())
    unit = max(lowest, top - bits)
    count = -(-(top - unit) // WIDTH)
    parts = np.empty((count, *array.shape))
    rest = np.ldexp(array, -(unit + WIDTH * count))
    for part in parts:
        rest = rest * 2.0**WIDTH
        np.trunc(rest, out=part)
        rest -= part
    return Limbs(parts, unit, int(unit > lowest))


def split(numbers: Numbers) -> Limbs:
    """Return integers as limbs, cut to `MOST_BITS` places."""
    values: Any = numbers.values
    exponent, radius = numbers.exponent, numbers.radius
    bits = max(int(abs(values).max()).bit_length(), 1)
    drop = max(bits - MOST_BITS, 0)
    sign = np.where(values < 0, -1.0, 1.0)
    size: Any = abs(values) >> drop
    count = -(-(bits - drop) // WIDTH)
    shifts = [WIDTH * (count - 1 - place) for place in range(count)]
    parts = np.stack([((size >> shift) & ((1 << WIDTH) - 1)).astype(np.float64) * sign for shift in shifts])
    return Limbs(parts, exponent + drop, -(-radius >> drop) + int(drop > 0))


def product(left: Limbs, right: Limbs) -> Numbers:
    """Return the product of two matrices (or stacks of matrices), exact for their integers, with the error of both.

    Args:
        left: shape (..., r, n).
        right: shape (..., n, c).

    Raises:
        TooLarge: a partial sum could pass 2^53.
        CertificateError: this machine's matrix product is wrong.
    """
    inner = left.parts.shape[-1]
    if inner * min(len(left.parts), len(right.parts)) > 1 << (53 - 2 * WIDTH):
        raise TooLarge(f"an exact product over {inner} terms could pass 2^53; use a smaller n")
    shape = (*left.parts.shape[1:-1], right.parts.shape[-1])
    sums = [np.zeros(shape) for _ in range(len(left.parts) + len(right.parts) - 1)]
    for s, a in enumerate(left.parts):
        for t, b in enumerate(right.parts):
            sums[s + t] += a @ b
    _compare_with_vector(left.parts, right.parts, sums)
    error = left.radius * right.largest + right.radius * left.largest
    return Numbers(_join(sums), left.exponent + right.exponent, inner * error)


def squares(columns: Limbs) -> Numbers:
    """Return the sums of squares over the last axis but one: squared norms of columns."""
    rows = columns.parts.shape[1]
    if rows * len(columns.parts) > 1 << (53 - 2 * WIDTH):
        raise TooLarge(f"an exact sum over {rows} squares could pass 2^53; use a smaller n")
    sums = [np.zeros(columns.parts.shape[2:]) for _ in range(2 * len(columns.parts) - 1)]
    for s, a in enumerate(columns.parts):
        for t, b in enumerate(columns.parts):
            sums[s + t] += np.einsum("ij,ij->j", a, b)
    error = 2 * columns.radius * columns.largest * rows
    return Numbers(_join(sums), 2 * columns.exponent, error)


def mantissas(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return integers m and e with array = m 2^e, exactly."""
    fraction, exponent = np.frexp(np.asarray(array, dtype=np.float64))
    return np.ldexp(fraction, 53).astype(np.int64), exponent.astype(np.int64) - 53


def _join(parts: list[np.ndarray]) -> np.ndarray:
    """Put limbs together, most significant first, whose entries are integers of up to 2^53 and any sign.

    Carries make the limbs digits from 0 to 2^18 - 1 in 64-bit integers; three digits make one word of 54 bits, so that
    few operations are left for Python's integers.
    """
    mask = (1 << WIDTH) - 1
    carry = np.zeros(parts[0].shape, dtype=np.int64)
    words: list[np.ndarray] = []
    for place, part in enumerate(reversed(parts)):
        digit = part.astype(np.int64) + carry
        carry = digit >> WIDTH
        digit &= mask
        if place % 3 == 0:
            words.append(digit)
        else:
            words[-1] |= digit << (WIDTH * (place % 3))
    whole = carry.astype(object) << (WIDTH * (len(parts) - 3 * len(words) + 3))
    whole = np.asarray(whole, dtype=object) + words[-1].astype(object)
    for word in words[-2::-1]:
        whole = (whole << (3 * WIDTH)) + word.astype(object)
    return np.asarray(whole, dtype=object)


def _compare_with_vector(left: np.ndarray, right: np.ndarray, sums: list[np.ndarray]) -> None:
    """Compare S v with sum L (R v) for a fixed random v, in integer arithmetic modulo 2^64."""
    random = np.random.default_rng(0x5EED)
    v = random.integers(-(2**62), 2**62, size=(right.shape[-1], 1), dtype=np.int64)
    expected = [np.zeros((*s.shape[:-1], 1), dtype=np.int64) for s in sums]
    images = [b.astype(np.int64) @ v for b in right]
    for s, a in enumerate(left):
        whole = a.astype(np.int64)
        for t, image in enumerate(images):
            expected[s + t] += whole @ image
    for total, want in zip(sums, expected, strict=True):
        if (total.astype(np.int64) @ v != want).any():
            raise CertificateError("the matrix product of this machine's BLAS is wrong on small integers; replace it")
