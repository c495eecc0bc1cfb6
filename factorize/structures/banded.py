"""A strategy with few diagonals: the structure `banded`, O(n bands) in memory and per row."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from factorize.structures.base import StoredMatrix
from factorize.structures.recursion import MatrixRecursion, RecursiveMatrix, X, delayed


class BandedMatrix(StoredMatrix, RecursiveMatrix):
    """A lower-triangular matrix with X[j + d, j] = bands[d, j] and zeros everywhere else.

    Args:
        bands: shape (bands, n) with bands <= n; first row positive, exact zeros where j + d >= n.

    Raises:
        InvalidStrategy: the bands are not of this form.
    """

    def __init__(self, bands: np.ndarray) -> None:
        (self.bands,) = self.keep("banded", {"bands": bands}, np.shape(bands)[-1] if np.ndim(bands) else None)
        self.n = self.bands.shape[1]

    @cached_property
    def recursion(self) -> MatrixRecursion:
        """The recursion that sums the last inputs for each row."""
        return MatrixRecursion(self.n, [{(X, d): delayed(band, d) for d, band in enumerate(self.bands)}])

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Write each row's entries at their columns."""
        out = np.zeros((stop - start, self.n))
        for d in range(len(self.bands)):
            i = np.arange(max(start, d), stop)
            out[i - start, i - d] = self.bands[d, i - d]
        return out

    def leading(self, steps: int) -> BandedMatrix:
        """Return the matrix with the starts of the bands."""
        bands = np.array(self.bands[:steps, :steps])
        for d, band in enumerate(bands):
            band[steps - d :] = 0.0
        return BandedMatrix(bands)

    def column_norms_squared(self) -> np.ndarray:
        """Return the sums of squares down the bands."""
        return np.einsum("dj,dj->j", self.bands, self.bands)

    def bandwidth(self) -> int:
        """Return the position of the last band that is not all zero, plus one."""
        return int(np.flatnonzero(self.bands.any(axis=1))[-1]) + 1
