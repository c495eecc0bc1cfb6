"""Compiled recurrences of strategies with draws made again. Imported on first use, since numba is heavy.

K = C^-1 takes draws y to x: with s = 0 at first and y_j = 0 for j < 0,

    x_i = direct[0, i] y_i + sum_m direct[m, i] y_{i - m lag} + output_i . s
    s  <- decay_i s + input[0, i] y_i + sum_m input[m, i] y_{i - m lag}

Products with rows go backwards: with l what is still to come of the states, row v gives (v K)_j from every step i that
uses y_j, and z = v C is solved for from z K = v in the same order.
"""

from __future__ import annotations

import numba
import numpy as np

from factorize.numbers.compiling import assign


@numba.njit(cache=True, nogil=True)
def solve_rows(decay, output, inputs, direct, lag, block, out):
    """Write v K for each row v of `block`, shape (r, n); O(n buffers redraws) per row, none for zeros at its end."""
    n, buffers = decay.shape
    carried = np.empty(buffers)
    for r in range(block.shape[0]):
        carried[:] = 0.0
        out[r] = 0.0
        stop = _used(block[r])
        for i in range(stop - 1, -1, -1):
            v = block[r, i]
            for m in range(len(direct)):
                j = i - m * lag
                if j < 0:
                    break
                entry = v * direct[m, i]
                for a in range(buffers):
                    entry += inputs[m, i, a] * carried[a]
                out[r, j] += entry
            for a in range(buffers):
                carried[a] = decay[i, a] * carried[a] + v * output[i, a]


@numba.njit(cache=True, nogil=True)
def multiply_rows(decay, output, inputs, direct, lag, block, out):
    """Write v C for each row v of `block`, shape (r, n): z with z K = v."""
    n, buffers = decay.shape
    carried = np.empty(buffers)
    for r in range(block.shape[0]):
        carried[:] = 0.0
        assign(out[r], block[r])
        stop = _used(block[r])
        for i in range(stop - 1, -1, -1):
            known = out[r, i]
            for a in range(buffers):
                known -= inputs[0, i, a] * carried[a]
            z = known / direct[0, i]
            out[r, i] = z
            for m in range(1, len(direct)):
                j = i - m * lag
                if j < 0:
                    break
                entry = z * direct[m, i]
                for a in range(buffers):
                    entry += inputs[m, i, a] * carried[a]
                out[r, j] -= entry
            for a in range(buffers):
                carried[a] = decay[i, a] * carried[a] + z * output[i, a]


@numba.njit(cache=True, nogil=True)
def _used(row):
    """Return the position after the last number that is not 0."""
    stop = len(row)
    while stop > 0 and row[stop - 1] == 0.0:
        stop -= 1
    return stop


@numba.njit(cache=True, nogil=True)
def output_variances(decay, output, inputs, direct, lag, follow, feed, read, through, start, stop, variances):
    """Add to `variances`, shape (n,), the squares of columns start..stop-1 of A K.

    Column j is what the workload o_i = read_i . u + through_i x_i, u <- follow_i u + feed_i x_i makes of x = K e_j.
    """
    n, buffers = decay.shape
    width, q = stop - start, feed.shape[1]
    s, u, x = np.zeros((buffers, width)), np.zeros((q, width)), np.empty(width)
    after, o = np.empty((q, width)), np.empty(width)
    for i in range(start, n):
        x[:] = 0.0
        for a in range(buffers):
            for c in range(width):
                x[c] += output[i, a] * s[a, c]
                s[a, c] *= decay[i, a]
        for m in range(len(direct)):
            c = i - m * lag - start
            if 0 <= c < width:
                x[c] += direct[m, i]
                for a in range(buffers):
                    s[a, c] += inputs[m, i, a]
        for c in range(width):
            o[c] = through[i] * x[c]
        for k in range(q):
            for c in range(width):
                o[c] += read[i, k] * u[k, c]
                after[k, c] = feed[i, k] * x[c]
        for k in range(q):
            for h in range(q):
                if follow[i, k, h] != 0.0:
                    for c in range(width):
                        after[k, c] += follow[i, k, h] * u[h, c]
        assign(u, after)
        total = 0.0
        for c in range(width):
            total += o[c] * o[c]
        variances[i] += total
