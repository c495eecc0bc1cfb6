"""Strategies that are the same at every step: Toeplitz matrices, by their column or by the few numbers that make it.

`toeplitz` and `banded_toeplitz` store the column of C, `inverse_banded_toeplitz` that of C^-1: the noise of a step is
then a sum over the last few draws, and C is what that noise protects. `blt` has two numbers per buffer whatever n is,
c_0 = 1 and c_t = sum_r omega_r theta_r^(t-1). With decays in [0, 1] and scales that are not negative its coefficients
from c_1 on are positive and fall, in exact arithmetic and not only as computed; with sum omega <= 1 all of them do,
which is what makes the sensitivity under several participations exact (KL24, Theorem 2).

Those of nu-DP-FTRL (C24, section 4) have the column (1 - (1 - nu) x)^(-1/2), which no finite list holds.

Reference: McMahan, Xu, Zhang, A hassle-free algorithm for private learning in practice: don't use tree aggregation, use
BLTs (2024), algorithms 2 and 3, for the recursions of C and C^-1.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from factorize.numbers.triangular import series_product_rows, series_quotient, toeplitz_rows
from factorize.structures.base import StoredMatrix
from factorize.structures.recursion import MatrixRecursion, RecursiveMatrix, X, toeplitz
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

    time_invariant = True

    def __init__(self, coefficients: np.ndarray, n: int) -> None:
        name = "toeplitz" if np.size(coefficients) == n else "banded_toeplitz"
        (self.column,) = self.keep(name, {"coefficients": coefficients}, n)
        self.n = n

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
        return toeplitz(self.column, self.n).inverse().then(workload).variances()

    def inverse_rows(self, start: int, stop: int) -> np.ndarray:
        """Slide over the inverse's column."""
        return toeplitz_rows(self.inverse_coefficients, start, stop)

    def leading(self, steps: int) -> ToeplitzMatrix:
        """The start of the column."""
        return ToeplitzMatrix(self.column[:steps], steps)

    def column_norms_squared(self) -> np.ndarray:
        """Column j holds the first n - j coefficients."""
        return np.cumsum(self.coefficients() ** 2)[::-1]

    def bandwidth(self) -> int:
        """Position of the last non-zero coefficient, plus one."""
        return int(np.flatnonzero(self.column)[-1]) + 1


class ComputedToeplitz(RecursiveMatrix):
    """A lower-triangular Toeplitz matrix whose coefficients are computed from a few numbers, none of them negative."""

    time_invariant = True
    signed = False

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

    def __init__(self, noising: np.ndarray, n: int) -> None:
        (self.noising,) = self.keep("inverse_banded_toeplitz", {"inverse_coefficients": noising}, n)
        self.n = n

    @cached_property
    def inverse_recursion(self) -> MatrixRecursion:
        """A sum over the last inputs, the oldest first."""
        return toeplitz(self.noising, self.n)

    def decoder_errors(self, workload: StateSpace) -> None:  # noqa: ARG002  as of any other Toeplitz matrix
        """None: diagonals may be many."""

    def bandwidth(self) -> int:
        """One where C is I, else n."""
        return self.n if self.noising[1:].any() else 1

    def leading(self, steps: int) -> InverseBandedToeplitz:
        """The start of the inverse's column."""
        return InverseBandedToeplitz(self.noising[:steps], steps)


class BltMatrix(ComputedToeplitz):
    """The lower-triangular Toeplitz matrix with that column.

    Args:
        theta: decays, shape (buffers,), in [0, 1], no two within 2^-43.
        omega: scales, shape (buffers,), not negative.
        n: side.

    Raises:
        InvalidStrategy: otherwise.
    """

    def __init__(self, theta: np.ndarray, omega: np.ndarray, n: int) -> None:
        self.theta, self.omega = self.keep("blt", {"theta": theta, "omega": omega}, n)
        self.n = n

    @cached_property
    def recursion(self) -> MatrixRecursion:
        """One state for each buffer: y_t = x_t + omega . s_t, s_{t+1} = theta s_t + x_t."""
        pairs = list(zip(self.theta.tolist(), self.omega.tolist(), strict=True))
        buffers = [{(s, 1): theta, (X, 0): 1.0} for s, (theta, _) in enumerate(pairs, 1)]
        return MatrixRecursion(
            self.n, [{(X, 0): 1.0, **{(s, 1): omega for s, (_, omega) in enumerate(pairs, 1)}}, *buffers]
        )

    def bandwidth(self) -> int:
        """Known from the parameters: one or two diagonals where nothing is carried on, else n."""
        if not self.omega.any():
            return 1
        carried = (self.omega > 0) & (self.theta > 0)
        return self.n if carried.any() else min(2, self.n)

    def leading(self, steps: int) -> BltMatrix:
        """The same parameters."""
        return BltMatrix(self.theta, self.omega, steps)


FLUSH = 1e-300
"""Coefficients below are set to zero: denormal numbers are slow and carry no accuracy."""


def strategy_coefficients(n: int, nu: float) -> np.ndarray:
    """Return the first n coefficients of (1 - (1 - nu) x)^(-1/2), nu in [0, 1): positive and decreasing.

    c_t = c_{t-1} (t - 1/2) / t for nu = 0, times exp(t log1p(-nu)), which does not round 1 - nu.
    """
    t = np.arange(1.0, n)
    return _damp(np.cumprod(np.concatenate([[1.0], (t - 0.5) / t])), nu)


def noising_coefficients(n: int, nu: float) -> np.ndarray:
    """Return the first n coefficients of (1 - (1 - nu) x)^(1/2): 1, then negative; what noise is multiplied with."""
    t = np.arange(1.0, n)
    return _damp(np.cumprod(np.concatenate([[1.0], (t - 1.5) / t])), nu)


def flushed(series: np.ndarray) -> np.ndarray:
    """Return the series with what is below 1e-300 set to zero."""
    return np.where(np.abs(series) < FLUSH, 0.0, series)


def _damp(series: np.ndarray, nu: float) -> np.ndarray:
    with np.errstate(under="ignore"):
        damped = series * np.exp(np.arange(len(series)) * math.log1p(-nu))
    return flushed(damped)
