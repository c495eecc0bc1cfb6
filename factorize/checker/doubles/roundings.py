"""Bounds on what sums and products of doubles round, for any order of the sums (docs/notes/checker.md).

A sum of k products is off by at most gamma_k = k u / (1 - k u), u = 2^-53, times the sum of their magnitudes, and by
what underflows. Bounds are computed in doubles, and multiplied by 1 + `SLACK`, which covers a few operations each.
"""

import math

import numpy as np

from factorize.checker.arithmetic.near import TINY, UNIT, NotEnclosed

SLACK = 2.0**-40
ROOT_OF_TINY = 2.0**-500
"""More than what the squares in a norm lose by underflow."""


def gamma(count: int) -> float:
    """Return gamma_k, rounded up, for k up to 2^22."""
    return count * UNIT * (1 + 2.0**-30)


def row_norms(array: np.ndarray) -> np.ndarray:
    """Return numbers not below the norms of rows, shape (rows,)."""
    squares = np.einsum("ij,ij->i", array, array)
    return np.asarray(np.sqrt(squares) * (1 + gamma(array.shape[1] + 4)) + ROOT_OF_TINY)


def column_norms(array: np.ndarray) -> np.ndarray:
    """Return numbers not below the norms of columns, shape (columns,)."""
    squares = np.einsum("ij,ij->j", array, array)
    return np.asarray(np.sqrt(squares) * (1 + gamma(len(array) + 4)) + ROOT_OF_TINY)


def norm_of(numbers: np.ndarray) -> float:
    """Return a number not below the norm of a vector; infinity where it overflows."""
    return float(row_norms(numbers[None])[0])


def outwards(ends: tuple[float, float], slack: float) -> tuple[float, float]:
    """Return ends of a number that is not negative, moved apart by a part of themselves and by what underflows."""
    low, high = ends
    return max(low * (1 - slack) - TINY, 0.0), high * (1 + slack) + TINY


def finite(*numbers: float) -> None:
    """Raise NotEnclosed where a bound has left the range of doubles."""
    if not all(math.isfinite(number) for number in numbers):
        raise NotEnclosed("numbers leave the range of doubles")
