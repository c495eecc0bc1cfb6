"""C^-1 z for a strategy whose inverse has few diagonals: the last draws are kept (base.py)."""

from __future__ import annotations

from typing import Self

import numpy as np

from factorize.client.recurrences.base import NoiseCost, StructureRecurrence, Tensors, few_diagonals
from factorize.client.recurrences.state_rounding import DOUBLE, Deviation


class InverseBandedToeplitzRecurrence(StructureRecurrence):
    """A strategy whose inverse has few diagonals (structure `inverse_banded_toeplitz`).

    The last bands - 1 draws are kept: x_t = z_t + sum_d noising_d z_{t-d}

    Args:
        noising: first column of C^-1, shape (bands,), beginning with 1.
        steps: n.
    """

    keeps_draws = True

    def __init__(self, noising: np.ndarray, steps: int) -> None:
        self.steps = steps
        self.vectors = self.scratch = len(noising) - 1
        self._noising = noising
        slots = np.arange(self.vectors)
        self._age = (slots[:, None] - 1 - slots) % max(1, self.vectors) + 1  # steps since a slot was written

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """The stored column."""
        return cls(parts["inverse_coefficients"], n)

    @staticmethod
    def cost(parts: Tensors, n: int) -> NoiseCost:
        """A product and a sum for each kept draw."""
        return few_diagonals(len(parts["inverse_coefficients"]))

    def gain(self, step: int) -> float:
        """The diagonal of C is 1."""
        return 1.0

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Row t of Z is kept in slot t modulo bands - 1."""
        if not self.vectors:
            return
        slot = step % self.vectors
        scratch[...] = state
        scratch *= self._noising[self._age[slot]][:, None]
        state[slot] = x
        x[...] = state[slot]  # the same draw now as later: its rounding then scales a row of C, and nothing else
        for part in scratch:
            x += part

    def deviation(self, unit: float, arithmetic: float = DOUBLE) -> Deviation:
        """A draw is rounded once for all its uses; then come a product and a sum for each diagonal."""
        lost = (self.vectors + 4) * arithmetic * float(np.linalg.norm(self._noising)) * 1.001
        return Deviation(rows=unit + 4 * arithmetic, inverse=lost)
