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
from factorize.numbers.double_double import add, multiply, reciprocal

_UNIT2 = 2.0**-106
_TINY = 1e-150  # for products below the normal range, in units of 2^-106: far more than they lose
_SQUARE = 1e-300  # of losses below 1e-150, whose own square may be lost
_LARGEST = 1e100


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


@numba.njit(cache=True, nogil=True)
def columns(decay, output, inputs, direct, lag, starts, high, low, norms, defects):
    """Write columns of C as pairs of doubles, their squared norms, and those of what K makes of them beside unit rows.

    y = C e_j is solved for step by step: y_i = (e_ij - output_i . s - sum_m direct[m, i] y_{i - m lag}) / direct[0, i].
    Its states are also those of K applied to the y that is written, so K y - e_j is what step i loses in rounding, and
    |output_i| times what the states have lost so far: lost <- |decay| lost + rounding. It moves on by K and never by
    its inverse, so it stays small however badly conditioned K is. A sum of T products loses at most (32 + 8 T) 2^-106
    of their magnitudes, a quotient 72 * 2^-106 (numbers/double_double.py).

    Args:
        decay: shape (n, buffers), and the other parts of K.
        output: shape (n, buffers).
        inputs: shape (redraws + 1, n, buffers).
        direct: shape (redraws + 1, n), the first row positive.
        lag: steps between a draw and the first time it is made again.
        starts: which columns, in ascending order, shape (k,).
        high: zeros of shape (n, k).
        low: zeros of shape (n, k).
        norms: high and low parts, shape (2, k); within (32 + 16 n) 2^-106 of themselves.
        defects: shape (k,), from above.

    Returns:
        Whether no number came near the overflow.
    """
    n, buffers = decay.shape
    k, redraws = len(starts), len(direct) - 1
    sh, sl, lost = np.zeros((buffers, k)), np.zeros((buffers, k)), np.zeros((buffers, k))
    nh, nl, size = np.empty(k), np.empty(k), np.empty(k)
    norms[:] = 0.0
    defects[:] = 0.0
    active = 0
    for i in range(starts[0], n):
        while active < k and starts[active] <= i:
            active += 1
        first = direct[0, i]
        fine = 1.0 / _LARGEST < first < _LARGEST
        for c in range(active):
            nh[c] = 1.0 if starts[c] == i else 0.0  # beside nothing else, so it is not rounded
            nl[c] = size[c] = 0.0
        for a in range(buffers):
            _add_times(-output[i, a], sh[a], sl[a], active, nh, nl, size)
        for m in range(1, redraws + 1):
            j = i - m * lag
            if j < starts[0]:
                break
            _add_times(-direct[m, i], high[j], low[j], active, nh, nl, size)
        rh, rl = reciprocal(first, 0.0)
        terms = 32.0 + 8.0 * (buffers + redraws)
        for c in range(active):
            rounding = terms * size[c]
            if first == 1.0:
                h, rest = nh[c], nl[c]
            else:
                h, rest = multiply(nh[c], nl[c], rh, rl)
                rounding += 72.0 * abs(nh[c]) + _TINY
            row = rounding * _UNIT2
            for a in range(buffers):
                row += abs(output[i, a]) * lost[a, c]
            defects[c] += row * row + (_SQUARE if row != 0.0 else 0.0)
            high[i, c], low[i, c] = h, rest
            th, tl = multiply(h, rest, h, rest)
            norms[0, c], norms[1, c] = add(norms[0, c], norms[1, c], th, tl)
            fine &= abs(h) < _LARGEST
        terms = 32.0 + 8.0 * (redraws + 2)
        for a in range(buffers):
            for c in range(active):
                size[c] = 0.0
                if sh[a, c] != 0.0:
                    sh[a, c], sl[a, c] = multiply(sh[a, c], sl[a, c], decay[i, a], 0.0)
                    size[c] = abs(sh[a, c]) + _TINY
            for m in range(redraws + 1):
                j = i - m * lag
                if j < starts[0]:
                    break
                _add_times(inputs[m, i, a], high[j], low[j], active, sh[a], sl[a], size)
            for c in range(active):
                lost[a, c] = abs(decay[i, a]) * lost[a, c] + terms * size[c] * _UNIT2
                fine &= abs(sh[a, c]) < _LARGEST
        if not fine:
            return False
    for c in range(k):
        defects[c] *= 1.0 + 1e-6  # the sums and products that lead to it are in double precision
    return True


@numba.njit(cache=True, nogil=True, inline="always")
def _add_times(factor, gh, gl, count, h, low, size):
    """Add factor times g to h + low, and its magnitude to size."""
    if factor != 0.0:
        for c in range(count):
            th, tl = multiply(gh[c], gl[c], factor, 0.0)
            h[c], low[c] = add(h[c], low[c], th, tl)
            size[c] += abs(th) + (_TINY if gh[c] != 0.0 else 0.0)
