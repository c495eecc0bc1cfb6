"""Two diagonals (structure `bidiagonal`)."""

from __future__ import annotations

from typing import Self

import numpy as np

from factorize.checker.arithmetic.near import Near
from factorize.checker.structures.base import StoredReading, placed
from factorize.checker.structures.dense import norms
from factorize.errors import CorruptObject, InvalidStrategy


class BidiagonalReading(StoredReading):
    """C by its diagonals.

    Args:
        bands: shape (2, n), column by column.
    """

    parts = frozenset({"diagonal", "below"})

    def __init__(self, bands: np.ndarray) -> None:
        self.n, self._bands, self.diagonal = bands.shape[1], bands, bands[0]
        self.signed, self.bandwidth = bool((bands < 0).any()), 2 if bands[1].any() else 1

    @classmethod
    def read(cls, parts: dict[str, np.ndarray], n: int) -> Self:
        """Take both diagonals; see `Reading.read`."""
        diagonal, below = parts.pop("diagonal"), parts.pop("below")
        if diagonal.shape != (n,) or below.shape != (n,):
            raise CorruptObject(f"diagonals of a matrix with n={n} cannot have shapes {diagonal.shape}, {below.shape}")
        if below[0] != 0:
            raise InvalidStrategy("an entry stands before the first column")
        return cls(np.stack([diagonal, np.append(below[1:], 0.0)]))

    def column_norms(self) -> Near:
        """Squared norms of the columns."""
        return norms(self._bands)

    def entries_of(self, indices: np.ndarray) -> np.ndarray:
        """Return some columns."""
        return placed([self._bands[:, j] for j in indices], indices, self.n)
