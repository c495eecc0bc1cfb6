"""Hessian product for closed loops with three states per pole: see `cascade`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from solvers.kernels import compiled

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@compiled
def product_above(loops: Array, back: Index, x: Array, y: Array) -> None:
    """``y[i] = sum over k > i``: first entry of ``Q = Phi[i] M[i+1] Phi[i]^T``, ``M[i] = Q + x[i] sigma sigma^T``."""
    n, _, count = loops.shape
    m = np.zeros((6, count))
    for step in range(n):
        i = back[step]
        total = 0.0
        for j in range(count):
            f11, f12, f13 = loops[i, 0, j], loops[i, 1, j], loops[i, 2, j]
            f21, f22, f23 = loops[i, 3, j], loops[i, 4, j], loops[i, 5, j]
            f31, f32, f33 = loops[i, 6, j], loops[i, 7, j], loops[i, 8, j]
            m11, m12, m13, m22, m23, m33 = m[0, j], m[1, j], m[2, j], m[3, j], m[4, j], m[5, j]
            a1, a2, a3 = (
                f11 * m11 + f12 * m12 + f13 * m13,
                f11 * m12 + f12 * m22 + f13 * m23,
                f11 * m13 + f12 * m23 + f13 * m33,
            )
            b1, b2, b3 = (
                f21 * m11 + f22 * m12 + f23 * m13,
                f21 * m12 + f22 * m22 + f23 * m23,
                f21 * m13 + f22 * m23 + f23 * m33,
            )
            c1, c2, c3 = (
                f31 * m11 + f32 * m12 + f33 * m13,
                f31 * m12 + f32 * m22 + f33 * m23,
                f31 * m13 + f32 * m23 + f33 * m33,
            )
            first = a1 * f11 + a2 * f12 + a3 * f13
            s1, s2, s3 = loops[i, 9, j], loops[i, 10, j], loops[i, 11, j]
            m[0, j] = first + x[i] * s1 * s1
            m[1, j] = a1 * f21 + a2 * f22 + a3 * f23 + x[i] * s1 * s2
            m[2, j] = a1 * f31 + a2 * f32 + a3 * f33 + x[i] * s1 * s3
            m[3, j] = b1 * f21 + b2 * f22 + b3 * f23 + x[i] * s2 * s2
            m[4, j] = b1 * f31 + b2 * f32 + b3 * f33 + x[i] * s2 * s3
            m[5, j] = c1 * f31 + c2 * f32 + c3 * f33 + x[i] * s3 * s3
            total += first
        y[i] = total


@compiled
def product_below(loops: Array, x: Array, y: Array) -> None:
    """``y[i] = sum over k <= i``: ``sigma^T N sigma``, ``N = Z[i] + x[i] e1 e1^T``, ``Z[i+1] = Phi[i]^T N Phi[i]``."""
    n, _, count = loops.shape
    z = np.zeros((6, count))
    for i in range(n):
        total = 0.0
        for j in range(count):
            m11, m12, m13, m22, m23, m33 = z[0, j] + x[i], z[1, j], z[2, j], z[3, j], z[4, j], z[5, j]
            s1, s2, s3 = loops[i, 9, j], loops[i, 10, j], loops[i, 11, j]
            total += s1 * (m11 * s1 + 2.0 * (m12 * s2 + m13 * s3)) + s2 * (m22 * s2 + 2.0 * m23 * s3) + m33 * s3 * s3
            f11, f12, f13 = loops[i, 0, j], loops[i, 1, j], loops[i, 2, j]
            f21, f22, f23 = loops[i, 3, j], loops[i, 4, j], loops[i, 5, j]
            f31, f32, f33 = loops[i, 6, j], loops[i, 7, j], loops[i, 8, j]
            a1, a2, a3 = (
                f11 * m11 + f21 * m12 + f31 * m13,
                f11 * m12 + f21 * m22 + f31 * m23,
                f11 * m13 + f21 * m23 + f31 * m33,
            )
            b1, b2, b3 = (
                f12 * m11 + f22 * m12 + f32 * m13,
                f12 * m12 + f22 * m22 + f32 * m23,
                f12 * m13 + f22 * m23 + f32 * m33,
            )
            c1, c2, c3 = (
                f13 * m11 + f23 * m12 + f33 * m13,
                f13 * m12 + f23 * m22 + f33 * m23,
                f13 * m13 + f23 * m23 + f33 * m33,
            )
            z[0, j] = a1 * f11 + a2 * f21 + a3 * f31
            z[1, j] = a1 * f12 + a2 * f22 + a3 * f32
            z[2, j] = a1 * f13 + a2 * f23 + a3 * f33
            z[3, j] = b1 * f12 + b2 * f22 + b3 * f32
            z[4, j] = b1 * f13 + b2 * f23 + b3 * f33
            z[5, j] = c1 * f13 + c2 * f23 + c3 * f33
        y[i] = total
