"""Sums of a geometric series and of its partial sums as functions of 1 - ratio, accurate for ratios near 1.

With r = 1 - e and n terms,

    plain      G = sum_{t < n} r^t           = (1 - r^n) / e
    weighted   H = sum_{t < n} (n - t) r^t   = (n - r G) / e

For n e below 0.3 both lose digits to cancellation. There G is sum_k (-e)^k C(n, k + 1), and H is sum_k (-e)^k
C(n + 1, k + 2).
"""

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.methods.compiled import Array

_NEAR = 0.3
_TERMS = 13  # 0.3^13 / 14! is below 1e-17


def plain(e: Array, n: Array | float) -> tuple[Array, Array]:
    """Return G and its derivative with respect to e.

    Args:
        e: 1 - ratio in (0, 1], any shape.
        n: number of terms, a whole number, broadcast against e.
    """
    e, count = np.broadcast_arrays(np.asarray(e, dtype=np.float64), np.asarray(n, dtype=np.float64))
    total, slope = _plain(e, count)
    single = count < 1.5  # the powers of a ratio of 0 are not defined by logarithms
    return np.where(single, count, total), np.where(single, 0.0, slope)


def sum_weighted(e: Array, n: float) -> tuple[Array, Array]:
    """Return H and its derivative with respect to e; arguments as for `plain`."""
    inner, inner_slope = plain(e, n)
    with np.errstate(all="ignore"):
        total = (n - (1.0 - e) * inner) / e
        slope = (inner - (1.0 - e) * inner_slope - total) / e
    near = n * e < _NEAR
    if near.any():
        total, slope = _replaced(near, total, slope, e, np.full_like(e, n), order=2)
    return total, slope


def _plain(e: Array, n: Array) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):
        logarithm = np.log1p(-e)
        total = -np.expm1(n * logarithm) / e
        slope = (n * np.exp((n - 1.0) * logarithm) - total) / e
    near = n * e < _NEAR
    return _replaced(near, total, slope, e, n, order=1) if near.any() else (total, slope)


def _replaced(
    near: NDArray[np.bool_], total: Array, slope: Array, e: Array, n: Array, *, order: int
) -> tuple[Array, Array]:
    """Put the binomial series where it is the accurate one; term k is (-e)^k C(n + order - 1, k + order)."""
    small, count = np.where(near, e, 0.0), np.where(near, n, 0.0)
    term = count if order == 1 else count * (count + 1.0) / 2.0
    first = -term * (count - 1.0) / (1 + order)
    sums, slopes, change = term.copy(), first.copy(), first
    for k in range(1, _TERMS):
        factor = -small * (count - k) / (k + order)
        term = term * factor
        sums += term
        if k > 1:
            change = change * factor * k / (k - 1)
            slopes += change
    return np.where(near, sums, total), np.where(near, slopes, slope)
