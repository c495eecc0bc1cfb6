"""C^-1 z one step at a time from a few buffers: what their numbers are, and one step's arithmetic (base.py)."""

from __future__ import annotations

from typing import Self

import numpy as np

from factorize.client.recurrences.base import NoiseCost, StructureRecurrence, Tensors
from factorize.client.recurrences.state_rounding import (
    DOUBLE,
    Spread,
    geometric_column,
    observed_columns,
    varying_columns,
)

_FINE = 1e-5  # a bound that needs no better one


class BufferedRecurrence(StructureRecurrence):
    """One decay per buffer, all numbers changing with the step (structure `buffered`).

    w = decay_t s;   x_t = (z_t - output_t . w) / diagonal_t;   s = w + input_t x_t        (docs/streaming.md)

    Args:
        diagonal: shape (n,).
        decay: shape (n, buffers).
        inputs: shape (n, buffers).
        outputs: shape (n, buffers).
    """

    def __init__(self, diagonal: np.ndarray, decay: np.ndarray, inputs: np.ndarray, outputs: np.ndarray) -> None:
        self._gain = 1.0 / diagonal
        self._decay = decay[..., None]
        self._inputs = inputs[..., None]
        self._outputs = (outputs / diagonal[:, None])[..., None]
        self._raw_outputs = outputs
        self.steps, self.vectors = inputs.shape
        self.scratch = 2 * self.vectors

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """The stored numbers."""
        return cls(parts["diagonal"], parts["decay"], parts["input"], parts["output"])

    @staticmethod
    def cost(parts: Tensors, n: int) -> NoiseCost:
        """Of x = (z - output . s) / diagonal, s = decay s + input x: 2 p + 1 and 3 p."""
        buffers = parts["decay"].shape[1]
        return NoiseCost(buffers, 5.0 * buffers + 1)

    def gain(self, step: int) -> float:
        """1 / diagonal."""
        return float(self._gain[step])

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Decay, read, write."""
        decayed, part = scratch[: self.vectors], scratch[self.vectors :]
        decayed[...] = state
        decayed *= self._decay[step]
        _read_and_write(x, state, decayed, self._outputs[step], self._inputs[step], part)

    def spread(self, unit: float, arithmetic: float = DOUBLE) -> Spread:
        """The state is rounded once per step."""
        return _varying_spread(self._decay[..., None], self._raw_outputs[..., None], self._inputs, unit, arithmetic)


class StateSpaceRecurrence(StructureRecurrence):
    """As `Buffered` with small matrices in place of decays (structure `state_space`).

    Args:
        diagonal: shape (n,).
        transition: shape (n, groups, states, states), block diagonal.
        inputs: shape (n, groups * states).
        outputs: shape (n, groups * states).
    """

    def __init__(self, diagonal: np.ndarray, transition: np.ndarray, inputs: np.ndarray, outputs: np.ndarray) -> None:
        self._gain = 1.0 / diagonal
        self._transition = transition[..., None]
        self._inputs = inputs[..., None]
        self._outputs = (outputs / diagonal[:, None])[..., None]
        self._raw_outputs = outputs
        self.steps, self.vectors = inputs.shape
        self.scratch = 2 * self.vectors

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

    def gain(self, step: int) -> float:
        """1 / diagonal."""
        return float(self._gain[step])

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Move every group by its matrix, read, write."""
        matrix = self._transition[step]
        groups, states = matrix.shape[:2]
        before = state.reshape(groups, states, 1, len(x))
        after, part = scratch.reshape(2, groups, states, len(x))
        np.multiply(matrix[:, :, 0], before[:, 0], out=after)
        for j in range(1, states):
            np.multiply(matrix[:, :, j], before[:, j], out=part)
            after += part
        moved = scratch[: self.vectors]
        _read_and_write(x, state, moved, self._outputs[step], self._inputs[step], scratch[self.vectors :])

    def spread(self, unit: float, arithmetic: float = DOUBLE) -> Spread:
        """The state is rounded once per step."""
        moves = self._transition[..., 0]
        shape = moves.shape[:3]
        return _varying_spread(moves, self._raw_outputs.reshape(shape), self._inputs.reshape(shape), unit, arithmetic)


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
        self._theta, self._omega = theta[:, None], omega[:, None]

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """The stored parameters."""
        return cls(n, parts["theta"], parts["omega"])

    @staticmethod
    def cost(parts: Tensors, n: int) -> NoiseCost:
        """Of x = z - omega . s, s = theta s + x: 2 p and 2 p."""
        buffers = len(parts["theta"])
        return NoiseCost(buffers, 4.0 * buffers)

    def gain(self, step: int) -> float:
        """The diagonal of C is 1."""
        return 1.0

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

    def spread(self, unit: float, arithmetic: float = DOUBLE) -> Spread:
        """The state is rounded once per step."""
        each = unit + (self.vectors + 8) * arithmetic
        column = geometric_column(self._theta[:, 0], self._omega[:, 0], self.steps, each)
        return Spread(columns=column, entries=(self.vectors + 8) * arithmetic)


