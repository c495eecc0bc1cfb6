"""Kernels of `bidiagonal`: the recurrences from both ends and the Hessian product.

Variables are named as in the formulas at the head of `bidiagonal`; ``p2`` and ``q2`` are squares.  Arrays with
one row per step have the poles last, for the vector units; ``state`` is scratch for one row.
"""

from factorize.solvers.methods.compiled import Array, Index, compiled


@compiled
def rise(p2: Array, q2: Array, v: Array, t: Array, first: int, state: Array, e: Array) -> None:
    """Fill ``e`` with those of some steps, a row for each; ``state`` is that before the first one, and of the last."""
    for i in range(first, first + e.shape[0]):
        decay = p2[i - 1] if i > 0 else 1.0
        for j in range(t.size):
            state[j] = t[j] * v[i] + q2[i] * state[j] / (decay + state[j])
            e[i - first, j] = state[j]


@compiled
def fall(
    p2: Array,
    q2: Array,
    v: Array,
    t: Array,
    w: Array,
    back: Index,
    first: int,
    state: Array,
    ratio: Array,
    scale: Array,
    x: Array,
) -> None:
    """Fill, for the steps of `rise`, ``x`` with ``sum_j w_j (K_j^-1)[i, i]``, and what products take.

    Args:
        p2: shape (n,).
        q2: shape (n,).
        v: shape (n,).
        t: nodes.
        w: their weights.
        back: n - 1, ..., 0.
        first: the first of the steps.
        state: f after the last step, and before the first one.
        ratio: out, ``rho^2``, a row for each step.
        scale: e; out, ``w t ((K^-1)[i, i])^2``.
        x: out, shape (n,).
    """
    end = v.size - first
    for step in range(end - scale.shape[0], end):
        i = back[step]
        total = 0.0
        before = p2[i - 1] if i > 0 else 0.0
        for j in range(t.size):
            h = t[j] * v[i] + state[j]
            inverse, by = 1.0 / (scale[i - first, j] + state[j]), 1.0 / (q2[i] + h)
            total += w[j] * inverse
            scale[i - first, j] = w[j] * t[j] * inverse * inverse
            ratio[i - first, j] = q2[i] * before * by * by
            state[j] = before * by * h
        x[i] = total


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
