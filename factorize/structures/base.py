"""A lower-triangular n x n matrix known by its structure: rows on demand, and products with its inverse.

No structure needs its inverse stored: rows of C^-1 are unit rows times C^-1, and rows of B are rows of A times C^-1,
both by `right_solve`. Rows, products and column norms come from the structure itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np

from factorize.errors import TooLarge
from factorize.numbers.series import series_product, series_quotient
from factorize.workloads.state_space import StateSpace

MAX_DENSE = 16_384


class Bound(NamedTuple):
    """A squared sensitivity over some patterns, by a rule of a structure's own.

    Attributes:
        squared: never below the true value, rounding included.
        exact: whether it is the true value up to relative 1e-11.
        rule: how it was found.
    """

    squared: float
    exact: bool
    rule: str


class Matrix(ABC):
    """An invertible lower-triangular matrix with a positive diagonal.

    Attributes:
        structure: the contract's name of the layout (docs/file-format.md).
        n: side.
    """

    structure: ClassVar[str]
    n: int

    @abstractmethod
    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows start..stop-1, shape (stop - start, n), float64."""

    @abstractmethod
    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """Return block times this matrix's inverse, shape (r, n), for rows of shape (r, n)."""

    @abstractmethod
    def tensors(self) -> dict[str, np.ndarray]:
        """Return the arrays that define the matrix, by the contract's suffix ('' for a dense matrix)."""

    @abstractmethod
    def column_norms_squared(self) -> np.ndarray:
        """Return the squared 2-norm of each column, shape (n,), in ordinary floating point."""

    def left_multiply(self, block: np.ndarray) -> np.ndarray:
        """Return block times this matrix, shape (r, n), for rows of shape (r, n)."""
        return block @ self.dense()

    def decoder_errors(self, workload: StateSpace) -> np.ndarray | None:
        """Return the squared row norms of A C^-1, shape (n,), if this structure has a recursion for them; else None."""
        return None

    def fixed_order_bound(self, epochs: int) -> Bound | None:
        """Return the squared sensitivity for `epochs` passes in a fixed order, if this structure has a rule for it."""
        return None

    def separated_bound(self, min_sep: int, most: int) -> Bound | None:
        """Return the squared sensitivity for at most `most` steps `min_sep` apart, if this structure has a rule."""
        return None

    def coefficients(self) -> np.ndarray | None:
        """Return the first column, shape (n,), if the matrix is Toeplitz and its bits are stored; else None."""
        return None

    def divide(self, series: np.ndarray) -> np.ndarray | None:
        """Return a power series of shape (n,) over that of the first column if the matrix is Toeplitz, else None."""
        column = self.coefficients()
        return None if column is None else series_quotient(series, column)

    def times(self, series: np.ndarray) -> np.ndarray | None:
        """Return the product with the series of the first column if the matrix is Toeplitz, else None."""
        column = self.coefficients()
        return None if column is None else series_product(series, column)

    def bandwidth(self) -> int:
        """Return the number of diagonals that may be non-zero, the main one included."""
        return self.n

    def dense(self) -> np.ndarray:
        """Return the whole matrix.

        Raises:
            TooLarge: n is above the limit for an n x n array.
        """
        check_dense(self.n)
        return self.rows(0, self.n)

    def inverse_rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows start..stop-1 of the inverse, shape (stop - start, n)."""
        units = np.zeros((stop - start, self.n))
        units[np.arange(stop - start), np.arange(start, stop)] = 1.0
        return self.right_solve(units)


def check_dense(n: int, *, limit: int = MAX_DENSE) -> None:
    """Refuse an n x n array above the limit.

    Raises:
        TooLarge: with the size in bytes.
    """
    if n > limit:
        raise TooLarge(f"a dense matrix with n={n} takes {8 * n * n / 2**30:.1f} GiB, above n={limit}; read rows")
