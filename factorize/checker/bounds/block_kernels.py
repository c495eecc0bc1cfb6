"""Compiled sweeps behind `block_resolvents`: upper bounds of Schur complements, for a few nodes at once.

Arrays of small matrices have the shape (side, side, lanes), one lane per node of the quadrature, so that the innermost
loops vectorise; only lower triangles are kept. A failed square root leaves a NaN in its lane, which the caller counts
as nothing. UNIT is 2^-53; the constants in front of it are derived in `block_resolvents`.

A block holds the classes m and b - 1 - m, k steps each, in the unknowns u_e = y_e of the first class and
d_e = y_e of the second - u_{e + shift}: differences along the part of the chain that has been eliminated, which is
stiff where the u are soft. `shift` is 1 outside, where the end of an epoch meets the next one, and 0 inside.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from factorize.checker.arithmetic.near import UNIT
from factorize.numbers.compiling import assign


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})
def _factor(a, lower):
    """Cholesky factor of the lower triangle of a."""
    side, _, lanes = a.shape
    value, inverse = np.empty(lanes), np.empty(lanes)
    for j in range(side):
        for i in range(j, side):
            for x in range(lanes):
                value[x] = a[i, j, x]
            for s in range(j):
                for x in range(lanes):
                    value[x] -= lower[i, s, x] * lower[j, s, x]
            if i == j:
                for x in range(lanes):
                    lower[j, j, x] = math.sqrt(value[x])
                    inverse[x] = 1.0 / lower[j, j, x]
            else:
                for x in range(lanes):
                    lower[i, j, x] = value[x] * inverse[x]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})
def _substitute(lower, right, first):
    """Overwrite a vector by lower^-1 times it; entries before `first` are zero. Shape (side, lanes)."""
    side, _, lanes = lower.shape
    for i in range(first, side):
        for s in range(first, i):
            for x in range(lanes):
                right[i, x] -= lower[i, s, x] * right[s, x]
        for x in range(lanes):
            right[i, x] /= lower[i, i, x]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})
def _parallel(a, near, far, shift, lower, joint, half, rows, out):
    """Write an upper bound of P = (a^-1 + R)^-1, R of the edges with resistances near (first class) and far, (k,)."""
    side, _, lanes = a.shape
    k = side // 2
    squares, trace, scaled = np.zeros((side, lanes)), np.zeros(lanes), np.zeros(lanes)
    _factor(a, lower)
    rows[:] = 0.0
    for e in range(k):  # sqrt(R) L, and its column norms without cancellation
        partner = e - shift
        for j in range(side):
            for x in range(lanes):
                soft = lower[e, j, x] if j <= e else 0.0
                stiff = lower[k + partner, j, x] if 0 <= partner and j <= k + partner else 0.0
                rows[e, j, x] = math.sqrt(near[e]) * (soft - stiff)
                squares[j, x] += near[e] * (abs(soft) + abs(stiff)) ** 2
                if j <= k + e:
                    rows[k + e, j, x] = math.sqrt(far[e]) * lower[k + e, j, x]
                    squares[j, x] += rows[k + e, j, x] ** 2
    lowered = 1.1 * (1.5 * side * side + 10 * side) * UNIT
    for i in range(side):
        for j in range(i + 1):
            for x in range(lanes):
                joint[i, j, x] = 0.0
            for s in range(side):
                for x in range(lanes):
                    joint[i, j, x] += rows[s, i, x] * rows[s, j, x]
        for x in range(lanes):
            trace[x] += 1.0 + squares[i, x]
            joint[i, i, x] += 1.0 - lowered * (1.0 + squares[i, x])
    _factor(joint, half)
    for j in range(side):
        rows[0] = 0.0
        rows[0, j] = 1.0
        _substitute(half, rows[0], j)
        for i in range(j, side):
            for x in range(lanes):
                scaled[x] += (1.0 + squares[j, x]) * rows[0, i, x] ** 2
    for r in range(side):
        for j in range(side):
            for x in range(lanes):
                rows[r, j, x] = lower[r, j, x] if j <= r else 0.0
        _substitute(half, rows[r], 0)
    for i in range(side):
        for j in range(i + 1):
            for x in range(lanes):
                out[i, j, x] = 0.0
            for s in range(side):
                for x in range(lanes):
                    out[i, j, x] += rows[i, s, x] * rows[j, s, x]
    for x in range(lanes):
        residual = min(math.sqrt(trace[x]), math.sqrt(side * scaled[x]))
        raised = 1.1 * side * (side + 3 + 2.1 * (side + 1) * residual) * UNIT
        for i in range(side):
            out[i, i, x] *= 1.0 + raised


@numba.njit(cache=True, nogil=True)
def _add_dual(dual, grounded, t, m, shift, a):
    """Add t W and the springs to the ground of the two classes."""
    b, k = dual.shape[0], dual.shape[1]
    for i in range(k):
        for j in range(k):
            first, second = dual[m, i, j], dual[b - 1 - m, i, j]
            fixed, held = (grounded[m, i], grounded[b - 1 - m, i]) if i == j else (0.0, 0.0)
            for x in range(t.shape[0]):
                above, below = t[x] * first + fixed, t[x] * second + held
                if j <= i:
                    a[i, j, x] += above
                    a[k + i, k + j, x] += below
                    if i + shift < k:
                        a[i + shift, j + shift, x] += below
                if j + shift < k:
                    a[k + i, j + shift, x] += below


@numba.njit(cache=True, nogil=True)
def _inflate(a):
    """Raise the diagonal by more than the sums and products since the last time, and the next factorization, round."""
    side = a.shape[0]
    grow = 1.0 + 1.1 * (0.75 * side * side + 16 * side + 16) * UNIT
    for i in range(side):
        for x in range(a.shape[2]):
            a[i, i, x] *= grow


@numba.njit(cache=True, nogil=True)
def _add_in_steps(a, shift, out):
    """Add a matrix of (u, d) to one of the steps y, its diagonal raised by what the sums may round."""
    side, _, lanes = a.shape
    k = side // 2
    for i in range(side):
        for j in range(i + 1):
            for x in range(lanes):
                out[i, j, x] += a[i, j, x]
    for i in range(k):
        for j in range(i + 1):  # u_i, u_j
            di, dj = k + i - shift, k + j - shift
            for x in range(lanes):
                value, size = 0.0, 0.0
                if i >= shift:
                    value -= a[di, j, x]
                    size += abs(a[di, j, x])
                if j >= shift:
                    value -= a[dj, i, x]
                    size += abs(a[dj, i, x])
                    value += a[di, dj, x]
                    size += abs(a[di, dj, x])
                out[i, j, x] += value
                if i == j:
                    out[i, i, x] += 8 * side * UNIT * (size + a[i, i, x])
        for j in range(shift, k):  # d_i, u_j
            dj = j - shift
            for x in range(lanes):
                out[k + i, j, x] -= a[k + max(i, dj), k + min(i, dj), x]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})
def _trace(a, factors, m, lower, column, total):
    """Add to `total` a lower bound of tr(F^T a^-1 F) over the two classes of block m, shape (lanes,)."""
    side, _, lanes = a.shape
    b, k = factors.shape[0], factors.shape[1]
    _factor(a, lower)
    condition, squares = np.zeros(lanes), np.zeros(lanes)
    for j in range(side):
        column[:] = 0.0
        column[j] = 1.0
        _substitute(lower, column, j)
        for i in range(j, side):
            for x in range(lanes):
                condition[x] += a[j, j, x] * column[i, x] * column[i, x]
    for c in range(side):
        part, e = c // k, c % k
        column[:] = 0.0
        for i in range(k):
            column[part * k + i] = factors[m if part == 0 else b - 1 - m, i, e]
        _substitute(lower, column, part * k)
        for i in range(part * k, side):
            for x in range(lanes):
                squares[x] += column[i, x] * column[i, x]
    for x in range(lanes):
        lost = (2.2 * side * math.sqrt(side * condition[x]) + side * side + 8) * UNIT
        if lost < 0.01:
            total[x] += squares[x] * (1.0 - lost)


@numba.njit(cache=True, nogil=True)
def block_resolvent_traces(resistances, grounded, dual, factors, t):
    """Return lower bounds of tr(W K^-1), K = sum of edges + t W, shape (lanes,); a lane that failed holds less, or NaN.

    Args:
        resistances: from each step to the next, from the last to the ground, by class and epoch, shape (b, k), b even.
        grounded: stiffness from each step to the ground, shape (b, k).
        dual: products of the factors, rounded, shape (b, k, k).
        factors: F, shape (b, k, k).
        t: nodes, shape (lanes,).
    """
    b, k = resistances.shape
    half, side, lanes = b // 2, 2 * k, t.shape[0]
    outside = np.zeros((half, side, side, lanes))
    current, work, bound = (np.zeros((side, side, lanes)), np.zeros((side, side, lanes)), np.zeros((side, side, lanes)))
    lower, joint, factor = (np.zeros((side, side, lanes)), np.zeros((side, side, lanes)), np.zeros((side, side, lanes)))
    rows, column, total = np.zeros((side, side, lanes)), np.empty((side, lanes)), np.zeros(lanes)
    for shift in range(1, -1, -1):  # from the outside in, and then from the inside out, where both meet in each block
        current[:] = 0.0
        last = b - 1 if shift else half - 1
        for e in range(k):
            for x in range(lanes):
                current[k + e, k + e, x] = 1.0 / resistances[last, e]
        for index in range(half):
            m = index if shift else half - 1 - index
            if not shift:
                work[:] = 0.0
                _add_in_steps(outside[m], shift + 1, work)
                _add_in_steps(current, shift, work)
                _inflate(work)
                _trace(work, factors, m, lower, column, total)
            _add_dual(dual, grounded, t, m, shift, current)
            _inflate(current)
            if shift:
                assign(outside[m], current)
            if index + 1 < half:
                near = m if shift else m - 1
                _parallel(
                    current, resistances[near], resistances[b - 2 - near], shift, lower, joint, factor, rows, bound
                )
                assign(current, bound)
    return total * (1.0 - (half + 4) * UNIT)
