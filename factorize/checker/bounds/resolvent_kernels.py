"""A compiled sweep behind `block_resolvents`: upper bounds of Schur complements, block by block.

A failed square root leaves a NaN, which the caller counts as 0. UNIT is 2^-53; `block_resolvents` derives the constants
in front of it.

A block holds the classes m and b - 1 - m, k steps each, in the unknowns u_e = y_e of the first class and
d_e = y_e of the second - u_{e + shift}: differences along the part of the chain that has been eliminated, which is
stiff where the u are soft. `shift` is 1 outside, where the end of an epoch meets the next one, and 0 inside.
"""

import math

from factorize.checker.arithmetic.loops import kernel, part
from factorize.checker.arithmetic.near import UNIT


@part(error_model="numpy", fastmath={"contract", "nsz"})
def _factor(a, rows):
    """Overwrite the first rows, a square, by the transpose of their Cholesky factor L, and each r below by r L^-T.

    Only the lower triangle of the square is read. Return the sum of squares of as many rows below it, and of the rest.
    """
    side, near, far = a.shape[1], 0.0, 0.0
    for j in range(side):
        root = math.sqrt(a[j, j])
        a[j, j] = root
        for i in range(j + 1, rows):
            value = a[i, j] / root
            if i < side:
                a[j, i], a[i, j] = value, 0.0
            else:
                a[i, j] = value
                near += value * value if i < 2 * side else 0.0
                far += value * value if i >= 2 * side else 0.0
        for i in range(j + 1, rows):
            value = a[j, i] if i < side else a[i, j]
            if value != 0.0:
                for s in range(j + 1, i + 1 if i < side else side):
                    a[i, s] -= value * a[j, s]
    return near, far


@part(fastmath={"contract", "nsz", "reassoc"})
def _products(rows, first, out):
    """Write the products of a square's rows with each other; the square begins at row `first`."""
    side = rows.shape[1]
    for i in range(side):
        for j in range(i + 1):
            value = 0.0
            for s in range(side):
                value += rows[first + i, s] * rows[first + j, s]
            out[i, j] = out[j, i] = value


@part(error_model="numpy", fastmath={"contract", "nsz"})
def _parallel(a, roots, near, shift, joint):
    """Overwrite a by an upper bound of P = (a^-1 + R)^-1, R of the edges of row `near` and those mirrored.

    ``joint`` is scratch, shape (4 side, side): B, rows that become H^-T and L H^-T, and L^T sqrt(R).
    """
    side = a.shape[1]
    k, trace, far = side // 2, 0.0, len(roots) - 2 - near
    _factor(a, side)
    for j in range(side):
        square = 1.0
        for e in range(k):  # Make sqrt(R) L, and its column norms without cancellation.
            soft, stiff = a[j, e], a[j, k + e - shift] if e >= shift else 0.0
            whole, hard = roots[near, e] * (abs(soft) + abs(stiff)), roots[far, e] * a[j, k + e]
            joint[3 * side + j, e], joint[3 * side + j, k + e] = roots[near, e] * (soft - stiff), hard
            square += whole * whole + hard * hard
        trace += square
        for i in range(side):
            joint[side + i, j] = square if i == j else 0.0
            joint[2 * side + i, j] = a[j, i]
    _products(joint, 3 * side, joint)
    for i in range(side):
        square = joint[side + i, i]
        joint[i, i] += 1.0 - 1.1 * (1.5 * side * side + 10 * side) * UNIT * square
        joint[side + i, i] = math.sqrt(square)
    scaled, _ = _factor(joint, 3 * side)
    residual = math.sqrt(trace if trace < side * scaled else side * scaled)
    _products(joint, 2 * side, a)
    for i in range(side):
        a[i, i] *= 1.0 + 1.1 * side * (side + 3 + 2.1 * (side + 1) * residual) * UNIT


@part()
def _in_steps(a, shift, out):
    """Write a matrix in (u, d) as one in the steps y, its diagonal raised by the rounding of sums.

    Sums with the rows of d round less than a share of their own diagonal, which is raised whenever it is read.
    """
    side = a.shape[1]
    k = side // 2
    for i in range(side):
        up = k + i - shift
        for j in range(side):
            out[i, j] = a[i, j] - (a[up, j] if shift <= i < k else 0.0)
    for i in range(side):
        for j in range(shift, k):
            out[i, j] -= out[i, k + j - shift]
    for i in range(k):
        up = k + i - shift
        size = 2 * abs(a[up, i]) + a[up, up] if i >= shift else 0.0
        out[i, i] += 8 * side * UNIT * (size + a[i, i])


@kernel()
def block_resolvent_trace(roots, grounded, dual, factors, t, outside, current, joint):
    """Return a lower bound of tr(W K^-1), K = sum of edges + t W; one that failed is less, or NaN.

    Args:
        roots: square roots of the resistances from each step to the next, and from the last step to the ground, by
            class and epoch, shape (b, k), b even.
        grounded: stiffness to the ground by shift and block, in the unknowns of the block, shape (2, b / 2, 2 k).
        dual: W by shift and block, in the unknowns of the block, shape (2, b / 2, 2 k, 2 k).
        factors: F^T by block, in steps, shape (b / 2, 2 k, 2 k).
        t: the node of the trapezoidal rule.
        outside: scratch, shape (b / 2, 2 k, 2 k).
        current: scratch, shape (2 k, 2 k).
        joint: scratch, shape (8 k, 2 k).
    """
    half, side = len(factors), current.shape[1]
    k, total = side // 2, 0.0
    # The sums and products since the last time, and the next factorization, round less than that.
    raised = 1.0 + 1.1 * (0.75 * side * side + 16 * side + 16) * UNIT
    for shift in range(1, -1, -1):  # First outside in, then inside out; both meet in each block.
        end = 2 * half - 1 if shift else half - 1
        for i in range(side):
            for j in range(side):
                current[i, j] = 0.0
            if i >= k:
                current[i, i] = 1.0 / (roots[end, i - k] * roots[end, i - k])
        for index in range(half):
            m = index if shift else half - 1 - index
            if not shift:
                _in_steps(current, shift, joint)
                for i in range(side):
                    for j in range(side):
                        joint[i, j] += outside[m, i, j]
                        joint[side + i, j], joint[2 * side + i, j] = 0.0, factors[m, i, j]
                    joint[i, i] *= raised
                    joint[side + i, i] = math.sqrt(joint[i, i])
                condition, squares = _factor(joint, 3 * side)
                lost = (2.2 * side * math.sqrt(side * condition) + side * side + 8) * UNIT
                if lost < 0.01:
                    total += squares * (1.0 - lost)
            for i in range(side):
                for j in range(side):
                    current[i, j] += t * dual[shift, m, i, j]
                current[i, i] = raised * (current[i, i] + grounded[shift, m, i])
            if shift:
                _in_steps(current, shift, outside[m])
            if index + 1 < half:
                _parallel(current, roots, m if shift else m - 1, shift, joint)
    return total * (1.0 - (half + 4) * UNIT)
