"""The whole X of fixed epochs, from the elimination of `block_kernels`.

With K = L + t W block tridiagonal after folding, V_m the inverse pivot of block m and s_m the (diagonal) coupling of
the blocks m and m + 1, the columns of the inverse grow outwards from the diagonal blocks:

    (K^-1)_{m, x} = V_m s_m (K^-1)_{m+1, x}   for x > m

X = sum_p w_p K_p^-1 is filled for a few block columns at a time, all poles together, so that what is carried along
stays in the cache.  Entries fade with the distance, the faster the larger t: a pole that has faded is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.epochs import block_kernels as kernels
from factorize.solvers.epochs.blocks import DualPoint, Ring
from factorize.solvers.methods.compiled import compiled
from factorize.solvers.methods.lanes import WIDTH, load, spread, store
from factorize.solvers.methods.threads import run

Array = NDArray[np.float64]

_COLUMNS = 4 * WIDTH  # block columns at a time
_GROUPS = 8  # and positions within a block: what is carried along is then 4 KiB per row
_SQUARE = 128  # rows of a block that is added to its transpose
_FADED = 1e-19  # of the largest entry: below the rounding of the sum


def whole_gram(ring: Ring, at: DualPoint) -> Array:
    """X / N in order of the steps, shape (n, n); its class traces are 1 at the optimum."""
    p, q, dual = *ring.folded(), ring.padded(at.dual)
    b, k = p.shape
    weights = at.poles.weights / at.norm
    transfers, inverses = (np.empty((b // 2, weights.size, 2 * k, 2 * k)) for _ in range(2))
    groups = range(0, weights.size, WIDTH)
    run(
        [partial(_prepare, p, q, dual, at.poles.nodes, weights, groups[i::2], transfers, inverses) for i in (0, 1)],
        together=True,
    )
    gram = np.zeros((ring.p.size, ring.p.size))
    tasks = [(first, group) for first in range(0, b // 2, _COLUMNS) for group in range(0, 2 * k, _GROUPS)]
    shares = [np.array(tasks[half::2], dtype=np.int64).reshape(-1, 2) for half in (0, 1)]
    run([partial(_fill, transfers, inverses, ring.classes, share, gram) for share in shares], together=True)
    run([partial(_mirrored, gram, half) for half in (0, 1)], together=True)
    return gram


def _mirrored(gram: Array, half: int) -> None:
    """Add the transpose in place, by every other row of square blocks; what a block needs beside fits in the cache."""
    n = len(gram)
    for start in range(half * _SQUARE, n, 2 * _SQUARE):
        rows = slice(start, start + _SQUARE)
        for first in range(0, start + 1, _SQUARE):
            columns = slice(first, first + _SQUARE)
            total = gram[rows, columns] + gram[columns, rows].T
            gram[rows, columns], gram[columns, rows] = total, total.T


def _prepare(
    p: Array, q: Array, dual: Array, t: Array, w: Array, groups: Sequence[int], transfers: Array, inverses: Array
) -> None:
    """For groups of eight poles: V_m s_m and w (K^-1)_{m, m}, both of shape (b / 2, poles, 2 k, 2 k)."""
    shape = len(p) // 2, kernels.row_size(p.shape[1])
    before, pivots = np.empty(shape), np.empty(shape)
    for first in groups:
        nodes = t[first : first + WIDTH]
        kernels.eliminate(p, q, dual, nodes, before, pivots)
        kernels.invert_blocks(p, q, dual, nodes, before, before)
        _spread_out(p, q, pivots, before, w, first, transfers, inverses)


@compiled
def _spread_out(
    p: Array, q: Array, pivots: Array, blocks: Array, w: Array, first: int, transfers: Array, inverses: Array
) -> None:
    """One matrix per pole from eight in lanes."""
    half, k = blocks.shape[0], p.shape[1]
    near, far = np.zeros(2 * k), np.zeros(2 * k)
    for m in range(half):
        if m + 1 < half:
            kernels.edges(p, q, m, near, far)
        for i in range(2 * k):
            for j in range(2 * k):
                at = WIDTH * kernels.entry(max(i, j), min(i, j))
                for pole in range(WIDTH):
                    inverses[m, first + pole, i, j] = -w[first + pole] * blocks[m, at + pole]
                    if m + 1 < half:
                        transfers[m, first + pole, i, j] = -pivots[m, at + pole] * near[j] * far[j]


@compiled
def _fill(transfers: Array, inverses: Array, classes: int, tasks: NDArray[np.int64], gram: Array) -> None:
    """Fill some block columns of X: half of the diagonal blocks, nothing below them.

    A task is a run of blocks and, within them, a run of positions; ``strips[pole]`` holds what (K^-1)_{m, x} has there
    for the present m, ``[row, position, block]``.
    """
    poles, side = inverses.shape[1], inverses.shape[2]
    strips = np.empty((poles, side * _GROUPS * _COLUMNS))
    sums, column = np.empty(side * _GROUPS * _COLUMNS), np.empty(side * _COLUMNS)
    alive = np.empty(poles, dtype=np.bool_)
    for task in range(tasks.shape[0]):
        first, group = tasks[task]
        last, width = min(first + _COLUMNS, inverses.shape[0]), min(_GROUPS, side - group)
        strips[:] = 0.0
        alive[:] = True
        for m in range(last - 1, -1, -1):
            sums[:] = 0.0
            for pole in range(poles):
                if alive[pole]:
                    if m < last - 1:
                        _step(transfers[m, pole], strips[pole], width, column, sums)
                    if m >= first:
                        _enter(inverses[m, pole], strips[pole], group, width, m - first, sums)
            _write(sums, m, first, last, group, width, classes, side // 2, gram)
            if m <= first and m % 4 == 0:
                floor = _FADED * np.abs(sums).max()
                for pole in range(poles):
                    alive[pole] = alive[pole] and np.abs(strips[pole]).max() > floor


@compiled
def _enter(inverse: Array, strip: Array, group: int, width: int, block: int, sums: Array) -> None:
    """Start the columns of a block with its diagonal block."""
    for i in range(inverse.shape[0]):
        for j in range(width):
            at = (i * _GROUPS + j) * _COLUMNS + block
            strip[at] = inverse[i, group + j]
            sums[at] += 0.5 * strip[at]


@compiled
def _step(transfer: Array, strip: Array, width: int, column: Array, sums: Array) -> None:
    """``strip <- transfer strip``, added to the sums; two rows by four vectors at a time."""
    side = transfer.shape[0]
    for group in range(width):
        for j in range(side):
            for c in range(4):
                store(column, 4 * j + c, load(strip, 4 * (j * _GROUPS + group) + c))
        for i in range(0, side, 2):
            a0, a1, a2, a3 = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
            b0, b1, b2, b3 = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
            for j in range(side):
                a, b = spread(transfer[i, j]), spread(transfer[i + 1, j])
                x0, x1, x2, x3 = (
                    load(column, 4 * j),
                    load(column, 4 * j + 1),
                    load(column, 4 * j + 2),
                    load(column, 4 * j + 3),
                )
                a0, a1, a2, a3 = a0 + a * x0, a1 + a * x1, a2 + a * x2, a3 + a * x3
                b0, b1, b2, b3 = b0 + b * x0, b1 + b * x1, b2 + b * x2, b3 + b * x3
            _put(strip, sums, 4 * (i * _GROUPS + group), a0, a1, a2, a3)
            _put(strip, sums, 4 * ((i + 1) * _GROUPS + group), b0, b1, b2, b3)


@compiled
def _put(strip: Array, sums: Array, at: int, x0: Any, x1: Any, x2: Any, x3: Any) -> None:
    """Store four vectors and add them to the sums."""
    store(strip, at, x0)
    store(strip, at + 1, x1)
    store(strip, at + 2, x2)
    store(strip, at + 3, x3)
    store(sums, at, load(sums, at) + x0)
    store(sums, at + 1, load(sums, at + 1) + x1)
    store(sums, at + 2, load(sums, at + 2) + x2)
    store(sums, at + 3, load(sums, at + 3) + x3)


@compiled
def _write(
    sums: Array, m: int, first: int, last: int, group: int, width: int, classes: int, k: int, gram: Array
) -> None:
    """Copy rows of block m to the order of the steps."""
    b = classes + classes % 2
    for i in range(2 * k):
        row_class = m if i < k else b - 1 - m
        if row_class == classes:
            continue
        row = gram[i % k * classes + row_class]
        for j in range(group, group + width):
            at = (i * _GROUPS + j - group) * _COLUMNS
            for x in range(max(first, m), last):
                column_class = x if j < k else b - 1 - x
                if column_class < classes:
                    row[j % k * classes + column_class] = sums[at + x - first]


def masked(gram: Array, epochs: int) -> None:
    """Set the entries within classes to zero off the diagonal, in place, and the class traces to 1."""
    n = len(gram)
    b = n // epochs
    blocks = gram.reshape(epochs, b, epochs, b)
    classes = np.arange(b)
    shares = np.diagonal(gram).reshape(epochs, b)
    shares = shares / shares.sum(axis=0)
    blocks[:, classes, :, classes] = 0.0
    np.fill_diagonal(gram, shares.ravel())
