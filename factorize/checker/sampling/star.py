"""Deterministic bounds on what balls-in-bins sampling leaks: the star bound, its other direction, and a lower bound.

For K = G / sigma^2 and T = e^epsilon the pair of theorem 1 has the likelihood ratio L = mean_j exp(X_j - K_jj / 2), X
normal with covariance K. Three inequalities, each proved in docs/notes/amplification-proofs.md:

    removal    E(L - T)+ <= c_m E*(m),  E*(m) = mean_j (mean_l e^{m K_jl / 2})^(m - 1)                       (theorem 4)
    addition   E(1 - T L)+ <= Phi(d) - e^{epsilon - a / 2 + v / 2} Phi(d - sqrt v),  d = (a / 2 - epsilon) / sqrt v  (7)
    removal    E(L - T)+ >= mean_j of the Gaussian mechanism's delta at epsilon + log b and norm sqrt K_jj       (8)

with c_m = T^(1-m) (m-1)^(m-1) m^-m, a the mean of the diagonal of K and v the mean of all of K.
"""

from __future__ import annotations

import math
import sys
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np

from factorize.checker.arithmetic.enclosures import (
    EXP_SLACK,
    LEAST_EXPONENT,
    SLACK,
    Enclosed,
    context,
    decimal,
    exponentials,
    log_mean_exp,
    normal,
)
from factorize.checker.sampling.bins import Gram
from factorize.errors import InvalidParameter

MOST_ORDER = 4096
_BLOCKS = 24  # of the diagonal, for the lower bound
_UNIT = 2.0**-52


def covariance(gram: Gram, sigma: float) -> np.ndarray:
    """Return K rounded up, shape (bins, bins).

    Raises:
        InvalidParameter: sigma is not a positive number, or K is beyond the range of doubles.
    """
    if not (np.isfinite(sigma) and sigma > 0):
        raise InvalidParameter(f"sigma is a positive number; got {sigma!r}", field="sigma")
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        found = np.nextafter(gram.high / square_down(sigma), np.inf)
    if not (np.isfinite(found).all() and found.max() < 1e8):
        raise InvalidParameter(f"sigma {sigma!r} is so small that nothing is private; take a larger one", field="sigma")
    return np.asarray(found)


def square_down(value: float) -> float:
    """Return the largest double that is not above the square, which doubles round far off below the normal numbers."""
    exact = Fraction(value) ** 2
    try:
        found = float(exact)
    except OverflowError:
        return sys.float_info.max
    return math.nextafter(found, 0.0) if Fraction(found) > exact else found


def log_moment(kernel: np.ndarray, order: int) -> Decimal:
    """Return log E*(m), rounded up.

    Args:
        kernel: K or more, shape (bins, bins).
        order: m, at least 2.
    """
    rows = log_row_means(kernel, order)
    return log_mean_exp([(order - 1) * row for row in rows])


def log_row_means(kernel: np.ndarray, order: int) -> list[Decimal]:
    """Return log r_j = log mean_l e^{(m / 2) K_jl}, rounded up: exponents, exponentials and sums, each by its bound."""
    exponents = np.nextafter(0.5 * order * kernel, np.inf)
    tops = exponents.max(axis=1)
    below = np.maximum(np.nextafter(exponents - tops[:, None], np.inf), LEAST_EXPONENT)
    sums = exponentials(below).sum(axis=1) * (1 + EXP_SLACK + (len(kernel) + 8) * _UNIT)
    with localcontext(context()):
        bins = Decimal(len(kernel)).ln()
        return [Decimal(top) + Decimal(total).ln() - bins + SLACK for top, total in zip(tops, sums, strict=True)]


def log_ceiling(kernel: np.ndarray, order: int, epsilon: float) -> Decimal:
    """Return log W(m) = log(c_m E*(m)), rounded up; 0 for m = 1, where E L = 1."""
    if order == 1:
        return Decimal(0)
    with localcontext(context()):
        m, less = Decimal(order), Decimal(order - 1)
        return log_moment(kernel, order) + less * (less.ln() - Decimal(epsilon)) - m * m.ln() + SLACK


