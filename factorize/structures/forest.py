"""Binary trees whose leaves are the steps, and a number for each step and each block that lies behind it."""

from __future__ import annotations

import numpy as np

from factorize.errors import InvalidStrategy


class Forest:
    """What a tree matrix (structures/tree.py) is made of: trees of `restart` leaves, the last one perhaps shorter.

    Args:
        nodes: shape (levels + 1, n), 2^levels >= min(restart, n) > 2^(levels - 1); first row positive, exact zeros
            where bit j of (step mod restart) is 0.
        restart: steps of each tree, at least 1; n or more for a single tree.

    Raises:
        InvalidStrategy: otherwise.
    """

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
        if array[1:][~self._in_use()].any():
            raise InvalidStrategy("nodes[j + 1, i] must be exactly 0 where bit j of i mod restart is 0")
        array.setflags(write=False)
        self.nodes = array

    def leaves(self) -> np.ndarray:
        """Return each step's number within its tree, shape (n,)."""
        return np.arange(self.n) % self.restart

    def _in_use(self) -> np.ndarray:
        """Return which levels have a block behind which step, shape (levels, n)."""
        return (self.leaves() >> np.arange(level_count(self.restart))[:, None]) & 1 == 1

    def siblings(self, level: int, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps that are in a left sibling at a level, and the sums of values over the right sibling."""
        leaves = self.leaves()
        pair = np.arange(self.n) // self.restart * (1 + (self.restart >> level + 1)) + (leaves >> level + 1)
        right = leaves >> level & 1 == 1
        totals = np.bincount(pair[right], weights=values[right], minlength=int(pair[-1]) + 1)
        left = np.flatnonzero(~right)
        return left, totals[pair[left]]


def level_count(restart: int) -> int:
    """Return the number of levels below the root of the smallest tree with that many leaves."""
    return (restart - 1).bit_length()
