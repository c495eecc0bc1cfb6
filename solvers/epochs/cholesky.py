"""C with C^T C = X: the Cholesky factorization from the end, by LAPACK's on the steps in reverse order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from factorize.numbers.blas_threads import one_blas_thread

Array = NDArray[np.float64]

_ROWS = 128


def reverse_cholesky(gram: Array) -> Array:
    """Return lower-triangular C with C^T C = X, shape (n, n).

    One thread up to n = 4096: on a machine that is busy otherwise more were seen to take ten times as long.

    Args:
        gram: X, symmetric positive definite, shape (n, n); only entries on and below the diagonal are read.

    Raises:
        FloatingPointError: X is not definite in double precision.
    """
    from scipy.linalg.lapack import dpotrf

    n = len(gram)
    reversed_steps = gram[::-1, ::-1].copy()
    with one_blas_thread(n):
        # Of rows as columns, which is how LAPACK reads them, what is below the diagonal is what X has below its own.
        factor, failed = dpotrf(reversed_steps.T, lower=1, clean=0, overwrite_a=1)
    roots = factor.diagonal()
    if not failed and not (roots > 0).all():  # a library's own dpotrf may let a NaN pass
        failed = int(np.argmin(roots > 0)) + 1
    if failed:
        raise FloatingPointError(f"the Gram matrix is not definite in double precision (step {n - failed})")
    return _lower(factor.T[::-1, ::-1])


def _lower(array: Array) -> Array:
    """Return a copy of what is on and below the diagonal; to have LAPACK clear the rest takes a fifth longer."""
    n = len(array)
    out = np.zeros((n, n))
    for start in range(0, n, _ROWS):
        stop = min(start + _ROWS, n)
        out[start:stop, :start] = array[start:stop, :start]
        out[start:stop, start:stop] = np.tril(array[start:stop, start:stop])
    return out
