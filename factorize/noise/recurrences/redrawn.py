"""Recurrences of C^-1 z with a few states and repeated draws of earlier epochs (structure `redrawn`; base.py)."""

from typing import Self

import numpy as np

from factorize.noise.recurrences.base import NoiseCost, StructureRecurrence, Tensors
from factorize.noise.recurrences.state_rounding import DOUBLE, Deviation, varying_columns


class RedrawnRecurrence(StructureRecurrence):
    """The recurrence of a few states and repeated draws of earlier epochs (structure `redrawn`).

    x_t = sum_m direct_mt z_{t - m lag} + output_t . s;   s = decay_t s + sum_m input_mt z_{t - m lag}

    A draw is a function of the seed and its step, so z_{t - m lag} costs time and no memory.

    Args:
        decay: shape (n, buffers).
        outputs: shape (n, buffers).
        inputs: shape (redraws + 1, n, buffers).
        direct: shape (redraws + 1, n).
        lag: steps between a draw and its next use.
    """

    keeps_draws = True

    def __init__(
        self, decay: np.ndarray, outputs: np.ndarray, inputs: np.ndarray, direct: np.ndarray, lag: int
    ) -> None:
        self.steps, self.vectors = decay.shape
        self.redraws = len(direct) - 1
        self.scratch = self.redraws + 1 + 2 * self.vectors
        self._gain, self._lag = direct[0], lag
        self._decay, self._outputs = decay[..., None], outputs[..., None]
        self._own = (inputs[0] / direct[0][:, None])[..., None]  # The input is direct_0 z.
        self._inputs, self._direct = inputs[1:][..., None], direct[1:]
        self._written = inputs
        self._used = (direct[1:] != 0) | (inputs[1:] != 0).any(axis=2)

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """Return the recurrence of the stored numbers."""
        lag = int(parts["lag"][0])
        return cls(parts["decay"], parts["output"], parts["input"], parts["direct"], lag)

    @classmethod
    def cost(cls, parts: Tensors, n: int) -> NoiseCost:
        """Return the cost: 2 p to read the states, p for their decay, and 2 (p + 1) for each draw."""
        buffers, draws = parts["decay"].shape[1], np.count_nonzero(parts["direct"]) / n
        return NoiseCost(buffers, 3.0 * buffers + 2.0 * (buffers + 1) * draws - 1, draws - 1)

    def _again(self, step: int) -> list[int]:
        return np.flatnonzero(self._used[:, step]).tolist()

    def earlier(self, step: int) -> list[tuple[int, float]]:
        """Return the steps whose coefficients are not all zero."""
        return [(step - (m + 1) * self._lag, 1.0) for m in self._again(step)]

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Read the states, let them decay, and write this draw and the earlier ones to them."""
        again, drawn, rest = self._again(step), scratch[self.redraws], scratch[self.redraws + 1 :]
        part, kept = rest[: self.vectors], rest[self.vectors :]
        drawn[...] = x
        kept[...] = state
        np.multiply(kept, self._outputs[step], out=part)
        for term in part:
            x += term
        kept *= self._decay[step]
        np.multiply(drawn, self._own[step], out=part)
        kept += part
        for z, m in zip(scratch, again, strict=False):
            np.multiply(z, self._inputs[m, step], out=part)
            kept += part
            np.multiply(z, self._direct[m, step], out=z)
            x += z
        state[...] = kept

    def deviation(self, unit: float, arithmetic: float = DOUBLE) -> Deviation:
        """Bound the deviation: states and rows of C^-1 are rounded once per step, and draws are not rounded."""
        beside = (self.vectors + 2 * self.redraws + 8) * arithmetic
        moves, reads = self._decay[..., None], self._outputs
        parts = varying_columns(moves, reads, [each[..., None] for each in self._written], unit + beside)
        column, direct = np.zeros(self.steps), np.zeros(self.steps)
        for m, part in enumerate(parts):
            at = min(m * self._lag, self.steps)
            column[: self.steps - at] += part[at:]
            direct[: self.steps - at] += np.abs(self._gain if m == 0 else self._direct[m - 1])[at:]
        return Deviation(inverse=float((column + beside * direct).max()) * 1.001)
