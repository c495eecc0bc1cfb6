"""Recurrences of C^-1 z that keep the last rows, for C with few diagonals, or the last draws, for such a C^-1."""

from typing import ClassVar, Self

import numpy as np

from factorize.noise.recurrences.base import NoiseCost, StructureRecurrence, Tensors, VectorStep
from factorize.noise.recurrences.state_rounding import DOUBLE, Deviation


class BandedRecurrence(StructureRecurrence):
    """The recurrence of few diagonals (structure `banded`), which keeps the last bands - 1 rows.

    Args:
        rows: entries of row t leftwards from the diagonal, shape (n, bands), or (1, bands) where all rows are the same.
        steps: n.

    Attributes:
        tensor: suffix of the tensor that has the number of diagonals.
    """

    tensor: ClassVar[str] = "bands"

    def __init__(self, rows: np.ndarray, steps: int) -> None:
        self.steps = steps
        self.vectors = self.scratch = rows.shape[1] - 1
        self._gain = 1.0 / rows[:, 0]
        self._rows = rows / rows[:, :1]
        slots = np.arange(self.vectors)
        self._age = (slots[:, None] - 1 - slots) % max(1, self.vectors) + 1  # the steps since each slot was written

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """Turn bands[d, j] = C[j + d, j] into rows[i, d] = C[i, i - d]."""
        bands = parts["bands"]
        rows = np.zeros((n, len(bands)))
        for d, band in enumerate(bands):
            rows[d:, d] = band[: n - d]
        return cls(rows, n)

    @classmethod
    def cost(cls, parts: Tensors, n: int) -> NoiseCost:
        """Return the cost: a product and a sum for each kept vector, and the gain."""
        kept = len(parts[cls.tensor]) - 1
        return NoiseCost(kept, 2.0 * kept + (kept > 0))

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Make row t; row t of C^-1 Z, or of Z where draws are kept, is in slot t modulo bands - 1."""
        if not self.vectors:
            return
        slot = step % self.vectors
        scratch[...] = state
        scratch *= self._rows[step % len(self._rows)][self._age[slot]][:, None]
        if self.keeps_draws:
            state[slot] = x
            x[...] = state[slot]  # The draw is rounded for all its uses, which only scales a row of C.
        for part in scratch:
            x -= part
        if not self.keeps_draws:
            state[slot] = x

    def vector_step(self, step: int) -> VectorStep | None:
        """Return the step where rows are kept: this row takes the place of the oldest."""
        if self.keeps_draws:
            return None
        slot, ones = step % max(1, self.vectors), np.ones(self.vectors)
        loads = np.eye(1, self.vectors, slot)[0]
        reads = self._rows[step % len(self._rows)][self._age[slot]] if self.vectors else ones
        return VectorStep(ones, reads, ones - loads, loads)

    def deviation(self, unit: float, arithmetic: float = DOUBLE) -> Deviation:
        """Bound the deviation: a kept row is rounded once, then read by a product and a difference a diagonal."""
        return Deviation(entries=(unit if self.vectors else 0) + (self.vectors + 6) * arithmetic)


class BandedToeplitzRecurrence(BandedRecurrence):
    """The recurrence of few diagonals that are the same at every step (structure `banded_toeplitz`)."""

    tensor: ClassVar[str] = "coefficients"

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """Return the recurrence with one row for all steps."""
        return cls(parts["coefficients"][None], n)


class InverseBandedToeplitzRecurrence(BandedRecurrence):
    """The recurrence of an inverse with few diagonals (structure `inverse_banded_toeplitz`).

    It keeps the last bands - 1 draws: x_t = z_t + sum_d noising_d z_{t-d}
    """

    keeps_draws = True
    tensor: ClassVar[str] = "inverse_coefficients"

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """Return the recurrence of the stored column, which begins with 1, negated where kept draws are subtracted."""
        return cls(np.r_[1.0, -parts[cls.tensor][1:]][None], n)

    def deviation(self, unit: float, arithmetic: float = DOUBLE) -> Deviation:
        """Bound the deviation: a draw is rounded once for all its uses, then a product and a sum for each diagonal."""
        lost = (self.vectors + 4) * arithmetic * float(np.linalg.norm(self._rows)) * 1.001
        return Deviation(rows=unit + 4 * arithmetic, inverse=lost)
