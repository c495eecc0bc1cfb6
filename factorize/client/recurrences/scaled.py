"""C^-1 z for a strategy whose columns are scaled: that of the inner one, scaled (structure `scaled`; base.py)."""

import numpy as np

from factorize.client.recurrences.base import Recurrence, VectorStep
from factorize.client.recurrences.state_rounding import DOUBLE, Deviation


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
