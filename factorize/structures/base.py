"""Lower-triangular n x n matrices known by their structure: rows on demand, and products with the inverse.

No structure stores its inverse: `right_solve` gives rows of C^-1 as unit rows times C^-1, and rows of B as rows of A
times C^-1. The structure itself gives rows, products and column norms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from factorize.errors import CorruptObject, InvalidStrategy, TooLarge
from factorize.format.tensors import check_strategy_tensors
from factorize.numbers.state_space import StateSpace
from factorize.numbers.triangular import series_quotient

MAX_DENSE = 16_384
"""The largest n of an n x n array: 2 GiB of doubles."""


class StrategyMatrix(ABC):
    """A strategy and its tensors.

    Attributes:
        structure: the contract's name of the layout (docs/file-format.md).
    """

    structure: str
    _tensors: Mapping[str, np.ndarray]

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the read-only arrays that define the strategy, by the contract's suffix."""
        return dict(self._tensors)

    def keep(self, structure: str, parts: Mapping[str, object], n: int | None) -> list[np.ndarray]:
        """Keep the tensors of a structure after the checks of a file's tensors, and return them as own doubles.

        Args:
            structure: the contract's name of the structure.
            parts: tensors by suffix.
            n: side, or None without end.

        Raises:
            InvalidStrategy: the tensors make no such matrix.
        """
        copies = {suffix: np.array(part, dtype=np.float64, order="C") for suffix, part in parts.items()}
        try:
            check_strategy_tensors(structure, copies, n)
        except CorruptObject as error:
            raise InvalidStrategy(str(error)) from None
        for part in copies.values():
            part.setflags(write=False)
        self.structure, self._tensors = structure, copies
        return list(copies.values())


class Matrix(StrategyMatrix):
    """An invertible lower-triangular matrix with a positive diagonal.

    Attributes:
        n: side.
        time_invariant: whether C, and so its inverse, is Toeplitz by the stored numbers.
    """

    n: int
    time_invariant: ClassVar[bool] = False

    @property
    def side(self) -> int | None:
        """The side n; only a strategy without end (structures/endless.py) has None."""
        return self.n

    def finite(self) -> Matrix:
        """Return the matrix itself; a strategy without end refuses."""
        return self

    @abstractmethod
    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows start..stop-1, shape (stop - start, n), float64."""

    @abstractmethod
    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """Return block times this matrix's inverse, shape (r, n), for rows of shape (r, n)."""

    @abstractmethod
    def column_norms_squared(self) -> np.ndarray:
        """Return the squared 2-norm of each column, shape (n,), in ordinary floating point."""

    @property
    def signed(self) -> bool:
        """Whether C may have a negative entry; it is true for a structure that cannot tell."""
        return True

    def left_multiply(self, block: np.ndarray) -> np.ndarray:
        """Return block times this matrix, shape (r, n), for rows of shape (r, n)."""
        return block @ self.dense()

    def decoder_errors(self, workload: StateSpace) -> np.ndarray | None:
        """Return the squared row norms of A C^-1, shape (n,), if this structure has a recursion for them; else None."""
        return None

    def coefficients(self) -> np.ndarray | None:
        """Return the first column, shape (n,), if the matrix is Toeplitz and its bits are stored; else None."""
        return None

    def divide(self, series: np.ndarray) -> np.ndarray | None:
        """Return a power series of shape (n,) over that of the first column if the matrix is Toeplitz, else None."""
        column = self.coefficients()
        return None if column is None else series_quotient(series, column)

    def bandwidth(self) -> int:
        """Return the number of diagonals that may be non-zero, the main one included."""
        return self.n

    def dense(self) -> np.ndarray:
        """Return the whole matrix, which may only be read: it is not copied where it is stored whole.

        Raises:
            TooLarge: n is above the limit for an n x n array.
        """
        check_dense(self.n)
        return self.rows(0, self.n)

    @abstractmethod
    def leading(self, steps: int) -> Matrix:
        """Return the leading block, shape (steps, steps), in the same structure and from the same stored numbers."""

    def inverse_rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows start..stop-1 of the inverse, shape (stop - start, n)."""
        return self.right_solve(np.eye(stop - start, self.n, start))


class StoredMatrix(Matrix):
    """A matrix whose entries are stored doubles or exact zeros, so that none is computed."""

    @property
    def signed(self) -> bool:
        """Whether a stored number is negative."""
        return any(bool((part < 0).any()) for part in self.tensors().values())


def check_dense(n: int) -> None:
    """Raise TooLarge for an n x n array above the limit, with its size in bytes."""
    if n > MAX_DENSE:
        raise TooLarge(
            f"a dense matrix with n={n} takes {8 * n * n / 2**30:.1f} GiB; above n={MAX_DENSE}, read rows instead"
        )
