"""C^-1 z one step at a time, for strategies with few numbers to remember: the coefficients and one step's arithmetic.

A recurrence turns z_t into row t of C^-1 Z in place and brings its state, a few vectors, to step t + 1:

    x_t = (z_t - what row t of C takes from earlier x) / C[t, t]

Coefficients and arithmetic are float64, whatever the state is: a float32 state is rounded once per step, when it is put
away. No inverse is ever formed. Only elementwise products and sums in a fixed order are used, no BLAS: the bits of an
entry then do not depend on the width of the array that it is computed in, so that shards agree with the whole.

Where the columns of a strategy are scaled (structure `scaled`), C^-1 z is that of the inner one, scaled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

import numpy as np

from factorize.client.recurrences.state_rounding import DOUBLE, Deviation

Tensors = Mapping[str, np.ndarray]
RowMaker = Callable[[], Callable[[int], np.ndarray]]
"""Computes C^-1 once, and returns what gives row t of it."""


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


class VectorStep(NamedTuple):
    """A step that treats each vector of the state by itself, for compiled loops; shapes (vectors,), float64.

    x = gain z - sum_r (before_r s_r) reads_r;   s_r = decays_r s_r + loads_r x;   the row is scale x

    Attributes:
        before: see above.
        reads: see above.
        decays: see above.
        loads: see above; a vector of decay 1 and load 0 stays as it is.
        scale: see above.
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

    def vector_step(self, step: int) -> VectorStep | None:
        """Return the numbers of a step whose roundings are those of `advance`; None where it has another form."""
        return None

    def unscaled(self, step: int) -> tuple[Recurrence, float]:
        """Return the recurrence under a scaling of the columns, and what multiplies its row at this step."""
        return self, 1.0

    @abstractmethod
    def deviation(self, unit: float, arithmetic: float = DOUBLE) -> Deviation:
        """Return how far roundings can take the C whose noise is made.

        Args:
            unit: largest relative error of putting a number into the state: 2^-24 for float32, `DOUBLE` for float64.
            arithmetic: largest relative error of one product, sum or coefficient.
        """


class StructureRecurrence(Recurrence):
    """A recurrence that the tensors of one structure describe."""

    _gain: np.ndarray
    """1 / diagonal of C, shape (n,), or (1,) where it is the same at every step."""

    def gain(self, step: int) -> float:
        """1 / diagonal."""
        return float(self._gain[step % len(self._gain)])

    @classmethod
    @abstractmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """Return it for a structure's tensors by suffix (factorize/format/tensors.py) and n steps."""

    @classmethod
    @abstractmethod
    def cost(cls, parts: Tensors, n: int) -> NoiseCost:
        """Return what a step takes, told by the tensors, without making the recurrence."""


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

    def vector_step(self, step: int) -> VectorStep | None:
        """That of the inner one."""
        inner = self._inner.vector_step(step)
        return None if inner is None else inner._replace(scale=self.unscaled(step)[1])

    def unscaled(self, step: int) -> tuple[Recurrence, float]:
        """The inner one, whose rows are divided by the columns' scales."""
        return self._inner, 1.0 / float(self._columns[step])

    def deviation(self, unit: float, arithmetic: float = DOUBLE) -> Deviation:
        """As the inner one, in the units of the scaled columns."""
        return self._inner.deviation(unit, arithmetic).scaled(
            float(self._columns.min()), float(self._columns.max()), arithmetic
        )
