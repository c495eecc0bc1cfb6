"""Stored Toeplitz B, and what rests on it at any n that series reach: the encoder of A G + B Z.

For first columns b of B and r of R = B C - A, the encoder B^-1 A = C - B^-1 R differs from C by the series r / b, whose
norm is at most that of r times the sum of |1 / b|; later columns hold fewer of its coefficients.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from factorize.exact.arithmetic import series
from factorize.exact.arithmetic.integers import Numbers, integers
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.forms import enlarged
from factorize.exact.sensitivity import square_root_up


def added_noise(stored: np.ndarray, rest: Numbers, most: int, upper: Fraction) -> float | str:
    """Return an upper bound of the sensitivity of the encoder of A G + B Z, or why there is none.

    Args:
        stored: first column of B, shape (n,).
        rest: first column of R = B C - A.
        most: participations.
        upper: squared sensitivity of C from above.

    Raises:
        NotEnclosed: the inverse of B cannot be bounded.
    """
    if not stored[0]:
        return "B is singular, so a part of A G would have no noise"
    with np.errstate(over="ignore", invalid="ignore"):
        guess = series.approximate_inverse(stored)
    if not np.isfinite(guess).all():
        raise NotEnclosed("the coefficients of the inverse of B leave the range of doubles")
    moved = Fraction(series.sum_of_inverse(guess, integers(stored))) * norm(rest)
    return enlarged(upper, most * moved)


def norm(numbers: Numbers) -> Fraction:
    """Return at least the norm of a vector."""
    squares = int(((abs(numbers.values) + numbers.radius) ** 2).sum())
    return Fraction(square_root_up(numbers.fraction(1) ** 2 * squares))
