"""Hessian product for closed loops with two states per pole (`momentum`, `nesterov`)."""

from factorize.solvers.methods.compiled import Array, Index, compiled, inlined

Three = tuple[float, float, float]
Four = tuple[float, float, float, float]


@inlined
def _carried(f: Four, m: Three) -> Three:
    """``F M F^T``: F row by row, M symmetric, its entries 11, 12, 22."""
    f11, f12, f21, f22 = f
    m11, m12, m22 = m
    a1, a2 = f11 * m11 + f12 * m12, f11 * m12 + f12 * m22
    b1, b2 = f21 * m11 + f22 * m12, f21 * m12 + f22 * m22
    return a1 * f11 + a2 * f12, a1 * f21 + a2 * f22, b1 * f21 + b2 * f22


@compiled
def product_above(loops: Array, back: Index, state: Array, x: Array, y: Array) -> None:
    """``y[i] = sum over k > i``: first entry of ``Q = Phi[i] M[i+1] Phi[i]^T``, ``M[i] = Q + x[i] sigma sigma^T``."""
    n, _, count = loops.shape
    m11, m12, m22 = state[0], state[1], state[2]
    for j in range(count):
        m11[j] = m12[j] = m22[j] = 0.0
    for step in range(n):
        i = back[step]
        total = 0.0
        for j in range(count):
            phi = (loops[i, 0, j], loops[i, 1, j], loops[i, 2, j], loops[i, 3, j])
            q11, q12, q22 = _carried(phi, (m11[j], m12[j], m22[j]))
            s1, s2 = loops[i, 4, j], loops[i, 5, j]
            m11[j] = q11 + x[i] * s1 * s1
            m12[j] = q12 + x[i] * s1 * s2
            m22[j] = q22 + x[i] * s2 * s2
            total += q11
        y[i] = total


@compiled
def product_below(loops: Array, state: Array, x: Array, y: Array) -> None:
    """``y[i] = sum over k <= i``: ``sigma^T N sigma``, ``N = Z[i] + x[i] e1 e1^T``, ``Z[i+1] = Phi[i]^T N Phi[i]``."""
    n, _, count = loops.shape
    z11, z12, z22 = state[0], state[1], state[2]
    for j in range(count):
        z11[j] = z12[j] = z22[j] = 0.0
    for i in range(n):
        total = 0.0
        for j in range(count):
            s1, s2 = loops[i, 4, j], loops[i, 5, j]
            m11, m12, m22 = z11[j] + x[i], z12[j], z22[j]
            total += s1 * (m11 * s1 + 2.0 * m12 * s2) + m22 * s2 * s2
            f11, f12, f21, f22 = loops[i, 0, j], loops[i, 1, j], loops[i, 2, j], loops[i, 3, j]
            z11[j], z12[j], z22[j] = _carried((f11, f21, f12, f22), (m11, m12, m22))
        y[i] = total
