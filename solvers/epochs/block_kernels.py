"""Kernels of `blocks`: inverses of small symmetric matrices and the elimination of a chain of them, eight at a time.

Matrices of even side are kept as tiles: the 2 x 2 tiles (I, J), I >= J, row by row, four `Lanes` each (tiles on the
diagonal whole, too); `tiles` says which entry of the matrix stands where.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.methods.compiled import Array, compiled
from factorize.solvers.methods.lanes import load, load_at, reciprocal, spread, store, store_at


@cache
def tiles(side: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return where the entries of the tiles stand in a matrix, row by row, and which stands at (i, j), both ways."""
    rows, columns = np.tril_indices(side // 2)
    inside = np.arange(4)
    i, j = (2 * rows[:, None] + inside // 2).ravel(), (2 * columns[:, None] + inside % 2).ravel()
    places = np.empty((side, side), dtype=np.intp)
    places[i, j] = places[j, i] = np.arange(i.size)
    return i * side + j, places


@compiled
def invert(blocks: Array, first: int, last: int, size: int, scratch: Array) -> None:
    """``a <- -a^-1`` for positive definite ``a`` of 2 size x 2 size, by sweeping its 2 x 2 pivots.

    Args:
        blocks: tiles of one matrix a row.
        first: the first row to invert.
        last: the row after the last one.
        size: tiles per side.
        scratch: room for ``4 size`` vectors in each of two rows.
    """
    rows, scaled = scratch[0], scratch[1]
    for m in range(first, last):
        a = blocks[m]
        for pivot in range(size):
            at = 2 * pivot * (pivot + 1) + 4 * pivot
            d00, d01, d11 = load(a, at), load(a, at + 1), load(a, at + 3)
            inverse = reciprocal(d00 * d11 - d01 * d01)
            e00, e01, e11 = d11 * inverse, spread(0.0) - d01 * inverse, d00 * inverse
            for i in range(size):
                t = 2 * i * (i + 1) + 4 * pivot if i > pivot else 2 * pivot * (pivot + 1) + 4 * i
                u = t + 1 if i > pivot else t + 2  # the transposed tile
                v = 2 * t + 3 - u
                r00, r01, r10, r11 = load(a, t), load(a, u), load(a, v), load(a, t + 3)
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
                store(a, t, g00)
                store(a, u, g01)
                store(a, v, g10)
                store(a, t + 3, g11)
            store(a, at, spread(0.0) - e00)
            store(a, at + 1, spread(0.0) - e01)
            store(a, at + 2, spread(0.0) - e01)
            store(a, at + 3, spread(0.0) - e11)
            for i in range(size):
                if i == pivot:
                    continue
                s = 4 * i
                g00, g01, g10, g11 = load(scaled, s), load(scaled, s + 1), load(scaled, s + 2), load(scaled, s + 3)
                for j in range(i + 1):
                    if j == pivot:
                        continue
                    t, u = 2 * i * (i + 1) + 4 * j, 4 * j
                    r00, r01, r10, r11 = load(rows, u), load(rows, u + 1), load(rows, u + 2), load(rows, u + 3)
                    store(a, t, load(a, t) - g00 * r00 - g01 * r01)
                    store(a, t + 1, load(a, t + 1) - g00 * r10 - g01 * r11)
                    store(a, t + 2, load(a, t + 2) - g10 * r00 - g11 * r01)
                    store(a, t + 3, load(a, t + 3) - g10 * r10 - g11 * r11)


@compiled
def eliminate(
    chain: Array, dual: Array, t: Array, size: int, scratch: Array, beyond: Array, before: Array, pivots: Array
) -> None:
    """Eliminate a chain of blocks from the first one on.

    The next block gets ``own + across P across``, P minus the inverse of this one with its edges; `across` is diagonal.

    Args:
        chain: tiles of `own`, of the products of the diagonal of `across` between a block and the one before, and of
            what a block has of its edges to the next one; shape (3, blocks, entries).
        dual: W.
        t: eight nodes.
        size: tiles per side.
        scratch: see `invert`.
        beyond: ``before`` of the chain from its other end; no rows where that has not been eliminated.
        before: out, each block without its edges to the next one, and with `beyond`: all of the inverse's.
        pivots: out, P of each block; the last row is unused; fewer rows keep the last ones only.
    """
    nodes = load(t, 0)
    for m in range(dual.shape[0]):
        at, last = m % pivots.shape[0], (m - 1) % pivots.shape[0]
        for x in range(dual.shape[1]):
            value = spread(chain[0, m, x])
            if m > 0:
                value = value + chain[1, m, x] * load_at(pivots, last, x)
            full = value + dual[m, x] * nodes
            store_at(before, m, x, value + load_at(beyond, beyond.shape[0] - 1 - m, x) if beyond.shape[0] > 0 else full)
            store_at(pivots, at, x, full + spread(chain[2, m, x]))
        if m + 1 < dual.shape[0]:
            invert(pivots, at, at + 1, size, scratch)
