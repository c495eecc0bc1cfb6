"""A strategy of two diagonals: the structure `bidiagonal`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from factorize.errors import InvalidStrategy
from factorize.structures.base import StoredMatrix


class BidiagonalMatrix(StoredMatrix):
    """C[i, i] = diagonal[i], C[i, i - 1] = below[i], and zeros everywhere else.

    Args:
        diagonal: shape (n,), positive.
        below: shape (n,), the first one 0.

    Raises:
        InvalidStrategy: otherwise.
    """

    structure = "bidiagonal"

    def __init__(self, diagonal: np.ndarray, below: np.ndarray) -> None:
        self.n = len(diagonal)
        if not (np.isfinite([diagonal, below]).all() and (diagonal > 0).all() and below[0] == 0):
            raise InvalidStrategy("a bidiagonal matrix has a positive diagonal, and nothing before the first column")
        self._diagonal, self._below = diagonal, below

    @classmethod
    def of_tensors(cls, parts: Mapping[str, np.ndarray], n: int) -> BidiagonalMatrix:
        """Take both diagonals."""
        return cls(parts["diagonal"], parts["below"])

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Write both entries of each row."""
        return (np.diag(self._diagonal) + np.diag(self._below[1:], -1))[start:stop]

    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """Substitute from the last column to the first."""
        out = np.array(block, dtype=np.float64)
        for j in range(self.n - 1, -1, -1):
            if j + 1 < self.n:
                out[:, j] -= out[:, j + 1] * self._below[j + 1]
            out[:, j] /= self._diagonal[j]
        return out

    def tensors(self) -> dict[str, np.ndarray]:
        """Both diagonals."""
        return {"diagonal": self._diagonal, "below": self._below}

    def _next(self) -> np.ndarray:
        return np.append(self._below[1:], 0.0)

    def column_norms_squared(self) -> np.ndarray:
        """Two squares for each column."""
        return self._diagonal**2 + self._next() ** 2

    def bandwidth(self) -> int:
        """Two, or one where nothing stands below the diagonal."""
        return 2 if self._below.any() else 1
