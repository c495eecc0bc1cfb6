"""Sums of the columns of |C| over the steps of each bin, from above, a block of rows at a time.

Balls in bins: an example takes part in the steps j, j + b, j + 2b, ... of its bin j. Its largest shift of the output is
m_j = the sum of these columns of |C| (docs/amplification.md). |C| is taken before the sum: the sums of a signed C are
too small. Every entry is rounded up, which is safe: privacy only gets worse as an entry grows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from factorize.numbers.rounding import UNIT
from factorize.numbers.wide import check_finite
from factorize.structures.base import Matrix

_TINY = 1e-290  # covers what underflows in the sums of one entry


def comb_sums(matrix: Matrix, bins: int) -> np.ndarray | None:
    """Return p_t = |c_t| + |c_{t-b}| + ... from above, shape (n,), if C is Toeplitz; else None.

    Row t of m_j is p_{t-j}: one column tells all bins.
    """
    column = matrix.column_above()
    if column is None:
        return None
    n, epochs = matrix.n, -(-matrix.n // bins)
    padded = np.zeros(epochs * bins)
    padded[:n] = column
    sums = np.cumsum(padded.reshape(epochs, bins), axis=0).ravel()[:n]
    return check_finite(_raised(sums, epochs))


def column_sums(matrix: Matrix, bins: int) -> Iterator[np.ndarray]:
    """Yield rows of the n x b matrix with the columns m_j, from above, from the first row to the last.

    Args:
        matrix: C, of any structure.
        bins: b, 1 to n.

    Raises:
        TooLarge: n is above the limit of a structure whose entries are enclosed one by one.
        CertificateError: doubles do not enclose C.
    """
    for sums in matrix.bin_sums(bins):
        yield check_finite(_raised(sums, -(-matrix.n // bins)))


def _raised(sums: np.ndarray, terms: int) -> np.ndarray:
    """Return what sums of at most `terms` non-negative doubles stand for, from above."""
    return np.where(sums > 0, sums * (1 + (terms + 4) * UNIT) + _TINY, 0.0)
