"""The claim for adding noise to exact results: A G + B Z is B (E G + Z) with the encoder E = B^-1 A, and not C."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.stored import decoded
from factorize.checker.strategy import Strategy
from factorize.errors import CertificateError
from factorize.spec import Spec
from factorize.structures.base import Matrix

LARGEST = 2048
"""Longest n for which a B without structure gets a claim."""


def claim_of_encoder(spec: Spec, matrix: Matrix, stored: np.ndarray, sensitivity: float) -> dict[str, Any] | None:
    """Return the claim for adding noise with a B in the manifest's form, or None where none is proved.

    It allows for twice what is proved to be added to the sensitivity of C, as another machine rounds otherwise.

    Args:
        spec: of the result.
        matrix: C.
        stored: B as it is stored, in double precision, or its first column where it is Toeplitz.
        sensitivity: of C.
    """
    if stored.ndim == 2 and max(stored.shape) > LARGEST:
        return None
    strategy = Strategy(matrix.structure, matrix.tensors(), matrix.n)
    try:
        encoder = decoded(spec.document(), strategy, stored, Fraction(sensitivity) ** 2, spec.user_arrays())[2]
    except (NotEnclosed, CertificateError):
        return None
    if isinstance(encoder, str):
        return None
    value = float(encoder[0] + encoder[1])
    return {"value": value, "hex": value.hex(), "kind": "upper_bound"} if math.isfinite(value) else None
