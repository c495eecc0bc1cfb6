"""B C - A and N C - I beyond whole matrices for a stored array and a C of few states: row by row from its end, O(n^2).

A row b of B times C, and a row of A, are what the last step owes each one before it: the recursions of C and of A from
the end. Pairs of doubles with a running bound on what was rounded; no product of matrices and no Python integers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from factorize.errors import CertificateError
from factorize.exact.losses import variances
from factorize.exact.spec import program_of
from factorize.exact.spec.programs import Program, X
from factorize.exact.strategy import Strategy

LARGEST_WORK = 1 << 33
"""n^2 times what a step takes: a few minutes."""
_NO_BUFFERS = (np.zeros((1, 0, 1, 1)), np.zeros((1, 0, 1)), np.zeros((1, 0, 1)))


def residual(
    stored: np.ndarray, strategy: Strategy, workload: Mapping[str, Any] | None
) -> tuple[float, float, float] | None:
    """Return the largest entry of |B C - A| and its Frobenius norm, both from above, and A's largest column sum.

    Args:
        stored: B, shape (n, n).
        strategy: C.
        workload: the spec's; None for the identity, where B is a stored inverse.

    Returns:
        None where C or A has no recursion here, where it would take too long, or where rounding says nothing.

    Raises:
        CertificateError: B is not lower-triangular.
    """
    program = Program([], X) if workload is None else program_of(workload)
    given = _parts(strategy)
    if program is None or given is None:
        return None
    bands, buffered = given
    width = len(bands) + buffered[1].shape[1] * buffered[1].shape[2] ** 2 + 2 * len(program.statements)
    if stored.shape[0] ** 2 * width > LARGEST_WORK:
        return None
    if np.triu(stored, 1).any():
        raise CertificateError("the stored B or C_inv is not lower-triangular")
    from factorize.exact.losses.row_kernels import residual as rows

    scale = np.ones(strategy.n) if strategy.scale is None else strategy.scale
    sums = np.zeros(strategy.n)
    largest, total = rows(
        np.ascontiguousarray(stored),
        bands,
        buffered,
        scale,
        len(program.statements),
        *program.arrays(),
        program.output,
        sums,
    )
    if math.isnan(largest):
        return None
    return largest, math.sqrt(total) * (1 + 2.0**-50), float(sums.max())


def _parts(strategy: Strategy) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]] | None:
    """Diagonals, and buffers in addition to them, which may be of no group."""
    buffers, n = strategy.reading.buffers, strategy.n
    if buffers is not None:
        return buffers.diagonal[None], (buffers.transition, buffers.inputs, buffers.outputs)
    bands = strategy.reading.diagonals(variances.LARGEST_WORK)
    if bands is None or len(bands) > n:
        return None
    return bands, _NO_BUFFERS
