"""Losses where A and C are Toeplitz, in doubles: a guess b of the first column of A C^-1, and how far it is off.

With r = b c - a, the first column is b - r / c, so that no entry is off by more than the largest of |r| times the sum
of |1 / c|; and with d near 1 / c and D = d c - 1 that sum is at most that of |d| over 1 less that of |D|. Coefficients
of products are sums of doubles beside the bound of what was rounded, n^2 in all.
"""

from __future__ import annotations

import math

import numpy as np

from factorize.exact.arithmetic import series
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.doubles.dense_losses import DenseLosses
from factorize.exact.doubles.roundings import SLACK, TINY, finite, gamma
from factorize.exact.doubles.workload_rows import Near
from factorize.exact.spec import Weighing

LARGEST = 2048
"""Longest n for which coefficients of products are summed one by one."""


def enclosed_series(column: Near, workload: Near, weighing: Weighing) -> DenseLosses:
    """Return the losses.

    Args:
        column: the first of C, shape (n,).
        workload: the first column of A, shape (n,).
        weighing: of the objective, for n rows.

    Raises:
        NotEnclosed: the inverse of C cannot be bounded, or numbers leave the range of doubles.
    """
    with np.errstate(all="ignore"):
        inverse = series.approximate_inverse(column.values)
        guess = series.approximate_product(workload.values, inverse)
        largest = float(_apart(guess, column, workload).max())
        one = Near(np.eye(1, len(guess))[0], np.zeros(1))
        error = largest * _sum_of_inverse(inverse, _apart(inverse, column, one)) * (1 + SLACK)
    finite(largest, error)
    return DenseLosses(series.around(guess, error, weighing), largest)


def _apart(guess: np.ndarray, column: Near, wanted: Near) -> np.ndarray:
    """At least the magnitudes of the coefficients of g c - w."""
    n, sizes = len(guess), np.abs(guess)
    found = np.abs(np.convolve(guess, column.values)[:n] - wanted.values)
    rounded = gamma(n) * np.convolve(sizes, np.abs(column.values))[:n]
    off = np.convolve(sizes, column.errors)[:n] + wanted.errors
    return np.asarray((found + rounded + off) * (1 + SLACK) + n * TINY)


def _sum_of_inverse(inverse: np.ndarray, defects: np.ndarray) -> float:
    """At least the sum of |1 / c|."""
    defect = math.fsum(defects.tolist())
    if not defect < 0.5:
        raise NotEnclosed("the sum of the coefficients of the inverse of C cannot be bounded in doubles")
    return math.fsum(np.abs(inverse).tolist()) / (1 - defect) * (1 + SLACK)
