"""Bidiagonal systems with positive diagonals and nothing positive beside them: their solutions only add and divide.

A lower bidiagonal matrix L has L[i, i] = diagonal[i] and L[i + 1, i] = -below[i].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from factorize.solvers.methods.arrays import Array

_LEAST = 1e-150


def solve(diagonal: Array, below: Array, right: Array, *, transposed: bool = False) -> Array:
    """Return x of ``L x = right``, or of ``L^T x = right``.

    Args:
        diagonal: positive, shape (n,).
        below: non-negative, shape (n - 1,).
        right: shape (n,) or (n, columns).
        transposed: which of the two.
    """
    from scipy.linalg.lapack import dtbtrs

    bands = np.stack([diagonal, np.append(-below, 0.0)])
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


def largest_eigenvalue_above(times: Callable[[Array], Array], x: Array, steps: int) -> float:
    """Return a bound on the largest eigenvalue of a non-negative matrix: Collatz and Wielandt, after power steps.

    Args:
        times: the product with the matrix.
        x: positive, shape (n,).
        steps: products.
    """
    ratio = 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # then the bound is no number, and refused as such
        for _ in range(steps):
            y = times(x)
            ratio = float((y / x).max())
            x = np.maximum(y / y.max(), _LEAST)  # any positive vector gives a bound
    return ratio
