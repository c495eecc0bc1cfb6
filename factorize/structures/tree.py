"""Binary-tree aggregation as a square matrix: the structure `tree`, log n numbers per step and log n state.

The n steps are the leaves of binary trees of `restart` leaves each (one tree where there is no restart). Leaf p of its
tree has behind it, within the tree, one whole block of 2^j leaves for each bit j of p that is 1. Row i of C is
constant on each of these blocks and zero before the tree:

    C[i, i] = nodes[0, i],    C[i, s] = nodes[j + 1, i] for s in the block of level j

so C^-1 z is generated with the sum of the past outputs over each block, at most log2(n) vectors, which merge as the
carry of a binary counter does.
"""

from __future__ import annotations

import numpy as np

from factorize.errors import InvalidStrategy
from factorize.format.names import LARGEST_WHOLE_TREE
from factorize.structures.base import StoredMatrix
from factorize.structures.forest import Forest
from factorize.workloads.state_space import StateSpace


class TreeMatrix(StoredMatrix):
    """A lower-triangular matrix whose rows are constant on the blocks of a binary tree.

    Args:
        nodes: see `Forest`.
        restart: see `Forest`.

    Raises:
        InvalidStrategy: they are not those of a forest.
    """

    structure = "tree"

    def __init__(self, nodes: np.ndarray, restart: int) -> None:
        self.forest = Forest(nodes, restart)
        self.nodes, self.restart, self.n = self.forest.nodes, self.forest.restart, self.forest.n

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

    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """One backward sweep per row; O(n log n)."""
        try:
            from factorize.structures.kernels.tree import solve_rows
        except ModuleNotFoundError:
            from factorize.structures.plain_rows import solve_tree as solve_rows  # type: ignore[assignment]

        out = np.empty(block.shape)
        solve_rows(self.nodes, self.restart, np.ascontiguousarray(block, dtype=np.float64), out)
        return out

    def left_multiply(self, block: np.ndarray) -> np.ndarray:
        """One backward sweep per row; O(n log n)."""
        from factorize.structures.kernels.tree import multiply_rows

        out = np.empty(block.shape)
        multiply_rows(self.nodes, self.restart, np.ascontiguousarray(block, dtype=np.float64), out)
        return out

    def decoder_errors(self, workload: StateSpace) -> np.ndarray:
        """Carry the covariance of the block sums and of the workload's states; O(n (log n + states)^2)."""
        from factorize.structures.kernels.tree import output_variances

        variances = np.empty(self.n)
        follow, feed, read, through = map(np.ascontiguousarray, workload.parts())
        output_variances(self.nodes, self.restart, follow, feed, read, through, variances)
        return variances

    def tensors(self) -> dict[str, np.ndarray]:
        """The nodes and the length of a tree; up to n = 1024 the whole matrix too."""
        parts = {"tree.nodes": self.nodes, "tree.restart": np.array([float(self.restart)])}
        return {"": self.rows(0, self.n), **parts} if self.n <= LARGEST_WHOLE_TREE else parts

    def column_norms_squared(self) -> np.ndarray:
        """Squares of the diagonal, and for each level those of the right sibling's rows."""
        norms = self.nodes[0] ** 2
        for j in range(len(self.nodes) - 1):
            left, totals = self.forest.siblings(j, self.nodes[j + 1] ** 2)
            norms[left] += totals
        return norms

    def bandwidth(self) -> int:
        """The longest reach of a row."""
        reach = np.ones(self.n, dtype=np.int64)
        for j, weights in enumerate(self.nodes[1:]):
            far = (self.forest.leaves() & ((2 << j) - 1)) + 1
            reach = np.where(weights != 0, np.maximum(reach, far), reach)
        return int(reach.max())


def read_tree(nodes: np.ndarray, restart: np.ndarray, whole: np.ndarray | None) -> TreeMatrix:
    """Return the matrix of a file's tensors.

    Args:
        nodes: `tree.nodes`.
        restart: `tree.restart`, shape (1,), an integer.
        whole: C as an array, if the file has it.

    Raises:
        InvalidStrategy: the tensors do not fit each other.
    """
    if restart.shape != (1,) or not 1 <= restart[0] <= 2**53 or restart[0] != int(restart[0]):
        raise InvalidStrategy("tree.restart must be one positive whole number")
    matrix = TreeMatrix(nodes, int(restart[0]))
    if (whole is None) != (matrix.n > LARGEST_WHOLE_TREE):
        raise InvalidStrategy(f"a tree matrix is stored whole too exactly where n <= {LARGEST_WHOLE_TREE}")
    if whole is not None and not np.array_equal(whole, matrix.rows(0, matrix.n)):
        raise InvalidStrategy("the whole matrix and tree.nodes are not the same matrix")
    return matrix
