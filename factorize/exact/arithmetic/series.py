"""B C - A and the losses where A and C are Toeplitz: power series of 10^6 coefficients, multiplied without rounding.

The integers of a series are written as the digits of one long decimal number. Python's `decimal` multiplies those by
number-theoretic transforms, exactly, in n log n. Division only needs a guess g of b = a / c: with r = g c - a known
exactly, b = g - r / c, and the sum of |1 / c| is bounded through a guess d of 1 / c and the exact d c - 1.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from factorize.errors import CertificateError
from factorize.exact.arithmetic.integers import Numbers, integers
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.doubles.roundings import outwards
from factorize.exact.losses.residual import LIMITS, Losses, approximation
from factorize.exact.losses.variances import Ends
from factorize.exact.losses.widths import WIDEST, width_of_losses
from factorize.exact.sensitivity import square_root_up
from factorize.exact.spec import Weighing, weighing_of

LARGEST = 1 << 20
LARGEST_RESTARTS = 1 << 31
"""n times the steps between restarts, of which every row's difference from its reference takes a sum."""
_PLACES = 100
_SLACK = 2.0**-44  # of sums of doubles and a few operations on them
_EXACT = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


def losses(
    series: Numbers,
    workload: Numbers,
    objective: Mapping[str, Any],
    stored: np.ndarray | None,
    limit: Fraction = LIMITS["float64"],
) -> Losses:
    """Return the residual and the losses for first columns of C and of A; see `residual.losses`.

    Args:
        series: of C, shape (n,).
        workload: of A, shape (n,).
        objective: the spec's.
        stored: the first column of the file's B, or None.
        limit: of the residual.

    Raises:
        CertificateError: the residual is above the limit.
        NotEnclosed: the inverse of C cannot be bounded, or restarts are too far apart to be followed.
    """
    weighing = weighing_of(objective, len(workload.values))
    first, numbers = approximation(series), approximation(workload)
    inverse = approximate_inverse(first)
    guess = approximate_product(numbers, inverse) if stored is None else stored
    rest = product(integers(guess), series).minus(workload)
    largest = rest.fraction(int(abs(rest.values).max()) + rest.radius)
    allowed = limit * max(
        workload.fraction(int(abs(workload.values).sum()) + len(first) * workload.radius), Fraction(1)
    )
    if largest > allowed:
        raise CertificateError(f"B C differs from A by {float(largest):.3g}, above the limit {float(allowed):.3g}")
    error = square_root_up(largest**2) * sum_of_inverse(inverse, series) * (1 + _SLACK)
    found = Losses(rest, square_root_up(largest**2), *around(guess, error, weighing))
    if stored is None or width_of_losses(found[2:]) <= WIDEST:
        return found
    # A B in single precision is too far from A C^-1 for its column to say what the losses are.
    return losses(series, workload, objective, None, limit)._replace(rest=rest, residual=found.residual)


def around(guess: np.ndarray, error: float, weighing: Weighing) -> Ends:
    """Return the losses of a first column of A C^-1.

    Args:
        guess: something near it, shape (n,).
        error: no entry is off by more.
        weighing: of the objective, for n rows.

    Raises:
        NotEnclosed: restarts are too far apart to be followed.
    """
    rows = [_ends(guess, error, side) for side in (-1, 1)]
    total = outwards(_both(np.arange(len(guess), 0, -1) * row for row in rows), _SLACK)
    last = outwards(_both(rows), _SLACK)  # which is the longest row
    if weighing.tau is not None:
        return Ends(total, last, last, _restarted(guess, error, weighing.tau))
    return Ends(total, last, last, _objective(weighing, rows, total, last))


def product(left: Numbers, right: Numbers) -> Numbers:
    """Return the first n coefficients of a product of two series of n coefficients."""
    n = len(left.values)
    left, right = _cut(left), _cut(right)
    sizes = [max(int(abs(part.values).max()), 1) for part in (left, right)]
    width = len(str(2 * n * sizes[0] * sizes[1]))
    whole = _EXACT.multiply(_packed(left.values, width), _packed(right.values, width))
    sums = [int(abs(part.values).sum()) for part in (left, right)]
    radius = left.radius * sums[1] + right.radius * sums[0] + n * left.radius * right.radius
    return Numbers(_unpacked(whole, width, n), left.exponent + right.exponent, radius)


