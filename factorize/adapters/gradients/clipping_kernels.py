"""Compiled loops of clipping: gradients are read as they are, once, and every product and sum is in float64."""

from __future__ import annotations

import numpy as np

from factorize.numbers.compiling import kernel

_TILE_COLUMNS = 8192
"""The columns of a tile, whose sums stay in a near cache; a row's part is long enough to be fetched ahead."""
_RUN_ENTRIES = 1 << 16
"""The entries that are added up before their sum is added to others, which keeps roundings small."""


@kernel(fastmath={"contract", "nsz", "reassoc"})
def add_squares(rows, totals, first, last):
    """Add the squared norms of some rows to their totals.

    Args:
        rows: shape (examples, entries).
        totals: shape (examples,), float64.
        first: the first row.
        last: the row after the last.
    """
    for i in range(first, last):
        for start in range(0, rows.shape[1], _RUN_ENTRIES):
            row, total = rows[i][start : start + _RUN_ENTRIES], 0.0
            for j in range(len(row)):
                value = np.float64(row[j])
                total += value * value
            totals[i] += total


@kernel(fastmath={"contract", "nsz"})
def add_weighted(rows, places, factors, fresh, totals, first, last):
    """Add factor times row to the totals of some columns, four rows at a time.

    Args:
        rows: shape (rows, entries).
        places: place of the row for each factor, shape (examples,).
        factors: shape (examples,), float64.
        fresh: whether the content of the totals is overwritten.
        totals: shape (entries,), float64.
        first: the first column.
        last: the column after the last.
    """
    examples = len(factors)
    for start in range(first, last, _TILE_COLUMNS):
        stop = min(start + _TILE_COLUMNS, last)
        total, i = totals[start:stop], 0
        if fresh:
            for j in range(len(total)):
                total[j] = 0.0
        while i + 4 <= examples:  # reads and writes a total once for four rows
            f, g, h, k = factors[i], factors[i + 1], factors[i + 2], factors[i + 3]
            a, b = rows[places[i]][start:stop], rows[places[i + 1]][start:stop]
            c, d = rows[places[i + 2]][start:stop], rows[places[i + 3]][start:stop]
            for j in range(len(total)):
                total[j] += f * np.float64(a[j]) + g * np.float64(b[j]) + h * np.float64(c[j]) + k * np.float64(d[j])
            i += 4
        while i < examples:
            factor, row = factors[i], rows[places[i]][start:stop]
            for j in range(len(total)):
                total[j] += factor * np.float64(row[j])
            i += 1
