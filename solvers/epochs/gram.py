"""The whole X of fixed epochs, from the elimination of `block_kernels`.

With K = L + t W block tridiagonal after folding, V_m the inverse pivot of block m and s_m the (diagonal) coupling of
the blocks m and m + 1, the columns of the inverse grow outwards from the diagonal blocks:

    (K^-1)_{m, x} = V_m s_m (K^-1)_{m+1, x}   for x > m

X = sum_p w_p K_p^-1 is filled for a few block columns at a time, all poles together, so that what is carried along
stays in the cache.  Entries fade with the distance, the faster the larger t: a pole that has faded is left out.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from factorize.solvers.epochs.block_kernels import tiles
from factorize.solvers.epochs.blocks import BlockPoint, Ring
from factorize.solvers.methods.compiled import WIDTH, Array, run

_COLUMNS = 512  # this many columns are filled at a time: what is carried along is then 4 KiB per row
_SQUARE_ROWS = 128  # rows of a block that is added to its transpose
_MIN_ENTRY = 1e-19  # a pole has faded below this part of the largest entry, below the rounding of the sum


def whole_gram(ring: Ring, at: BlockPoint) -> Array:
    """Return X / N in order of the steps, shape (n, n); its class traces are 1 at the optimum."""
    half, side = ring.chain.across.shape
    transfers, inverses = np.empty((2, half, at.poles.nodes.size, side, side))
    groups = range(0, at.poles.nodes.size, WIDTH)
    run([partial(_prepare, ring, at, groups[i::2], transfers, inverses) for i in (0, 1)], together=True)
    gram = np.zeros((ring.p.size, ring.p.size))
    columns = max(1, _COLUMNS // side)
    runs = [range(half)[first : first + columns] for first in range(0, half, columns)]
    run([partial(_fill, transfers, inverses, ring.classes, runs[i::2], gram) for i in (0, 1)], together=True)
    run([partial(_mirrored, gram, i) for i in (0, 1)], together=True)
    return gram


def _mirrored(gram: Array, half: int) -> None:
    """Add the transpose in place, by every other row of square blocks; what a block needs beside fits in the cache."""
    n = len(gram)
    for start in range(half * _SQUARE_ROWS, n, 2 * _SQUARE_ROWS):
        rows = slice(start, start + _SQUARE_ROWS)
        for first in range(0, start + 1, _SQUARE_ROWS):
            columns = slice(first, first + _SQUARE_ROWS)
            total = gram[rows, columns] + gram[columns, rows].T
            gram[rows, columns], gram[columns, rows] = total, total.T


def _prepare(ring: Ring, at: BlockPoint, groups: Sequence[int], transfers: Array, inverses: Array) -> None:
    """Return for groups of eight poles V_m s_m and w (K^-1)_{m, m}, both of shape (b / 2, poles, 2 k, 2 k)."""
    chain, places = ring.chain, tiles(inverses.shape[2])[1]
    weights = chain.weights(at.dual)
    pivots = np.empty((len(weights), weights.shape[1] * WIDTH))
    for first in groups:
        some = slice(first, first + WIDTH)
        blocks = chain.blocks(weights, at.poles.nodes[some], pivots)
        parts = blocks * (-at.poles.weights[some] / at.norm), -pivots.reshape(blocks.shape)
        for out, part in zip((inverses, transfers), parts, strict=True):
            out[:, some] = part.transpose(0, 2, 1)[:, :, places]
        transfers[:, some] *= chain.across[:, None, None, :]


def _fill(transfers: Array, inverses: Array, classes: int, runs: Sequence[range], gram: Array) -> None:
    """Fill runs of block columns of X: half of the diagonal blocks, nothing below them.

    ``strips`` holds what (K^-1)_{m, x} has there for the present m, ``[pole, row, position, block]``.
    """
    poles, side = inverses.shape[1:3]
    k, b = side // 2, classes + classes % 2
    blocks = gram.reshape(k, classes, k, classes)
    for columns in runs:
        strips, alive = np.zeros((poles, side, side, len(columns))), np.arange(poles)
        for m in range(columns.stop - 1, -1, -1):
            if m < columns.stop - 1:
                strips = (transfers[m, alive] @ strips.reshape(alive.size, side, -1)).reshape(strips.shape)
            if m in columns:
                strips[..., m - columns.start] = inverses[m]
            sums = strips.sum(axis=0)
            if m in columns:
                sums[..., m - columns.start] *= 0.5
            elif m % 4 == 0:
                kept = abs(strips).max(axis=(1, 2, 3)) > _MIN_ENTRY * abs(sums).max()
                strips, alive = strips[kept], alive[kept]
            for rows, row in ((slice(k), m), (slice(k, side), b - 1 - m)):
                for part, across in ((slice(k), False), (slice(k, side), True)):
                    first = max(columns.start, m, b - classes if across else 0)
                    if row < classes and first < columns.stop:
                        block_sums = sums[rows, part, first - columns.start :]
                        if across:
                            blocks[:, row, :, b - columns.stop : b - first] = block_sums[..., ::-1]
                        else:
                            blocks[:, row, :, first : columns.stop] = block_sums


def mask(gram: Array, epochs: int) -> None:
    """Set the entries within classes to zero off the diagonal, in place, and the class traces to 1."""
    n = len(gram)
    b = n // epochs
    blocks = gram.reshape(epochs, b, epochs, b)
    classes = np.arange(b)
    shares = np.diagonal(gram).reshape(epochs, b)
    shares = shares / shares.sum(axis=0)
    blocks[:, classes, :, classes] = 0.0
    np.fill_diagonal(gram, shares.ravel())
