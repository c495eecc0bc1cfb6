"""The claim for adding noise to exact results: A G + B Z is B (E G + Z) with the encoder E = B^-1 A, and not C.

E differs from C by B^-1 (A - B C), which is rounding where B is A C^-1, and more where B is stored in fewer bits. What
is claimed here allows for it several times over; the exact checker proves the claim or rejects the file.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from factorize.numbers.series import series_product, series_quotient
from factorize.participation import AnyParticipation
from factorize.structures.base import Matrix
from factorize.workloads import Workload

LARGEST = 2048
_ALLOWANCE = 4.0
_SLACK = 2.0**-40


def encoder_sensitivity(
    decoder: np.ndarray, strategy: Matrix, workload: Workload, participation: AnyParticipation, sensitivity: float
) -> dict[str, Any] | None:
    """Return the claim in the manifest's form, or None where there is none: B singular or tall, or n above 2048.

    Args:
        decoder: B as it is stored, in double precision, shape (m, n).
        strategy: C.
        workload: A.
        participation: who takes part when.
        sensitivity: of C.
    """
    from scipy.linalg import solve_triangular

    m, n = decoder.shape
    if m > n or n > LARGEST or (m == n and not np.diagonal(decoder).all()):
        return None
    rest = workload.dense() - decoder @ strategy.dense()
    moved = solve_triangular(decoder, rest, lower=True) if m == n else np.linalg.pinv(decoder) @ rest
    longest = float(np.linalg.norm(moved, axis=0).max())
    if m < n:  # the proof goes through norms there
        longest = float(np.linalg.norm(np.linalg.pinv(decoder)) * np.linalg.norm(rest, axis=0).max())
    return _claim(sensitivity, participation.spread(n).most * longest)


def toeplitz_encoder_sensitivity(
    column: np.ndarray, strategy: Matrix, workload: Workload, participation: AnyParticipation, sensitivity: float
) -> dict[str, Any] | None:
    """Return the claim for Toeplitz matrices of any n by power series: no column of B^-1 R is longer than the first.

    Args:
        column: the first column of B as it is stored, in double precision, shape (n,).
        strategy: C, Toeplitz.
        workload: A, Toeplitz.
        participation: who takes part when.
        sensitivity: of C.
    """
    n, coefficients = len(column), workload.coefficients
    if coefficients is None or not column[0]:
        return None
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        # Not by the recursion of C, whose rounding B was computed with and which would therefore seem exact.
        product = series_product(strategy.rows(n - 1, n)[0][::-1], column)
        inverse = series_quotient(np.eye(1, n)[0], column)
        noise = np.finfo(float).eps * math.log2(2 * n) * math.sqrt(n) * float(np.linalg.norm(column)) * sensitivity
        length = float(np.linalg.norm(coefficients - product)) + noise
        longest = float(np.abs(inverse).sum()) * length
    return _claim(sensitivity, participation.spread(n).most * longest)


def _claim(sensitivity: float, gained: float) -> dict[str, Any] | None:
    value = float(sensitivity * (1 + _SLACK) + _ALLOWANCE * gained)
    return {"value": value, "hex": value.hex(), "kind": "upper_bound"} if math.isfinite(value) else None
