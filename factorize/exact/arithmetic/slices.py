"""Error-free slices: doubles as a few integers of so many bits that float64 sums their products exactly, in any order.

Of a column with |x| < 2^e, y = 2^(beta - e) x is cut to the nearest integer, what is left is multiplied by 2^beta and
cut again (Ozaki, Ogita, Oishi and Rump 2012). Slices are integers of at most 2^beta in magnitude, and rows times
2^(2 beta) is at most 2^53, so that every partial sum of a product of slices is an integer that float64 holds. What
the slices do not hold is bounded; it is zero where the entries of a column span few places.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from factorize.exact.arithmetic.integers import Numbers
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.machine import check_products
from factorize.exact.arithmetic.pairs import in_pairs

KEPT = 86
"""Binary places below the largest entry of a column that slices hold, beside those by which rows add up."""
_LARGEST_ROWS = 1 << 31
_USUAL = 1000  # of exponents of powers of two that are doubles
_BLOCK = 1 << 16  # entries that are sliced at one time: they stay in the cache


class Slices(NamedTuple):
    """Columns as sums of S slices: x = 2^(exponent - bits) (sum_s 2^(-s bits) parts[s] + rest).

    The rest is at most 2^(-bits (S - 1)) / 2 in magnitude.

    Attributes:
        parts: S of shape (rows, columns), integers in float64, at most 2^bits in magnitude.
        exponents: shape (columns,).
        bits: of a slice.
        whole: whether the rest is 0.
    """

    parts: list[np.ndarray]
    exponents: np.ndarray
    bits: int
    whole: bool

    @property
    def lost(self) -> int:
        """What a product of two columns is off by, in units of 2^(-2 bits (S - 1)) of the scaled columns."""
        if self.whole:
            return 0
        # |x y - p q| <= |rest| (|y| + |p|) for each row, with |p| at most 2^bits + 1.
        return len(self.parts[0]) * ((1 << self.bits) + 1) << self.bits * (len(self.parts) - 1)

    def joined(self, sums: list[np.ndarray], exponents: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Put sums together whose places are 0, 1, ..., 2 (S - 1) slices below the first.

        Args:
            sums: int64, one array for each place.
            exponents: of the entries, without those of the slices.

        Returns:
            Python integers, the exponents of their units, and what each of them is off by.
        """
        last = len(sums) - 1
        total = sum(part.astype(object) << self.bits * (last - place) for place, part in enumerate(sums))
        return np.asarray(total, dtype=object), exponents - self.bits * (2 + last), self.lost


def sliced(columns: np.ndarray, rows: int) -> Slices:
    """Cut columns of finite doubles into slices.

    Args:
        columns: shape (any, columns).
        rows: how many of them are summed, at least the first side.

    Raises:
        NotEnclosed: entries are so far apart that their scaling underflows, or rows are too many.
    """
    if rows > _LARGEST_ROWS:
        raise NotEnclosed(f"{rows} rows are more than exact sums of slices reach")
    bits = (53 - (rows - 1).bit_length()) // 2
    exponents = np.frexp(np.abs(columns).max(axis=0, initial=0.0))[1].astype(np.int64)
    most = -(-(KEPT + (rows - 1).bit_length()) // bits)
    rest = _scaled(columns, bits - exponents)
    if (exponents > bits).any() and (np.ldexp(rest, exponents - bits) != columns).any():
        raise NotEnclosed("entries are so far apart that their scaling underflows")
    parts: list[np.ndarray] = []
    while True:
        parts.append(np.rint(rest))
        rest -= parts[-1]
        whole = not rest.any()
        if whole or len(parts) == most:
            return Slices(parts, exponents, bits, whole)
        rest *= 2.0**bits


def _scaled(columns: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    if (np.abs(exponents) < _USUAL).all():
        return np.asarray(columns * np.ldexp(1.0, exponents))
    return np.asarray(np.ldexp(columns, exponents))


def squared_norms(array: np.ndarray, *, triangular: bool) -> Numbers:
    """Return the squared norms of columns, exact but for entries far below the largest of their column.

    Args:
        array: finite doubles, shape (rows, columns).
        triangular: whether entries above the diagonal are known to be 0.

    Raises:
        NotEnclosed: see `sliced`.
    """
    check_products()
    rows, columns = array.shape
    step = max(_BLOCK // rows, 1)

    def sums_of(start: int) -> tuple[np.ndarray, np.ndarray, int]:
        cut = sliced(array[start if triangular else 0 :, start : start + step], rows)
        sums = [np.zeros(len(cut.exponents), dtype=np.int64) for _ in range(2 * len(cut.parts) - 1)]
        for s, t in _pairs(len(cut.parts)):
            sums[s + t] += np.einsum("ij,ij->j", cut.parts[s], cut.parts[t]).astype(np.int64) * (2 if s < t else 1)
        return cut.joined(sums, 2 * cut.exponents)

    starts = range(0, columns, step)
    return _aligned([sums_of(0)] if len(starts) == 1 else [found for _, found in in_pairs(sums_of, starts, rows)])


def gram_blocks(array: np.ndarray, patterns: np.ndarray) -> Numbers:
    """Return the Gram matrices of patterns of columns, shape (patterns, k, k); see `squared_norms`.

    Args:
        array: finite doubles, shape (rows, columns).
        patterns: columns, shape (patterns, k).

    Raises:
        NotEnclosed: see `sliced`.
    """
    check_products()
    rows, k = len(array), patterns.shape[1]
    step = max(2 * _BLOCK // (rows * k), 1)  # twice as many, and each array is memory that the system has to clear

    def sums_of(start: int) -> tuple[np.ndarray, np.ndarray, int]:
        some = patterns[start : start + step]
        cut = sliced(array[:, some.ravel()], rows)
        parts = [part.reshape(rows, len(some), k).swapaxes(0, 1) for part in cut.parts]
        sums = [np.zeros((len(some), k, k), dtype=np.int64) for _ in range(2 * len(parts) - 1)]
        for s, t in _pairs(len(parts)):
            one = (parts[s].swapaxes(1, 2) @ parts[t]).astype(np.int64)
            sums[s + t] += one + one.swapaxes(1, 2) if s < t else one
        each = cut.exponents.reshape(len(some), k)
        return cut.joined(sums, each[:, :, None] + each[:, None, :])

    return _aligned([found for _, found in in_pairs(sums_of, range(0, len(patterns), step), rows)])


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    return ((s, t) for s in range(count) for t in range(s, count))


def _aligned(found: list[tuple[np.ndarray, np.ndarray, int]]) -> Numbers:
    """Bring all entries to one unit, the finest of theirs; a zero says nothing of it."""
    used = [exponents[values != 0] for values, exponents, _ in found]
    unit = min((int(each.min()) for each in used if each.size), default=0)
    shifts = [np.where(values == 0, 0, exponents - unit).astype(object) for values, exponents, _ in found]
    radius: Any = max(
        (int(lost) << max(int(exponents.max()) - unit, 0) for _, exponents, lost in found if lost), default=0
    )
    return Numbers(
        np.concatenate([values << by for (values, _, _), by in zip(found, shifts, strict=True)]), unit, radius
    )
