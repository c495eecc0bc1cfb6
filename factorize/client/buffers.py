"""C^-1 z one step at a time from a few buffers: what their numbers are, and one step's arithmetic (recurrences.py)."""

from __future__ import annotations

import numpy as np

from factorize.client.recurrences import Precision, Recurrence


class Buffered(Recurrence):
    """One decay per buffer, all numbers changing with the step (structure `buffered`).

    w = decay_t s;   x_t = (z_t - output_t . w) / diagonal_t;   s = w + input_t x_t        (docs/streaming.md)

    Args:
        diagonal: shape (n,).
        decay: shape (n, buffers).
        inputs: shape (n, buffers).
        outputs: shape (n, buffers).
        dtype: of the state.
    """

    def __init__(
        self, diagonal: np.ndarray, decay: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, dtype: Precision
    ) -> None:
        self._gain = 1.0 / diagonal
        self._decay = decay.astype(dtype)[..., None]
        self._inputs = inputs.astype(dtype)[..., None]
        self._outputs = (outputs / diagonal[:, None]).astype(dtype)[..., None]
        self.steps, self.vectors = inputs.shape
        self.scratch = self.vectors

    def gain(self, step: int) -> float:
        """1 / diagonal."""
        return float(self._gain[step])

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Decay, read, write."""
        np.multiply(state, self._decay[step], out=state)
        _read_and_write(x, state, self._outputs[step], self._inputs[step], scratch)


class StateSpace(Recurrence):
    """As `Buffered` with small matrices in place of decays (structure `state_space`).

    Args:
        diagonal: shape (n,).
        transition: shape (n, groups, states, states), block diagonal.
        inputs: shape (n, groups * states).
        outputs: shape (n, groups * states).
        dtype: of the state.
    """

    def __init__(
        self, diagonal: np.ndarray, transition: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, dtype: Precision
    ) -> None:
        self._gain = 1.0 / diagonal
        self._transition = transition.astype(dtype)[..., None]
        self._inputs = inputs.astype(dtype)[..., None]
        self._outputs = (outputs / diagonal[:, None]).astype(dtype)[..., None]
        self.steps, self.vectors = inputs.shape
        self.scratch = 2 * self.vectors

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
        state[...] = after.reshape(state.shape)
        _read_and_write(x, state, self._outputs[step], self._inputs[step], scratch[: self.vectors])


class Blt(Recurrence):
    """A Toeplitz strategy with a few poles (structure `blt`): 1, then sum_r omega_r theta_r^(t-1).

    x_t = z_t - omega . s;   s = theta s + x_t

    Args:
        steps: n.
        theta: shape (buffers,).
        omega: shape (buffers,).
        dtype: of the state.

    Reference:
        Dvijotham, McMahan, Pillutla, Steinke, Thakurta 2024, algorithm 1.
    """

    def __init__(self, steps: int, theta: np.ndarray, omega: np.ndarray, dtype: Precision) -> None:
        self.steps = steps
        self.vectors = self.scratch = len(theta)
        self._theta, self._omega = theta.astype(dtype)[:, None], omega.astype(dtype)[:, None]

    def gain(self, step: int) -> float:
        """The diagonal of C is 1."""
        return 1.0

    def advance(self, step: int, x: np.ndarray, state: np.ndarray, scratch: np.ndarray) -> None:
        """Read, decay, write."""
        np.multiply(state, self._omega, out=scratch)
        for part in scratch:
            x -= part
        np.multiply(state, self._theta, out=state)
        state += x


class Redrawn(Recurrence):
    """A few states and draws of earlier epochs that are made again (structure `redrawn`).

    x_t = sum_m direct_mt z_{t - m lag} + output_t . s;   s = decay_t s + sum_m input_mt z_{t - m lag}

    A draw is a function of the seed and its step, so z_{t - m lag} costs its drawing and no memory.

    Args:
        decay: shape (n, buffers).
        outputs: shape (n, buffers).
        inputs: shape (redraws + 1, n, buffers).
        direct: shape (redraws + 1, n).
        lag: steps between a draw and its next use.
        dtype: of the state.
    """

    def __init__(
        self,
        decay: np.ndarray,
        outputs: np.ndarray,
        inputs: np.ndarray,
        direct: np.ndarray,
        lag: int,
        dtype: Precision,
    ) -> None:
        self.steps, self.vectors = decay.shape
        self.redraws = len(direct) - 1
        self.scratch = self.redraws + 1 + self.vectors
        self._gain, self._lag = direct[0], lag
        self._decay, self._outputs = decay.astype(dtype)[..., None], outputs.astype(dtype)[..., None]
        self._own = (inputs[0] / direct[0][:, None]).astype(dtype)[..., None]  # what comes in is direct_0 z
        self._inputs, self._direct = inputs[1:].astype(dtype)[..., None], direct[1:].astype(dtype)
        self._used = (direct[1:] != 0) | (inputs[1:] != 0).any(axis=2)

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
        again, drawn, part = self._again(step), scratch[self.redraws], scratch[self.redraws + 1 :]
        drawn[...] = x
        np.multiply(state, self._outputs[step], out=part)
        for term in part:
            x += term
        np.multiply(state, self._decay[step], out=state)
        np.multiply(drawn, self._own[step], out=part)
        np.add(state, part, out=state)
        for z, m in zip(scratch, again, strict=False):
            np.multiply(z, self._inputs[m, step], out=part)
            np.add(state, part, out=state)
            np.multiply(z, self._direct[m, step], out=z)
            x += z


def _read_and_write(
    x: np.ndarray, state: np.ndarray, outputs: np.ndarray, inputs: np.ndarray, scratch: np.ndarray
) -> None:
    """Do x -= outputs . state, then state += inputs x."""
    np.multiply(state, outputs, out=scratch)
    for part in scratch:
        x -= part
    np.multiply(x, inputs, out=scratch)
    np.add(state, scratch, out=state)
