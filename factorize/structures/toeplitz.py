"""Strategies that are the same at every step: Toeplitz matrices, by their column or by the few numbers that make it.

`toeplitz` and `banded_toeplitz` store the column of C. `inverse_banded_toeplitz` stores that of C^-1, so that the noise
of a step is a sum over the last few draws. `blt` has two numbers per buffer whatever n is, with c_0 = 1 and
c_t = sum_r omega_r theta_r^(t-1). With decays in [0, 1] and scales that are not negative its coefficients
from c_1 on are positive and fall, in exact arithmetic and not only as computed; with sum omega <= 1 all of them do,
which is what makes the sensitivity under several participations exact (KL24, Theorem 2).

The strategies of nu-DP-FTRL (C24, section 4) have the column (1 - (1 - nu) x)^(-1/2), which no finite list holds.

Reference: McMahan, Xu, Zhang, A hassle-free algorithm for private learning in practice: don't use tree aggregation, use
BLTs (2024), algorithms 2 and 3, for the recursions of C and C^-1.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from factorize.numbers.state_space import StateSpace
from factorize.numbers.triangular import series_product_rows, series_quotient, toeplitz_rows
from factorize.structures.base import StoredMatrix
from factorize.structures.recursion import MatrixRecursion, RecursiveMatrix, X, toeplitz

MAX_DIAGONALS = 64
"""The most diagonals for which losses are carried along the steps as for a banded matrix."""

_MAX_N_BY_TRANSFORM = 1 << 16


class ToeplitzMatrix(StoredMatrix):
    """A lower-triangular Toeplitz matrix, stored as its first column.

    Args:
        coefficients: first column, shape (bands,), first entry positive; zero after its end.
        n: side, at least `bands`.

    Raises:
        InvalidStrategy: the column is empty, longer than n, not finite, or does not start with a positive value.
    """

    time_invariant = True

    def __init__(self, coefficients: np.ndarray, n: int) -> None:
        name = "toeplitz" if np.size(coefficients) == n else "banded_toeplitz"
        (self.column,) = self.keep(name, {"coefficients": coefficients}, n)
        self.n = n

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return windows that slide over the column."""
        return toeplitz_rows(self.coefficients(), start, stop)

    def coefficients(self) -> np.ndarray:
        """Return the first column, padded with zeros to n."""
        return np.concatenate([self.column, np.zeros(self.n - len(self.column))])

    @cached_property
    def inverse_coefficients(self) -> np.ndarray:
        """The first column of the inverse, shape (n,)."""
        return series_quotient(np.eye(1, self.n)[0], self.column)

    @property
    def _by_steps(self) -> bool:
        """Whether rows are followed step by step, which takes less than transforms of many steps."""
        return self.n > _MAX_N_BY_TRANSFORM and len(self.column) <= MAX_DIAGONALS

    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """Correlate each row with the inverse's column: y_j = sum_{s >= j} block_s inverse_{s-j}."""
        if self._by_steps:
            return toeplitz(self.column, self.n).inverse().transposed(block)
        used = np.flatnonzero(block.any(axis=0))
        out = np.zeros(block.shape)
        if used.size:
            top = int(used[-1]) + 1
            out[:, :top] = series_product_rows(block[:, :top][:, ::-1], self.inverse_coefficients[:top])[:, ::-1]
        return out

    def left_multiply(self, block: np.ndarray) -> np.ndarray:
        """Correlate each row with the column: y_j = sum_{s >= j} block_s c_{s-j}."""
        if self._by_steps:
            return toeplitz(self.column, self.n).transposed(block)
        return series_product_rows(block[:, ::-1], self.coefficients())[:, ::-1]

    def decoder_errors(self, workload: StateSpace) -> np.ndarray | None:
        """Return the errors of a banded matrix where the column is short; a long column has no recursion."""
        if len(self.column) > MAX_DIAGONALS:
            return None
        return toeplitz(self.column, self.n).inverse().then(workload).variances()

    def inverse_rows(self, start: int, stop: int) -> np.ndarray:
        """Return windows that slide over the inverse's column."""
        return toeplitz_rows(self.inverse_coefficients, start, stop)

    def leading(self, steps: int) -> ToeplitzMatrix:
        """Return the matrix with the start of the column."""
        return ToeplitzMatrix(self.column[:steps], steps)

    def column_norms_squared(self) -> np.ndarray:
        """Return running sums of squares, since column j holds the first n - j coefficients."""
        return np.cumsum(self.coefficients() ** 2)[::-1]

    def bandwidth(self) -> int:
        """Return the position of the last non-zero coefficient, plus one."""
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
        """Return windows that slide over the column."""
        return toeplitz_rows(self._column, start, stop)

    def inverse_rows(self, start: int, stop: int) -> np.ndarray:
        """Return windows that slide over the inverse's column."""
        return toeplitz_rows(self._inverse_column, start, stop)

    def divide(self, series: np.ndarray) -> np.ndarray:
        """Return the series divided by that of C."""
        return self.inverse_recursion.products(series[None])[0]

    def column_norms_squared(self) -> np.ndarray:
        """Return running sums of squares, since column j holds the first n - j coefficients."""
        return np.cumsum(self._column**2)[::-1]


