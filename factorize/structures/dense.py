"""A lower-triangular matrix without any pattern: the structure `dense`."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from factorize.errors import InvalidStrategy
from factorize.format.tensors import check_strategy_tensors
from factorize.numbers.triangular import right_solve
from factorize.structures.base import StoredMatrix, check_dense


class DenseMatrix(StoredMatrix):
    """Any lower-triangular matrix, stored whole.

    Args:
        array: shape (n, n); exact zeros above the diagonal, positive diagonal. It is copied, unless its numbers are
            read-only, and it owns them or they lie in bytes.

    Raises:
        InvalidStrategy: the array is not of this form.
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array = strategy_array(array)
        self.structure, self._tensors = "dense", {"": self.array}
        self.n = len(self.array)

    def dense(self) -> np.ndarray:
        """Return the array itself."""
        check_dense(self.n)
        return self.array

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return a copy of the rows."""
        return self.array[start:stop].copy()

    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """Solve y C = block by substitution, in the columns up to the last non-zero one."""
        return right_solve(self.array, block)

    def leading(self, steps: int) -> DenseMatrix:
        """Return the leading block of the array."""
        return DenseMatrix(self.array[:steps, :steps])

    def column_norms_squared(self) -> np.ndarray:
        """Return the sums of squares down the columns."""
        return np.einsum("ij,ij->j", self.array, self.array)

    @cached_property
    def _bands(self) -> int:
        return 1 + next(d for d in range(self.n - 1, -1, -1) if np.diagonal(self.array, -d).any())

    def bandwidth(self) -> int:
        """Return the number of diagonals up to the last that is not exactly zero."""
        return self._bands


def strategy_array(array: np.ndarray) -> np.ndarray:
    """Return a read-only float64 array that can be a strategy matrix.

    Raises:
        InvalidStrategy: the array is not square, empty, not finite, non-zero above the diagonal, or its diagonal is not
            positive.
    """
    checked = np.ascontiguousarray(array, dtype=np.float64)
    if checked.ndim != 2 or checked.shape[0] != checked.shape[1] or not len(checked):
        raise InvalidStrategy(f"a strategy matrix must be square and not empty; got shape {checked.shape}")
    check_strategy_tensors("dense", {"": checked}, len(checked))
    kept = checked is array and not array.flags.writeable and _unchanging(array)
    if not kept and (checked is array or checked.base is array):
        checked = checked.copy()
    checked.setflags(write=False)
    return checked


def _unchanging(array: np.ndarray) -> bool:
    """Return whether nobody else can write the numbers of a read-only array; an owner is taken to hand them over."""
    if array.flags.owndata:
        return True
    base: object = array.base
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    return isinstance(base, bytes)
