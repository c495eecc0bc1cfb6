"""The compiled Cholesky factorisation of a band. Imported on first use, since numba is heavy."""

from __future__ import annotations

import numba
import numpy as np

_SUMS = {"reassoc", "contract", "nsz"}  # sums may be reordered, so that they use vector instructions


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_SUMS)
def band_cholesky(columns):
    """Replace the lower half of a symmetric band by its Cholesky factor; False if it is not positive definite.

    Entry (j + d, j) is at columns[j, d]. LAPACK's routine does the same, but wakes threads that spin.
    """
    n, width = columns.shape
    for j in range(n):
        column = columns[j]
        if not column[0] > 0.0:
            return False
        pivot = np.sqrt(column[0])
        size = min(width, n - j)
        for d in range(size):
            column[d] /= pivot
        for d in range(1, size):
            here, target, source = column[d], columns[j + d], column[d:]
            for e in range(size - d):
                target[e] -= here * source[e]
    return True
