"""A strategy with few buffers: the structures `buffered` and `state_space`, O(n) in memory and per row."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from factorize.errors import InvalidStrategy
from factorize.structures.recursion import Factor, Recursion, Statement, X
from factorize.structures.recursive import RecursiveMatrix


class BufferedMatrix(RecursiveMatrix):
    """X[i, j] = output[i] . transition[i] ... transition[j+1] input[j] below a positive diagonal.

    Args:
        diagonal: shape (n,), positive.
        transition: shape (n, buffers) for one decay per buffer; (n, groups, s, s) for block-diagonal transitions; or
            (n, buffers, buffers). transition[0] is never used.
        inputs: shape (n, buffers).
        outputs: shape (n, buffers).

    Attributes:
        blocks: the transitions, shape (n, groups, s, s).

    Raises:
        InvalidStrategy: shapes do not fit, a number is not finite, or the diagonal is not positive.
    """

    def __init__(self, diagonal: np.ndarray, transition: np.ndarray, inputs: np.ndarray, outputs: np.ndarray) -> None:
        parts = [np.array(part, dtype=np.float64) for part in (diagonal, transition, inputs, outputs)]
        if not all(np.isfinite(part).all() for part in parts):
            raise InvalidStrategy("a buffered matrix holds NaN or infinity; every entry must be finite")
        for part in parts:
            part.setflags(write=False)
        self.diagonal, self.transition, self.inputs, self.outputs = parts
        self.n = len(self.diagonal)
        self.blocks = _as_blocks(self.transition, self.n, *self.inputs.shape[1:])
        groups, states = self.blocks.shape[1], self.blocks.shape[2]
        if self.inputs.shape != (self.n, groups * states) or self.outputs.shape != self.inputs.shape:
            shapes = [part.shape for part in parts]
            raise InvalidStrategy(f"shapes {shapes} of diagonal, transition, input and output do not fit each other")
        if self.diagonal.ndim != 1 or (self.diagonal <= 0).any():
            raise InvalidStrategy("the diagonal of a buffered matrix must be one positive number per step")

    @cached_property
    def recursion(self) -> Recursion:
        """Each group of states moves on by its block, and takes in the input after it was read."""
        blocks, (m, states) = self.blocks, (self.inputs.shape[1], self.blocks.shape[3])
        first: Statement = {(X, 0): self.diagonal}
        moves: list[Statement] = []
        for k in range(m):
            group, a = divmod(k, states)
            first[k + 1, 1] = _products(self.outputs[:, group * states : (group + 1) * states], blocks[:, group, :, a])
            before = {(group * states + b + 1, 1): blocks[:, group, a, b] for b in range(states)}
            moves.append({**before, (X, 0): self.inputs[:, k]})
        return Recursion(self.n, [first, *moves])

    @property
    def structure(self) -> str:  # type: ignore[override]  # one class, two names in the contract
        """`buffered` with one decay per buffer, else `state_space`."""
        return "buffered" if self.transition.ndim == 2 else "state_space"

    @property
    def multiplied_by_recurrence(self) -> bool:
        """Where buffers do not mix: full transitions take as many multiplications as an array."""
        return self.transition.ndim == 2

    @property
    def signed(self) -> bool:
        """Whether a stored number is negative."""
        return self._holds_negative()

    def bin_sums(self, bins: int) -> Iterator[np.ndarray]:
        """By the recurrence where nothing is subtracted."""
        return super().bin_sums(bins) if self.signed else self.recursion.bin_sums(bins)

    def tensors(self) -> dict[str, np.ndarray]:
        """Diagonal, decay or transition, input and output."""
        middle = "decay" if self.transition.ndim == 2 else "transition"
        return {"diagonal": self.diagonal, middle: self.transition, "input": self.inputs, "output": self.outputs}


def _products(left: np.ndarray, right: np.ndarray) -> Factor:
    """Return the products of rows, shape (n, states) each, added up, as a factor."""
    return lambda start, stop: np.einsum("ia,ia->i", left[start:stop], right[start:stop])


def _as_blocks(transition: np.ndarray, n: int, *buffers: int) -> np.ndarray:
    """Bring the three layouts of a transition to (n, groups, states, states)."""
    shape = transition.shape
    if n == 0 or len(buffers) != 1 or not buffers[0] or shape[0] != n:
        raise InvalidStrategy(f"a buffered matrix needs n >= 1 steps and at least one buffer; got shape {shape}")
    if len(shape) == 2:
        return transition.reshape(n, shape[1], 1, 1)
    if len(shape) == 3 and shape[1] == shape[2]:
        return transition.reshape(n, 1, shape[1], shape[2])
    if len(shape) == 4 and shape[2] == shape[3]:
        return transition
    raise InvalidStrategy(f"a transition has shape (n, m), (n, m, m) or (n, m/s, s, s); got {shape}")
