"""The decoder B = A C^-1 as a certificate sees it: its squared row norms, its objective, and how far B C is from A."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from factorize.certificate.scaled_toeplitz_decoder import decoder_rows
from factorize.errors import CertificateError
from factorize.numbers.blas_threads import LARGEST, one_blas_thread
from factorize.spec import Spec
from factorize.structures.base import MAX_DENSE, Matrix, check_dense

RESIDUAL_LIMIT = 2.0**-40
_BLOCK_BYTES = 2**26
_BLOCK_ROWS = 256  # few enough that the zeros to the right of a triangle's rows are left out
_BLOCK_COLUMNS = 256
_WHOLE_CHECK = 2048  # up to here every row of B counts, whatever the structure of C


@dataclass(frozen=True)
class Decoded:
    """What the certificate needs of B: its squared row norms, the objective at sensitivity 1, and the residual."""

    errors: np.ndarray
    objective: float
    residual: float
    remarks: tuple[str, ...] = ()


def decode(spec: Spec, strategy: Matrix) -> Decoded:
    """Return B's numbers by the cheapest road that the structures of A and C allow.

    Raises:
        CertificateError: B C differs from A by more than roundings.
        TooLarge: an n x n array would be needed, above the limit.
    """
    workload = spec.workload.coefficients
    if workload is not None and spec.objective.by_row_errors:
        with np.errstate(over="ignore", invalid="ignore"):
            quotient = strategy.divide(workload)
        if quotient is not None:
            return _decode_toeplitz(spec, workload, strategy, quotient)
    found = _decode_structured(spec, strategy) if strategy.n > _WHOLE_CHECK else None
    found = found or _decode_rows(spec, strategy)
    if found is not None:
        return found
    check_dense(max(strategy.n, spec.workload.m))
    with one_blas_thread(strategy.n):
        return _decode_dense(spec, strategy)


def _decode_toeplitz(spec: Spec, workload: np.ndarray, strategy: Matrix, quotient: np.ndarray) -> Decoded:
    """B is Toeplitz too: row i holds its first i + 1 coefficients."""
    with np.errstate(over="ignore", invalid="ignore"):
        product = strategy.times(quotient)
        assert product is not None  # what divides a series multiplies it
        residual = float(np.abs(product - workload).max())
    _check_residual(residual, spec)
    errors = np.cumsum(quotient**2)
    return Decoded(errors, spec.objective.of_row_errors(errors), residual)


def _decode_structured(spec: Spec, strategy: Matrix) -> Decoded | None:
    """Carry the covariance of the workload driven by C^-1 along the steps; no n x n array."""
    workload = spec.workload.state_space()
    errors = None if workload is None else strategy.decoder_errors(workload)
    if workload is None or errors is None:
        return None
    residual = _sampled_residual(spec, strategy)
    _check_residual(residual, spec)
    weights = spec.objective.state_space(spec.workload.m)
    remarks = (f"the residual is the largest over {len(_sampled_rows(spec.workload.m))} rows, not over all",)
    if weights is None or spec.objective.row_weights(spec.workload.m) is not None:
        return Decoded(errors, spec.objective.of_row_errors(errors), residual, remarks)
    weighted = strategy.decoder_errors(workload.then(weights))
    if weighted is None:
        return None
    return Decoded(errors, spec.objective.scale(spec.workload.m) * math.fsum(weighted), residual, remarks)


def _decode_rows(spec: Spec, strategy: Matrix) -> Decoded | None:
    """Form the rows of B one after the other, for Toeplitz matrices with scaled columns; no n x n array."""
    workload, weights = spec.workload.state_space(), spec.objective.state_space(spec.workload.m)
    if workload is None or strategy.n > MAX_DENSE:
        return None
    found = decoder_rows(strategy, workload)
    if found is None:
        return None
    _check_residual(found.residual, spec)
    if weights is None or spec.objective.row_weights(spec.workload.m) is not None:
        return Decoded(found.errors, spec.objective.of_row_errors(found.errors), found.residual)
    weighted = decoder_rows(strategy, workload.then(weights))
    assert weighted is not None  # what has a decoder has it under every recursion
    objective = spec.objective.scale(spec.workload.m) * math.fsum(weighted.errors)
    return Decoded(found.errors, objective, found.residual)


def _sampled_rows(m: int) -> list[int]:
    """First rows, last rows and powers of two in between."""
    return sorted({0, 1, m - 2, m - 1, *(2**k for k in range(1, 27) if 2**k < m)})


def _sampled_residual(spec: Spec, strategy: Matrix) -> float:
    rows = np.concatenate([spec.workload.row_block(i, i + 1) for i in _sampled_rows(spec.workload.m)])
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.abs(strategy.left_multiply(strategy.right_solve(rows)) - rows).max())


def _decode_dense(spec: Spec, strategy: Matrix) -> Decoded:
    workload, n = spec.workload, strategy.n
    whole = None if strategy.multiplied_by_recurrence else strategy.whole()
    decoder = np.empty((workload.m, n)) if spec.objective.quadratic else None  # else no row is asked for again
    errors = np.empty(workload.m)
    step = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // (8 * n)))

    def solved(start: int) -> float:
        stop = min(start + step, workload.m)
        rows = workload.row_block(start, stop)
        with np.errstate(over="ignore", invalid="ignore"):
            found = strategy.right_solve(rows)
            errors[start:stop] = np.einsum("ij,ij->i", found, found)
            if decoder is not None:
                decoder[start:stop] = found
            if whole is None:
                return float(np.abs(strategy.left_multiply(found) - rows).max())
            used = max(_width(rows), _width(found))  # C is triangular: zeros on the right stay zeros
            return _residual(found[:, :used], whole, rows)

    starts = range(0, workload.m, step)
    # Not Python's max, which would drop a NaN and with it the evidence that the solve failed.
    residual = float(np.max(_each(solved, starts, together=n <= LARGEST)))
    _check_residual(residual, spec)
    if decoder is None:
        return Decoded(errors, spec.objective.of_row_errors(errors), residual)
    weighted = spec.objective.weigh(decoder)
    return Decoded(errors, spec.objective.scale(workload.m) * float(np.vdot(weighted, weighted)), residual)


def _residual(decoded: np.ndarray, whole: np.ndarray, rows: np.ndarray) -> float:
    """Return the largest entry of B C - A for some rows, by columns below whose diagonal the others of C are zero."""
    used, found = decoded.shape[1], [0.0]
    for first in range(0, used, _BLOCK_COLUMNS):
        last = min(first + _BLOCK_COLUMNS, used)
        product = decoded[:, first:] @ whole[first:used, first:last]
        product -= rows[:, first:last]
        found += [float(product.max()), -float(product.min())]
    return float(np.max(found))


def _each(solved: Callable[[int], float], starts: Sequence[int], *, together: bool) -> list[float]:
    """Return what is found from each start; two at a time where BLAS has one thread, the longest first."""
    if len(starts) < 2 or not together:
        return [solved(start) for start in starts]
    with ThreadPoolExecutor(2, "rows") as pool:
        return list(pool.map(solved, reversed(starts)))


def _width(rows: np.ndarray) -> int:
    """Return the number of columns up to the last one that is not all zero, at least 1."""
    return int(np.flatnonzero(rows.any(axis=0)).max(initial=0)) + 1


def _check_residual(residual: float, spec: Spec) -> None:
    largest = float(np.abs(spec.workload.adjoint(np.ones((spec.workload.m, 1)))).max())
    if not residual <= RESIDUAL_LIMIT * max(largest, 1.0):
        raise CertificateError(
            f"B C differs from A by {residual:.3g}, above {RESIDUAL_LIMIT:.1e} of the workload's largest column sum "
            f"{largest:.3g}; the strategy is too ill-conditioned to be inverted in double precision; use a smaller n "
            "or another mechanism"
        )
