"""The compiled sweep behind `quadratic`: coefficients of the iterates on Z, a coordinate at a time to stay in cache."""

from __future__ import annotations

from collections.abc import Iterator

import numba
import numpy as np


@numba.njit(cache=True, fastmath={"reassoc", "contract"})
def sweep(rows, first, eigenvalues, learning_rate, momentum, position, velocity, squares):
    """Advance the coefficients over a block of rows of C^-1 and write their squared norms.

    Args:
        rows: rows [first, first + len(rows)) of C^-1, lower-triangular, shape (rows, n).
        first: index of the first row.
        eigenvalues: shape (coordinates,).
        learning_rate: gamma.
        momentum: of heavy ball.
        position: coefficients of x on Z, shape (coordinates, n); changed.
        velocity: the same of the velocity; changed.
        squares: shape (n + 1, coordinates); rows first + 1 on are written.
    """
    for j in range(len(eigenvalues)):
        eigenvalue = eigenvalues[j]
        x, v = position[j], velocity[j]
        for t in range(len(rows)):
            row = rows[t]
            total = 0.0
            for s in range(first + t + 1):
                v[s] = momentum * v[s] + eigenvalue * x[s] + row[s]
                x[s] -= learning_rate * v[s]
                total += x[s] * x[s]
            squares[first + t + 1, j] = total


def swept(
    blocks: Iterator[np.ndarray], n: int, eigenvalues: np.ndarray, learning_rate: float, momentum: float
) -> np.ndarray:
    """Return the squared norms of the coefficients, shape (n + 1, coordinates), from blocks of consecutive rows."""
    squares = np.zeros((n + 1, len(eigenvalues)))
    position, velocity = np.zeros((2, len(eigenvalues), n))
    first = 0
    for rows in blocks:
        sweep(np.ascontiguousarray(rows), first, eigenvalues, learning_rate, momentum, position, velocity, squares)
        first += len(rows)
    return squares
