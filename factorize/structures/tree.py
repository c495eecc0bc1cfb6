"""Binary-tree aggregation as a square matrix: the structure `tree`, log n numbers per step and log n state.

The n steps are the leaves of binary trees of `restart` leaves each (one tree where there is no restart). Each bit j of
leaf p that is 1 stands for one whole block of 2^j leaves before p in its tree. Row i of C is constant on each of these
blocks and zero before the tree:

    C[i, i] = nodes[0, i],    C[i, s] = nodes[j + 1, i] for s in the block of level j

so C^-1 z is generated with the sum of the past outputs over each block, at most log2(n) vectors.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from factorize.structures.base import StoredMatrix
from factorize.structures.recursion import Factor, MatrixRecursion, RecursiveMatrix, Statement, X


class TreeMatrix(StoredMatrix, RecursiveMatrix):
    """A lower-triangular matrix whose rows are constant on the blocks of a binary tree.

    Args:
        nodes: shape (levels + 1, n), 2^levels >= min(restart, n) > 2^(levels - 1); first row positive, exact zeros
            where bit j of (step mod restart) is 0.
        restart: steps of each tree, at least 1; n or more for a single tree.

    Raises:
        InvalidStrategy: the nodes are not of this form.
    """

    def __init__(self, nodes: np.ndarray, restart: int | np.ndarray) -> None:
        self.n = np.shape(nodes)[-1] if np.ndim(nodes) else 0
        parts = {"tree.nodes": nodes, "tree.restart": np.minimum(np.atleast_1d(restart), self.n)}
        self.nodes, leaves = self.keep("tree", parts, self.n)
        self.restart = int(leaves[0])

    def _leaves(self) -> np.ndarray:
        """Return each step's number within its tree, shape (n,)."""
        return np.arange(self.n) % self.restart

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Write each row block by block."""
        out = np.zeros((stop - start, self.n))
        for i in range(start, stop):
            p = i % self.restart
            for j in (j for j in range(len(self.nodes) - 1) if p >> j & 1):
                first = i - p + (p >> j + 1 << j + 1)
                out[i - start, first : first + (1 << j)] = self.nodes[j + 1, i]
            out[i - start, i] = self.nodes[0, i]
        return out

    @cached_property
    def recursion(self) -> MatrixRecursion:
        """The recursion of sums over each level's last block; blocks of trailing ones merge like a counter's carry.

        Levels move on from the top, so that blocks merge as they were at the step before.
        """
        levels, following = range(len(self.nodes) - 1), self._leaves() + 1
        trailing = (np.frexp(following & -following)[1] - 1).astype(np.int8)
        state = {j: len(levels) - j for j in levels}
        first: Statement = {(X, 0): self.nodes[0], **{(state[j], 1): self.nodes[j + 1] for j in levels}}
        moves: list[Statement] = []
        for j in reversed(levels):
            merging, kept = _where(trailing, j, 1.0), _where(trailing, j, 0.0)
            moves.append({(state[j], 1): kept, (X, 0): merging, **{(state[k], 1): merging for k in range(j)}})
        return MatrixRecursion(self.n, [first, *moves])

    def leading(self, steps: int) -> TreeMatrix:
        """Return the matrix of the first steps, with the levels that their leaves reach."""
        return TreeMatrix(self.nodes[: level_count(min(self.restart, steps)) + 1, :steps], self.restart)

    def column_norms_squared(self) -> np.ndarray:
        """Return the squares of the diagonal and, for each level, those of the right sibling's rows."""
        norms, leaves = self.nodes[0] ** 2, self._leaves()
        for j, weights in enumerate(self.nodes[1:]):
            pair = np.arange(self.n) // self.restart * (1 + (self.restart >> j + 1)) + (leaves >> j + 1)
            right = leaves >> j & 1 == 1
            totals = np.bincount(pair[right], weights=weights[right] ** 2, minlength=int(pair[-1]) + 1)
            norms[~right] += totals[pair[~right]]
        return norms

    def bandwidth(self) -> int:
        """Return the leaves of a tree, since its last row reads its first leaf."""
        return self.restart


def _where(values: np.ndarray, value: int, there: float) -> Factor:
    """Return a factor that is `there`, 0 or 1, where values equal `value`, and the other number elsewhere."""
    return lambda start, stop: np.where(values[start:stop] == value, there, 1.0 - there)


def level_count(restart: int) -> int:
    """Return the number of levels below the root of the smallest tree with `restart` leaves."""
    return (restart - 1).bit_length()
