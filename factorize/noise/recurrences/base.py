"""Recurrences of C^-1 z, one step at a time, for strategies with a small state: coefficients and arithmetic.

A recurrence turns z_t into row t of C^-1 Z in place and brings its state, a few vectors, to step t + 1:

    x_t = (z_t - row t of C times earlier x) / C[t, t]

Coefficients and arithmetic are float64, whatever the state is: a float32 state is rounded once per step, when it is
stored. No inverse is ever formed. The arithmetic uses elementwise products and sums in a fixed order, and no BLAS, so
that the bits of an entry do not depend on the width of its array, and shards agree with the whole.

Where the columns of a strategy are scaled (structure `scaled`), C^-1 z is that of the inner strategy, scaled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

import numpy as np

from factorize.noise.recurrences.state_rounding import DOUBLE, Deviation

Tensors = Mapping[str, np.ndarray]
RowMaker = Callable[[], Callable[[int], np.ndarray]]
"""A function that computes C^-1 once, and returns a function that gives its row t."""


class NoiseCost(NamedTuple):
    """The cost of x_t = (C^-1 z)_t, besides drawing z_t.

    Attributes:
        vectors: numbers kept from step to step for each parameter; a structure without a recursion keeps all of z.
        flops: additions and multiplications for each parameter and step, on average over the steps.
        redraws: normals drawn once more for each parameter and step, on average over the steps.
    """

    vectors: int
    flops: float
    redraws: float = 0.0


class VectorStep(NamedTuple):
    """A step that treats each vector of the state by itself, for compiled loops; shapes (vectors,), float64.

    x = gain z - sum_r (before_r s_r) reads_r;   s_r = decays_r s_r + loads_r x;   the row is scale x

    Attributes:
        before: factors of the vectors before they are read.
        reads: factors by which the row reads them.
        decays: factors of the vectors from step to step.
        loads: factors of x in the vectors; a vector of decay 1 and load 0 stays as it is.
        scale: factor of the row.
    """

    before: np.ndarray
    reads: np.ndarray
    decays: np.ndarray
    loads: np.ndarray
    scale: float = 1.0


class Recurrence(ABC):
    """The arithmetic of one step, for noise that comes in arrays of one entry per parameter.

    Attributes:
        steps: n.
        vectors: number of vectors of state, each as long as the noise.
        scratch: number of vectors of scratch space that `advance` needs.
        redraws: the most draws of earlier steps that a step uses again.
        keeps_draws: whether the state consists of draws, not of rows of C^-1 Z.
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
        """Return the earlier steps whose z this step uses again, each with the caller's factor of it."""
        return []

    @abstractmethod
    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Turn gain * z_step into row `step` of C^-1 Z, in place, and bring the state to the next step.

        Args:
            step: the step, from 0, in order.
            x: the row, shape (width,), float64.
            state: shape (vectors, width), float32 or float64, zeros before step 0.
            scratch: shape (scratch, width), float64; the first vectors hold the draws that `earlier` asks for, in its
                order.
        """

    def vector_step(self, step: int) -> VectorStep | None:
        """Return the numbers of a step with the roundings of `advance`, or None where it has another form."""
        return None

    def unscaled(self, step: int) -> tuple[Recurrence, float]:
        """Return the recurrence under a scaling of the columns, and the factor of its row at this step."""
        return self, 1.0

    @abstractmethod
    def deviation(self, unit: float, arithmetic: float = DOUBLE) -> Deviation:
        """Return a bound of the deviation that roundings can cause in the C whose noise is made.

        Args:
            unit: largest relative error of storing a number in the state: 2^-24 for float32, `DOUBLE` for float64.
            arithmetic: largest relative error of one product, sum or coefficient.
        """


class StructureRecurrence(Recurrence):
    """A recurrence that the tensors of one structure describe."""

    _gain: np.ndarray
    """The inverse of the diagonal of C, shape (n,), or (1,) where it is the same at every step."""

    def gain(self, step: int) -> float:
        """Return the inverse of the diagonal entry."""
        return float(self._gain[step % len(self._gain)])

    @classmethod
    @abstractmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """Return the recurrence for a structure's tensors by suffix (factorize/format/tensors.py) and n steps."""

    @classmethod
    @abstractmethod
    def cost(cls, parts: Tensors, n: int) -> NoiseCost:
        """Return the cost of a step from the tensors, without making the recurrence."""


class ScaledRecurrence(Recurrence):
    """The recurrence of a strategy with scaled columns, C diag(column_scale) (structure `scaled`).

    Args:
        inner: the recurrence of C.
        column_scale: the scales, shape (n,).
    """

    def __init__(self, inner: Recurrence, column_scale: np.ndarray) -> None:
        self.steps, self.vectors, self.scratch = inner.steps, inner.vectors, inner.scratch
        self._inner, self._columns = inner, column_scale

    def gain(self, step: int) -> float:
        """Return the gain of the inner recurrence."""
        return self._inner.gain(step)

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Divide by the column's scale once the inner state has seen x."""
        self._inner.advance(step, x, state, scratch)
        x *= self.unscaled(step)[1]

    def vector_step(self, step: int) -> VectorStep | None:
        """Return the step of the inner recurrence with this scale."""
        inner = self._inner.vector_step(step)
        return None if inner is None else inner._replace(scale=self.unscaled(step)[1])

    def unscaled(self, step: int) -> tuple[Recurrence, float]:
        """Return the inner recurrence, whose rows are divided by the columns' scales."""
        return self._inner, 1.0 / float(self._columns[step])

    def deviation(self, unit: float, arithmetic: float = DOUBLE) -> Deviation:
        """Return the inner deviation in the units of the scaled columns."""
        return self._inner.deviation(unit, arithmetic).scaled(
            float(self._columns.min()), float(self._columns.max()), arithmetic
        )
