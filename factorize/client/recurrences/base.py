"""C^-1 z one step at a time, for strategies with few numbers to remember: the coefficients and one step's arithmetic.

A recurrence turns z_t into row t of C^-1 Z in place and brings its state, a few vectors, to step t + 1:

    x_t = (z_t - what row t of C takes from earlier x) / C[t, t]

Coefficients and arithmetic are float64, whatever the state is: a float32 state is rounded once per step, when it is put
away. No inverse is ever formed. Only elementwise products and sums in a fixed order are used, no BLAS: the bits of an
entry then do not depend on the width of the array that it is computed in, so that shards agree with the whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np

from factorize.client.recurrences.state_rounding import DOUBLE, Spread

Tensors = Mapping[str, np.ndarray]


class NoiseCost(NamedTuple):
    """Of x_t = (C^-1 z)_t, beside drawing z_t.

    Attributes:
        vectors: numbers kept from step to step for each parameter; a structure without a recursion keeps all of z.
        flops: additions and multiplications for each parameter and step, on average over the steps.
        redraws: normals drawn once more for each parameter and step, on average over the steps.
    """

    vectors: int
    flops: float
    redraws: float = 0.0


class Recurrence(ABC):
    """The arithmetic of one step, for noise that comes in arrays of one entry per parameter.

    Attributes:
        steps: n.
        vectors: how many vectors of state, each as long as the noise.
        scratch: how many vectors of scratch space `advance` needs.
        redraws: how many draws of earlier steps a step takes once more, at most.
        keeps_draws: whether the state is made of draws, not of rows of C^-1 Z.
    """

    steps: int
    vectors: int
    scratch: int
    redraws: int = 0
    keeps_draws: bool = False

    @abstractmethod
    def gain(self, step: int) -> float:
        """Return 1 / C[step, step], by which the caller has multiplied the z_step that it hands to `advance`."""

    def earlier(self, step: int) -> list[tuple[int, float]]:
        """Return the earlier steps whose z this step takes once more, and what the caller multiplies each by."""
        return []

    @abstractmethod
    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Turn gain * z_step into row `step` of C^-1 Z, in place, and bring the state to the next step.

        Args:
            step: from 0, each one in turn.
            x: shape (width,), float64.
            state: shape (vectors, width), float32 or float64, zeros before step 0.
            scratch: shape (scratch, width), float64; the first vectors hold the draws that `earlier` asks for, in its
                order.
        """

    def unscaled(self, step: int) -> tuple[Recurrence, float]:
        """Return the recurrence under a scaling of the columns, and what multiplies its row at this step."""
        return self, 1.0

    @abstractmethod
    def spread(self, unit: float, arithmetic: float = DOUBLE) -> Spread:
        """Return how far roundings can take the C whose noise is made.

        Args:
            unit: largest relative error of putting a number into the state: 2^-24 for float32, `DOUBLE` for float64.
            arithmetic: largest relative error of one product, sum or coefficient.
        """


class StructureRecurrence(Recurrence):
    """A recurrence that the tensors of one structure describe."""

    @classmethod
    @abstractmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """Return it for a structure's tensors by suffix (factorize/structures/names.py) and n steps."""

    @staticmethod
    @abstractmethod
    def cost(parts: Tensors, n: int) -> NoiseCost:
        """Return what a step takes, told by the tensors, without making the recurrence."""


