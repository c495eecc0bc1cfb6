"""A strategy of two diagonals: the structure `bidiagonal`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from factorize.structures.base import StoredMatrix
from factorize.structures.recursion import MatrixRecursion, RecursiveMatrix, X


class BidiagonalMatrix(StoredMatrix, RecursiveMatrix):
    """C[i, i] = diagonal[i], C[i, i - 1] = below[i], and zeros everywhere else.

    Args:
        diagonal: shape (n,), positive.
        below: shape (n,), the first one 0.

    Raises:
        InvalidStrategy: otherwise.
    """

    def __init__(self, diagonal: np.ndarray, below: np.ndarray) -> None:
        self.n = len(diagonal)
        self._diagonal, self._below = self.keep("bidiagonal", {"diagonal": diagonal, "below": below}, self.n)

    @classmethod
    def of_tensors(cls, parts: Mapping[str, np.ndarray], n: int) -> BidiagonalMatrix:
        """Take both diagonals."""
        return cls(parts["diagonal"], parts["below"])

    @cached_property
    def recursion(self) -> MatrixRecursion:
        """Each entry of C x is a sum over two inputs."""
        return MatrixRecursion(self.n, [{(X, 0): self._diagonal, (X, 1): self._below}])

    def leading(self, steps: int) -> BidiagonalMatrix:
        """The starts of both diagonals."""
        return BidiagonalMatrix(self._diagonal[:steps], self._below[:steps])

    def bandwidth(self) -> int:
        """Two, or one where nothing stands below the diagonal."""
        return 2 if self._below.any() else 1
