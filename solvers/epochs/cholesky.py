"""C with C^T C = X, compiled: the Cholesky factorization from the end.

Block rows from the last to the first; each subtracts the products with all rows below it, two rows by four vectors at a
time.  A threaded library was seen to take ten times as long as one core on a machine that is busy otherwise.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.methods.compiled import compiled
from factorize.solvers.methods.lanes import WIDTH, load, spread, store
from factorize.solvers.methods.threads import run

Array = NDArray[np.float64]

_ROWS = 64  # of C at a time
_COLUMNS = 4 * WIDTH


def reverse_cholesky(gram: Array) -> Array:
    """Return lower-triangular C with C^T C = X, shape (n, n).

    Args:
        gram: X, symmetric positive definite, shape (n, n); only entries on and below the diagonal are read.

    Raises:
        FloatingPointError: X is not definite in double precision.
    """
    n = len(gram)
    c = np.zeros((n, -(-n // _COLUMNS) * _COLUMNS))
    for stop in range(n, 0, -_ROWS):
        start = max(0, stop - _ROWS)
        panels = -(-stop // _COLUMNS)
        cut = panels // 2
        run(
            [partial(_subtract, gram, c, start, stop, a, b) for a, b in ((0, cut), (cut, panels))],
            together=(n - stop) * stop > _ROWS * 256,
        )
        failed = _finish(c, start, stop)
        if failed >= 0:
            raise FloatingPointError(f"the Gram matrix is not definite in double precision (step {failed})")
    return np.ascontiguousarray(c[:, :n])


@compiled
def _subtract(gram: Array, c: Array, start: int, stop: int, first: int, last: int) -> None:
    """Rows start to stop of X - C^T C over the rows from stop on, panels of columns first to last."""
    n, width = c.shape[0], c.shape[1] // WIDTH
    flat = c.reshape(-1)
    for panel in range(first, last):
        at = 4 * panel
        for i in range(start, stop, 2):
            other = min(i + 1, stop - 1)
            a0, a1, a2, a3 = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
            b0, b1, b2, b3 = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
            for row in range(stop, n):
                base = row * width + at
                a, b = spread(c[row, i]), spread(c[row, other])
                x0, x1, x2, x3 = load(flat, base), load(flat, base + 1), load(flat, base + 2), load(flat, base + 3)
                a0, a1, a2, a3 = a0 + a * x0, a1 + a * x1, a2 + a * x2, a3 + a * x3
                b0, b1, b2, b3 = b0 + b * x0, b1 + b * x1, b2 + b * x2, b3 + b * x3
            _put(flat, other * width + at, b0, b1, b2, b3)
            _put(flat, i * width + at, a0, a1, a2, a3)
        for i in range(start, stop):
            for j in range(panel * _COLUMNS, min((panel + 1) * _COLUMNS, i + 1)):
                c[i, j] = gram[i, j] - c[i, j]


@compiled
def _put(flat: Array, at: int, x0: Any, x1: Any, x2: Any, x3: Any) -> None:
    """Store four vectors."""
    store(flat, at, x0)
    store(flat, at + 1, x1)
    store(flat, at + 2, x2)
    store(flat, at + 3, x3)


@compiled
def _finish(c: Array, start: int, stop: int) -> int:
    """Factor the block rows in place; return the row that failed, or -1."""
    for i in range(stop - 1, start - 1, -1):
        for row in range(i + 1, stop):
            factor = c[row, i]
            for j in range(i + 1):
                c[i, j] -= factor * c[row, j]
        if not c[i, i] > 0.0:
            return i
        root = math.sqrt(c[i, i])
        for j in range(i):
            c[i, j] /= root
        c[i, i] = root
        c[i, i + 1 :] = 0.0
    return -1
