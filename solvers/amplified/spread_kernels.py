"""Weighted sums over the Gram matrix of the bins of a Toeplitz strategy, compiled."""

import numba
import numpy as np


@numba.njit(cache=True)
def comb(column, separation, out):
    """Fill u_t = |c_t| + u_{t-b}: the first bin's sum of columns of |C|, shape (n,)."""
    for t in range(len(out)):
        out[t] = (abs(column[t]) if t < len(column) else 0.0) + (out[t - separation] if t >= separation else 0.0)


@numba.njit(cache=True)
def spread(weights, u, gradient):
    """Return sum_ij D_ij G_ij and fill its derivative by u, shape (n,).

    G_ij = sum_{s < n - max(i, j)} u_{s + |i - j|} u_s. For each lag the entries of D are summed from the last bin on,
    so that each s meets the bins that reach it.

    Args:
        weights: D, symmetric, shape (b, b).
        u: shape (n,).
        gradient: filled.
    """
    n, bins = len(u), len(weights)
    gradient[:] = 0.0
    for lag in range(bins):
        factor = 1.0 if lag == 0 else 2.0
        reached = 0.0
        j = lag
        # bin j reaches the terms s < n - j; terms are visited from the last one, so bins join in order
        s = n - 1 - lag
        while s >= 0 and j < bins:
            while j < bins and s < n - j:
                reached += weights[j - lag, j]
                j += 1
            part = factor * reached
            gradient[s] += part * u[s + lag]
            gradient[s + lag] += part * u[s]
            s -= 1
        part = factor * reached
        for t in range(s + 1):  # all bins have joined; two plain loops, of many terms at once
            gradient[t] += part * u[t + lag]
        for t in range(s + 1):
            gradient[t + lag] += part * u[t]
    total = 0.0
    for t in range(n):  # the form is quadratic
        total += gradient[t] * u[t]
    return total / 2


@numba.njit(cache=True)
def through_comb(gradient, separation):
    """Turn a derivative by u into one by |c|, in place: the transposed recursion."""
    for t in range(len(gradient) - 1 - separation, -1, -1):
        gradient[t] += gradient[t + separation]


@numba.njit(cache=True)
def gram(u, bins, out):
    """Fill the Gram matrix of the bins, shape (b, b), in plain doubles: bin j meets the terms s < n - j."""
    n = len(u)
    for lag in range(bins):
        total = 0.0
        for s in range(n - lag):
            total += u[s] * u[s + lag]
            j = n - 1 - s
            if lag <= j < bins:
                out[j - lag, j] = total
                out[j, j - lag] = total


def of_column(column: np.ndarray, n: int, bins: int) -> np.ndarray:
    """Return the Gram matrix of a Toeplitz strategy's bins in plain doubles, shape (b, b)."""
    u, out = np.empty(n), np.empty((bins, bins))
    comb(column, bins, u)
    gram(u, bins, out)
    return out
