"""Binary-tree aggregation (structure `tree`), from the nodes alone: rows, columns, squared column norms.

The steps are the leaves of trees of `restart` leaves each. For each bit j of leaf p that is 1 there lies behind it,
within its tree, a whole block of 2^j leaves, and row i of C is nodes[j + 1, i] on it; nodes[0, i] is the diagonal. So
column s has entries in the rows of the right siblings of the blocks that s is in: where bit j of s is 0.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from factorize.checker.arithmetic.near import Near, share
from factorize.checker.losses.covariances import Factor, Statement, negative
from factorize.checker.structures import base
from factorize.checker.structures.base import StoredReading, solved
from factorize.errors import CorruptObject


class TreeNodes(NamedTuple):
    """nodes (levels + 1, n), and the leaves of each tree."""

    nodes: np.ndarray
    restart: int

    def whole(self) -> np.ndarray:
        """Return C, row block by row block."""
        array = np.diag(self.nodes[0])
        for i in range(len(array)):
            leaf, end = i % self.restart, i
            for j in range(len(self.nodes) - 1):
                if leaf >> j & 1:
                    array[i, end - (1 << j) : end] = self.nodes[j + 1, i]
                    end -= 1 << j
        return array

    def columns(self, indices: np.ndarray) -> np.ndarray:
        """Return some columns, shape (n, len(indices))."""
        n = self.nodes.shape[1]
        out = np.zeros((n, len(indices)))
        for place, s in enumerate(indices.tolist()):
            leaf, end = s % self.restart, min(s - s % self.restart + self.restart, n)
            out[s, place] = self.nodes[0, s]
            for j in range(len(self.nodes) - 1):
                if not leaf >> j & 1:
                    start = s - (leaf & ((1 << j) - 1)) + (1 << j)
                    rows = slice(start, min(start + (1 << j), end))
                    out[rows, place] = self.nodes[j + 1, rows]
        return out

    def column_norms(self) -> Near:
        """Return the squared norms of the columns: level by level, sums over the right siblings."""
        n = self.nodes.shape[1]
        steps = np.arange(n)
        leaves, found = steps % self.restart, self.nodes[0] ** 2
        for j in range(len(self.nodes) - 1):
            sides = (steps - leaves) * 2 + (leaves >> j)  # one number for each block of this level; siblings: ^ 1
            sums = np.bincount(sides, weights=np.where(leaves >> j & 1, self.nodes[j + 1], 0.0) ** 2)
            left = np.flatnonzero(leaves >> j & 1 == 0)
            inside = (sides[left] ^ 1) < len(sums)
            found[left[inside]] += sums[sides[left[inside]] ^ 1]
        return Near(found, share(roundings=n + len(self.nodes) + 4))

    @property
    def bandwidth(self) -> int:
        """The longest reach of a row."""
        leaves, reach = np.arange(self.nodes.shape[1]) % self.restart, 1
        for j, weights in enumerate(self.nodes[1:]):
            far = (leaves & ((1 << j) - 1)) + (1 << j) + 1
            reach = max(reach, int(far[weights != 0].max(initial=0)))
        return reach


def read(nodes: np.ndarray, restart: np.ndarray, n: int) -> TreeNodes:
    """Take the tensors of the structure.

    Raises:
        CorruptObject: they do not fit each other, or a node is not 0 where no block lies behind the step.
    """
    steps = int(restart[0]) if restart.shape == (1,) else 0
    if not 1 <= steps <= n or restart[0] != steps:
        raise CorruptObject(f"tree.restart of a matrix with n={n} cannot be {restart.ravel()[:1].tolist()}")
    if nodes.shape != ((steps - 1).bit_length() + 1, n):
        raise CorruptObject(f"tree.nodes of trees with {steps} leaves and n={n} cannot have shape {nodes.shape}")
    unused = (np.arange(n) % steps >> np.arange(len(nodes) - 1)[:, None]) & 1 == 0
    wrong = np.argwhere((nodes[1:] != 0) & unused)
    if len(wrong):
        j, i = wrong[0].tolist()
        raise CorruptObject(f"tree.nodes[{j + 1}, {i}] is not 0, and no block of that size lies behind the step")
    return TreeNodes(nodes, steps)


class TreeReading(StoredReading):
    """C by the nodes of its trees.

    Args:
        tree: the numbers.
    """

    parts = frozenset({"tree.nodes", "tree.restart"})

    def __init__(self, tree: TreeNodes) -> None:
        self.n, self._tree = tree.nodes.shape[1], tree

    @classmethod
    def read(cls, parts: dict[str, np.ndarray], n: int) -> Self:
        """Take the tensors; see `read`. An array stored beside them must be the same matrix."""
        found = cls(read(parts.pop("tree.nodes"), parts.pop("tree.restart"), n))
        stored = parts.pop("", None)
        if stored is not None and (found.array is None or not np.array_equal(stored, found.array)):
            raise CorruptObject("the stored C and tree.nodes are not the same matrix")
        return found

    @cached_property
    def array(self) -> np.ndarray | None:
        """All of C, up to the limit."""
        return self._tree.whole() if self.n <= base.LARGEST_WHOLE else None

    @property
    def diagonal(self) -> np.ndarray:
        """The diagonal."""
        return self._tree.nodes[0]

    @property
    def signed(self) -> bool:
        """Whether an entry is negative."""
        return bool((self._tree.nodes < 0).any())

    @property
    def bandwidth(self) -> int:
        """The longest reach of a row."""
        return self._tree.bandwidth

    def column_norms(self) -> Near:
        """Squared norms of the columns."""
        return self._tree.column_norms()

    def entries_of(self, indices: np.ndarray) -> np.ndarray:
        """Return some columns."""
        return self._tree.columns(indices)

    def inverse(self) -> list[Statement]:
        """Return x less the blocks behind it; then blocks of the trailing ones and x merge, as a counter's bits do.

        State j + 1 is the sum over the last block of level j. What merges into a level is of lower ones.
        """
        nodes, restart = self._tree
        following, levels = np.arange(self.n) % restart + 1, range(len(nodes) - 1)
        trailing = np.frexp(following & -following)[1] - 1
        merges = []
        for j in reversed(levels):
            merging, kept = _marks(trailing == j), _marks(trailing != j)
            merges.append(
                Statement(j + 1, {(j + 1, 0): kept, (0, 0): merging, **{(k + 1, 0): merging for k in range(j)}})
            )
        return [*solved({(j + 1, 0): negative(nodes[j + 1]) for j in levels}, nodes[0]), *merges]


def _marks(places: np.ndarray) -> Factor:
    """A factor of 1 at some steps and 0 at the others."""
    return lambda start, stop: places[start:stop].astype(np.float64)
