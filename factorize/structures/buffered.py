"""A strategy with few buffers: the structures `buffered` and `state_space`, O(n) in memory and per row."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from factorize.structures.base import StoredMatrix
from factorize.structures.recursion import Factor, MatrixRecursion, RecursiveMatrix, Statement, X


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
        InvalidStrategy: the shapes do not fit, a number is not finite, or the diagonal is not positive.
    """

    def __init__(self, diagonal: np.ndarray, transition: np.ndarray, inputs: np.ndarray, outputs: np.ndarray) -> None:
        middle = "decay" if np.ndim(transition) == 2 else "transition"
        parts = {"diagonal": diagonal, middle: transition, "input": inputs, "output": outputs}
        structure = "buffered" if middle == "decay" else "state_space"
        self.diagonal, self.transition, self.inputs, self.outputs = self.keep(structure, parts, len(diagonal))
        self.n, blocks = len(self.diagonal), self.transition
        by_buffer, mixed = (self.n, blocks.shape[1], 1, 1), (self.n, 1, *blocks.shape[1:])
        self.blocks = blocks if blocks.ndim == 4 else blocks.reshape(by_buffer if blocks.ndim == 2 else mixed)

    @cached_property
    def recursion(self) -> MatrixRecursion:
        """The recursion that moves each group of states by its block, reads it, and adds the input to it."""
        blocks, (m, states) = self.blocks, (self.inputs.shape[1], self.blocks.shape[3])
        first: Statement = {(X, 0): self.diagonal}
        moves: list[Statement] = []
        for k in range(m):
            group, a = divmod(k, states)
            first[k + 1, 1] = _products(self.outputs[:, group * states : (group + 1) * states], blocks[:, group, :, a])
            before = {(group * states + b + 1, 1): blocks[:, group, a, b] for b in range(states)}
            moves.append({**before, (X, 0): self.inputs[:, k]})
        return MatrixRecursion(self.n, [first, *moves])

    signed = StoredMatrix.signed

    def leading(self, steps: int) -> BufferedMatrix:
        """Return the matrix with the first steps of each tensor."""
        parts = (self.diagonal, self.transition, self.inputs, self.outputs)
        return BufferedMatrix(*(part[:steps] for part in parts))


def _products(left: np.ndarray, right: np.ndarray) -> Factor:
    """Return as a factor the dot products of rows, each array of shape (n, states)."""
    return lambda start, stop: np.einsum("ia,ia->i", left[start:stop], right[start:stop])
