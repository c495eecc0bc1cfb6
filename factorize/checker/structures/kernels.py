"""The compiled series of an inverse with few diagonals. Imported on first use, since numba is heavy."""

from __future__ import annotations

from factorize.checker.arithmetic.compiled import njit


@njit(cache=True, nogil=True)
def renewal(weights, column):
    """Write c_0 = 1, c_t = sum_d weights[d] c_{t-d}, the furthest first: a term of d steps meets d + 1 roundings."""
    column[0] = 1.0
    for t in range(1, len(column)):
        total = 0.0
        for d in range(min(t, len(weights) - 1), 0, -1):
            total += weights[d] * column[t - d]
        column[t] = total
