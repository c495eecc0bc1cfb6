"""Bidiagonal systems with positive diagonals and nothing positive beside them: their solutions only add and divide.

A lower bidiagonal matrix L has L[i, i] = diagonal[i] and L[i + 1, i] = -below[i].
"""

import numpy as np

from factorize.solvers.methods.compiled import Array


def solve(diagonal: Array, below: Array, right: Array, *, transposed: bool = False) -> Array:
    """Return x of ``L x = right``, or of ``L^T x = right``.

    Args:
        diagonal: positive, shape (n,).
        below: non-negative, shape (n - 1,).
        right: shape (n,) or (n, columns).
        transposed: whether the second system is solved.
    """
    from scipy.linalg.lapack import dtbtrs

    bands = np.zeros((2, len(diagonal)), order="F")  # LAPACK reads them in this order, or they would be copied
    bands[0], bands[1, :-1] = diagonal, -below
    columns = right.reshape(len(right), -1)
    return np.asarray(dtbtrs(bands, columns, uplo="L", trans="T" if transposed else "N")[0]).reshape(right.shape)


def accumulate(factor: Array, x: Array, *, transposed: bool = False) -> Array:
    """Return ``(I - Z)^-1 x``, or its transpose times x, Z[i + 1, i] = factor[i]; factor[n - 1] is ignored."""
    return solve(np.ones_like(x), factor[:-1], x, transposed=transposed)


def add_neighbour(factor: Array, x: Array, *, transposed: bool = False) -> Array:
    """Return ``(I + Z) x``, or its transpose times x, Z as in `accumulate`."""
    out = x.copy()
    if transposed:
        out[:-1] += factor[:-1] * x[1:]
    else:
        out[1:] += factor[:-1] * x[:-1]
    return out
