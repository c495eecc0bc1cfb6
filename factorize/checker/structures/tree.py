"""Binary-tree aggregation (structure `tree`), from the nodes alone: rows, columns, squared column norms.

The steps are the leaves of trees of `restart` leaves each. Each bit j of leaf p that is 1 stands for a whole block of
2^j leaves before it in its tree, on which row i of C is nodes[j + 1, i]; nodes[0, i] is the diagonal. So column s has
entries in the rows of the right siblings of the blocks that contain s: where bit j of s is 0.
"""

from collections.abc import Mapping

import numpy as np

from factorize.checker.arithmetic.near import Near, share
from factorize.checker.structures.base import StoredReading, solved
from factorize.checker.structures.covariances import Factor, Recursion, Statement, negative


class TreeReading(StoredReading):
    """A reading of C by the nodes of its trees, shape (levels + 1, n), and the leaves of each tree."""

    def __init__(self, parts: Mapping[str, np.ndarray], n: int) -> None:
        nodes, restart = parts["tree.nodes"], int(parts["tree.restart"][0])
        self.n, self._nodes, self._restart, self.diagonal = n, nodes, restart, nodes[0]
        self.signed, self.bandwidth = bool((nodes < 0).any()), min(restart, n)  # The last row reads the first leaf.

    def entries_of(self, indices: np.ndarray) -> np.ndarray:
        """Return some columns."""
        out = np.zeros((self.n, len(indices)))
        for place, s in enumerate(indices.tolist()):
            leaf, end = s % self._restart, min(s - s % self._restart + self._restart, self.n)
            out[s, place] = self._nodes[0, s]
            for j in range(len(self._nodes) - 1):
                if not leaf >> j & 1:
                    start = s - (leaf & ((1 << j) - 1)) + (1 << j)
                    rows = slice(start, min(start + (1 << j), end))
                    out[rows, place] = self._nodes[j + 1, rows]
        return out

    def column_norms(self) -> Near:
        """Return the squared norms of the columns, level by level as sums over the right siblings."""
        steps = np.arange(self.n)
        leaves, norms = steps % self._restart, self._nodes[0] ** 2
        for j in range(len(self._nodes) - 1):
            sides = (steps - leaves) * 2 + (leaves >> j)  # Blocks of this level are numbered; ^ 1 is the sibling.
            sums = np.bincount(sides, weights=np.where(leaves >> j & 1, self._nodes[j + 1], 0.0) ** 2)
            left = np.flatnonzero(leaves >> j & 1 == 0)
            inside = (sides[left] ^ 1) < len(sums)
            norms[left[inside]] += sums[sides[left[inside]] ^ 1]
        return Near(norms, share(roundings=self.n + len(self._nodes) + 4))

    def inverse(self) -> Recursion:
        """Return x less the blocks before it; then x and the blocks of the trailing ones merge, as a counter's bits do.

        State j + 1 is the sum over the last block of level j. Only lower levels merge into a level.
        """
        nodes, restart = self._nodes, self._restart
        following, levels = np.arange(self.n) % restart + 1, range(len(nodes) - 1)
        trailing = np.frexp(following & -following)[1] - 1
        merges = []
        for j in reversed(levels):
            merging, kept = _marks(trailing == j), _marks(trailing != j)
            merges.append(
                Statement(j + 1, {(j + 1, 0): kept, (0, 0): merging, **{(k + 1, 0): merging for k in range(j)}})
            )
        return Recursion([*solved({(j + 1, 0): negative(nodes[j + 1]) for j in levels}, nodes[0]), *merges])


def _marks(places: np.ndarray) -> Factor:
    """Return a factor of 1 at some steps and 0 at the others."""
    return lambda start, stop: places[start:stop].astype(np.float64)
