"""Arrays (structure `dense`): C entry by entry."""

from __future__ import annotations

from functools import cached_property
from typing import Self

import numpy as np

from factorize.errors import CorruptObject, InvalidStrategy
from factorize.exact.arithmetic.integers import Numbers, integers, limbs, mantissas, squares
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.slices import KEPT, squared_norms
from factorize.exact.structures.base import StoredReading, prefix_norms
from factorize.exact.structures.toeplitz import diagonals_of, falls, width_of

MOST_PATTERN_WORK = 1 << 32
"""n^2 times the steps of a pattern, for which slices take minutes at most."""
_MOST_IN_INTEGERS = 1 << 22  # entries of columns that are squared in Python integers: a few seconds
_ROWS_AT_ONCE = 256
_COLUMNS_AT_ONCE = 1 << 18  # entries of one block of columns, so that limbs stay small beside the matrix


class DenseReading(StoredReading):
    """C as an array, which may be Toeplitz entry for entry.

    Args:
        array: shape (n, n).
    """

    parts = frozenset({""})
    scalable = True

    def __init__(self, array: np.ndarray) -> None:
        self.n, self._array = len(array), array
        constant = all((array[i, 1:] == array[i - 1, :-1]).all() for i in range(1, len(array)))
        self.column = array[:, 0].copy() if constant else None
        self.monotone = self.column is not None and falls(self.column)

    @classmethod
    def read(cls, parts: dict[str, np.ndarray], n: int) -> Self:
        """Take the array; see `Reading.read`."""
        array = parts.pop("")
        if array.shape != (n, n):
            raise CorruptObject(f"a tensor of C has shape {array.shape}; the spec's n asks for {(n, n)}")
        return cls(array)

    @property
    def array(self) -> np.ndarray:
        """All of C."""
        return self._array

    def check(self) -> None:
        """Refuse entries above the diagonal."""
        for start in range(0, self.n, _ROWS_AT_ONCE):
            above = self._array[start : start + _ROWS_AT_ONCE, start:]
            if above[:, _ROWS_AT_ONCE:].any() or np.triu(above[:, :_ROWS_AT_ONCE], 1).any():
                row, column = np.argwhere(np.triu(above, 1))[0]
                place, value = f"({start + row}, {start + column})", float(above[row, column])
                raise InvalidStrategy(f"entry {place} above the diagonal is {value!r}, not 0")

    @property
    def diagonal(self) -> np.ndarray:
        """The diagonal."""
        return np.diagonal(self._array)

    @property
    def signed(self) -> bool:
        """Whether an entry is negative."""
        return bool((self._array < 0).any())

    @property
    def bandwidth(self) -> int:
        """Diagonals up to the last one that is not all zero."""
        if self.column is not None:
            return width_of(self.column)
        return next(d for d in range(self.n - 1, -1, -1) if np.diagonal(self._array, -d).any()) + 1

    @cached_property
    def series(self) -> Numbers | None:
        """The first column, if every diagonal is constant bit by bit."""
        return None if self.column is None else integers(self.column)

    def column_norms(self) -> Numbers:
        """Squared norms of the columns."""
        return norms(self._array, triangular=True) if self.series is None else prefix_norms(self.series)

    def affords_patterns(self, most: int) -> bool:
        """Whether Gram matrices of all patterns of `most` steps are affordable: by slices n = 16,384 for 16 steps."""
        return self.n * self.n * most <= MOST_PATTERN_WORK

    def entries_of(self, indices: np.ndarray) -> np.ndarray:
        """Return some columns."""
        return self._array[:, indices]

    def diagonals(self, most: int) -> np.ndarray | None:
        """Return the diagonals of a Toeplitz matrix up to the last that is not 0."""
        return None if self.column is None else diagonals_of(self.column, most)


def norms(array: np.ndarray, *, triangular: bool = False) -> Numbers:
    """Squared column norms of an array: by slices, or in integers where those cannot be relied on.

    Args:
        array: shape (rows, columns).
        triangular: whether entries above the diagonal are known to be 0.
    """
    found = _norms(array, triangular=triangular)
    if not found.radius:
        return found
    wide = [j for j in range(array.shape[1]) if _places(array[:, j]) > KEPT]
    if len(array) * len(wide) > _MOST_IN_INTEGERS:
        return found
    # What is cut of a column that spans many places would be a radius of all.
    others = array.copy()
    others[:, wide] = 0.0
    found, exact = _norms(others, triangular=triangular), [integers(array[:, j]) for j in wide]
    unit = min([found.exponent, *(2 * column.exponent for column in exact)])
    found = found.at(unit)
    for j, column in zip(wide, exact, strict=True):
        found.values[j] = int((column.values**2).sum()) << 2 * column.exponent - unit
    return found


def _norms(array: np.ndarray, *, triangular: bool) -> Numbers:
    try:
        return squared_norms(array, triangular=triangular)
    except NotEnclosed:
        return norms_in_integers(array)


def _places(column: np.ndarray) -> int:
    """From the leading bit of the largest entry to the last bit of any."""
    mantissa, exponent = mantissas(column[column != 0])
    last = np.frexp((mantissa & -mantissa).astype(np.float64))[1]
    return int(exponent.max() + 53 - (exponent + last - 1).min()) if len(mantissa) else 0


def norms_in_integers(array: np.ndarray) -> Numbers:
    """Squared column norms of an array, a block of columns at a time."""
    step = _COLUMNS_AT_ONCE // len(array) + 1
    blocks = [squares(limbs(array[:, start : start + step])) for start in range(0, array.shape[1], step)]
    unit = min(block.exponent for block in blocks)
    aligned = [block.at(unit) for block in blocks]
    return Numbers(np.concatenate([b.values for b in aligned]), unit, max(b.radius for b in aligned))
