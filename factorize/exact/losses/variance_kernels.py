"""Covariances carried through single statements of a recursion, as pairs of doubles with a proven bound; compiled.

A statement x_a <- sum_k c_k x_k + y replaces row and column a of the covariance P. What it rounds is a matrix between
-d I and d I, which moves on as P does: the same statements on R, with d I added each time, bound everything that was
lost, in the order of positive semidefinite matrices. R is in double precision; its own roundings must stay below a
quarter of the d I of their statement, so that twice R covers them.
"""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def _plus(ah, al, bh, bl):
    """Add, within 2^-100 (|a| + |b|)."""
    total = ah + bh
    back = total - ah
    rest = ((ah - (total - back)) + (bh - back)) + (al + bl)
    high = total + rest
    return high, rest - (high - total)


@numba.njit(cache=True, nogil=True)
def _times(ah, al, bh, bl):
    """Multiply, within 2^-100 |a b|: halves of 26 bits are multiplied without rounding."""
    first = ah * bh
    moved = 134217729.0 * ah
    a_high = moved - (moved - ah)
    moved = 134217729.0 * bh
    b_high = moved - (moved - bh)
    a_low, b_low = ah - a_high, bh - b_high
    rest = ((a_high * b_high - first) + a_high * b_low + a_low * b_high) + a_low * b_low
    rest += ah * bl + al * bh
    high = first + rest
    return high, rest - (high - first)


@numba.njit(cache=True, nogil=True)
def _state(target, sources, coefficients, noise, high, low, bound, work):
    """Carry out one statement; coefficients are pairs, `noise` is the variance of y. Return whether it is enclosed."""
    m, count = len(high), len(sources)
    size, largest, widest = 1.0, 1e-250, 0.0
    for k in range(count):
        size += abs(coefficients[k, 0])
    for c in range(m):
        for part in range(3):
            work[part, c] = 0.0
        largest = max(largest, high[c, c])
        widest = max(widest, bound[c, c])
        for k in range(count):
            source = sources[k]
            th, tl = _times(coefficients[k, 0], coefficients[k, 1], high[source, c], low[source, c])
            work[0, c], work[1, c] = _plus(work[0, c], work[1, c], th, tl)
            work[2, c] += coefficients[k, 0] * bound[source, c]
    dh, dl, moved = noise, 0.0, 0.0
    for k in range(count):
        source = sources[k]
        th, tl = _times(coefficients[k, 0], coefficients[k, 1], work[0, source], work[1, source])
        dh, dl = _plus(dh, dl, th, tl)
        moved += coefficients[k, 0] * work[2, source]
    for c in range(m):
        high[target, c] = high[c, target] = work[0, c]
        low[target, c] = low[c, target] = work[1, c]
        bound[target, c] = bound[c, target] = work[2, c]
    high[target, target], low[target, target], bound[target, target] = dh, dl, moved
    # Entries of a covariance are at most its largest diagonal entry, and those here differ by at most 2 R.
    step = (m + 1) * (count + 8) * size * size
    lost = step * 2.0**-96 * (max(largest, dh) + 4.0 * widest)
    for c in range(m):
        bound[c, c] += lost
    return size < 1e100 and largest < 1e200 and step * 2.0**-51 * max(widest, moved) < 0.25 * lost


@numba.njit(cache=True, nogil=True)
def _follow(i, x, first, targets, sources, counts, program, state, work):
    """The workload's statements of step i; -1 stands for x among their sources."""
    high, low, bound = state
    fine = True
    named = np.empty(sources.shape[1], dtype=np.int64)
    for k in range(len(targets)):
        for s in range(counts[k]):
            named[s] = x if sources[k, s] < 0 else first + sources[k, s]
        row = program[i if len(program) > 1 else 0, k]
        fine &= _state(first + targets[k], named[: counts[k]], row[: counts[k]], 0.0, high, low, bound, work)
    return fine


