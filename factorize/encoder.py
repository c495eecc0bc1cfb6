"""The claim for adding noise to exact results: A G + B Z is B (E G + Z) with the encoder E = B^-1 A, and not C.

E differs from C by B^-1 (A - B C), which is rounding where B is A C^-1, and more where B is stored in fewer bits. What
is claimed here allows for it several times over; the exact checker proves the claim or rejects the file.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from factorize.participation import AnyParticipation, FixedEpochs, Single
from factorize.structures.matrix import Matrix
from factorize.workloads import Workload

LARGEST = 2048
_ALLOWANCE = 4.0
_SLACK = 2.0**-40


def encoder_sensitivity(
    decoder: np.ndarray, strategy: Matrix, workload: Workload, participation: AnyParticipation, sensitivity: float
) -> dict[str, Any] | None:
    """Return the claim in the manifest's form, or None where there is none: B singular, tall, or above n = 2048.

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
    value = sensitivity * (1 + _SLACK) + _ALLOWANCE * _most(participation, n) * longest
    return {"value": value, "hex": value.hex(), "kind": "upper_bound"} if math.isfinite(value) else None


def _most(participation: AnyParticipation, n: int) -> int:
    if isinstance(participation, Single):
        return 1
    return participation.epochs if isinstance(participation, FixedEpochs) else participation.count(n)
