"""Noising matrices that a claim covers: computed inverses, made larger by what their rounding can cost.

Noise is drawn with the rows of a computed N, not of C^-1, and what it then protects is N^-1. With C N = I + F, and
1 + f >= 1 / (1 - |F|), (1 + f) N protects with no more than the sensitivity of C, however ill-conditioned C is
(docs/sensitivity.md, "Noise from a computed inverse"). F is computed and its own rounding bounded; f is about 1e-11 for
n = 2048.
"""

import math

import numpy as np

from factorize.errors import InvalidStrategy
from factorize.numbers.triangular import lower_inverse, series_product

LARGEST_DEFECT = 2.0**-7
"""Of a computed inverse: beyond, C is too ill-conditioned for its noise to be made from C^-1."""
LONGEST_DIRECT = 1 << 14
"""Up to this n products of Toeplitz columns are summed term by term; beyond, by FFT."""
_UNIT = 2.0**-53
_TINY = 2.0**-1060  # what underflows in a product of n terms, for any n here
_SCALINGS = 16  # roundings of an entry of N after F was bounded: the factor itself, scales of rows and columns
_FFT = 16.0  # times log2(2n) u |a| |b|: several times what an FFT of this length can err
_SUMS = 2.0**-30  # of sums of squares over blocks of up to 256 x 16,384 entries
_BLOCK = 256


def cover_inverse(array: np.ndarray) -> np.ndarray:
    """Return an inverse whose own inverse has no larger sensitivity than C, lower-triangular of shape (n, n).

    n^3 multiplications, of which the inverse itself takes a third.

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
    """Return 1 + f for a bound on |F|; InvalidStrategy where it is above 2^-7, or not finite."""
    if not defect <= LARGEST_DEFECT:
        raise InvalidStrategy(
            f"C is too ill-conditioned for its noise to be made from C^-1: C times the inverse computed differs from I "
            f"by up to {defect:.3g}, above {LARGEST_DEFECT:g}; take a structure with a recurrence (banded, buffered), "
            "or scale the workload towards 1"
        )
    return (1.0 / (1.0 - defect)) * (1 + 4 * _UNIT)


def defect(array: np.ndarray, inverse: np.ndarray) -> float:
    """Return an upper bound of the norm of C N - I for lower-triangular arrays, shape (n, n); NaN where it is none."""
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
    """Return the same bound for first columns of Toeplitz matrices, shape (n,): a sum of magnitudes is never less."""
    n = len(column)
    direct = n <= LONGEST_DIRECT
    residual = np.convolve(column, inverse)[:n] if direct else series_product(column, inverse)
    residual[0] -= 1.0
    rest, sizes = float(np.abs(residual).sum()), float(np.abs(column).sum() * np.abs(inverse).sum())
    if direct:
        return _bound(rest, sizes, n)
    lengths = float(np.linalg.norm(column) * np.linalg.norm(inverse))
    return _bound(rest + n * _FFT * math.log2(2 * n) * _UNIT * lengths, sizes, 0)


def _bound(rest: float, sizes: float, terms: int) -> float:
    """|F| from its computed value, the norm of the products of magnitudes, and how many terms these have.

    A product of doubles over n terms is off by at most n u / (1 - n u) times that of the magnitudes, in any order of
    summation (Higham, Accuracy and Stability of Numerical Algorithms, section 3.5), u = 2^-53.
    """
    relative = (terms + _SCALINGS) * _UNIT
    return (rest + relative * (1 + 2 * relative) * sizes + _TINY) * (1 + 2 * relative + _SUMS)
