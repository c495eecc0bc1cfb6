"""Strategies that are the same at every step: the structures `toeplitz` and `banded_toeplitz`, one column."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from factorize.numbers.toeplitz_series import series_product_rows, series_quotient, toeplitz_rows
from factorize.structures.base import StoredMatrix, check_parts
from factorize.structures.recursion import toeplitz
from factorize.workloads.state_space import StateSpace

MOST_RECURSIVE = 64
"""Diagonals up to which losses are carried along the steps as for a banded matrix."""


class ToeplitzMatrix(StoredMatrix):
    """A lower-triangular Toeplitz matrix, stored as its first column.

    Args:
        coefficients: first column, shape (bands,), first entry positive; zero after its end.
        n: side, at least `bands`.

    Raises:
        InvalidStrategy: the column is empty, longer than n, not finite, or starts with a value that is not positive.
    """

    def __init__(self, coefficients: np.ndarray, n: int) -> None:
        name = "toeplitz" if np.size(coefficients) == n else "banded_toeplitz"
        (self.column,) = check_parts(name, {"coefficients": coefficients}, n)
        self.n = n

    @property
    def structure(self) -> str:  # type: ignore[override]  # one class, two names in the contract
        """`toeplitz` with n coefficients, `banded_toeplitz` with fewer."""
        return "toeplitz" if len(self.column) == self.n else "banded_toeplitz"

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Slide over the column."""
        return toeplitz_rows(self.coefficients(), start, stop)

    @property
    def time_invariant(self) -> bool:
        """It is, by construction."""
        return True

    def coefficients(self) -> np.ndarray:
        """The first column, padded with zeros to n."""
        return np.concatenate([self.column, np.zeros(self.n - len(self.column))])

    @cached_property
    def inverse_coefficients(self) -> np.ndarray:
        """First column of the inverse, shape (n,)."""
        return series_quotient(np.eye(1, self.n)[0], self.column)

    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """Correlate each row with the inverse's column: y_j = sum_{s >= j} block_s inverse_{s-j}."""
        used = np.flatnonzero(block.any(axis=0))
        out = np.zeros(block.shape)
        if used.size:
            top = int(used[-1]) + 1
            out[:, :top] = series_product_rows(block[:, :top][:, ::-1], self.inverse_coefficients[:top])[:, ::-1]
        return out

    def left_multiply(self, block: np.ndarray) -> np.ndarray:
        """Correlate each row with the column: y_j = sum_{s >= j} block_s c_{s-j}."""
        return series_product_rows(block[:, ::-1], self.coefficients())[:, ::-1]

    def decoder_errors(self, workload: StateSpace) -> np.ndarray | None:
        """Those of a banded matrix where the column is short; a long one has no recursion."""
        if len(self.column) > MOST_RECURSIVE:
            return None
        return toeplitz(self.column, self.n).inverse().then(workload).variances()

    def inverse_rows(self, start: int, stop: int) -> np.ndarray:
        """Slide over the inverse's column."""
        return toeplitz_rows(self.inverse_coefficients, start, stop)

    def leading(self, steps: int) -> ToeplitzMatrix:
        """The start of the column."""
        return ToeplitzMatrix(self.column[:steps], steps)

    def tensors(self) -> dict[str, np.ndarray]:
        """The column."""
        return {"coefficients": self.column}

    def column_norms_squared(self) -> np.ndarray:
        """Column j holds the first n - j coefficients."""
        return np.cumsum(self.coefficients() ** 2)[::-1]

    def bandwidth(self) -> int:
        """Position of the last non-zero coefficient, plus one."""
        return int(np.flatnonzero(self.column)[-1]) + 1
