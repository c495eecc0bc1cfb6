"""The decoder of a Toeplitz strategy whose columns are scaled: O(n^2) operations, and never an n x n array.

With C = T diag(s) the entries of C^-1 are u_{i-j} / s_i, u being the series of T^-1, and the workload is a recursion
over the steps, so that the rows of B = A C^-1 follow from one another. The residual is B C - A = A G with
G = C^-1 C - I, whose entries are those of the series u t - 1 with rows divided by s and columns multiplied by s.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from factorize.structures.base import Matrix
from factorize.workloads.state_space import StateSpace


class DecoderRows(NamedTuple):
    """Of B = A C^-1.

    Attributes:
        errors: squared row norms, shape (n,).
        residual: largest entry of |B C - A|.
    """

    errors: np.ndarray
    residual: float


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def decoder_rows(matrix: Matrix, workload: StateSpace) -> DecoderRows | None:
    """Return what the certificate needs of B, or None for a matrix that is not Toeplitz with scaled columns.

    Args:
        matrix: C.
        workload: A.
    """
    inner, scale = matrix.column_scaling()
    one = np.eye(1, matrix.n)[0]
    inverse = inner.divide(one)
    product = None if inverse is None else inner.times(inverse)
    if inverse is None or product is None:
        return None
    from factorize.structures.kernels.scaled_toeplitz import product_rows  # compiled: not for a C of another structure

    follow, feed, read, through = map(np.ascontiguousarray, workload.parts())
    errors, unused = np.empty(matrix.n), np.empty(matrix.n)
    rows = 1.0 / scale
    product_rows(follow, feed, read, through, inverse, rows, rows * inverse[0], np.ones(matrix.n), errors)
    missing = rows * product[0] - 1.0 / scale  # of G's diagonal, before columns are multiplied
    left = product_rows(follow, feed, read, through, product - one, rows, missing, scale, unused)
    return DecoderRows(errors, float(left))
