"""Binary-tree aggregation as a square matrix: the structure `tree`, log n numbers per step and log n state.

The n steps are the leaves of binary trees of `restart` leaves each (one tree where there is no restart). Leaf p of its
tree has behind it, within the tree, one whole block of 2^j leaves for each bit j of p that is 1. Row i of C is
constant on each of these blocks and zero before the tree:

    C[i, i] = nodes[0, i],    C[i, s] = nodes[j + 1, i] for s in the block of level j

so C^-1 z is generated with the sum of the past outputs over each block, at most log2(n) vectors, which merge as the
carry of a binary counter does.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from factorize.errors import InvalidStrategy
from factorize.structures.matrix import Bound, Matrix
from factorize.workloads.state_space import StateSpace

LARGEST_WHOLE = 1024
"""Up to this n a file holds C as an array too, for readers that have only a safetensors library."""


class TreeMatrix(Matrix):
    """A lower-triangular matrix whose rows are constant on the blocks of a binary tree.

    Args:
        nodes: shape (levels + 1, n), 2^levels >= min(restart, n) > 2^(levels - 1); first row positive, exact zeros
            where bit j of (step mod restart) is 0.
        restart: steps of each tree, at least 1; n or more for a single tree.

    Raises:
        InvalidStrategy: otherwise.
    """

    structure = "tree"

    def __init__(self, nodes: np.ndarray, restart: int) -> None:
        array = np.array(nodes, dtype=np.float64, order="C")
        if array.ndim != 2 or not array.shape[1] or restart < 1:
            raise InvalidStrategy(f"nodes has shape (levels + 1, n), restart >= 1; got {array.shape} and {restart}")
        self.n = array.shape[1]
        self.restart = min(restart, self.n)
        wanted = level_count(self.restart) + 1
        if len(array) != wanted:
            raise InvalidStrategy(f"trees of {self.restart} steps need {wanted} rows of nodes; got {len(array)}")
        if not np.isfinite(array).all() or (array[0] <= 0).any():
            raise InvalidStrategy("a tree matrix must be finite with a positive diagonal, its first row of nodes")
        if array[1:][~self.in_use()].any():
            raise InvalidStrategy("nodes[j + 1, i] must be exactly 0 where bit j of i mod restart is 0")
        array.setflags(write=False)
        self.nodes = array

    def leaves(self) -> np.ndarray:
        """Return each step's number within its tree, shape (n,)."""
        return np.arange(self.n) % self.restart

    def in_use(self) -> np.ndarray:
        """Return which levels have a block behind which step, shape (levels, n)."""
        return (self.leaves() >> np.arange(level_count(self.restart))[:, None]) & 1 == 1

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
        from factorize.structures.tree_recurrences import solve_rows

        out = np.empty(block.shape)
        solve_rows(self.nodes, self.restart, np.ascontiguousarray(block, dtype=np.float64), out)
        return out

    def left_multiply(self, block: np.ndarray) -> np.ndarray:
        """One backward sweep per row; O(n log n)."""
        from factorize.structures.tree_recurrences import multiply_rows

        out = np.empty(block.shape)
        multiply_rows(self.nodes, self.restart, np.ascontiguousarray(block, dtype=np.float64), out)
        return out

    def decoder_errors(self, workload: StateSpace) -> np.ndarray:
        """Carry the covariance of the block sums and of the workload's states; O(n (log n + states)^2)."""
        from factorize.structures.tree_recurrences import output_variances

        variances = np.empty(self.n)
        follow, feed, read, through = map(np.ascontiguousarray, workload.parts())
        output_variances(self.nodes, self.restart, follow, feed, read, through, variances)
        return variances

    def tensors(self) -> dict[str, np.ndarray]:
        """The nodes and the length of a tree; up to n = 1024 the whole matrix too."""
        parts = {"tree.nodes": self.nodes, "tree.restart": np.array([float(self.restart)])}
        return {"": self.rows(0, self.n), **parts} if self.n <= LARGEST_WHOLE else parts

    def column_norms_squared(self) -> np.ndarray:
        """Squares of the diagonal, and for each level those of the right sibling's rows."""
        norms = self.nodes[0] ** 2
        for j in range(len(self.nodes) - 1):
            left, totals = self.siblings(j, self.nodes[j + 1] ** 2)
            norms[left] += totals
        return norms

    def siblings(self, level: int, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps that are in a left sibling at a level, and the sums of values over the right sibling."""
        leaves = self.leaves()
        pair = np.arange(self.n) // self.restart * (1 + (self.restart >> level + 1)) + (leaves >> level + 1)
        right = leaves >> level & 1 == 1
        totals = np.bincount(pair[right], weights=values[right], minlength=int(pair[-1]) + 1)
        left = np.flatnonzero(~right)
        return left, totals[pair[left]]

    def bandwidth(self) -> int:
        """The longest reach of a row."""
        reach = np.ones(self.n, dtype=np.int64)
        for j, weights in enumerate(self.nodes[1:]):
            far = (self.leaves() & ((2 << j) - 1)) + 1
            reach = np.where(weights != 0, np.maximum(reach, far), reach)
        return int(reach.max())

    @cached_property
    def non_negative(self) -> bool:
        """Whether no entry is negative, so that worst-case contributions all point the same way."""
        return not (self.nodes < 0).any()

    def fixed_order_bound(self, epochs: int) -> Bound | None:
        """Sums over the patterns {c, c + b, ...}; exact, O(n log n log b)."""
        from factorize.structures.tree_participation import fixed_order_bound

        return fixed_order_bound(self, epochs) if self.non_negative else None

    def separated_bound(self, min_sep: int, most: int) -> Bound | None:
        """Dynamic programme over the tree; exact where the Gram matrix is a sum over tree nodes."""
        from factorize.structures.tree_participation import separated_bound

        return separated_bound(self, min_sep, most) if self.non_negative else None


def level_count(restart: int) -> int:
    """Return the number of levels below the root of the smallest tree with that many leaves."""
    return (restart - 1).bit_length()


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
    if (whole is None) != (matrix.n > LARGEST_WHOLE):
        raise InvalidStrategy(f"a tree matrix is stored whole too exactly where n <= {LARGEST_WHOLE}")
    if whole is not None and not np.array_equal(whole, matrix.rows(0, matrix.n)):
        raise InvalidStrategy("the whole matrix and tree.nodes are not the same matrix")
    return matrix
