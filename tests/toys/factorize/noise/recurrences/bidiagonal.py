"""Noise of a strategy of two diagonals: the last row is kept."""

from __future__ import annotations

from typing import Self

import numpy as np

from factorize.noise.recurrences.base import NoiseCost, StructureRecurrence, Tensors
from factorize.noise.recurrences.state_rounding import DOUBLE, Deviation


class BidiagonalRecurrence(StructureRecurrence):
    """x_t = (z_t - below[t] x_{t-1}) / diagonal[t].

    Args:
        diagonal: shape (n,).
        below: shape (n,).
    """

    def __init__(self, diagonal: np.ndarray, below: np.ndarray) -> None:
        self.steps, self.vectors, self.scratch = len(diagonal), 1, 1
        self._gain, self._ratio = 1.0 / diagonal, below / diagonal

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """Both diagonals."""
        return cls(parts["diagonal"], parts["below"])

    @classmethod
    def cost(cls, parts: Tensors, n: int) -> NoiseCost:
        """The gain, a product and a difference."""
        return NoiseCost(1, 3.0)

    def gain(self, step: int) -> float:
        """1 / diagonal."""
        return float(self._gain[step])

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Take the last row, and keep this one."""
        np.multiply(state[0], self._ratio[step], out=scratch[0])
        x -= scratch[0]
        state[0] = x

    def deviation(self, unit: float, arithmetic: float = DOUBLE) -> Deviation:
        """A row is rounded once as it is kept; then come a product and a difference."""
        return Deviation(entries=unit + 8 * arithmetic)
