"""Kernels of `blocks`: blocks of inverses of a folded ring, eight poles at a time.

Small symmetric matrices of even side are kept as tiles: the 2 x 2 tiles (I, J), I >= J, row by row, four `Lanes` each
(tiles on the diagonal whole, too).  One block of the ring holds the classes m and b - 1 - m, each with one entry per
epoch; ``P[j, e]`` and ``Q[j, e]`` are p and q of step ``e b + j``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from factorize.numbers.compiling import assign, plain
from factorize.solvers.methods.compiled import compiled
from factorize.solvers.methods.lanes import WIDTH, load, reciprocal, spread, store, total

Array = NDArray[np.float64]


def row_size(k: int) -> int:
    """Doubles of one block for eight poles, k epochs."""
    return 2 * k * (k + 1) * WIDTH


@compiled
def entry(i: int, j: int) -> int:
    """Offset of the entry (i, j), i // 2 >= j // 2."""
    row = i // 2
    return 4 * (row * (row + 1) // 2 + j // 2) + 2 * (i % 2) + j % 2


@compiled
def _pivot(a: Array, size: int, pivot: int, rows: Array, scaled: Array) -> None:
    """Write the block column of a pivot to ``rows``, and times the pivot's inverse to ``scaled`` and into ``a``."""
    at = entry(2 * pivot, 2 * pivot)
    d00, d01, d11 = load(a, at), load(a, at + 1), load(a, at + 3)
    inverse = reciprocal(d00 * d11 - d01 * d01)
    e00, e01, e11 = d11 * inverse, spread(0.0) - d01 * inverse, d00 * inverse
    for i in range(size):
        below = i > pivot
        t = entry(2 * i, 2 * pivot) if below else entry(2 * pivot, 2 * i)
        first, second = (t + 1, t + 2) if below else (t + 2, t + 1)  # of the transposed tile
        r00, r01, r10, r11 = load(a, t), load(a, first), load(a, second), load(a, t + 3)
        g00, g01 = r00 * e00 + r01 * e01, r00 * e01 + r01 * e11
        g10, g11 = r10 * e00 + r11 * e01, r10 * e01 + r11 * e11
        s = 4 * i
        store(rows, s, r00)
        store(rows, s + 1, r01)
        store(rows, s + 2, r10)
        store(rows, s + 3, r11)
        store(scaled, s, g00)
        store(scaled, s + 1, g01)
        store(scaled, s + 2, g10)
        store(scaled, s + 3, g11)
        if i != pivot:
            store(a, t, g00)
            store(a, first, g01)
            store(a, second, g10)
            store(a, t + 3, g11)
    minus = spread(-1.0)
    store(a, at, minus * e00)
    store(a, at + 1, minus * e01)
    store(a, at + 2, minus * e01)
    store(a, at + 3, minus * e11)


@compiled
def invert(a: Array, size: int, rows: Array, scaled: Array) -> None:
    """``a <- -a^-1`` for positive definite ``a`` of 2 size x 2 size, by sweeping its 2 x 2 pivots.

    Args:
        a: tiles.
        size: tiles per side.
        rows: scratch for ``4 size`` vectors.
        scaled: the same.
    """
    for pivot in range(size):
        _pivot(a, size, pivot, rows, scaled)
        for i in range(size):
            if i == pivot:
                continue
            s = 4 * i
            g00, g01, g10, g11 = load(scaled, s), load(scaled, s + 1), load(scaled, s + 2), load(scaled, s + 3)
            row = entry(2 * i, 0)
            for j in range(i + 1):
                if j == pivot:
                    continue
                t, u = row + 4 * j, 4 * j
                r00, r01, r10, r11 = load(rows, u), load(rows, u + 1), load(rows, u + 2), load(rows, u + 3)
                store(a, t, load(a, t) - g00 * r00 - g01 * r01)
                store(a, t + 1, load(a, t + 1) - g00 * r10 - g01 * r11)
                store(a, t + 2, load(a, t + 2) - g10 * r00 - g11 * r01)
                store(a, t + 3, load(a, t + 3) - g10 * r10 - g11 * r11)


@compiled
def _carry(source: Array, t: Array, dual: Array, m: int, across: Array, own: Array, target: Array) -> None:
    """``target = t W_m + own + across source across``, ``own`` and ``across`` diagonal; ``W_m`` of two classes."""
    b, k = dual.shape[0], dual.shape[1]
    nodes = load(t, 0)
    for i in range(2 * k):
        for j in range(i + 1):
            at = entry(i, j)
            value = spread(across[i] * across[j]) * load(source, at)
            if i < k:
                value = value + nodes * spread(dual[m, i, j])
            elif j >= k:
                value = value + nodes * spread(dual[b - 1 - m, i - k, j - k])
            if i == j:
                value = value + spread(own[i])
            store(target, at, value)
            if i != j and i // 2 == j // 2:
                store(target, entry(j, i), value)


@compiled
def edges(p: Array, q: Array, m: int, before: Array, after: Array) -> None:
    """Coefficients of the edges from block m to block m + 1, at either end, both of shape (2 k,)."""
    b, k = p.shape
    for e in range(k):
        before[e], after[e] = p[m, e], q[m + 1, e]
        before[k + e], after[k + e] = q[b - 1 - m, e], p[b - 2 - m, e]


@compiled
def _add(a: Array, i: int, j: int, value: float) -> None:
    at = entry(i, j) if i >= j else entry(j, i)
    store(a, at, load(a, at) + spread(value))
    if i != j and i // 2 == j // 2:
        at = entry(min(i, j), max(i, j))
        store(a, at, load(a, at) + spread(value))


@compiled
def _join_epochs(p: Array, q: Array, a: Array) -> None:
    """Add the edges from the end of each epoch to the start of the next, and the one from the last step."""
    b, k = p.shape
    for e in range(k):
        _add(a, k + e, k + e, p[b - 1, e] ** 2)
        if e + 1 < k:
            _add(a, e + 1, e + 1, q[0, e + 1] ** 2)
            _add(a, k + e, e + 1, -p[b - 1, e] * q[0, e + 1])


@compiled
def _join_halves(p: Array, q: Array, a: Array) -> None:
    """Add the edges between the classes b / 2 - 1 and b / 2."""
    b, k = p.shape
    for e in range(k):
        _add(a, e, e, p[b // 2 - 1, e] ** 2)
        _add(a, k + e, k + e, q[b // 2, e] ** 2)
        _add(a, k + e, e, -p[b // 2 - 1, e] * q[b // 2, e])


@compiled
def eliminate(p: Array, q: Array, dual: Array, t: Array, before: Array, pivots: Array) -> None:
    """Eliminate the ring from its outer blocks inwards.

    Args:
        p: shape (b, k), b even.
        q: shape (b, k).
        dual: W, shape (b, k, k).
        t: eight nodes.
        before: out, row m: block m with all that lies outside of it, without its edges inwards; shape (b / 2, size).
        pivots: out, row m: minus the inverse of that with those edges; shape (b / 2, size), the last row
            unused; fewer rows keep the last ones only.
    """
    b, k = p.shape
    rows, scaled = np.empty(4 * k * WIDTH), np.empty(4 * k * WIDTH)
    near, far = np.zeros(2 * k), np.zeros(2 * k)
    pivots[0] = 0.0
    _carry(pivots[0], t, dual, plain(0), far, far, before[0])
    _join_epochs(p, q, before[0])
    for m in range(b // 2 - 1):
        edges(p, q, m, near, far)
        pivot = pivots[m % pivots.shape[0]]
        assign(pivot, before[m])
        for i in range(2 * k):
            _add(pivot, i, i, near[i] ** 2)
        invert(pivot, k, rows, scaled)
        _carry(pivot, t, dual, m + 1, near * far, far * far, before[m + 1])


@compiled
def invert_blocks(p: Array, q: Array, dual: Array, t: Array, before: Array, inverses: Array) -> None:
    """Go back from the inner block outwards and write minus the diagonal blocks of the inverse.

    Args:
        p: shape (b, k), b even.
        q: shape (b, k).
        dual: W, shape (b, k, k).
        t: eight nodes.
        before: from `eliminate`.
        inverses: out, shape (b / 2, size); may be ``before`` itself.
    """
    b, k = p.shape
    rows, scaled = np.empty(4 * k * WIDTH), np.empty(4 * k * WIDTH)
    near, far = np.zeros(2 * k), np.zeros(2 * k)
    inside, work, ones = np.zeros(before.shape[1]), np.zeros(before.shape[1]), np.ones(2 * k)
    still = np.zeros(WIDTH)
    _join_halves(p, q, inside)
    for m in range(b // 2 - 1, -1, -1):
        for x in range(inverses.shape[1]):
            inverses[m, x] = before[m, x] + inside[x]
        if m > 0:
            edges(p, q, m - 1, near, far)
            _carry(inside, t, dual, m, ones, far * far, work)
        for whole in range(2 if m > 0 else 1):  # one call, compiled once
            invert(work if whole else inverses[m], k, rows, scaled)
        if m > 0:
            _carry(work, still, dual, m, near * far, near * near, inside)


@compiled
def add_blocks(inverses: Array, t: Array, w: Array, x: Array, y: Array) -> None:
    """Add ``sum w K^-1`` and ``sum w t K^-1`` within the classes to ``x`` and ``y``, below and on the diagonals.

    Args:
        inverses: from `invert_blocks`.
        t: eight nodes.
        w: their weights.
        x: shape (b, k, k).
        y: shape (b, k, k).
    """
    b, k = x.shape[0], x.shape[1]
    weight = load(w, 0)
    moment = weight * load(t, 0)
    for m in range(b // 2):
        for i in range(k):
            for j in range(i + 1):
                for side in range(2):
                    c = m if side == 0 else b - 1 - m
                    value = load(inverses[m], entry(side * k + i, side * k + j))
                    x[c, i, j] -= total(weight * value)
                    y[c, i, j] -= total(moment * value)
