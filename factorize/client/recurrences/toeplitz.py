"""C^-1 z for Toeplitz strategies: of few diagonals by a recurrence, of n by rows of C^-1 (base.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Self

import numpy as np

from factorize.client.recurrences.banded import BandedRecurrence
from factorize.client.recurrences.base import RowMaker, Tensors
from factorize.numbers.covered import covered_column
from factorize.numbers.series import series_quotient


class BandedToeplitzRecurrence(BandedRecurrence):
    """A strategy with few diagonals that is the same at every step (structure `banded_toeplitz`)."""

    tensor: ClassVar[str] = "coefficients"

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """One row for all steps."""
        return cls(parts["coefficients"][None], n)


def rows_of(parts: Tensors, n: int) -> RowMaker:
    """Return what computes C^-1 by its column, enlarged so that the claim for C covers it, and gives row t."""
    column = parts["coefficients"]

    def make() -> Callable[[int], np.ndarray]:
        inverse = covered_column(column, series_quotient(np.eye(1, n)[0], column))
        return lambda step: np.concatenate([inverse[step::-1], np.zeros(n - 1 - step)])

    return make
