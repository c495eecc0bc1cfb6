"""Two diagonals (structure `bidiagonal`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from factorize.checker.arithmetic.near import Near
from factorize.checker.structures.base import StoredReading, placed
from factorize.checker.structures.dense import norms


class BidiagonalReading(StoredReading):
    """C by its diagonals.

    Args:
        parts: both diagonals, shape (n,); 0 is in front of the lower one.
        n: side.
    """

    def __init__(self, parts: Mapping[str, np.ndarray], n: int) -> None:
        bands = np.stack([parts["diagonal"], np.append(parts["below"][1:], 0.0)])
        self.n, self._bands, self.diagonal = n, bands, bands[0]
        self.signed, self.bandwidth = bool((bands < 0).any()), 2 if bands[1].any() else 1

    def column_norms(self) -> Near:
        """Squared norms of the columns."""
        return norms(self._bands)

    def entries_of(self, indices: np.ndarray) -> np.ndarray:
        """Return some columns."""
        return placed([self._bands[:, j] for j in indices], indices, self.n)