class BandedRecurrence(StructureRecurrence):
    """A strategy with few diagonals (structure `banded`): the last bands - 1 rows are kept.

    Args:
        rows: shape (n, bands), or (1, bands) where every row is the same: entries of row t leftwards from the diagonal.
        steps: n.
    """

    def __init__(self, rows: np.ndarray, steps: int) -> None:
        self.steps = steps
        self.vectors = self.scratch = rows.shape[1] - 1
        self._gain = 1.0 / rows[:, 0]
        self._rows = rows / rows[:, :1]
        slots = np.arange(self.vectors)
        self._age = (slots[:, None] - 1 - slots) % max(1, self.vectors) + 1  # steps since a slot was written

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """Turn bands[d, j] = C[j + d, j] into rows[i, d] = C[i, i - d]."""
        bands = parts["bands"]
        rows = np.zeros((n, len(bands)))
        for d, band in enumerate(bands):
            rows[d:, d] = band[: n - d]
        return cls(rows, n)

    @staticmethod
    def cost(parts: Tensors, n: int) -> NoiseCost:
        """A product and a difference for each kept row, and the gain."""
        return _few_diagonals(len(parts["bands"]))

    def gain(self, step: int) -> float:
        """1 / diagonal."""
        return float(self._gain[step % len(self._gain)])

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Row t of C^-1 Z is kept in slot t modulo bands - 1."""
        if not self.vectors:
            return
        slot = step % self.vectors
        scratch[...] = state
        scratch *= self._rows[step % len(self._rows)][self._age[slot]][:, None]
        for part in scratch:
            x -= part
        state[slot] = x

    def spread(self, unit: float, arithmetic: float = DOUBLE) -> Spread:
        """A row is read as it is kept, rounded once; then come a product and a difference for each diagonal."""
        return Spread(entries=(unit if self.vectors else 0) + (self.vectors + 6) * arithmetic)


class BandedToeplitzRecurrence(BandedRecurrence):
    """A strategy with few diagonals that is the same at every step (structure `banded_toeplitz`)."""

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """One row for all steps."""
        return cls(parts["coefficients"][None], n)

    @staticmethod
    def cost(parts: Tensors, n: int) -> NoiseCost:
        """As for any few diagonals."""
        return _few_diagonals(len(parts["coefficients"]))


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
        return _few_diagonals(len(parts["inverse_coefficients"]))

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

    def spread(self, unit: float, arithmetic: float = DOUBLE) -> Spread:
        """A draw is rounded once for all its uses; then come a product and a sum for each diagonal."""
        lost = (self.vectors + 4) * arithmetic * float(np.linalg.norm(self._noising)) * 1.001
        return Spread(rows=unit + 4 * arithmetic, inverse=lost)


class TreeRecurrence(StructureRecurrence):
    """Rows that are constant on the blocks of binary trees (structure `tree`): the sum of x over each block is kept.

    Step t is leaf p = t mod restart. Behind it lies one whole block of 2^j leaves for each bit j of p that is 1:

    x_t = (z_t - sum_j nodes[j + 1, t] s_j) / nodes[0, t];   then blocks merge as the carry of a binary counter does

    Args:
        nodes: shape (levels + 1, n).
        restart: leaves of each tree.
    """

    def __init__(self, nodes: np.ndarray, restart: int) -> None:
        self.steps, self.vectors, self.scratch = nodes.shape[1], len(nodes) - 1, 1
        self._gain = 1.0 / nodes[0]
        self._nodes = nodes[1:] / nodes[0]
        self._restart = restart

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """The stored nodes."""
        return cls(parts["tree.nodes"], int(parts["tree.restart"][0]))

    @staticmethod
    def cost(parts: Tensors, n: int) -> NoiseCost:
        """A product and a sum for each block behind the step, the gain, and the carries: about one sum a step."""
        nodes = parts["tree.nodes"]
        return NoiseCost(len(nodes) - 1, 2.0 * np.count_nonzero(nodes[1:]) / nodes.shape[1] + 2)

    def gain(self, step: int) -> float:
        """1 / diagonal."""
        return float(self._gain[step])

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Read the blocks behind this leaf, then close those that it completes."""
        leaf = step % self._restart
        for j in range(self.vectors):
            if leaf >> j & 1:
                np.multiply(state[j], self._nodes[j, step], out=scratch[0])
                x -= scratch[0]
        scratch[0] = x
        j = 0
        while leaf >> j & 1:
            scratch[0] += state[j]
            j += 1
        if j < self.vectors:
            state[j] = scratch[0]

    def spread(self, unit: float, arithmetic: float = DOUBLE) -> Spread:
        """A sum is rounded when its block is closed, at most once for each level; adding rounds beside."""
        return Spread(entries=1.001 * self.vectors * (unit + 4 * arithmetic) + 6 * arithmetic)


class ScaledRecurrence(Recurrence):
    """Another strategy with its columns scaled, C diag(column_scale) (structure `scaled`).

    Args:
        inner: recurrence of C.
        column_scale: shape (n,).
    """

    def __init__(self, inner: Recurrence, column_scale: np.ndarray) -> None:
        self.steps, self.vectors, self.scratch = inner.steps, inner.vectors, inner.scratch
        self._inner, self._columns = inner, column_scale

    def gain(self, step: int) -> float:
        """As the inner one."""
        return self._inner.gain(step)

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Divide by the column's scale once the inner state has seen x."""
        self._inner.advance(step, x, state, scratch)
        x *= self.unscaled(step)[1]

    def unscaled(self, step: int) -> tuple[Recurrence, float]:
        """The inner one, whose rows are divided by the columns' scales."""
        return self._inner, 1.0 / float(self._columns[step])

    def spread(self, unit: float, arithmetic: float = DOUBLE) -> Spread:
        """As the inner one, in the units of the scaled columns."""
        return self._inner.spread(unit, arithmetic).scaled(
            float(self._columns.min()), float(self._columns.max()), arithmetic
        )


def _few_diagonals(bands: int) -> NoiseCost:
    return NoiseCost(bands - 1, 2.0 * (bands - 1) + (bands > 1))
