"""Matrices that are recursions of few states: a structure states its recursion, and products follow from it."""

from abc import abstractmethod
from functools import cached_property

import numpy as np

from factorize.numbers.toeplitz_series import toeplitz_rows
from factorize.structures.base import Matrix
from factorize.structures.recursion import MatrixRecursion
from factorize.workloads.state_space import StateSpace


class RecursiveMatrix(Matrix):
    """A matrix with a recursion, of itself or of its inverse."""

    @cached_property
    @abstractmethod
    def recursion(self) -> MatrixRecursion:
        """C."""

    @cached_property
    def inverse_recursion(self) -> MatrixRecursion:
        """C^-1."""
        return self.recursion.inverse()

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows by one backward sweep; O(n states) per row."""
        return self.left_multiply(np.eye(stop - start, self.n, start))

    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """Return block times C^-1 by one backward sweep; O(n states) per row."""
        return self.inverse_recursion.transposed(block)

    def left_multiply(self, block: np.ndarray) -> np.ndarray:
        """Return block times C by one backward sweep; O(n states) per row."""
        return self.recursion.transposed(block)

    def column_norms_squared(self) -> np.ndarray:
        """Return the variances of z^T C for white noise z."""
        return self.recursion.column_norms_squared()

    def decoder_errors(self, workload: StateSpace) -> np.ndarray | None:
        """Return the variances of A C^-1 z; O(n states^2), or O(n^2 states) where those are many."""
        return self.inverse_recursion.then(workload).variances()


class ComputedToeplitz(RecursiveMatrix):
    """A lower-triangular Toeplitz matrix whose coefficients are computed from a few numbers, none of them negative."""

    @property
    def time_invariant(self) -> bool:
        """It is, by construction."""
        return True

    @property
    def signed(self) -> bool:
        """No coefficient is negative."""
        return False

    @cached_property
    def _column(self) -> np.ndarray:
        return self.recursion.products(np.eye(1, self.n))[0]

    @cached_property
    def _inverse_column(self) -> np.ndarray:
        return self.divide(np.eye(1, self.n)[0])

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Slide over the column."""
        return toeplitz_rows(self._column, start, stop)

    def inverse_rows(self, start: int, stop: int) -> np.ndarray:
        """Slide over the inverse's column."""
        return toeplitz_rows(self._inverse_column, start, stop)

    def divide(self, series: np.ndarray) -> np.ndarray:
        """Return the series over that of C."""
        return self.inverse_recursion.products(series[None])[0]

    def column_norms_squared(self) -> np.ndarray:
        """Column j holds the first n - j coefficients."""
        return np.cumsum(self._column**2)[::-1]