def addition(gram: Gram, sigma: float, epsilon: float) -> Enclosed:
    """Enclose the closed form of theorem 7 for the covariance M^T M / sigma^2, M the sums rounded up."""
    square = Fraction(sigma) ** 2
    high, near = (_means(part, square) for part in (gram.high, gram.near))
    grown = Fraction(1, 2**44)  # more than numpy's sums of positive doubles lose, in pairs or not, up to 4096 twice
    diagonal = Enclosed(_down(near[0] * (1 - grown)), _up(high[0] * (1 + grown)))
    whole = Enclosed(_down(near[1] * (1 - grown)), _up(high[1] * (1 + grown)))
    if whole.low <= 0:
        return Enclosed(Decimal(0), Decimal(1))
    return closed_form(diagonal, whole, decimal(epsilon))


def _means(matrix: np.ndarray, square: Fraction) -> tuple[Fraction, Fraction]:
    """Means of the diagonal and of all entries, by sums of doubles without rounding, over sigma^2."""
    size = len(matrix)
    diagonal = sum(map(Fraction, np.diagonal(matrix).tolist()), Fraction(0))
    rows = Fraction(float(np.sum(np.sum(matrix, axis=1))))
    return diagonal / size / square, rows / size**2 / square


def _up(value: Fraction) -> Decimal:
    with localcontext(context()):
        return decimal(value) * (1 + SLACK)


def _down(value: Fraction) -> Decimal:
    with localcontext(context()):
        return decimal(value) * (1 - SLACK)


def closed_form(diagonal: Enclosed, whole: Enclosed, epsilon: Decimal) -> Enclosed:
    """Enclose Phi(d) - e^{epsilon - a / 2 + v / 2} Phi(d - sqrt v), a and v between their ends; each term by itself."""
    with localcontext(context()):
        root = Enclosed(whole.low.sqrt() * (1 - SLACK), whole.high.sqrt() * (1 + SLACK))
        first, last = diagonal.low / 2 - epsilon, diagonal.high / 2 - epsilon
        d = Enclosed(min(first / root.low, first / root.high), max(last / root.low, last / root.high))
        d = Enclosed(d.low - SLACK * (1 + abs(d.low)), d.high + SLACK * (1 + abs(d.high)))
        small = (epsilon - diagonal.high / 2 + whole.low / 2).exp() * (1 - SLACK)
        large = (epsilon - diagonal.low / 2 + whole.high / 2).exp() * (1 + SLACK)
        low = normal(d.low).low - large * normal(d.high - root.low).high
        high = normal(d.high).high - small * normal(d.low - root.high).low
        return Enclosed(max(low - SLACK, Decimal(0)), high + Decimal(10) ** -55)


def gaussian_delta(epsilon: Enclosed, norm: Enclosed) -> Enclosed:
    """Enclose Phi(norm / 2 - epsilon / norm) - e^epsilon Phi(-norm / 2 - epsilon / norm) (Balle and Wang 2018)."""
    with localcontext(context()):
        near = Enclosed(epsilon.low / norm.high, epsilon.high / norm.low)
        first = Enclosed(normal(norm.low / 2 - near.high - SLACK).low, normal(norm.high / 2 - near.low + SLACK).high)
        second = Enclosed(normal(-norm.high / 2 - near.high - SLACK).low, normal(-norm.low / 2 - near.low + SLACK).high)
        low = first.low - epsilon.high.exp() * (1 + SLACK) * second.high
        high = first.high - epsilon.low.exp() * (1 - SLACK) * second.low
        return Enclosed(max(low, Decimal(0)), high)


def least_delta(gram: Gram, sigma: float, epsilon: float) -> Decimal:
    """Return a lower bound of the pair's delta (theorem 8 a): bins one at a time, each in blocks by its least norm."""
    bins = len(gram.least)
    ordered = np.sort(gram.least)[::-1]
    with localcontext(context()):
        shifted = decimal(epsilon) + Decimal(bins).ln()
        far = Enclosed(shifted - SLACK, shifted + SLACK)
        total = Decimal(0)
        for block in np.array_split(ordered, min(_BLOCKS, bins)):
            if block[-1] > 0:
                norm = decimal(float(block[-1])).sqrt() / decimal(sigma)
                total += len(block) * gaussian_delta(far, Enclosed(norm * (1 - SLACK), norm * (1 + SLACK))).low
        return total / bins * (1 - SLACK)
