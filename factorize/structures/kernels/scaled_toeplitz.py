"""Compiled recurrence of decoders whose factors are Toeplitz but for scaled columns. Imported on first use."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def product_rows(follow, feed, read, through, column, rows, diagonal, columns, squares):
    """Form A G row by row, A a map with q states, G[i, j] = rows[i] column[i - j] below a diagonal of its own.

    Args:
        follow: of the map, shape (n, q, q).
        feed: shape (n, q).
        read: shape (n, q).
        through: shape (n,).
        column: shape (n,); its first entry is not used.
        rows: shape (n,).
        diagonal: G[i, i], shape (n,).
        columns: shape (n,), non-negative: what the columns of A G are multiplied by for the largest entry.
        squares: squared norms of the rows of A G, shape (n,), written.

    Returns:
        The largest |(A G)[i, j]| columns[j]; not a number where an entry is none.
    """
    n, q = feed.shape
    backwards = column[::-1].copy()
    states, stepped = np.zeros((q, n)), np.empty((q, n))
    entry, largest = np.empty(n), 0.0
    for i in range(n):
        moved = backwards[n - 1 - i :]
        for j in range(i):
            entry[j] = rows[i] * moved[j]
        entry[i] = diagonal[i]
        for a in range(q):
            for j in range(i + 1):
                stepped[a, j] = feed[i, a] * entry[j]
            for b in range(q):
                if follow[i, a, b] != 0.0:
                    for j in range(i):  # a state is 0 up to the step after the column's
                        stepped[a, j] += follow[i, a, b] * states[b, j]
        for j in range(i + 1):
            entry[j] *= through[i]
        for a in range(q):
            for j in range(i):
                entry[j] += read[i, a] * states[a, j]
        total = 0.0
        for j in range(i + 1):
            total += entry[j] * entry[j]
        squares[i] = total
        top = 0.0
        for j in range(i + 1):
            top = max(top, abs(entry[j]) * columns[j])
        if not np.isfinite(total):
            largest = np.nan
        elif top > largest:
            largest = top
        states, stepped = stepped, states
    return largest
