"""A lower-triangular n x n matrix known by its structure: rows on demand, and products with its inverse.

`right_solve` is the one operation that everything else follows from: rows of C^-1 are unit rows times C^-1, rows of B
are rows of A times C^-1. No structure ever needs its inverse stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from factorize.errors import InvalidStrategy, TooLarge
from factorize.numbers.series import series_product, series_product_rows, series_quotient
from factorize.structures.triangular import right_solve
from factorize.workloads.base import toeplitz_rows
from factorize.workloads.state_space import StateSpace, scaling

MAX_DENSE = 16_384
MOST_RECURSIVE = 64
"""Diagonals of a Toeplitz matrix up to which losses are carried along the steps as for a banded one."""


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


class DenseMatrix(Matrix):
    """Any lower-triangular matrix, stored whole.

    Args:
        array: shape (n, n); exact zeros above the diagonal, positive diagonal.

    Raises:
        InvalidStrategy: otherwise.
    """

    structure = "dense"

    def __init__(self, array: np.ndarray) -> None:
        self.array = check_strategy(array)
        self.n = len(self.array)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return a copy of the rows."""
        return self.array[start:stop].copy()

    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """Solve y C = block by substitution; only the columns up to the last non-zero one are touched."""
        return right_solve(self.array, block)

    def tensors(self) -> dict[str, np.ndarray]:
        """The array itself."""
        return {"": self.array}

    def column_norms_squared(self) -> np.ndarray:
        """Sums of squares down the columns."""
        return np.einsum("ij,ij->j", self.array, self.array)

    @cached_property
    def _bands(self) -> int:
        offsets = [d for d in range(self.n) if np.diagonal(self.array, -d).any()]
        return offsets[-1] + 1

    def bandwidth(self) -> int:
        """Counted on exact zeros."""
        return self._bands


class ToeplitzMatrix(Matrix):
    """A lower-triangular Toeplitz matrix, stored as its first column.

    Args:
        coefficients: first column, shape (bands,), first entry positive; zero after its end.
        n: side, at least `bands`.

    Raises:
        InvalidStrategy: the column is empty, longer than n, not finite, or starts with a value that is not positive.
    """

    def __init__(self, coefficients: np.ndarray, n: int) -> None:
        column = np.array(coefficients, dtype=np.float64)
        if column.ndim != 1 or not 1 <= len(column) <= n:
            raise InvalidStrategy(f"a Toeplitz column has 1 to n={n} entries; got shape {column.shape}")
        if not np.isfinite(column).all() or column[0] <= 0:
            raise InvalidStrategy("a Toeplitz column must be finite and start with a positive value")
        column.setflags(write=False)
        self.column = column
        self.n = n

    @property
    def structure(self) -> str:  # type: ignore[override]  # one class, two names in the contract
        """`toeplitz` with n coefficients, `banded_toeplitz` with fewer."""
        return "toeplitz" if len(self.column) == self.n else "banded_toeplitz"

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Slide over the column."""
        return toeplitz_rows(self.coefficients(), start, stop)

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
        from factorize.structures.banded import BandedMatrix

        bands = np.repeat(self.column[:, None], self.n, axis=1)
        bands[np.arange(self.n) + np.arange(len(self.column))[:, None] >= self.n] = 0.0
        return BandedMatrix(bands).decoder_errors(workload)

    def inverse_rows(self, start: int, stop: int) -> np.ndarray:
        """Slide over the inverse's column."""
        return toeplitz_rows(self.inverse_coefficients, start, stop)

    def tensors(self) -> dict[str, np.ndarray]:
        """The column."""
        return {"coefficients": self.column}

    def column_norms_squared(self) -> np.ndarray:
        """Column j holds the first n - j coefficients."""
        return np.cumsum(self.coefficients() ** 2)[::-1]

    def bandwidth(self) -> int:
        """Position of the last non-zero coefficient, plus one."""
        return int(np.flatnonzero(self.column)[-1]) + 1


class ColumnScaled(Matrix):
    """Another matrix with its columns scaled: C diag(scale).

    Args:
        inner: the matrix.
        scale: shape (n,), positive.
    """

    structure = "scaled"

    def __init__(self, inner: Matrix, scale: np.ndarray) -> None:
        scale = np.array(scale, dtype=np.float64)
        if scale.shape != (inner.n,) or not np.isfinite(scale).all() or (scale <= 0).any():
            raise InvalidStrategy(f"column_scale needs {inner.n} positive finite entries; got shape {scale.shape}")
        scale.setflags(write=False)
        self.inner = inner
        self.scale = scale
        self.n = inner.n

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Scale the inner rows' columns."""
        return self.inner.rows(start, stop) * self.scale

    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """Solve y C D = block as y C = block D^-1."""
        return self.inner.right_solve(block / self.scale)

    def tensors(self) -> dict[str, np.ndarray]:
        """The inner tensors and the scale."""
        return {**self.inner.tensors(), "column_scale": self.scale}

    def column_norms_squared(self) -> np.ndarray:
        """Those of the inner matrix times the squared scale."""
        return self.inner.column_norms_squared() * self.scale**2

    def bandwidth(self) -> int:
        """Scaling leaves zeros zero."""
        return self.inner.bandwidth()

    def left_multiply(self, block: np.ndarray) -> np.ndarray:
        """Scale the inner product's columns."""
        return self.inner.left_multiply(block) * self.scale

    def decoder_errors(self, workload: StateSpace) -> np.ndarray | None:
        """(C D)^-1 is the inverse of C and then the inverse factors, which the workload is taken to begin with."""
        return self.inner.decoder_errors(scaling(1.0 / self.scale).then(workload))


def check_strategy(array: np.ndarray) -> np.ndarray:
    """Return a read-only float64 array that can be a strategy matrix.

    Raises:
        InvalidStrategy: not square, empty, not finite, non-zero above the diagonal, or a diagonal that is not positive.
    """
    checked = np.ascontiguousarray(array, dtype=np.float64)
    if checked.ndim != 2 or checked.shape[0] != checked.shape[1] or not len(checked):
        raise InvalidStrategy(f"a strategy matrix is square and not empty; got shape {checked.shape}")
    if not np.isfinite(checked).all():
        raise InvalidStrategy("the strategy matrix holds NaN or infinity; every entry must be finite")
    if np.triu(checked, 1).any():
        i, j = np.argwhere(np.triu(checked, 1))[0]
        raise InvalidStrategy(f"entry ({i}, {j}) above the diagonal is {float(checked[i, j])!r}; it must be exactly 0")
    lowest = int(np.argmin(np.diagonal(checked)))
    if checked[lowest, lowest] <= 0:
        raise InvalidStrategy(f"diagonal entry {lowest} is {float(checked[lowest, lowest])!r}; it must be positive")
    if checked is array or checked.base is array:
        checked = checked.copy()
    checked.setflags(write=False)
    return checked
