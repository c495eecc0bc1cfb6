"""Kernels of `bidiagonal`: the recurrences from both ends and the Hessian product.

Variables are named as in the formulas at the head of `bidiagonal`; ``p2`` and ``q2`` are squares.  Arrays with
one row per step have the poles last, for the vector units; ``state`` is scratch for one row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.methods.compiled import compiled

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@compiled
def diagonal(
    p2: Array, q2: Array, v: Array, t: Array, w: Array, back: Index, saved: Array, e: Array, state: Array, x: Array
) -> None:
    """Fill ``x`` with ``sum_j w_j (K_j^-1)[i, i]``.

    The sweep from the end needs e at every step; it is swept again chunk by chunk from states saved at their starts,
    so that memory stays O(n) and the chunk in the cache.

    Args:
        p2: shape (n,).
        q2: shape (n,).
        v: shape (n,).
        t: nodes.
        w: their weights.
        back: n - 1, ..., 0.
        saved: scratch, two rows more than there are chunks, the first one zero and the last one p2[n - 1].
        e: scratch, a row for each step of a chunk.
        state: scratch.
        x: out, shape (n,).
    """
    n, count, chunk, chunks = v.size, t.size, e.shape[0], saved.shape[0] - 1
    f = saved[chunks]
    for turn in range(2 * chunks - 1):
        c = turn if turn < chunks else 2 * chunks - 2 - turn
        first, last = c * chunk, min(n, (c + 1) * chunk)
        for j in range(count):
            state[j] = saved[c, j]
        for step in range(first, last):
            i = back[n - 1 - step]
            decay = p2[i - 1] if i > 0 else 1.0
            for j in range(count):
                state[j] = t[j] * v[i] + q2[i] * state[j] / (decay + state[j])
                e[i - first, j] = state[j]
        if turn + 1 < chunks:
            for j in range(count):
                saved[c + 1, j] = state[j]
            continue
        for j in range(count):
            state[j] = f[j]
        for step in range(n - last, n - first):
            i = back[step]
            total = 0.0
            before = p2[i - 1] if i > 0 else 0.0
            for j in range(count):
                h = t[j] * v[i] + state[j]
                total += w[j] / (e[i - first, j] + state[j])
                state[j] = before * h / (q2[i] + h)
            x[i] = total
        for j in range(count):
            f[j] = state[j]


@compiled
def factor(
    p2: Array, q2: Array, v: Array, t: Array, w: Array, back: Index, state: Array, ratio: Array, scale: Array
) -> None:
    """Fill ``ratio`` with ``rho^2`` and ``scale`` with ``w t ((K^-1)[i, i])^2``, both of shape (n, poles)."""
    n, count = ratio.shape
    for j in range(count):
        state[j] = 0.0
    for i in range(n):
        decay = p2[i - 1] if i > 0 else 1.0
        for j in range(count):
            state[j] = t[j] * v[i] + q2[i] * state[j] / (decay + state[j])
            scale[i, j] = state[j]
    for j in range(count):
        state[j] = p2[n - 1]
    for step in range(n):
        i = back[step]
        before = p2[i - 1] if i > 0 else 0.0
        for j in range(count):
            h = t[j] * v[i] + state[j]
            inverse = 1.0 / (scale[i, j] + state[j])
            scale[i, j] = w[j] * t[j] * inverse * inverse
            passed = before / (q2[i] + h)
            ratio[i, j] = q2[i] * passed / (q2[i] + h)
            state[j] = passed * h


@compiled
def product_below(ratio: Array, scale: Array, state: Array, x: Array, y: Array) -> None:
    """``y[i] = sum over k <= i`` of ``S[i, k] x[k]``."""
    n, count = ratio.shape
    for j in range(count):
        state[j] = 0.0
    for i in range(n):
        total = 0.0
        for j in range(count):
            state[j] = ratio[i, j] * state[j] + scale[i, j] * x[i]
            total += state[j]
        y[i] = total


@compiled
def product_above(ratio: Array, scale: Array, back: Index, state: Array, x: Array, y: Array) -> None:
    """``y[i] = sum over k > i`` of ``S[i, k] x[k]``."""
    n, count = ratio.shape
    for j in range(count):
        state[j] = 0.0
    for step in range(n):
        i = back[step]
        total = 0.0
        for j in range(count):
            total += scale[i, j] * state[j]
            state[j] = ratio[i, j] * (state[j] + x[i])
        y[i] = total
