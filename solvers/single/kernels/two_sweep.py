"""Kernels of `bidiagonal`: the recurrences from both ends and the Hessian product.

Variables are named as in the formulas at the head of `bidiagonal`; ``p2`` and ``q2`` are squares.  Arrays with
one row per step have the poles last, for the vector units.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from factorize.numbers.compiling import assign
from factorize.solvers.methods.compiled import compiled

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@compiled
def _forward(p2: Array, q2: Array, v: Array, t: Array, first: int, last: int, back: Index, e: Array) -> None:
    """Rows 1.. of the buffer from row 0: row r holds index first + r - 1."""
    state, count = e[0].copy(), t.size
    for step in range(first, last):
        i = back[v.size - 1 - step]
        r = i - first + 1
        decay = p2[i - 1] if i > 0 else 1.0
        for j in range(count):
            state[j] = t[j] * v[i] + q2[i] * state[j] / (decay + state[j])
            e[r, j] = state[j]


@compiled
def diagonal(p2: Array, q2: Array, v: Array, t: Array, w: Array, chunk: int, back: Index, x: Array) -> None:
    """Fill ``x`` with ``sum_j w_j (K_j^-1)[i, i]``.

    The sweep from the end needs e at every step; it is swept again chunk by chunk from states saved at their starts,
    so that memory stays O(n) and the chunk in the cache.
    """
    n, count = v.size, t.size
    chunks = (n + chunk - 1) // chunk
    saved = np.zeros((chunks, count))
    e = np.zeros((chunk + 1, count))
    for c in range(chunks):
        assign(saved[c], e[-1])
        if c + 1 < chunks:
            assign(e[0], saved[c])
            _forward(p2, q2, v, t, c * chunk, (c + 1) * chunk, back, e)
    f = np.full(count, p2[n - 1])
    for c in range(chunks - 1, -1, -1):
        first, last = c * chunk, min(n, (c + 1) * chunk)
        assign(e[0], saved[c])
        _forward(p2, q2, v, t, first, last, back, e)
        for step in range(n - last, n - first):
            i = back[step]
            r = i - first + 1
            total = 0.0
            before = p2[i - 1] if i > 0 else 0.0
            for j in range(count):
                h = t[j] * v[i] + f[j]
                total += w[j] / (e[r, j] + f[j])
                f[j] = before * h / (q2[i] + h)
            x[i] = total


@compiled
def factor(p2: Array, q2: Array, v: Array, t: Array, w: Array, back: Index, ratio: Array, scale: Array) -> None:
    """Fill ``ratio`` with ``rho^2`` and ``scale`` with ``w t ((K^-1)[i, i])^2``, both of shape (n, poles)."""
    n, count = ratio.shape
    e = np.zeros(count)
    for i in range(n):
        decay = p2[i - 1] if i > 0 else 1.0
        for j in range(count):
            e[j] = t[j] * v[i] + q2[i] * e[j] / (decay + e[j])
            scale[i, j] = e[j]
    f = np.full(count, p2[n - 1])
    for step in range(n):
        i = back[step]
        before = p2[i - 1] if i > 0 else 0.0
        for j in range(count):
            h = t[j] * v[i] + f[j]
            inverse = 1.0 / (scale[i, j] + f[j])
            scale[i, j] = w[j] * t[j] * inverse * inverse
            passed = before / (q2[i] + h)
            ratio[i, j] = q2[i] * passed / (q2[i] + h)
            f[j] = passed * h


@compiled
def product_below(ratio: Array, scale: Array, x: Array, y: Array) -> None:
    """``y[i] = sum over k <= i`` of ``S[i, k] x[k]``."""
    n, count = ratio.shape
    state = np.zeros(count)
    for i in range(n):
        total = 0.0
        for j in range(count):
            state[j] = ratio[i, j] * state[j] + scale[i, j] * x[i]
            total += state[j]
        y[i] = total


@compiled
def product_above(ratio: Array, scale: Array, back: Index, x: Array, y: Array) -> None:
    """``y[i] = sum over k > i`` of ``S[i, k] x[k]``."""
    n, count = ratio.shape
    state = np.zeros(count)
    for step in range(n):
        i = back[step]
        total = 0.0
        for j in range(count):
            total += scale[i, j] * state[j]
            state[j] = ratio[i, j] * (state[j] + x[i])
        y[i] = total
