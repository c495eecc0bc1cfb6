"""Deterministic bounds on the leakage of balls-in-bins sampling: the star bound, and its other direction.

K = G / sigma^2 for the Gram matrix G of the bins, and E*(m) = mean_j (mean_l e^{m K_jl / 2})^(m - 1). The bounds are
theorems 4 and 7 of docs/notes/amplification-proofs.md.
"""

import math
from fractions import Fraction

import numpy as np
from flint import arb, ctx

from factorize.checker.arithmetic.balls import PLACES, normal
from factorize.checker.arithmetic.machine import EXP_SLACK, MIN_EXPONENT, exponentials
from factorize.checker.arithmetic.near import double_below
from factorize.checker.sampling.bins import Gram
from factorize.errors import InvalidParameter

MAX_ORDER = 4096
"""The largest order m of a moment."""
_UNIT = 2.0**-52
_SUMS = 2.0**-44  # Two nested sums of up to 4096 positive doubles, in pairs or not, lose a smaller share.


def scale_gram(gram: np.ndarray, sigma: float) -> np.ndarray:
    """Return K rounded up from a G that is rounded up, shape (bins, bins).

    Raises:
        InvalidParameter: sigma is not a positive number, or K is beyond the range of doubles.
    """
    if not (np.isfinite(sigma) and sigma > 0):
        raise InvalidParameter(f"sigma must be a positive number; got {sigma!r}", field="sigma")
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        kernel = np.nextafter(gram / double_below(Fraction(sigma) ** 2) * (1 + 8 * _UNIT), np.inf)
    if not (np.isfinite(kernel).all() and kernel.max() < 1e8):
        raise InvalidParameter(f"sigma {sigma!r} is so small that nothing is private; use a larger one", field="sigma")
    return np.asarray(kernel)


@ctx.workprec(PLACES)
def log_moment(kernel: np.ndarray, order: int) -> arb:
    """Return an upper bound of log E*(m), m at least 2, from an upper bound of K, shape (bins, bins)."""
    rows = log_row_means(kernel, order)
    return (sum((((order - 1) * row).exp() for row in rows), arb(0)) / len(rows)).log()


@ctx.workprec(PLACES)
def log_row_means(kernel: np.ndarray, order: int) -> list[arb]:
    """Return upper bounds of log r_j = log mean_l e^{(m / 2) K_jl}; exponents, exponentials and sums have their own."""
    exponents = np.nextafter(0.5 * order * kernel, np.inf)
    tops = exponents.max(axis=1)
    below = np.maximum(np.nextafter(exponents - tops[:, None], np.inf), MIN_EXPONENT)
    sums = exponentials(below).sum(axis=1) * (1 + EXP_SLACK + (len(kernel) + 8) * _UNIT)
    return [
        arb(top) + (arb(total) / len(kernel)).log() for top, total in zip(tops.tolist(), sums.tolist(), strict=True)
    ]


@ctx.workprec(PLACES)
def log_ceiling(kernel: np.ndarray, order: int, epsilon: float) -> arb:
    """Return an upper bound of log W(m) = log(c_m E*(m)), m at least 2."""
    m, less = arb(order), arb(order - 1)
    return log_moment(kernel, order) + less * (less.log() - epsilon) - m * m.log()


@ctx.workprec(PLACES)
def addition(gram: Gram, sigma: float, epsilon: float) -> arb:
    """Return the smaller bound of theorems 7 and 7 b for M^T M / sigma^2, M the sums rounded up; 1 if neither helps."""
    ends = zip(*map(_means, (gram.near, gram.high)), strict=True)
    diagonal, whole = ((low.union(high) * arb(1, _SUMS)) / arb(sigma) ** 2 for low, high in ends)
    by_moment = put_of_second_moment(log_moment(scale_gram(gram.high, sigma), 2), epsilon)
    return lognormal_put(diagonal / 2, whole, epsilon).min(by_moment)


def put_of_second_moment(moment: arb, epsilon: float) -> arb:
    """Return an upper bound of E (1 - e^epsilon L)_+ from one of log E L^2 (theorem 7 b), 1 where that says nothing."""
    lost = arb(0)
    while lost < 1:
        kept = (1 - lost).log()
        variance = moment - 2 * kept
        less = variance / 2 - kept
        if not variance > 0:
            break
        needed = normal((less - epsilon) / variance.sqrt()) * (-arb(epsilon)).exp()
        if needed <= lost:
            return lognormal_put(less, variance, epsilon)
        lost = arb((needed * 9 / 8).upper())
    return arb(1)


def lognormal_put(less: arb, variance: arb, epsilon: float) -> arb:
    """Return E (1 - e^(epsilon + N))_+ for a normal N of mean -less; 1 where its variance may be 0."""
    if not variance > 0:
        return arb(1)
    d = (less - epsilon) / variance.sqrt()
    return normal(d) - (epsilon - less + variance / 2).exp() * normal(d - variance.sqrt())


def _means(matrix: np.ndarray) -> tuple[arb, arb]:
    """Return the means of the diagonal and of all entries, by sums of doubles."""
    size = len(matrix)
    return arb(math.fsum(np.diagonal(matrix).tolist())) / size, arb(float(matrix.sum(axis=1).sum())) / size**2


@ctx.workprec(PLACES)
def gaussian_delta(epsilon: arb, norm: arb) -> arb:
    """Return Phi(norm / 2 - epsilon / norm) - e^epsilon Phi(-norm / 2 - epsilon / norm) (Balle and Wang 2018)."""
    return normal(norm / 2 - epsilon / norm) - epsilon.exp() * normal(-norm / 2 - epsilon / norm)
