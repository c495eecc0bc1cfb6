"""Readings of stored entries: arrays (structure `dense`), and diagonals (`banded`) with bands[d, j] = C[j + d, j]."""

from collections.abc import Mapping

import numpy as np

from factorize.checker.arithmetic.near import Near, share
from factorize.checker.structures.base import StoredReading, placed, solved
from factorize.checker.structures.covariances import Recursion, negative
from factorize.checker.structures.toeplitz import width_of


class DenseReading(StoredReading):
    """A reading of C as an array, shape (n, n), which may be Toeplitz entry for entry."""

    def __init__(self, parts: Mapping[str, np.ndarray], n: int) -> None:
        array = parts[""]
        self.n, self._array, self.diagonal = n, array, np.diagonal(array)
        self.signed = bool((array < 0).any())
        self.bandwidth = 1 + next((d for d in range(self.n - 1, 0, -1) if np.diagonal(array, -d).any()), 0)
        constant = all((array[i, 1:] == array[i - 1, :-1]).all() for i in range(1, len(array)))
        self.column = array[:, 0].copy() if constant else None

    @property
    def doubles(self) -> np.ndarray:
        """The whole of C."""
        return self._array

    def column_norms(self) -> Near:
        """Return the squared norms of the columns."""
        return norms(self._array)

    def entries_of(self, indices: np.ndarray) -> np.ndarray:
        """Return some columns."""
        return self._array[:, indices]


def norms(array: np.ndarray) -> Near:
    """Return the squared column norms of an array, shape (rows, columns)."""
    with np.errstate(over="ignore"):
        return Near(np.einsum("ij,ij->j", array, array), share(roundings=len(array) + 4))


class BandedReading(StoredReading):
    """A reading of C by its diagonals, shape (bands, n)."""

    bands: np.ndarray

    def __init__(self, parts: Mapping[str, np.ndarray], n: int) -> None:
        bands = parts["bands"]
        self.n, self.bands, self.diagonal = n, bands, bands[0]
        self.signed, self.bandwidth = bool((bands < 0).any()), width_of(np.asarray(bands.any(axis=1)))

    def column_norms(self) -> Near:
        """Return the squared norms of the columns."""
        return norms(self.bands)

    def entries_of(self, indices: np.ndarray) -> np.ndarray:
        """Return some columns."""
        return placed([self.bands[:, j] for j in indices], indices, self.n)

    def inverse(self) -> Recursion:
        """Return the recursion that subtracts earlier outputs from x and divides by the diagonal."""
        return Recursion(solved({(0, d): negative(band, d) for d, band in enumerate(self.bands) if d}, self.bands[0]))
