"""Compiled sweeps behind `block_resolvents`: upper bounds of Schur complements, node by node of the quadrature.

Only lower triangles of symmetric matrices are read. A failed square root leaves a NaN, which the caller counts as
nothing. UNIT is 2^-53; the constants in front of it are derived in `block_resolvents`.

A block holds the classes m and b - 1 - m, k steps each, in the unknowns u_e = y_e of the first class and
d_e = y_e of the second - u_{e + shift}: differences along the part of the chain that has been eliminated, which is
stiff where the u are soft. `shift` is 1 outside, where the end of an epoch meets the next one, and 0 inside.
"""

from __future__ import annotations

import math

import numpy as np

from factorize.checker.arithmetic.compiled import kernel, part
from factorize.checker.arithmetic.near import UNIT


@part(error_model="numpy", fastmath={"contract", "nsz"})
def _factor(a, rows):
    """Overwrite the first rows, a square, by the transpose of their Cholesky factor L, and each r below by r L^-T."""
    side = a.shape[1]
    for j in range(side):
        for i in range(j + 1, side):
            a[j, i] = a[i, j]
    for j in range(side):
        root = math.sqrt(a[j, j])
        for i in range(j, side):
            a[j, i] /= root
        for i in range(j + 1, rows):
            if i >= side:
                a[i, j] /= root
            value, first = (a[i, j], j + 1) if i >= side else (a[j, i], i)
            if value != 0.0:
                for s in range(first, side):
                    a[i, s] -= value * a[j, s]


@part()
def _add_dual(dual, grounded, t, m, shift, a):
    """Add t W and the springs to the ground of the two classes, and raise the diagonal by what that may round."""
    b, k = dual.shape[0], dual.shape[1]
    for i in range(k):
        for j in range(k):
            above, below = t * dual[m, i, j], t * dual[b - 1 - m, i, j]
            if i == j:
                above += grounded[m, i]
                below += grounded[b - 1 - m, i]
            a[i, j] += above
            a[k + i, k + j] += below
            if j + shift < k:
                a[k + i, j + shift] += below
                if i + shift < k:
                    a[i + shift, j + shift] += below
    _inflate(a)


@part()
def _inflate(a):
    """Raise the diagonal by more than the sums and products since the last time, and the next factorization, round."""
    side = a.shape[1]
    for i in range(side):
        a[i, i] *= 1.0 + 1.1 * (0.75 * side * side + 16 * side + 16) * UNIT


@part(error_model="numpy", fastmath={"contract", "nsz", "reassoc"})
def _parallel(a, near, far, shift, joint):
    """Overwrite a by an upper bound of P = (a^-1 + R)^-1, R of the edges with resistances near (first class) and far.

    ``joint`` is scratch of the shape (4 side, side): B, what becomes H^-T and L H^-T, and L^T sqrt(R).
    """
    side, k = a.shape[1], near.size
    _factor(a, side)
    trace, scaled = 0.0, 0.0
    for j in range(side):
        square = 1.0
        for e in range(k):  # sqrt(R) L, and its column norms without cancellation
            partner = k + e - shift
            soft = a[j, e] if j <= e else 0.0
            stiff = a[j, partner] if k <= partner and j <= partner else 0.0
            hard = math.sqrt(far[e]) * a[j, k + e] if j <= k + e else 0.0
            joint[3 * side + j, e] = math.sqrt(near[e]) * (soft - stiff)
            joint[3 * side + j, k + e] = hard
            square += near[e] * (abs(soft) + abs(stiff)) ** 2 + hard * hard
        trace += square
        for i in range(side):
            joint[side + i, j] = square if i == j else 0.0
            joint[2 * side + i, j] = a[j, i] if j <= i else 0.0
    for i in range(side):
        for j in range(i + 1):
            value = 0.0
            for s in range(side):
                value += joint[3 * side + i, s] * joint[3 * side + j, s]
            joint[i, j] = value
        square = joint[side + i, i]
        joint[i, i] += 1.0 - 1.1 * (1.5 * side * side + 10 * side) * UNIT * square
        joint[side + i, i] = math.sqrt(square)
    _factor(joint, 3 * side)
    for i in range(side):
        for j in range(side):
            scaled += joint[side + i, j] ** 2
    residual = min(math.sqrt(trace), math.sqrt(side * scaled))
    for i in range(side):
        for j in range(i + 1):
            value = 0.0
            for s in range(side):
                value += joint[2 * side + i, s] * joint[2 * side + j, s]
            a[i, j] = value
        a[i, i] *= 1.0 + 1.1 * side * (side + 3 + 2.1 * (side + 1) * residual) * UNIT