@numba.njit(cache=True, nogil=True)
def banded(bands, reciprocals, states, targets, sources, counts, program, output, ends):
    """Write variances of A C^-1 y from below and above, for unit y and C by its bands; see losses/variances.py."""
    b, n = bands.shape
    m = b + states
    state = (np.zeros((m, m)), np.zeros((m, m)), np.zeros((m, m)))
    high, low, bound = state
    work = np.empty((3, m))
    named, row = np.empty(b, dtype=np.int64), np.zeros((b, 2))
    for i in range(n):
        x = i % b
        count = 0
        for d in range(1, min(b, i + 1)):
            if bands[d, i - d] != 0.0:
                named[count] = (i - d) % b
                row[count, 0] = -bands[d, i - d]
                row[count, 1] = 0.0
                count += 1
        fine = _state(x, named[:count], row[:count], 1.0, high, low, bound, work)
        named[0] = x
        row[0, 0], row[0, 1] = reciprocals[i, 0], reciprocals[i, 1]
        fine &= _state(x, named[:1], row[:1], 0.0, high, low, bound, work)
        fine &= _follow(i, x, b, targets, sources, counts, program, state, work)
        o = x if output < 0 else b + output
        ends[0, i] = high[o, o] - 2.0 * bound[o, o]
        ends[1, i] = high[o, o] + 2.0 * bound[o, o]
        if not fine:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def buffered(reciprocals, transition, inputs, outputs, states, targets, sources, counts, program, output, ends):
    """The same for C with buffers: s <- T s, x = (y - output . s) / diagonal, s <- s + input x.

    Where every step has the same transition, input and output, they may be given once.
    """
    n, (groups, s) = len(reciprocals), inputs.shape[1:]
    stride = 0 if len(inputs) == 1 else 1
    size = groups * s
    first = 1 + size + s  # x, the buffers, and room for those of one group
    m = first + states
    state = (np.zeros((m, m)), np.zeros((m, m)), np.zeros((m, m)))
    high, low, bound = state
    work = np.empty((3, m))
    named, row = np.empty(size + 2, dtype=np.int64), np.zeros((size + 2, 2))
    for i in range(n):
        fine = True
        for g in range(groups):
            own = 1 + g * s
            for a in range(s):
                for c in range(s):
                    named[c] = own + c
                    row[c, 0], row[c, 1] = transition[stride * i, g, a, c], 0.0
                to = own if s == 1 else 1 + size + a
                fine &= _state(to, named[:s], row[:s], 0.0, high, low, bound, work)
            for a in range(s if s > 1 else 0):
                named[0] = 1 + size + a
                row[0, 0], row[0, 1] = 1.0, 0.0
                fine &= _state(own + a, named[:1], row[:1], 0.0, high, low, bound, work)
        for a in range(size):
            named[a] = 1 + a
            row[a, 0], row[a, 1] = -outputs[stride * i, a // s, a % s], 0.0
        fine &= _state(0, named[:size], row[:size], 1.0, high, low, bound, work)
        named[0] = 0
        row[0, 0], row[0, 1] = reciprocals[i, 0], reciprocals[i, 1]
        fine &= _state(0, named[:1], row[:1], 0.0, high, low, bound, work)
        for a in range(size):
            named[0], named[1] = 1 + a, 0
            row[0, 0], row[0, 1] = 1.0, 0.0
            row[1, 0], row[1, 1] = inputs[stride * i, a // s, a % s], 0.0
            fine &= _state(1 + a, named[:2], row[:2], 0.0, high, low, bound, work)
        fine &= _follow(i, 0, first, targets, sources, counts, program, state, work)
        o = 0 if output < 0 else first + output
        ends[0, i] = high[o, o] - 2.0 * bound[o, o]
        ends[1, i] = high[o, o] + 2.0 * bound[o, o]
        if not fine:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def tree(reciprocals, nodes, restart, states, targets, sources, counts, program, output, ends):
    """The same for trees: x = (y - sum of nodes times block sums) / diagonal; blocks merge like a counter's bits."""
    levels, n = len(nodes) - 1, len(reciprocals)
    first = 1 + levels
    m = first + states
    state = (np.zeros((m, m)), np.zeros((m, m)), np.zeros((m, m)))
    high, low, bound = state
    work = np.empty((3, m))
    named, row = np.empty(levels + 1, dtype=np.int64), np.zeros((levels + 1, 2))
    for i in range(n):
        leaf, count = i % restart, 0
        for j in range(levels):
            if leaf >> j & 1:
                named[count] = 1 + j
                row[count, 0], row[count, 1] = -nodes[j + 1, i], 0.0
                count += 1
        fine = _state(0, named[:count], row[:count], 1.0, high, low, bound, work)
        named[0] = 0
        row[0, 0], row[0, 1] = reciprocals[i, 0], reciprocals[i, 1]
        fine &= _state(0, named[:1], row[:1], 0.0, high, low, bound, work)
        fine &= _follow(i, 0, first, targets, sources, counts, program, state, work)
        free = 0
        while leaf >> free & 1:
            free += 1
            named[free] = free
        if free < levels:
            row[: free + 1, 0], row[: free + 1, 1] = 1.0, 0.0
            fine &= _state(1 + free, named[: free + 1], row[: free + 1], 0.0, high, low, bound, work)
        o = 0 if output < 0 else first + output
        ends[0, i] = high[o, o] - 2.0 * bound[o, o]
        ends[1, i] = high[o, o] + 2.0 * bound[o, o]
        if not fine:
            return False
    return True
