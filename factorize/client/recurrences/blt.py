"""C^-1 z for a buffered Toeplitz strategy: one vector a pole is kept (structure `blt`; base.py)."""

from typing import Self

import numpy as np

from factorize.client.recurrences.base import NoiseCost, StructureRecurrence, Tensors, VectorStep
from factorize.client.recurrences.state_rounding import DOUBLE, Deviation, geometric_column


class BltRecurrence(StructureRecurrence):
    """A Toeplitz strategy with a few poles (structure `blt`): 1, then sum_r omega_r theta_r^(t-1).

    x_t = z_t - omega . s;   s = theta s + x_t

    Args:
        steps: n.
        theta: shape (buffers,).
        omega: shape (buffers,).

    Reference:
        Dvijotham, McMahan, Pillutla, Steinke, Thakurta 2024, algorithm 1.
    """

    def __init__(self, steps: int, theta: np.ndarray, omega: np.ndarray) -> None:
        self.steps = steps
        self.vectors = len(theta)
        self.scratch = 2 * self.vectors
        self._theta, self._omega, self._gain = theta[:, None], omega[:, None], np.ones(1)

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """The stored parameters."""
        return cls(n, parts["theta"], parts["omega"])

    @classmethod
    def cost(cls, parts: Tensors, n: int) -> NoiseCost:
        """Of x = z - omega . s, s = theta s + x: 2 p and 2 p."""
        buffers = len(parts["theta"])
        return NoiseCost(buffers, 4.0 * buffers)

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Read, decay, write."""
        kept, taken = scratch[: self.vectors], scratch[self.vectors :]
        kept[...] = state
        np.multiply(kept, self._omega, out=taken)
        for part in taken:
            x -= part
        kept *= self._theta
        kept += x
        state[...] = kept

    def vector_step(self, step: int) -> VectorStep:
        """The same at every step."""
        ones = np.ones(self.vectors)
        return VectorStep(ones, self._omega[:, 0], self._theta[:, 0], ones)

    def deviation(self, unit: float, arithmetic: float = DOUBLE) -> Deviation:
        """The state is rounded once per step."""
        each = unit + (self.vectors + 8) * arithmetic
        column = geometric_column(self._theta[:, 0], self._omega[:, 0], self.steps, each)
        return Deviation(columns=column, entries=(self.vectors + 8) * arithmetic)