class InverseBandedToeplitz(ComputedToeplitz):
    """The inverse of a lower-triangular Toeplitz matrix with few diagonals: 1, and no positive number below it.

    Then c_t = sum_d |m_d| c_{t-d}, without any subtraction, and with sum |m_d| <= 1 no coefficient exceeds 1.

    Args:
        noising: first column of C^-1, shape (bands,): 1, then numbers in [-1, 0] that sum to -1 at least; none between
            -1e-100 and 0.
        n: side, at least `bands`.

    Raises:
        InvalidStrategy: the parameters are outside these limits.
    """

    def __init__(self, noising: np.ndarray, n: int) -> None:
        (self.noising,) = self.keep("inverse_banded_toeplitz", {"inverse_coefficients": noising}, n)
        self.n = n

    @cached_property
    def inverse_recursion(self) -> MatrixRecursion:
        """The recursion that sums the last inputs, the oldest first."""
        return toeplitz(self.noising, self.n)

    def decoder_errors(self, workload: StateSpace) -> None:  # noqa: ARG002  the signature is that of every matrix
        """Return None, since there may be many diagonals."""

    def bandwidth(self) -> int:
        """Return 1 where C is I, else n."""
        return self.n if self.noising[1:].any() else 1

    def leading(self, steps: int) -> InverseBandedToeplitz:
        """Return the matrix with the start of the inverse's column."""
        return InverseBandedToeplitz(self.noising[:steps], steps)


class BltMatrix(ComputedToeplitz):
    """The lower-triangular Toeplitz matrix with c_0 = 1 and c_t = sum_r omega_r theta_r^(t-1).

    Args:
        theta: decays, shape (buffers,), in [0, 1], no two within 2^-43.
        omega: scales, shape (buffers,), not negative.
        n: side.

    Raises:
        InvalidStrategy: the parameters are outside these limits.
    """

    def __init__(self, theta: np.ndarray, omega: np.ndarray, n: int) -> None:
        self.theta, self.omega = self.keep("blt", {"theta": theta, "omega": omega}, n)
        self.n = n

    @cached_property
    def recursion(self) -> MatrixRecursion:
        """The recursion with one state for each buffer: y_t = x_t + omega . s_t, s_{t+1} = theta s_t + x_t."""
        pairs = list(zip(self.theta.tolist(), self.omega.tolist(), strict=True))
        buffers = [{(s, 1): theta, (X, 0): 1.0} for s, (theta, _) in enumerate(pairs, 1)]
        return MatrixRecursion(
            self.n, [{(X, 0): 1.0, **{(s, 1): omega for s, (_, omega) in enumerate(pairs, 1)}}, *buffers]
        )

    def bandwidth(self) -> int:
        """Return one or two where the parameters carry nothing on, else n."""
        if not self.omega.any():
            return 1
        carried = (self.omega > 0) & (self.theta > 0)
        return self.n if carried.any() else min(2, self.n)

    def leading(self, steps: int) -> BltMatrix:
        """Return the matrix with the same parameters."""
        return BltMatrix(self.theta, self.omega, steps)


MIN_COEFFICIENT = 1e-300
"""The smallest coefficient; smaller ones become zero, since denormal numbers are slow and have no accuracy."""


def strategy_coefficients(n: int, nu: float) -> np.ndarray:
    """Return the first n coefficients of (1 - (1 - nu) x)^(-1/2), nu in [0, 1): positive and decreasing.

    c_t = c_{t-1} (t - 1/2) / t for nu = 0, times exp(t log1p(-nu)), which does not round 1 - nu.
    """
    t = np.arange(1.0, n)
    return _damp(np.cumprod(np.concatenate([[1.0], (t - 0.5) / t])), nu)


def noising_coefficients(n: int, nu: float) -> np.ndarray:
    """Return the first n coefficients of (1 - (1 - nu) x)^(1/2), by which noise is multiplied: 1, then negative."""
    t = np.arange(1.0, n)
    return _damp(np.cumprod(np.concatenate([[1.0], (t - 1.5) / t])), nu)


def flushed(series: np.ndarray) -> np.ndarray:
    """Return the series with numbers below 1e-300 set to zero."""
    return np.where(np.abs(series) < MIN_COEFFICIENT, 0.0, series)


def _damp(series: np.ndarray, nu: float) -> np.ndarray:
    with np.errstate(under="ignore"):
        damped = series * np.exp(np.arange(len(series)) * math.log1p(-nu))
    return flushed(damped)
