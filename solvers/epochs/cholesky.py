"""C with C^T C = X: the Cholesky factorization from the end, in blocks of rows from the last to the first.

X_pj = sum_{i >= p} C_ip^T C_ij in blocks. So the last rows give C_pp by LAPACK's factorization in reverse order, then
C_pj = C_pp^-T X_pj for j < p, and C_pi^T C_pj is taken off what is above: two blocks of rows at a time, on two cores.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from factorize.numbers.blas_threads import one_blas_thread
from factorize.solvers.methods.compiled import Array

_ROWS = 128
_THREAD_STEPS = 512
"""The steps from which a second thread pays, and those that it gets at a time."""


def reverse_cholesky(gram: Array) -> Array:
    """Return lower-triangular C with C^T C = X, shape (n, n).

    One thread of BLAS in each of two of ours: those of BLAS wait in loops, and were seen to take ten times as long on a
    machine that is busy otherwise.

    Args:
        gram: X, symmetric positive definite, shape (n, n); only entries on and below the diagonal are read.

    Raises:
        FloatingPointError: X is not definite in double precision.
    """
    n, out = len(gram), gram.copy()
    with one_blas_thread(0), ThreadPoolExecutor(2, "rows") as pool:

        def each(step: Callable[[slice], None], parts: Iterable[slice]) -> None:
            def quiet(part: slice) -> None:
                with np.errstate(all="ignore"):  # threads do not take this over; what is not finite is found below
                    step(part)

            for _ in (pool.map if _THREAD_STEPS <= n else map)(quiet, parts):
                pass

        for start in reversed(range(0, n, _ROWS)):
            _factor(out, slice(start, min(start + _ROWS, n)), each)
    return out


def _factor(out: Array, own: slice, each: Callable[[Callable[[slice], None], Iterable[slice]], None]) -> None:
    """Make some rows of C from what is left of X there, and take their share off the rows above."""
    from scipy.linalg.blas import dtrsm

    root = _last_factor(out[own, own], own.stop)
    out[own, own] = root.T[::-1, ::-1]
    out[own, own.stop :] = 0.0

    def solve(columns: slice) -> None:
        reverse = out[own, columns][::-1].copy()
        out[own, columns] = dtrsm(1.0, root, reverse.T, side=1, lower=1, trans_a=1, overwrite_b=1).T[::-1]

    def update(rows: slice) -> None:
        out[rows, : rows.stop] -= out[own, rows].T @ out[own, : rows.stop]

    above = own.start
    each(solve, [slice(first, min(first + _THREAD_STEPS, above)) for first in range(0, above, _THREAD_STEPS)])
    each(update, [slice(first, first + _ROWS) for first in reversed(range(0, above, _ROWS))])


def _last_factor(block: Array, stop: int) -> Array:
    """Return lower-triangular L with L L^T the block in reverse order, whose last step is `stop` - 1."""
    from scipy.linalg.lapack import dpotrf

    root, failed = dpotrf(block[::-1, ::-1].T, lower=1, clean=1)
    roots = root.diagonal()
    if not failed and not (roots > 0).all():  # a library's own dpotrf may let a NaN pass
        failed = int(np.argmin(roots > 0)) + 1
    if failed:
        raise FloatingPointError(f"the Gram matrix is not definite in double precision (step {stop - failed})")
    return np.asarray(root)
