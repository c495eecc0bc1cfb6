"""Toeplitz strategies whose coefficients are computed from a few numbers: sums of positive terms alone.

Besides the buffered one (structures/blt.py) that is the inverse of a matrix with few diagonals: what is stored is C^-1,
so that the noise of a step is a sum over the last few draws, and C is what that noise protects.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from factorize.errors import InvalidStrategy
from factorize.format.tensors import SMALLEST_SCALE, fading
from factorize.numbers.series import series_quotient, toeplitz_rows
from factorize.structures.base import Matrix


class ComputedToeplitz(Matrix):
    """A lower-triangular Toeplitz matrix with non-negative coefficients."""

    @property
    def time_invariant(self) -> bool:
        """It is, by construction."""
        return True

    @property
    def signed(self) -> bool:
        """No coefficient is negative."""
        return False


class InverseBandedToeplitz(ComputedToeplitz):
    """The inverse of the lower-triangular Toeplitz matrix with few diagonals: 1, and below it nothing positive.

    Then c_t = sum_d |m_d| c_{t-d}, in which nothing is subtracted, and with sum |m_d| <= 1 no coefficient exceeds 1.

    Args:
        noising: first column of C^-1, shape (bands,): 1, then numbers in [-1, 0] that sum to -1 at least; none between
            -1e-100 and 0.
        n: side, at least `bands`.

    Raises:
        InvalidStrategy: otherwise.
    """

    structure = "inverse_banded_toeplitz"

    def __init__(self, noising: np.ndarray, n: int) -> None:
        given = np.array(noising, dtype=np.float64)
        if given.ndim != 1 or not 1 <= len(given) <= n or given[0] != 1:
            raise InvalidStrategy(
                f"the column of the inverse has 1 to n={n} entries and begins with 1; got shape {given.shape}"
            )
        below = given[1:]
        if not np.isfinite(below).all() or ((below > -SMALLEST_SCALE) & (below != 0)).any() or not fading(given):
            raise InvalidStrategy(
                "below the diagonal the inverse holds numbers <= -1e-100 or 0 that sum to at least -1, or its own "
                "inverse is not enclosed; store C as `toeplitz`"
            )
        given.setflags(write=False)
        self.noising, self.n = given, n

    @cached_property
    def _column(self) -> np.ndarray:
        try:
            column = self.times(np.eye(1, self.n)[0])
        except ModuleNotFoundError:
            column = series_quotient(np.eye(1, self.n)[0], self.noising)
        column.setflags(write=False)
        return column

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Slide over the column."""
        return toeplitz_rows(self._column, start, stop)

    def inverse_rows(self, start: int, stop: int) -> np.ndarray:
        """Slide over the few diagonals."""
        return toeplitz_rows(np.concatenate([self.noising, np.zeros(self.n - len(self.noising))]), start, stop)

    def divide(self, series: np.ndarray) -> np.ndarray:
        """Return the series over that of C: a sum over the diagonals."""
        return self._shifted(np.asarray(series, dtype=np.float64)[None])[0]

    def times(self, series: np.ndarray) -> np.ndarray:
        """Return the product with the series of C: the recursion."""
        return self._filtered(np.asarray(series)[None])[0]

    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """Sum over the diagonals along each row, from its end."""
        return self._shifted(block[:, ::-1])[:, ::-1]

    def left_multiply(self, block: np.ndarray) -> np.ndarray:
        """The recursion along each row, from its end."""
        return self._filtered(block[:, ::-1])[:, ::-1]

    def _filtered(self, rows: np.ndarray) -> np.ndarray:
        from factorize.structures.kernels.all_pole import filtered_rows

        return np.asarray(filtered_rows(self.noising.copy(), np.ascontiguousarray(rows, dtype=np.float64)))

    def _shifted(self, rows: np.ndarray) -> np.ndarray:
        out = np.array(rows, dtype=np.float64)
        for d, scale in enumerate(self.noising.tolist()):
            if d and scale:
                out[:, d:] += scale * rows[:, : rows.shape[1] - d]
        return out

    def column_norms_squared(self) -> np.ndarray:
        """Column j holds the first n - j coefficients."""
        return np.cumsum(self._column**2)[::-1]

    def bandwidth(self) -> int:
        """One where C is I, else n."""
        return self.n if self.noising[1:].any() else 1

    def tensors(self) -> dict[str, np.ndarray]:
        """The inverse's column."""
        return {"inverse_coefficients": self.noising}
