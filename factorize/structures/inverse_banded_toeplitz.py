"""Toeplitz strategies whose coefficients are computed from a few numbers, and enclosed where a guarantee rests on them.

Besides the buffered one (structures/blt.py) that is the inverse of a matrix with few diagonals: what is stored is C^-1,
so that the noise of a step is a sum over the last few draws, and C is what that noise protects, to the last digit.
"""

from __future__ import annotations

from abc import abstractmethod
from fractions import Fraction
from functools import cached_property

import numpy as np

from factorize.errors import InvalidStrategy
from factorize.format.tensors import SMALLEST_SCALE, fading
from factorize.numbers.pattern_sums import leading_pattern
from factorize.numbers.series import series_quotient, toeplitz_rows
from factorize.numbers.wide import Wide, running_sums, sizes_above, sum_above
from factorize.structures.base import FallingPattern, Matrix

_AT_ONCE = 1 << 14  # coefficients: the intermediate arrays stay in the cache
_FADED = 1e-200  # coefficients below are bounded by the largest one after them, whether they fall or not


class ComputedToeplitz(Matrix):
    """A lower-triangular Toeplitz matrix with non-negative coefficients, known to about thirty digits."""

    @abstractmethod
    def wide_column(self) -> Wide:
        """Return the first column to about thirty digits, with a bound on what is lost."""

    @property
    @abstractmethod
    def falls(self) -> bool:
        """Whether the coefficients do not increase, as far as a sensitivity in double precision can tell."""

    @abstractmethod
    def leading_pattern(self, separation: int, most: int) -> Fraction:
        """Return the squared norm of the sum of columns 0, b, 2b, ..., from above; of a majorant, unless they fall."""

    def falling_pattern(self, separation: int, most: int) -> FallingPattern:
        """By the enclosed coefficients."""
        return FallingPattern(self.leading_pattern(separation, most), self.falls)

    def enclosed_column_norms(self) -> Wide:
        """Sums of the first squares."""
        column = self.wide_column()
        return running_sums(column.times(column)).take(slice(None, None, -1))

    def largest_column(self) -> Fraction:
        """The first one."""
        column = self.wide_column()
        parts = (column.take(slice(at, at + _AT_ONCE)) for at in range(0, self.n, _AT_ONCE))
        return sum((sum_above(part.times(part)) for part in parts), Fraction(0))

    @property
    def time_invariant(self) -> bool:
        """It is, by construction."""
        return True

    @property
    def signed(self) -> bool:
        """No coefficient is negative."""
        return False

    def column_above(self) -> np.ndarray:
        """The enclosed column."""
        return sizes_above(self.wide_column())

    def enclosed_entries(self) -> Wide:
        """Slide over the enclosed column."""
        return Wide(*(toeplitz_rows(part, 0, self.n) for part in self.wide_column()))


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
            column = self.wide_column().high
        except ModuleNotFoundError:
            column = series_quotient(np.eye(1, self.n)[0], self.noising)
        column.setflags(write=False)
        return column

    def wide_column(self) -> Wide:
        """By the recursion, in pairs of doubles."""
        from factorize.numbers.wide_kernels import fading_column

        column = Wide(np.empty(self.n), np.empty(self.n), np.empty(self.n))
        fading_column(-self.noising, *column)
        return column

    @cached_property
    def falls(self) -> bool:
        """Decided on the enclosed coefficients, down to 1e-200."""
        column = self.wide_column()
        kept = self._kept(column)
        drops = -(np.diff(column.high[:kept]) + np.diff(column.low[:kept]))
        return bool((drops * (1 - 2.0**-50) >= column.error[: kept - 1] + column.error[1:kept]).all())

    @staticmethod
    def _kept(column: Wide) -> int:
        """Count up to the last coefficient that has not faded: a zero before a larger one is a rise, not the end."""
        return int(np.flatnonzero(column.high >= _FADED)[-1]) + 1

    def leading_pattern(self, separation: int, most: int) -> Fraction:
        """Of the coefficients while they fall, then of the largest that is still to come (KL24, Theorem 2)."""
        column = self.wide_column()
        kept = self._kept(column) if self.falls else 0
        above = np.nextafter((column.high + np.abs(column.low) + column.error) * (1 + 2.0**-50), np.inf)
        column.high[kept:] = np.maximum.accumulate(above[::-1])[::-1][kept:]
        column.low[kept:] = column.error[kept:] = 0.0
        return leading_pattern(column, separation, most)

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
