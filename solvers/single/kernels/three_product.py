"""Hessian product for closed loops with three states per pole (`cascade`)."""

from factorize.solvers.methods.compiled import Array, Index, compiled, inlined

Three = tuple[float, float, float]
Six = tuple[float, float, float, float, float, float]


@inlined
def _carried(f1: Three, f2: Three, f3: Three, m: Six) -> Six:
    """``F M F^T``: F by its rows, M symmetric, its entries 11, 12, 13, 22, 23, 33."""
    a1, a2, a3 = _times(f1, m)
    b1, b2, b3 = _times(f2, m)
    c1, c2, c3 = _times(f3, m)
    return (
        a1 * f1[0] + a2 * f1[1] + a3 * f1[2],
        a1 * f2[0] + a2 * f2[1] + a3 * f2[2],
        a1 * f3[0] + a2 * f3[1] + a3 * f3[2],
        b1 * f2[0] + b2 * f2[1] + b3 * f2[2],
        b1 * f3[0] + b2 * f3[1] + b3 * f3[2],
        c1 * f3[0] + c2 * f3[1] + c3 * f3[2],
    )


@inlined
def _times(f: Three, m: Six) -> Three:
    """``f^T M``."""
    f1, f2, f3 = f
    m11, m12, m13, m22, m23, m33 = m
    return f1 * m11 + f2 * m12 + f3 * m13, f1 * m12 + f2 * m22 + f3 * m23, f1 * m13 + f2 * m23 + f3 * m33


@compiled
def product_above(loops: Array, back: Index, state: Array, x: Array, y: Array) -> None:
    """``y[i] = sum over k > i``: first entry of ``Q = Phi[i] M[i+1] Phi[i]^T``, ``M[i] = Q + x[i] sigma sigma^T``."""
    n, _, count = loops.shape
    m = state
    for k in range(6):
        for j in range(count):
            m[k, j] = 0.0
    for step in range(n):
        i = back[step]
        total = 0.0
        for j in range(count):
            q11, q12, q13, q22, q23, q33 = _carried(
                (loops[i, 0, j], loops[i, 1, j], loops[i, 2, j]),
                (loops[i, 3, j], loops[i, 4, j], loops[i, 5, j]),
                (loops[i, 6, j], loops[i, 7, j], loops[i, 8, j]),
                (m[0, j], m[1, j], m[2, j], m[3, j], m[4, j], m[5, j]),
            )
            s1, s2, s3 = loops[i, 9, j], loops[i, 10, j], loops[i, 11, j]
            m[0, j] = q11 + x[i] * s1 * s1
            m[1, j] = q12 + x[i] * s1 * s2
            m[2, j] = q13 + x[i] * s1 * s3
            m[3, j] = q22 + x[i] * s2 * s2
            m[4, j] = q23 + x[i] * s2 * s3
            m[5, j] = q33 + x[i] * s3 * s3
            total += q11
        y[i] = total


@compiled
def product_below(loops: Array, state: Array, x: Array, y: Array) -> None:
    """``y[i] = sum over k <= i``: ``sigma^T N sigma``, ``N = Z[i] + x[i] e1 e1^T``, ``Z[i+1] = Phi[i]^T N Phi[i]``."""
    n, _, count = loops.shape
    z = state
    for k in range(6):
        for j in range(count):
            z[k, j] = 0.0
    for i in range(n):
        total = 0.0
        for j in range(count):
            m11, m12, m13, m22, m23, m33 = z[0, j] + x[i], z[1, j], z[2, j], z[3, j], z[4, j], z[5, j]
            s1, s2, s3 = loops[i, 9, j], loops[i, 10, j], loops[i, 11, j]
            total += s1 * (m11 * s1 + 2.0 * (m12 * s2 + m13 * s3)) + s2 * (m22 * s2 + 2.0 * m23 * s3) + m33 * s3 * s3
            f11, f12, f13 = loops[i, 0, j], loops[i, 1, j], loops[i, 2, j]
            f21, f22, f23 = loops[i, 3, j], loops[i, 4, j], loops[i, 5, j]
            f31, f32, f33 = loops[i, 6, j], loops[i, 7, j], loops[i, 8, j]
            z[0, j], z[1, j], z[2, j], z[3, j], z[4, j], z[5, j] = _carried(
                (f11, f21, f31), (f12, f22, f32), (f13, f23, f33), (m11, m12, m13, m22, m23, m33)
            )
        y[i] = total
