"""Compiled recurrences behind banded matrices and their certificates. Imported on first use, since numba is heavy."""

from __future__ import annotations

import numba
import numpy as np

from factorize.numbers.compiling import assign

_SUMS = {"reassoc", "contract", "nsz"}  # sums may be reordered, so that they use vector instructions


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_SUMS)
def solve_rows(columns, block, out):
    """Solve y C = b for each row b of `block`: y_j = (b_j - sum_{d >= 1} y_{j+d} C[j+d, j]) / C[j, j]."""
    n, bands = columns.shape
    for r in range(block.shape[0]):
        y = out[r]
        for j in range(n - 1, -1, -1):
            known = 0.0
            for d in range(1, min(bands, n - j)):
                known += y[j + d] * columns[j, d]
            y[j] = (block[r, j] - known) / columns[j, 0]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_SUMS)
def multiply_rows(columns, block, out):
    """Write b C for each row b of `block`: entry j is sum_d b_{j+d} C[j+d, j]."""
    n, bands = columns.shape
    for r in range(block.shape[0]):
        for j in range(n):
            entry = 0.0
            for d in range(min(bands, n - j)):
                entry += block[r, j + d] * columns[j, d]
            out[r, j] = entry


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_SUMS)
def output_variances(rows, follow, feed, read, through, variances):
    """Write the variance of each output of a workload driven by x = C^-1 y, y unit noise; shape (n,).

    C[i, i] x_i = y_i - sum_{d >= 1} C[i, i-d] x_{i-d}, so the covariances of x_i with the last bands - 1 outputs, and
    with the states u of the workload, are those of the sum. The workload takes x: o_i = read_i . u + through_i x_i,
    u <- follow_i u + feed_i x_i. lagged[i, d] = Cov(x_i, x_{i-d}); state[a, d] = Cov(u_a, x_{i-d}).
    """
    n, bands = rows.shape
    q = feed.shape[1]
    lagged = np.zeros((n, bands))
    state = np.zeros((q, bands))
    moved = np.zeros((q, bands))
    spread = np.zeros((q, q))
    half = np.zeros((q, q))
    weighted = np.zeros(bands)
    for i in range(n):
        last = min(bands, i + 1)
        weighted[:] = 0.0
        for d in range(1, last):
            here, ahead = rows[i, d], 0.0
            source = lagged[i - d]
            weighted[d] += here * source[0]
            for e in range(d + 1, last):
                weighted[e] += here * source[e - d]
                ahead += rows[i, e] * source[e - d]
            weighted[d] += ahead
        own = 1.0
        for d in range(1, last):
            lagged[i, d] = -weighted[d] / rows[i, 0]
            own += rows[i, d] * weighted[d]
        lagged[i, 0] = own / rows[i, 0] ** 2
        for a in range(q):
            with_x = 0.0
            for d in range(1, last):
                with_x += rows[i, d] * state[a, d]
            state[a, 0] = -with_x / rows[i, 0]
        total = through[i] ** 2 * lagged[i, 0]
        for a in range(q):
            total += 2.0 * through[i] * read[i, a] * state[a, 0]
            for c in range(q):
                total += read[i, a] * spread[a, c] * read[i, c]
        variances[i] = total
        for a in range(q):
            for c in range(q):
                half[a, c] = feed[i, c] * state[a, 0]
                for e in range(q):
                    half[a, c] += spread[a, e] * follow[i, c, e]
            for d in range(last):
                entry = feed[i, a] * lagged[i, d]
                for e in range(q):
                    entry += follow[i, a, e] * state[e, d]
                moved[a, d] = entry
        for a in range(q):
            for c in range(q):
                entry = feed[i, a] * moved[c, 0]
                for e in range(q):
                    entry += follow[i, a, e] * half[e, c]
                spread[a, c] = entry
            assign(state[a, 1:], moved[a, : bands - 1])


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_SUMS)
def band_cholesky(columns):
    """Replace the lower half of a symmetric band by its Cholesky factor; False if it is not positive definite.

    Entry (j + d, j) is at columns[j, d]. LAPACK's routine does the same, but wakes threads that spin.
    """
    n, width = columns.shape
    for j in range(n):
        column = columns[j]
        if not column[0] > 0.0:
            return False
        pivot = np.sqrt(column[0])
        size = min(width, n - j)
        for d in range(size):
            column[d] /= pivot
        for d in range(1, size):
            here, target, source = column[d], columns[j + d], column[d:]
            for e in range(size - d):
                target[e] -= here * source[e]
    return True
