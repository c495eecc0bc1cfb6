"""Diagonals (structure `banded`): bands[d, j] = C[j + d, j]."""

from __future__ import annotations

from typing import Self

import numpy as np

from factorize.checker.arithmetic.near import Near
from factorize.checker.structures.base import StoredReading, placed
from factorize.checker.structures.dense import norms
from factorize.checker.structures.toeplitz import width_of
from factorize.errors import CorruptObject, InvalidStrategy


class BandedReading(StoredReading):
    """C by its diagonals.

    Args:
        bands: shape (bands, n).
    """

    parts = frozenset({"bands"})
    scalable = True

    by_diagonals = True

    def __init__(self, bands: np.ndarray) -> None:
        self.n, self._bands, self.diagonal = bands.shape[1], bands, bands[0]
        self.signed, self.bandwidth = bool((bands < 0).any()), width_of(np.asarray(bands.any(axis=1)))

    @classmethod
    def read(cls, parts: dict[str, np.ndarray], n: int) -> Self:
        """Take the bands; see `Reading.read`."""
        bands = parts.pop("bands")
        if bands.ndim != 2 or bands.shape[1] != n or not 1 <= len(bands) <= n:
            raise CorruptObject(f"bands of a matrix with n={n} cannot have shape {bands.shape}")
        return cls(bands)

    def check(self) -> None:
        """Refuse entries below the last row."""
        beyond = np.arange(self.n) + np.arange(len(self._bands))[:, None] >= self.n
        if (self._bands[beyond] != 0).any():
            raise InvalidStrategy("bands[d, j] is not 0 where j + d >= n")

    def column_norms(self) -> Near:
        """Squared norms of the columns."""
        return norms(self._bands)

    def entries_of(self, indices: np.ndarray) -> np.ndarray:
        """Return some columns."""
        return placed([self._bands[:, j] for j in indices], indices, self.n)

    def diagonals(self, most: int) -> np.ndarray | None:  # noqa: ARG002  they are there, at no work
        """Return the bands."""
        return self._bands