def _cut(numbers: Numbers) -> Numbers:
    """Keep 100 binary places below 1, and bound what is cut."""
    drop = max(-_PLACES - numbers.exponent, 0)
    if not drop:
        return numbers
    return Numbers(numbers.values >> drop, numbers.exponent + drop, -(-numbers.radius >> drop) + 1)


def _packed(values: np.ndarray, width: int) -> decimal.Decimal:
    """The number sum of v_i 10^(width i)."""
    positive = "".join([str(max(int(v), 0)).zfill(width) for v in values[::-1]])
    negative = "".join([str(max(-int(v), 0)).zfill(width) for v in values[::-1]])
    return _EXACT.subtract(decimal.Decimal(positive), decimal.Decimal(negative))


def _unpacked(whole: decimal.Decimal, width: int, count: int) -> np.ndarray:
    """The first coefficients again, each below 10^width / 2 in magnitude; half of 10^width is added to make digits."""
    half = 5 * 10 ** (width - 1)
    raised = _EXACT.add(whole, decimal.Decimal(str(half).zfill(width) * (2 * count)))
    digits = str(raised)  # the first is that of a half: products have one coefficient less
    ends = range(len(digits), len(digits) - count * width, -width)
    return np.array([int(digits[end - width : end]) - half for end in ends], dtype=object)


def sum_of_inverse(guess: np.ndarray, series: Numbers) -> float:
    """An upper bound of the sum of |1 / c|."""
    defect = product(integers(guess), series)
    defect.values[0] -= 1 << -defect.exponent
    rest = float(defect.fraction(int(abs(defect.values).sum()) + len(guess) * defect.radius)) * (1 + _SLACK)
    if not rest < 0.5:
        raise NotEnclosed("the sum of the coefficients of the inverse of C cannot be bounded")
    return math.fsum(np.abs(guess)) / (1 - rest) * (1 + _SLACK)


def approximate_inverse(column: np.ndarray) -> np.ndarray:
    """A guess of 1 / c, by Newton's iteration."""
    found = np.array([1.0 / column[0]])
    while len(found) < len(column):
        size = min(2 * len(found), len(column))
        padded = np.concatenate([found, np.zeros(size - len(found))])
        rest = -approximate_product(column[:size], padded)
        rest[0] += 2.0
        found = approximate_product(padded, rest)
    return found


def approximate_product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the first n coefficients of a product of two series, nearly."""
    size = 2 * len(left)
    return np.asarray(np.fft.irfft(np.fft.rfft(left, size) * np.fft.rfft(right, size), size)[: len(left)])


def _ends(guess: np.ndarray, error: float, side: int) -> np.ndarray:
    """Squares of the coefficients, all too small or all too large."""
    return np.asarray(np.maximum(np.abs(guess) + side * error, 0.0) ** 2)


def _both(ends: Iterable[np.ndarray]) -> tuple[float, float]:
    low, high = map(math.fsum, ends)
    return low, high


def _objective(
    weighing: Weighing, rows: list[np.ndarray], total: tuple[float, float], last: tuple[float, float]
) -> tuple[float, float]:
    n = len(rows[0])
    if weighing.weights is None:
        return last
    if weighing.divisor is not None:
        return outwards((total[0] / weighing.divisor, total[1] / weighing.divisor), _SLACK)
    from_here = np.cumsum(weighing.doubles[::-1])[::-1]
    return outwards(_both(from_here * row for row in rows), n * 2.0**-50)  # of the running sums


def _restarted(guess: np.ndarray, error: float, tau: int) -> tuple[float, float]:
    """The restart objective: row r + d less row r, r a multiple of tau, has b_0 .. b_{d-1} and b_{k+d} - b_k, k < r."""
    n = len(guess)
    if n * tau > LARGEST_RESTARTS:
        raise NotEnclosed(f"restarts tau={tau} steps apart are followed up to n tau = {LARGEST_RESTARTS}; got n={n}")
    ends = []
    for side in (-1, 1):
        terms = []
        for d in range(1, min(tau, n) + 1):
            fresh = math.fsum(_ends(guess[:d], error, side))
            moved = _ends(guess[d:] - guess[:-d], 2 * error, side)
            sums = np.concatenate([[0.0], np.cumsum(moved)])[: n - d + 1 : tau]
            weight = 1.0 if d == tau else 1.0 / tau
            terms.append(weight * (len(sums) * fresh + math.fsum(sums)))
        ends.append(math.fsum(terms))
    return outwards((ends[0], ends[1]), n * 2.0**-50 + _SLACK)  # of the running sums
