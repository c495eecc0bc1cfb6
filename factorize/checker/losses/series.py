"""Power series: losses where A and C are Toeplitz, by quotients of series in balls (python-flint), and guesses by FFT.

Every operation of FLINT's `arb_series` encloses the true result, so b = a / c needs no error analysis of its own.
"""

import math
from collections.abc import Callable

import numpy as np
from flint import arb_series, ctx

from factorize.checker.arithmetic.balls import Balls, nearest
from factorize.checker.arithmetic.near import TINY, UNIT, NotEnclosed
from factorize.checker.losses.variances import Ends, weighed
from factorize.checker.spec.objectives import Weighing

MAX_N = 1 << 20
"""The largest n of a series."""
MAX_RESTART_WORK = 1 << 31
"""The largest product of n and the steps between restarts: each row's difference from its reference takes a sum."""
_SLACK = 2.0**-44  # Sums of doubles and a few operations on them lose a smaller share.
_MAX_RELATIVE_RADIUS = 2.0**-50  # A radius up to that share of the largest coefficient needs no more places.


def losses(column: Balls, workload: Balls, weighing: Weighing) -> Ends:
    """Return the losses at sensitivity 1 from the first columns of C and A, shape (n,).

    Raises:
        NotEnclosed: the quotient leaves the range of doubles, or restarts are too far apart to be followed.
    """
    n = len(column)
    least = 64 + 7 * n.bit_length()
    for places in (least, 2 * least, 6 * least):
        with ctx.workprec(places):
            guess, error = near(quotient(workload, column), n)
        if error <= _MAX_RELATIVE_RADIUS * float(np.abs(guess).max()):
            break
    return around(guess, error, weighing)


def around(guess: np.ndarray, error: float, weighing: Weighing) -> Ends:
    """Return the losses of a first column of A C^-1, shape (n,), whose entries are within `error` of the guess."""
    rows = _enclosed(lambda side: np.cumsum(_squares(guess, error, side)))
    restarts = weighing.tau is not None and weighing.tau < len(guess)
    since = _since_references(guess, error, weighing.tau or 0) if restarts else None
    return weighed(rows, weighing, since)


def series_of(column: Balls) -> arb_series:
    """Return a series with these coefficients."""
    ctx.cap = max(ctx.cap, len(column))
    return arb_series(column, len(column))


def quotient(above: Balls, below: Balls) -> arb_series:
    """Divide series of n coefficients.

    Raises:
        NotEnclosed: the first coefficient below is not known to differ from 0.
    """
    try:
        return series_of(above) / series_of(below)
    except ValueError:
        raise NotEnclosed("the first coefficient of C is not known to differ from 0") from None


def near(series: arb_series, n: int) -> tuple[np.ndarray, float]:
    """Return the first n coefficients as doubles, and the most that any of them may be off by.

    Raises:
        NotEnclosed: they leave the range of doubles.
    """
    if series.prec < n:
        raise NotEnclosed("the series was cut by another thread")
    guess = nearest(series[t] for t in range(n))
    radius = max(float(series[t].rad().upper()) for t in range(n))
    error = (radius + UNIT * float(np.abs(guess).max())) * (1 + _SLACK) + TINY
    if not math.isfinite(error):
        raise NotEnclosed("the inverse of C grows too much for its coefficients to be doubles")
    return guess, error


def sum_of_sizes(series: arb_series, n: int) -> float:
    """Return an upper bound of the sum of the first n magnitudes; infinity where they leave the range of doubles."""
    if series.prec < n:
        return math.inf
    return math.fsum(float(series[t].abs_upper()) for t in range(n)) * (1 + _SLACK) + n * TINY


def approximate_inverse(column: np.ndarray) -> np.ndarray:
    """Return a guess of 1 / c, by Newton's iteration."""
    inverse = np.array([1.0 / column[0]])
    while len(inverse) < len(column):
        size = min(2 * len(inverse), len(column))
        padded = np.concatenate([inverse, np.zeros(size - len(inverse))])
        rest = -approximate_product(column[:size], padded)
        rest[0] += 2.0
        inverse = approximate_product(padded, rest)
    return inverse


def approximate_product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return approximations of the first n coefficients of a product of two series."""
    size = 2 * len(left)
    return np.asarray(np.fft.irfft(np.fft.rfft(left, size) * np.fft.rfft(right, size), size)[: len(left)])


def _squares(guess: np.ndarray, error: float, side: int) -> np.ndarray:
    """Return the squares of the coefficients, all too small or all too large."""
    return np.asarray(np.maximum(np.abs(guess) + side * error, 0.0) ** 2)


def _enclosed(sums: Callable[[int], np.ndarray]) -> np.ndarray:
    """Return ends, shape (2, n), of running sums of squares that are all too small (-1) or all too large (1)."""
    low, high = sums(-1), sums(1)
    slack = (len(low) + 8) * UNIT * (1 + _SLACK)
    return np.stack([np.maximum(low * (1 - slack) - TINY, 0.0), high * (1 + slack) + TINY])


def _since_references(guess: np.ndarray, error: float, tau: int) -> np.ndarray:
    """Return the ends for row r + d less row r, r a multiple of tau: b_0 .. b_{d-1}, then b_{k+d} - b_k for k < r."""
    n = len(guess)
    if n * tau > MAX_RESTART_WORK:
        raise NotEnclosed(f"restarts tau={tau} steps apart are followed up to n tau = {MAX_RESTART_WORK}; got n={n}")

    def sums(side: int) -> np.ndarray:
        rows, fresh = np.empty(n), np.cumsum(_squares(guess, error, side))
        for d in range(1, min(tau, n) + 1):
            moved = np.cumsum(_squares(guess[d:] - guess[:-d], 2 * error, side))
            rows[d - 1 :: tau] = fresh[d - 1] + np.concatenate([[0.0], moved])[: n - d + 1 : tau]
        return rows

    return _enclosed(sums)
