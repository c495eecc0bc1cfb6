"""Noising matrices that a claim covers: computed inverses, enlarged to make up for their rounding.

Noise is drawn with the rows of a computed N, not of C^-1, so the matrix that it protects is N^-1. With C N = I + F, and
1 + f >= 1 / (1 - |F|), (1 + f) N protects with no more than the sensitivity of C, however ill-conditioned C is
(docs/sensitivity.md, "Noise from a computed inverse"). F is computed and its own rounding bounded; f is about 1e-11 for
n = 2048.
"""

import math

import numpy as np

from factorize.errors import InvalidStrategy
from factorize.numbers.triangular import lower_inverse, series_product

MAX_DEFECT = 2.0**-7
"""The largest |F| of a computed inverse; above, C is too ill-conditioned for noise from C^-1."""
MAX_N_DIRECT = 1 << 14
"""The largest n for which products of Toeplitz columns are summed term by term; above, they use FFTs."""
_UNIT = 2.0**-53
_UNDERFLOW = 2.0**-1060  # A product of n terms loses less by underflow, for any n here.
_SCALINGS = 16  # The roundings of an entry of N after F was bounded, by 1 + f and by scales of rows and columns.
_FFT = 16.0  # An FFT errs by several times less than this number times log2(2n) u |a| |b|.
_ROW_SUMS = 2.0**-21  # Sums of rows with draws lose at most F's bound; up to this much the noise allows for it.
_SUMS = 2.0**-30  # Sums of squares over blocks of up to 256 x 16,384 entries lose a smaller share.
_BLOCK = 256


def cover_inverse(array: np.ndarray) -> np.ndarray:
    """Return an inverse whose own inverse has no larger sensitivity than C, lower-triangular of shape (n, n).

    It takes n^3 multiplications, a third of them for the inverse itself.

    Raises:
        InvalidStrategy: C is too ill-conditioned.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        inverse = lower_inverse(array)
        factor = covering(defect(array, inverse))
    inverse *= factor
    return inverse


def cover_column(column: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """Return the first column of such an inverse for a Toeplitz C.

    Args:
        column: first column of C, shape (n,).
        inverse: first column of a computed C^-1, shape (n,).

    Raises:
        InvalidStrategy: C is too ill-conditioned.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return inverse * covering(column_defect(column, inverse))


def covering(defect: float) -> float:
    """Return 1 + f for a bound on |F|, and on what sums of rows lose where that is more than the noise allows for.

    Raises:
        InvalidStrategy: the bound is above 2^-7, or not finite.
    """
    if not defect <= MAX_DEFECT:
        raise InvalidStrategy(
            "C is too ill-conditioned to make noise from C^-1: C times its computed inverse differs from I by up to "
            f"{defect:.3g}, and the limit is {MAX_DEFECT:g}; use a structure with a recurrence (banded, buffered), or "
            "scale the workload towards 1"
        )
    lost = defect if defect <= _ROW_SUMS else 2 * defect
    return (1.0 / (1.0 - lost)) * (1 + 4 * _UNIT)


def defect(array: np.ndarray, inverse: np.ndarray) -> float:
    """Return an upper bound of the norm of C N - I for lower-triangular arrays, shape (n, n), or NaN."""
    n = len(array)
    rest = sizes = 0.0
    for first in range(0, n, _BLOCK):
        last = min(first + _BLOCK, n)
        left, right = array[first:last, :last], inverse[:last, :last]
        residual = left @ right
        residual[np.arange(last - first), np.arange(first, last)] -= 1.0
        rest += float(np.einsum("ij,ij->", residual, residual))
        magnitude = np.abs(left) @ np.abs(right)
        sizes += float(np.einsum("ij,ij->", magnitude, magnitude))
    return _bound(math.sqrt(rest), math.sqrt(sizes), n)


def column_defect(column: np.ndarray, inverse: np.ndarray) -> float:
    """Return the same bound for first columns of Toeplitz matrices, shape (n,), by their sums of magnitudes."""
    n = len(column)
    direct = n <= MAX_N_DIRECT
    residual = np.convolve(column, inverse)[:n] if direct else series_product(column, inverse)
    residual[0] -= 1.0
    rest, sizes = float(np.abs(residual).sum()), float(np.abs(column).sum() * np.abs(inverse).sum())
    if direct:
        return _bound(rest, sizes, n)
    lengths = float(np.linalg.norm(column) * np.linalg.norm(inverse))
    return _bound(rest + n * _FFT * math.log2(2 * n) * _UNIT * lengths, sizes, n)


def _bound(rest: float, sizes: float, terms: int) -> float:
    """Return a bound of |F| from its computed value, the norm of the product of magnitudes, and its number of terms.

    A product of doubles over n terms is off by at most n u / (1 - n u) times that of the magnitudes, in any order of
    summation (Higham, Accuracy and Stability of Numerical Algorithms, section 3.5), u = 2^-53.
    """
    relative = (terms + _SCALINGS) * _UNIT
    return (rest + relative * (1 + 2 * relative) * sizes + _UNDERFLOW) * (1 + 2 * relative + _SUMS)
