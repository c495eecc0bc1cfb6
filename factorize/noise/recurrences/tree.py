"""Recurrences of C^-1 z for binary trees, which keep one sum for each level (structure `tree`; base.py)."""

from typing import Self

import numpy as np

from factorize.noise.recurrences.base import NoiseCost, StructureRecurrence, Tensors
from factorize.noise.recurrences.state_rounding import DOUBLE, Deviation


class TreeRecurrence(StructureRecurrence):
    """The recurrence of rows constant on blocks of binary trees (structure `tree`), which keeps each block's sum.

    Step t is leaf p = t mod restart. Each bit j of p that is 1 stands for one whole block of 2^j leaves before it:

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
        """Return the recurrence of the stored nodes."""
        return cls(parts["tree.nodes"], int(parts["tree.restart"][0]))

    @classmethod
    def cost(cls, parts: Tensors, n: int) -> NoiseCost:
        """Return the cost: a product and a sum for each block before the step, the gain, and about one sum to merge."""
        nodes = parts["tree.nodes"]
        return NoiseCost(len(nodes) - 1, 2.0 * np.count_nonzero(nodes[1:]) / nodes.shape[1] + 2)

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Read the blocks before this leaf, then close those that it completes."""
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

    def deviation(self, unit: float, arithmetic: float = DOUBLE) -> Deviation:
        """Bound the deviation: a sum is rounded when its block closes, at most once a level, besides additions."""
        return Deviation(entries=1.001 * self.vectors * (unit + 4 * arithmetic) + 6 * arithmetic)
