"""Recurrences of C^-1 z with a few buffers: their coefficients and one step's arithmetic (base.py).

A buffered Toeplitz strategy keeps one vector for each pole (structure `blt`).
"""

from typing import Self

import numpy as np

from factorize.noise.recurrences.base import NoiseCost, StructureRecurrence, Tensors, VectorStep
from factorize.noise.recurrences.state_rounding import (
    DOUBLE,
    Deviation,
    geometric_column,
    observe_columns,
    varying_columns,
)

_MAX_DEVIATION = 1e-5  # A bound up to that is good enough; above, a second one is computed.


class StateSpaceRecurrence(StructureRecurrence):
    """The recurrence of states with coefficients for each step: moved by small matrices, read, written (`state_space`).

    w = move_t s;   x_t = (z_t - output_t . w) / diagonal_t;   s = w + input_t x_t        (docs/mechanisms.md)

    Args:
        diagonal: shape (n,).
        moves: shape (n, groups, states, states), block diagonal.
        inputs: shape (n, groups * states).
        outputs: shape (n, groups * states).
    """

    def __init__(self, diagonal: np.ndarray, moves: np.ndarray, inputs: np.ndarray, outputs: np.ndarray) -> None:
        self._gain, self._moves, self._raw_outputs = 1.0 / diagonal, moves, outputs
        self._inputs, self._outputs = inputs[..., None], (outputs / diagonal[:, None])[..., None]
        self.steps, self.vectors = inputs.shape
        self.scratch = 2 * self.vectors

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """Return the recurrence, with a transition without groups as one group."""
        transition = parts["transition"]
        blocks = transition[:, None] if transition.ndim == 3 else transition
        return cls(parts["diagonal"], blocks, parts["input"], parts["output"])

    @classmethod
    def cost(cls, parts: Tensors, n: int) -> NoiseCost:
        """Return the cost of buffers, where each state is a combination of the states in its block."""
        states = parts["input"].shape[1]
        return NoiseCost(states, 2.0 * states + 1 + 2.0 * states + (2.0 * parts["transition"].shape[-1] - 1) * states)

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Move every group by its matrix, read it, and write to it."""
        moved, part, matrix = scratch[: self.vectors], scratch[self.vectors :], self._moves[step][..., None]
        groups, states = matrix.shape[:2]
        before, after, term = (array.reshape(groups, states, state.shape[1]) for array in (state, moved, part))
        np.multiply(matrix[:, :, 0], before[:, :1], out=after)
        for j in range(1, states):
            np.multiply(matrix[:, :, j], before[:, j : j + 1], out=term)
            after += term
        np.multiply(moved, self._outputs[step], out=part)
        for taken in part:
            x -= taken
        np.multiply(x, self._inputs[step], out=part)
        moved += part
        state[...] = moved

    def vector_step(self, step: int) -> VectorStep | None:
        """Return the step where each state is a group of its own."""
        if self._moves.shape[-1] > 1:
            return None
        decays = self._moves[step].reshape(-1)
        return VectorStep(decays, self._outputs[step, :, 0], decays, self._inputs[step, :, 0])

    def deviation(self, unit: float, arithmetic: float = DOUBLE) -> Deviation:
        """Bound the state's one rounding per step by absolute values, or where states cancel, by the columns read."""
        moves = self._moves
        outputs, inputs = (part.reshape(moves.shape[:3]) for part in (self._raw_outputs, self._inputs))
        beside = (self.vectors + 2 * moves.shape[-1] + 8) * arithmetic
        sizes = np.einsum("tgi,tgij->tgj", np.abs(outputs), np.abs(moves))
        (columns,) = varying_columns(moves, sizes, [inputs], unit + beside)
        if not columns.max() <= _MAX_DEVIATION:
            reads = np.einsum("tgi,tgij->tgj", outputs, moves)
            columns = np.minimum(columns, observe_columns(moves, reads, sizes, inputs, unit, beside))
        return Deviation(columns=float(columns.max()), entries=beside)


class BufferedRecurrence(StateSpaceRecurrence):
    """The recurrence with one decay per buffer in place of small matrices (structure `buffered`)."""

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """Return the recurrence of the stored numbers."""
        return cls(parts["diagonal"], parts["decay"][..., None, None], parts["input"], parts["output"])

    @classmethod
    def cost(cls, parts: Tensors, n: int) -> NoiseCost:
        """Return the cost of x = (z - output . s) / diagonal, s = decay s + input x: 2 p + 1 and 3 p."""
        buffers = parts["decay"].shape[1]
        return NoiseCost(buffers, 5.0 * buffers + 1)


class BltRecurrence(StructureRecurrence):
    """The recurrence of a Toeplitz strategy with a few poles (structure `blt`): 1, then sum_r omega_r theta_r^(t-1).

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
        """Return the recurrence of the stored parameters."""
        return cls(n, parts["theta"], parts["omega"])

    @classmethod
    def cost(cls, parts: Tensors, n: int) -> NoiseCost:
        """Return the cost of x = z - omega . s, s = theta s + x: 2 p and 2 p."""
        buffers = len(parts["theta"])
        return NoiseCost(buffers, 4.0 * buffers)

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Read the buffers, let them decay, and write to them."""
        kept, taken = scratch[: self.vectors], scratch[self.vectors :]
        kept[...] = state
        np.multiply(kept, self._omega, out=taken)
        for part in taken:
            x -= part
        kept *= self._theta
        kept += x
        state[...] = kept

    def vector_step(self, step: int) -> VectorStep:
        """Return the step, which is the same each time."""
        ones = np.ones(self.vectors)
        return VectorStep(ones, self._omega[:, 0], self._theta[:, 0], ones)

    def deviation(self, unit: float, arithmetic: float = DOUBLE) -> Deviation:
        """Bound the deviation of a state that is rounded once per step."""
        each = unit + (self.vectors + 8) * arithmetic
        column = geometric_column(self._theta[:, 0], self._omega[:, 0], self.steps, each)
        return Deviation(columns=column, entries=(self.vectors + 8) * arithmetic)
