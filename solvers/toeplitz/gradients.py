"""Error and sensitivity of a Toeplitz strategy as functions of its first column, with their gradients.

With c the column of C and y = 1/c modulo x^n, both parts of the loss are quadratic forms in a series:

    sensitivity^2   S(c) = sum_t (sum_{i < k} c_{t - i b})^2                       (k participations, b steps apart)
    error           E(c) = sum_s w_s b_s^2,     b = a y                            (Toeplitz workload, first column a)
                    E(c) = sum_s v_d |b_s - b_{s-d}|^2 summed over lags d          (lambda_tau of one)
                    E(c) = y^T Q y,     Q_st = sum_j (T^T T)_{j+s, j+t}            (any other target T)

A change of c moves y by -y y dc and b by -b y dc, so the gradient is one correlation with the series b y (or y y).
Truncated products of series commute, and one evaluation costs a dozen real FFTs of length 2n.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from factorize.solvers.methods.compiled import Array
from factorize.solvers.methods.transforms import Transforms, reciprocal


class ErrorForm(Protocol):
    """A squared error as a quadratic form in a series that depends on 1/c."""

    def series(self, inverse: Array, fft: Transforms) -> Array:
        """Return the series (b or y), shape (n,), from y = 1/c."""

    def value_and_gradient(self, series: Array) -> tuple[float, Array]:
        """Return the form and its derivative with respect to the series, shape (n,)."""


@dataclass(frozen=True)
class ToeplitzError:
    """E = sum_s weights_s b_s^2 for b = workload / c.

    Attributes:
        workload: first column of A, shape (n,).
        weights: shape (n,); weights_s is the sum of the objective's row weights from row s on.
    """

    workload: Array
    weights: Array

    @cached_property
    def _summing(self) -> bool:
        return bool((self.workload == 1.0).all())

    def series(self, inverse: Array, fft: Transforms) -> Array:
        """Return b = a y; a running sum for the prefix workload."""
        return np.cumsum(inverse) if self._summing else fft.product(self.workload, inverse)

    def value_and_gradient(self, series: Array) -> tuple[float, Array]:
        """Return the weighted sum of squares and its derivative."""
        half = self.weights * series
        return float(half @ series), 2.0 * half


@dataclass(frozen=True)
class LambdaError:
    """E = ||Lambda_tau B||_F^2 for b = workload / c.

    Row t (from 1) of Lambda_tau B is row t of B minus row t - d with d = t mod tau (tau itself instead of 0), so with
    b_s = 0 for s < 0 its squared norm is sum_{s < t} (b_s - b_{s-d})^2, and all rows of one d share those terms.

    Attributes:
        workload: first column of A, shape (n,).
        tau: length of a restart.
    """

    workload: Array
    tau: int

    def series(self, inverse: Array, fft: Transforms) -> Array:
        """Return b = a y."""
        return fft.product(self.workload, inverse)

    def value_and_gradient(self, series: Array) -> tuple[float, Array]:
        """Return the form and its derivative, O(n tau): one difference for each lag."""
        n, gradient, value = len(series), np.zeros(len(series)), 0.0
        index = np.arange(n)
        for lag in range(1, min(self.tau, n) + 1):
            # rows lag, lag + tau, ...; term s is in those with t > s
            rows = (n - lag) // self.tau + 1 - np.maximum(0, -(-(index + 1 - lag) // self.tau))
            weights = rows * (1.0 if lag == self.tau else 1.0 / self.tau)
            difference = series.copy()
            difference[lag:] -= series[: n - lag]
            half = weights * difference
            value += float(half @ difference)
            gradient += 2.0 * half
            gradient[: n - lag] -= 2.0 * half[lag:]
        return value, gradient


@dataclass(frozen=True)
class QuadraticError:
    """E = y^T Q y: any target, at O(n^2) per evaluation.

    Attributes:
        form: Q, shape (n, n), symmetric.
    """

    form: Array

    @classmethod
    def of(cls, target: Array) -> QuadraticError:
        """Sum the diagonals of T^T T from the end: Q[s, t] = G[s, t] + Q[s + 1, t + 1] read from the last corner.

        Args:
            target: T, shape (m, n).
        """
        n = target.shape[1]
        gram = target.T @ target
        # E = sum_j |T C^-1 e_j|^2 and column j of C^-1 is y shifted by j, so Q[s, t] sums G[j+s, j+t] over j
        for s in range(n - 2, -1, -1):
            gram[s, :-1] += gram[s + 1, 1:]
        return cls(gram)

    def series(self, inverse: Array, fft: Transforms) -> Array:
        """Return y itself."""
        return inverse

    def value_and_gradient(self, series: Array) -> tuple[float, Array]:
        """Return the form and its derivative by a product with Q."""
        half = self.form @ series
        return float(half @ series), 2.0 * half


@dataclass(frozen=True)
class _Pattern:
    """Columns 0, b, 2b, ... of a Toeplitz matrix.

    Attributes:
        separation: steps between two participations.
        count: number of participations.
        n: number of steps.
    """

    separation: int
    count: int
    n: int


@dataclass(frozen=True)
class LeadingPattern(_Pattern):
    """S = sum_t (sum_{i < count, i separation <= t} c_{t - i separation})^2.

    Exact for non-negative coefficients that do not increase (KL24, Theorem 2), and for any with count = 1.
    """

    def value_and_gradient(self, column: Array) -> tuple[float, Array]:
        """Add the shifted columns, square, and add the shifts back."""
        if self.count == 1:
            return float(column @ column), 2.0 * column
        total, gradient, bands = np.zeros(self.n), np.zeros(len(column)), len(column)
        starts = [i * self.separation for i in range(self.count)]
        for start in starts:
            total[start : start + bands] += column[: self.n - start]
        for start in starts:
            part = total[start : start + bands]
            gradient[: len(part)] += part
        return float(total @ total), 2.0 * gradient


@dataclass(frozen=True)
class DisjointColumns(_Pattern):
    """S = sum_i ||column i separation of C||^2: exact for every sign where bands <= separation."""

    def value_and_gradient(self, column: Array) -> tuple[float, Array]:
        """Return the form and its derivative; coefficient t is in the columns 0, b, ... that are longer than t."""
        starts = self.separation * np.arange(self.count)
        lengths = np.sort(self.n - starts)
        weights = self.count - np.searchsorted(lengths, np.arange(len(column)), side="right")
        half = weights * column
        return float(half @ column), 2.0 * half


class SensitivityForm(Protocol):
    """A squared sensitivity as a function of a column."""

    def value_and_gradient(self, column: Array) -> tuple[float, Array]:
        """Return the form and its derivative with respect to the column, shape (bands,)."""


class ToeplitzLoss:
    """log(E S) of a Toeplitz strategy and its gradient.

    Args:
        n: number of steps.
        error: E.
        sensitivity: S.
    """

    def __init__(self, n: int, error: ErrorForm, sensitivity: SensitivityForm) -> None:
        self.n = n
        self.error = error
        self.sensitivity = sensitivity
        self.fft = Transforms(n)
        self._last: tuple[Array, tuple[float, Array]] | None = None

    def __call__(self, column: Array) -> tuple[float, Array]:
        """Return log(E S), infinity where it is not finite, and its gradient; the last answer is remembered.

        Args:
            column: c_0..c_{bands-1}, shape (bands,), c_0 > 0; zero after its end.
        """
        if self._last is None or self._last[0] is not column:
            self._last = (column, self._evaluate(column))
        return self._last[1]

    def _evaluate(self, column: Array) -> tuple[float, Array]:
        fft, bands = self.fft, len(column)
        with np.errstate(all="ignore"):
            inverse = reciprocal(column, self.n)
            series = self.error.series(inverse, fft)
            error, slope = self.error.value_and_gradient(series)
            squared, pull = self.sensitivity.value_and_gradient(column)
            if not (0 < error < np.inf and 0 < squared < np.inf):
                return np.inf, np.zeros(bands)
            through = fft.back(fft.forward(series) * fft.forward(inverse))
            push = fft.correlate(slope, through)[:bands]
        return float(np.log(error) + np.log(squared)), pull / squared - push / error

    def value(self, column: Array) -> float:
        """Return E S itself."""
        return float(np.exp(self(column)[0]))