class RedrawnRecurrence(StructureRecurrence):
    """A few states and draws of earlier epochs that are made again (structure `redrawn`).

    x_t = sum_m direct_mt z_{t - m lag} + output_t . s;   s = decay_t s + sum_m input_mt z_{t - m lag}

    A draw is a function of the seed and its step, so z_{t - m lag} costs its drawing and no memory.

    Args:
        decay: shape (n, buffers).
        outputs: shape (n, buffers).
        inputs: shape (redraws + 1, n, buffers).
        direct: shape (redraws + 1, n).
        lag: steps between a draw and its next use.
    """

    keeps_draws = True

    def __init__(
        self,
        decay: np.ndarray,
        outputs: np.ndarray,
        inputs: np.ndarray,
        direct: np.ndarray,
        lag: int,
    ) -> None:
        self.steps, self.vectors = decay.shape
        self.redraws = len(direct) - 1
        self.scratch = self.redraws + 1 + 2 * self.vectors
        self._gain, self._lag = direct[0], lag
        self._decay, self._outputs = decay[..., None], outputs[..., None]
        self._own = (inputs[0] / direct[0][:, None])[..., None]  # what comes in is direct_0 z
        self._inputs, self._direct = inputs[1:][..., None], direct[1:]
        self._written = inputs
        self._used = (direct[1:] != 0) | (inputs[1:] != 0).any(axis=2)

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """The stored numbers."""
        lag = int(parts["lag"][0])
        return cls(parts["decay"], parts["output"], parts["input"], parts["direct"], lag)

    @staticmethod
    def cost(parts: Tensors, n: int) -> NoiseCost:
        """Of x = output . s + sum direct_m z_m, s = decay s + sum input_m z_m: 2 p, p, and 2 (p + 1) for each draw."""
        buffers, draws = parts["decay"].shape[1], np.count_nonzero(parts["direct"]) / n
        return NoiseCost(buffers, 3.0 * buffers + 2.0 * (buffers + 1) * draws - 1, draws - 1)

    def gain(self, step: int) -> float:
        """The diagonal of C^-1 is stored."""
        return float(self._gain[step])

    def _again(self, step: int) -> list[int]:
        return np.flatnonzero(self._used[:, step]).tolist()

    def earlier(self, step: int) -> list[tuple[int, float]]:
        """Those whose coefficients are not all zero."""
        return [(step - (m + 1) * self._lag, 1.0) for m in self._again(step)]

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Read, decay, write this draw and the earlier ones."""
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

    def spread(self, unit: float, arithmetic: float = DOUBLE) -> Spread:
        """The state is rounded once per step, and so are the rows of C^-1 that it makes; draws are not rounded."""
        beside = (self.vectors + 2 * self.redraws + 8) * arithmetic
        moves, reads = self._decay[..., None], self._outputs
        parts = varying_columns(moves, reads, [each[..., None] for each in self._written], unit + beside)
        column, direct = np.zeros(self.steps), np.zeros(self.steps)
        for m, part in enumerate(parts):
            at = min(m * self._lag, self.steps)
            column[: self.steps - at] += part[at:]
            direct[: self.steps - at] += np.abs(self._gain if m == 0 else self._direct[m - 1])[at:]
        return Spread(inverse=float((column + beside * direct).max()) * 1.001)


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


def _varying_spread(
    moves: np.ndarray, outputs: np.ndarray, inputs: np.ndarray, unit: float, arithmetic: float
) -> Spread:
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
    return Spread(columns=float(columns.max()), entries=beside)
