"""The inverse of a lower-triangular array by matrix products, with numpy alone."""

from __future__ import annotations

import numpy as np

_SMALL = 64


def lower_inverse(array: np.ndarray) -> np.ndarray:
    """Return the inverse of a lower-triangular array with a non-zero diagonal, shape (n, n), float64.

    [[P, 0], [Q, R]]^-1 = [[P^-1, 0], [-R^-1 Q P^-1, R^-1]], halved down to blocks that are inverted by substitution;
    n^3 / 3 multiplications, nearly all of them in products of large blocks.

    Args:
        array: shape (n, n); what is above the diagonal is not looked at.

    Reference:
        Higham, Accuracy and Stability of Numerical Algorithms, section 14.2: each column is as accurate as one found by
        substitution, up to a constant.
    """
    inverse = np.zeros(array.shape)
    _invert(np.asarray(array, dtype=np.float64), inverse)
    return inverse


def _invert(array: np.ndarray, out: np.ndarray) -> None:
    n = len(array)
    if n <= _SMALL:
        _substitute(array, out)
        return
    half = n // 2
    _invert(array[:half, :half], out[:half, :half])
    _invert(array[half:, half:], out[half:, half:])
    out[half:, :half] = -(out[half:, half:] @ (array[half:, :half] @ out[:half, :half]))


def _substitute(array: np.ndarray, out: np.ndarray) -> None:
    """Row i of the inverse: (e_i - sum_{j < i} array[i, j] row_j) / array[i, i]."""
    for i in range(len(array)):
        out[i, i] = 1.0
        out[i, :i] = -(array[i, :i] @ out[:i, :i])
        out[i, : i + 1] /= array[i, i]
