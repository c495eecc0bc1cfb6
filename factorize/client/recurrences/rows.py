"""C^-1 z for strategies without a recurrence: rows of C^-1 (structures `dense` and `toeplitz`; base.py)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from factorize.client.recurrences.base import RowMaker, Tensors
from factorize.numbers.covered import covered_column, covered_inverse
from factorize.numbers.series import series_quotient


def dense_rows(parts: Tensors, n: int) -> RowMaker:
    """Return what inverts C, enlarged so that the claim for C covers it, and gives row t."""
    array = parts[""]
    return lambda: covered_inverse(array).__getitem__


def toeplitz_rows(parts: Tensors, n: int) -> RowMaker:
    """Return what computes C^-1 by its column, enlarged so that the claim for C covers it, and gives row t."""
    column = parts["coefficients"]

    def make() -> Callable[[int], np.ndarray]:
        inverse = covered_column(column, series_quotient(np.eye(1, n)[0], column))
        return lambda step: np.concatenate([inverse[step::-1], np.zeros(n - 1 - step)])

    return make
