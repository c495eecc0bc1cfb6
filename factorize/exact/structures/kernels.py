"""Compiled recursions behind readings: column norms of buffers, and the series of an inverse with few diagonals."""

from __future__ import annotations

import numba
import numpy as np

from factorize.exact.losses.variance_kernels import _state


@numba.njit(cache=True, nogil=True)
def column_norms(diagonal, transition, inputs, outputs, ends):
    """Write squared column norms of C from below and above, shape (2, n): variances of z^T C for white noise z.

    Backwards, r <- r + output_j z_j, then T_j^T r; entry j is diagonal_j z_j and input_j . r, of what is behind j.
    """
    n, groups, s = inputs.shape
    size = groups * s
    z, y, spare = size, size + 1, size + 2
    m = size + 2 + s
    state = (np.zeros((m, m)), np.zeros((m, m)), np.zeros((m, m)))
    high, low, bound = state
    work = np.empty((3, m))
    named, row = np.empty(size + 2, dtype=np.int64), np.zeros((size + 2, 2))
    for j in range(n - 1, -1, -1):
        for a in range(size):
            named[a], row[a, 0] = a, inputs[j, a // s, a % s]
        fine = _state(y, named[:size], row[:size], 0.0, high, low, bound, work)
        own = diagonal[j] * diagonal[j]
        ends[0, j] = own + (high[y, y] - 2.0 * bound[y, y])
        ends[1, j] = own + (high[y, y] + 2.0 * bound[y, y])
        fine &= _state(z, named[:0], row[:0], 1.0, high, low, bound, work)
        for a in range(size):
            named[0], named[1] = a, z
            row[0, 0], row[1, 0] = 1.0, outputs[j, a // s, a % s]
            fine &= _state(a, named[:2], row[:2], 0.0, high, low, bound, work)
        for g in range(groups):
            for b in range(s):
                for a in range(s):
                    named[a], row[a, 0] = g * s + a, transition[j, g, a, b]
                fine &= _state(g * s if s == 1 else spare + b, named[:s], row[:s], 0.0, high, low, bound, work)
            for b in range(s if s > 1 else 0):
                named[0], row[0, 0] = spare + b, 1.0
                fine &= _state(g * s + b, named[:1], row[:1], 0.0, high, low, bound, work)
        if not fine:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def renewal(weights, column):
    """Write c_0 = 1, c_t = sum_d weights[d] c_{t-d}, the furthest first: a term of d steps meets d + 1 roundings."""
    column[0] = 1.0
    for t in range(1, len(column)):
        total = 0.0
        for d in range(min(t, len(weights) - 1), 0, -1):
            total += weights[d] * column[t - d]
        column[t] = total
