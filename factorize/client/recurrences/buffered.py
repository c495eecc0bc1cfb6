"""C^-1 z from a few buffers: what their numbers are, and one step's arithmetic (base.py)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

import numpy as np

from factorize.client.recurrences.base import NoiseCost, StructureRecurrence, Tensors
from factorize.client.recurrences.state_rounding import DOUBLE, Deviation, observed_columns, varying_columns

_FINE = 1e-5  # a bound that needs no better one


class VaryingRecurrence(StructureRecurrence):
    """States whose numbers change with the step: moved, read and written in each.

    Args:
        diagonal: shape (n,).
        moves: shape (n, groups, states, states), block diagonal.
        inputs: shape (n, groups * states).
        outputs: shape (n, groups * states).
    """

    def __init__(self, diagonal: np.ndarray, moves: np.ndarray, inputs: np.ndarray, outputs: np.ndarray) -> None:
        self._gain = 1.0 / diagonal
        self._moves = moves[..., None]
        self._inputs = inputs[..., None]
        self._outputs = (outputs / diagonal[:, None])[..., None]
        self._raw_outputs = outputs
        self.steps, self.vectors = inputs.shape
        self.scratch = 2 * self.vectors

    def gain(self, step: int) -> float:
        """1 / diagonal."""
        return float(self._gain[step])

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Move, read, write."""
        moved, part = scratch[: self.vectors], scratch[self.vectors :]
        self._move(step, state, moved, part)
        _read_and_write(x, state, moved, self._outputs[step], self._inputs[step], part)

    @abstractmethod
    def _move(self, step: int, state: np.ndarray, moved: np.ndarray, part: np.ndarray) -> None:
        """Write the states of this step; `part` is scratch space of their shape."""

    def deviation(self, unit: float, arithmetic: float = DOUBLE) -> Deviation:
        """The state is rounded once per step."""
        moves = self._moves[..., 0]
        reads, writes = (part.reshape(moves.shape[:3]) for part in (self._raw_outputs, self._inputs))
        return _varying_deviation(moves, reads, writes, unit, arithmetic)


class BufferedRecurrence(VaryingRecurrence):
    """One decay per buffer, all numbers changing with the step (structure `buffered`).

    w = decay_t s;   x_t = (z_t - output_t . w) / diagonal_t;   s = w + input_t x_t        (docs/mechanisms.md)

    Args:
        diagonal: shape (n,).
        decay: shape (n, buffers).
        inputs: shape (n, buffers).
        outputs: shape (n, buffers).
    """

    def __init__(self, diagonal: np.ndarray, decay: np.ndarray, inputs: np.ndarray, outputs: np.ndarray) -> None:
        super().__init__(diagonal, decay[..., None, None], inputs, outputs)

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """The stored numbers."""
        return cls(parts["diagonal"], parts["decay"], parts["input"], parts["output"])

    @staticmethod
    def cost(parts: Tensors, n: int) -> NoiseCost:
        """Of x = (z - output . s) / diagonal, s = decay s + input x: 2 p + 1 and 3 p."""
        buffers = parts["decay"].shape[1]
        return NoiseCost(buffers, 5.0 * buffers + 1)

    def _move(self, step: int, state: np.ndarray, moved: np.ndarray, part: np.ndarray) -> None:
        """Decay."""
        moved[...] = state
        moved *= self._moves[step, :, 0, 0]


class StateSpaceRecurrence(VaryingRecurrence):
    """As `BufferedRecurrence` with small matrices in place of decays (structure `state_space`)."""

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """A transition without groups is one group."""
        transition = parts["transition"]
        blocks = transition[:, None] if transition.ndim == 3 else transition
        return cls(parts["diagonal"], blocks, parts["input"], parts["output"])

    @staticmethod
    def cost(parts: Tensors, n: int) -> NoiseCost:
        """As with buffers, each state being a combination of those in its block."""
        states = parts["input"].shape[1]
        return NoiseCost(states, 2.0 * states + 1 + 2.0 * states + (2.0 * parts["transition"].shape[-1] - 1) * states)

    def _move(self, step: int, state: np.ndarray, moved: np.ndarray, part: np.ndarray) -> None:
        """Move every group by its matrix."""
        matrix = self._moves[step]
        groups, states = matrix.shape[:2]
        before, after, term = (array.reshape(groups, states, state.shape[1]) for array in (state, moved, part))
        np.multiply(matrix[:, :, 0], before[:, :1], out=after)
        for j in range(1, states):
            np.multiply(matrix[:, :, j], before[:, j : j + 1], out=term)
            after += term


def _read_and_write(
    x: np.ndarray, state: np.ndarray, moved: np.ndarray, outputs: np.ndarray, inputs: np.ndarray, scratch: np.ndarray
) -> None:
    """Do x -= outputs . moved, then state = moved + inputs x."""
    np.multiply(moved, outputs, out=scratch)
    for part in scratch:
        x -= part
    np.multiply(x, inputs, out=scratch)
    moved += scratch
    state[...] = moved


def _varying_deviation(
    moves: np.ndarray, outputs: np.ndarray, inputs: np.ndarray, unit: float, arithmetic: float
) -> Deviation:
    """Bound buffers whose numbers change with the step: by absolute values and, where states cancel, by what is read.

    Args:
        moves: shape (n, groups, states, states).
        outputs: what a row reads of the moved state, shape (n, groups, states).
        inputs: shape (n, groups, states).
        unit: of the state.
        arithmetic: of one operation.
    """
    beside = (outputs.shape[1] * outputs.shape[2] + 2 * moves.shape[-1] + 8) * arithmetic
    sizes = np.einsum("tgi,tgij->tgj", np.abs(outputs), np.abs(moves))
    (columns,) = varying_columns(moves, sizes, [inputs], unit + beside)
    if not columns.max() <= _FINE:
        reads = np.einsum("tgi,tgij->tgj", outputs, moves)
        columns = np.minimum(columns, observed_columns(moves, reads, sizes, inputs, unit, beside))
    return Deviation(columns=float(columns.max()), entries=beside)
