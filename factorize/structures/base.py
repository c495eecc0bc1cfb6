"""A lower-triangular n x n matrix known by its structure: rows on demand, and products with its inverse.

No structure needs its inverse stored: rows of C^-1 are unit rows times C^-1, and rows of B are rows of A times C^-1,
both by `right_solve`. Rows, products and column norms come from the structure itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from typing import ClassVar, NamedTuple

import numpy as np

from factorize.errors import CertificateError, TooLarge
from factorize.numbers.series import series_product, series_quotient
from factorize.numbers.wide import Wide, largest, looseness
from factorize.workloads.state_space import StateSpace

MAX_DENSE = 16_384
_TIGHT = 2.0**-40  # errors of column norms, relative to the largest one, that may still be called exact


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

    @abstractmethod
    def enclosed_column_norms(self) -> Wide:
        """Return the squared norm of each column, shape (n,), as wide numbers (numbers/wide.py).

        Raises:
            CertificateError: double precision does not enclose them.
        """

    def largest_column(self) -> Fraction:
        """Return the squared norm of the largest column from above; it raises as `enclosed_column_norms`."""
        return largest(self.enclosed_column_norms())

    @abstractmethod
    def enclosed_entries(self) -> Wide:
        """Return C, shape (n, n): its doubles where they are stored, and enclosed where they are computed.

        Raises:
            TooLarge: n is above the limit for an n x n array.
            CertificateError: double precision does not enclose them.
        """

    def _tight(self, norms: Wide | None, reason: str) -> Wide:
        """Return computed column norms that may be called exact.

        Args:
            norms: None where doubles enclose nothing.
            reason: why they are not enclosed, where they are not.

        Raises:
            CertificateError: they may not, with the reason and the remedy.
        """
        if norms is None or not looseness(norms) <= _TIGHT:
            raise CertificateError(
                f"the column norms of this {self.structure} matrix with n={self.n} are not enclosed in doubles: "
                f"{reason}; scale its states, or store the matrix as a dense one"
            )
        return norms

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