@part()
def _in_steps(a, shift, out):
    """Add a matrix of (u, d) to one of the steps y, its diagonal raised by what the sums may round."""
    side = a.shape[1]
    k = side // 2
    for i in range(side):
        for j in range(i + 1):
            out[i, j] += a[i, j]
    for i in range(k):
        for j in range(shift, k):  # d_i, u_j
            partner = j - shift
            out[k + i, j] -= a[k + max(i, partner), k + min(i, partner)]
            if shift <= i and j <= i:  # u_i, u_j
                out[i, j] += a[k + i - shift, k + partner]
        for j in range(i + 1):
            value = 0.0
            if i >= shift:
                value += a[k + i - shift, j]
            if j >= shift:
                value += a[k + j - shift, i]
            out[i, j] -= value
        if i >= shift:
            size = 2 * abs(a[k + i - shift, i]) + a[k + i - shift, k + i - shift]
            out[i, i] += 8 * side * UNIT * (size + a[i, i])
        else:
            out[i, i] += 8 * side * UNIT * a[i, i]


@part()
def _trace(factors, m, joint):
    """Return a lower bound of tr(F^T a^-1 F) over the two classes of a block; a stands in the first rows of joint."""
    b, k = factors.shape[0], factors.shape[1]
    side, condition, squares = 2 * k, 0.0, 0.0
    for i in range(side):
        for j in range(side):
            joint[side + i, j] = math.sqrt(joint[i, i]) if i == j else 0.0
            joint[2 * side + i, j] = 0.0
    for i in range(k):
        for j in range(k):
            joint[2 * side + i, j] = factors[m, j, i]
            joint[2 * side + k + i, k + j] = factors[b - 1 - m, j, i]
    _factor(joint, 3 * side)
    for i in range(side):
        for j in range(side):
            condition += joint[side + i, j] ** 2
            squares += joint[2 * side + i, j] ** 2
    lost = (2.2 * side * math.sqrt(side * condition) + side * side + 8) * UNIT
    return squares * (1.0 - lost) if lost < 0.01 else 0.0


@kernel()
def block_resolvent_traces(resistances, grounded, dual, factors, t):
    """Return lower bounds of tr(W K^-1), K = sum of edges + t W, for each node t; one that failed is less, or NaN.

    Args:
        resistances: from each step to the next, from the last to the ground, by class and epoch, shape (b, k), b even.
        grounded: stiffness from each step to the ground, shape (b, k).
        dual: products of the factors, rounded, shape (b, k, k).
        factors: F, shape (b, k, k).
        t: nodes, shape (nodes,).
    """
    b, k = resistances.shape
    half, total = b // 2, np.zeros(t.size)
    outside, current, joint = np.empty((half, 2 * k, 2 * k)), np.empty((2 * k, 2 * k)), np.empty((8 * k, 2 * k))
    for x in range(t.size):
        for shift in range(1, -1, -1):  # from the outside in, and then from the inside out; both meet in each block
            current[:] = 0.0
            for e in range(k):
                current[k + e, k + e] = 1.0 / resistances[b - 1 if shift else half - 1, e]
            for index in range(half):
                m = index if shift else half - 1 - index
                if not shift:
                    joint[: 2 * k] = 0.0
                    _in_steps(outside[m], shift + 1, joint)
                    _in_steps(current, shift, joint)
                    _inflate(joint)
                    total[x] += _trace(factors, m, joint)
                _add_dual(dual, grounded, t[x], m, shift, current)
                if shift:
                    for i in range(2 * k):
                        for j in range(2 * k):
                            outside[m, i, j] = current[i, j]
                if index + 1 < half:
                    near = m if shift else m - 1
                    _parallel(current, resistances[near], resistances[b - 2 - near], shift, joint)
        total[x] *= 1.0 - (half + 4) * UNIT
    return total
