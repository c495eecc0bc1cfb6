"""Lower-triangular arrays: rows times the inverse, and the inverse itself, mostly by products of blocks.

Products and inverses of Toeplitz arrays are those of power series modulo x^n.
"""

from collections.abc import Callable

import numpy as np

_MAX_SUBSTITUTION = 64
_BLOCK = 256


def right_solve(array: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Return y with y array = block, shape (r, n), by substitution from the last columns to the first.

    Zero columns at the end of the block cost nothing, and only the diagonal blocks of the array are copied. For 128
    rows at n = 4096 this is twice as fast as one call of LAPACK, which needs a contiguous leading part.

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
    """Return a function that solves y own = rest: LAPACK's, or one in numpy where a training image has no scipy."""
    try:
        from scipy.linalg import solve_triangular
    except ModuleNotFoundError:
        return lambda own, rest: rest @ lower_inverse(own)
    return lambda own, rest: solve_triangular(own, rest.T, trans="T", lower=True, check_finite=False).T


def lower_inverse(array: np.ndarray) -> np.ndarray:
    """Return the inverse of a lower-triangular array with a non-zero diagonal, shape (n, n), float64.

    [[P, 0], [Q, R]]^-1 = [[P^-1, 0], [-R^-1 Q P^-1, R^-1]], halved down to blocks that are inverted by substitution;
    n^3 / 3 multiplications, nearly all of them in products of large blocks. Entries above the diagonal are never
    read. Each column is as accurate as one found by substitution, up to a constant (Higham, Accuracy and Stability of
    Numerical Algorithms, section 14.2).
    """
    inverse = np.zeros(array.shape)
    _invert(np.asarray(array, dtype=np.float64), inverse)
    return inverse


def _invert(array: np.ndarray, out: np.ndarray) -> None:
    n = len(array)
    if n <= _MAX_SUBSTITUTION:  # Row i is (e_i - sum_{j < i} array[i, j] row_j) / array[i, i].
        for i in range(n):
            out[i, i] = 1.0
            out[i, :i] = -(array[i, :i] @ out[:i, :i])
            out[i, : i + 1] /= array[i, i]
        return
    half = n // 2
    _invert(array[:half, :half], out[:half, :half])
    _invert(array[half:, half:], out[half:, half:])
    out[half:, :half] = -(out[half:, half:] @ (array[half:, :half] @ out[:half, :half]))


_MAX_DIRECT_WORK = 2**28  # With more multiplications than that, the quotient uses FFTs in place of the recursion.
_MAX_DIRECT_ROWS = 2048


def series_quotient(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return numerator / denominator modulo x^n: shapes (n,) and (bands,), bands <= n, with a first entry not 0.

    It uses the direct recursion (O(n * bands), each coefficient accurate relative to itself) where it is affordable.
    Above, it uses Newton's iteration with FFTs, whose error is about 1e-15 of the *largest* coefficient.
    """
    n = len(numerator)
    if n * min(n, 2 * len(denominator)) // 2 > _MAX_DIRECT_WORK:
        return _fft_quotient(numerator, denominator)
    out = np.array(numerator, dtype=np.float64)
    lead, *_ = column = np.asarray(denominator, dtype=np.float64)
    tail = column[1:]
    reversed_tail = np.ascontiguousarray(tail[::-1])
    for t in range(len(out)):
        reach = min(t, len(tail))
        if reach:
            out[t] -= out[t - reach : t] @ reversed_tail[len(tail) - reach :]
        out[t] /= lead
    return out


def _fft_quotient(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    n = len(numerator)
    inverse = np.array([1.0 / denominator[0]])
    while len(inverse) < n:
        size = min(2 * len(inverse), n)
        inverse = _newton_step(inverse, denominator, size)
    inverse = _newton_step(inverse, denominator, n)
    return series_product(np.asarray(numerator, dtype=np.float64), inverse)


def _newton_step(inverse: np.ndarray, denominator: np.ndarray, size: int) -> np.ndarray:
    padded = np.pad(inverse, (0, size - len(inverse)))
    defect = -series_product(np.pad(denominator[:size], (0, max(size - len(denominator), 0))), padded)
    defect[0] += 1.0
    return padded + series_product(padded, defect)


def series_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a * b modulo x^n for two series of shape (n,), or for rows of shape (r, n) and a series, by FFT."""
    n = a.shape[-1]
    try:
        from scipy.fft import irfft, next_fast_len, rfft
    except ModuleNotFoundError:  # A training image has no scipy.
        rfft, irfft, size = np.fft.rfft, np.fft.irfft, 1 << (2 * n - 1).bit_length()
    else:
        size = next_fast_len(2 * n, real=True)
    return irfft(rfft(a, size) * rfft(b, size), size)[..., :n]


def series_product_rows(rows: np.ndarray, series: np.ndarray) -> np.ndarray:
    """Return each row times the series modulo x^n, shape (r, n); direct up to n = 2048, by FFT above."""
    n = rows.shape[1]
    if n <= _MAX_DIRECT_ROWS:
        return np.ascontiguousarray(rows) @ toeplitz_rows(series, 0, n).T
    return series_product(rows, series)


def toeplitz_rows(coefficients: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return rows start..stop-1 of the lower-triangular Toeplitz matrix with that first column, shape (rows, n)."""
    n = len(coefficients)
    padded = np.concatenate([np.zeros(n), coefficients])[::-1]
    # Row i is coefficients[i::-1] followed by zeros, a window that slides over the reversed, padded column.
    step = padded.strides[0]
    view = np.lib.stride_tricks.as_strided(padded[n - 1 - start :], (stop - start, n), (-step, step), writeable=False)
    return np.ascontiguousarray(view)


def pattern_sums(column: np.ndarray, separation: int, most: int) -> np.ndarray:
    """Return c_t + c_{t-b} + ... of at most `most` terms: sums of 1, 2, 4, ... terms put together, so none cancel."""
    total, terms, size = np.zeros_like(column), 0, 1
    doubled = column.copy()
    while size <= most and terms * separation < len(column):
        if most & size:
            total[terms * separation :] += doubled[: len(column) - terms * separation]
            terms += size
        doubled[size * separation :] += doubled[: max(len(column) - size * separation, 0)].copy()
        size *= 2
    return total
