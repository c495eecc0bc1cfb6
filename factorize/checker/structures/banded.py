"""Diagonals (structure `banded`): bands[d, j] = C[j + d, j]."""

from collections.abc import Mapping

import numpy as np

from factorize.checker.arithmetic.near import Near
from factorize.checker.losses.covariances import Recursion, negative
from factorize.checker.structures.base import StoredReading, placed, solved
from factorize.checker.structures.dense import norms
from factorize.checker.structures.toeplitz import width_of


class BandedReading(StoredReading):
    """C by its diagonals, shape (bands, n)."""

    def __init__(self, parts: Mapping[str, np.ndarray], n: int) -> None:
        bands = parts["bands"]
        self.n, self._bands, self.diagonal = n, bands, bands[0]
        self.signed, self.bandwidth = bool((bands < 0).any()), width_of(np.asarray(bands.any(axis=1)))

    def column_norms(self) -> Near:
        """Squared norms of the columns."""
        return norms(self._bands)

    def entries_of(self, indices: np.ndarray) -> np.ndarray:
        """Return some columns."""
        return placed([self._bands[:, j] for j in indices], indices, self.n)

    @property
    def bands(self) -> np.ndarray:
        """The diagonals."""
        return self._bands

    def inverse(self) -> Recursion:
        """Return x less the earlier ones, and divided."""
        return Recursion(solved({(0, d): negative(band, d) for d, band in enumerate(self._bands) if d}, self._bands[0]))
