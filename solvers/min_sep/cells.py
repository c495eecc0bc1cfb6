"""Cells of neighbouring steps under `min_sep`: few in the place of many steps, and the way back.

With n and `min_sep` divided by one number both optima hardly change but for their scale. A problem of cells has the
workload's sum over each cell, and as many participations. Cell t begins at step t b / b', rounded down, where b is the
`min_sep` of steps and b' that of cells: cells b' apart begin b steps apart and are as long. Any pattern of cells is
therefore one of steps if cells that are just b' apart give their steps at the same place.
"""

import numpy as np

from factorize.solvers.methods.compiled import Array
from factorize.solvers.min_sep.patterns import Places

_SHIFTS = 2  # steps of a pattern that are more than b' cells apart are shifted against each other in this many ways
_RIDGE = 1e-13


class Cells:
    """Cells of n steps.

    Args:
        n: steps.
        separation: `min_sep` of the steps.
        fewer: `min_sep` of the cells.

    Attributes:
        count: the number of cells; the last one may be cut.
    """

    def __init__(self, n: int, separation: int, fewer: int) -> None:
        self._n, self._separation, self._fewer = n, separation, fewer
        self.count = -(-n * fewer // separation)
        self._longest = -(-separation // fewer)

    def sums(self, target: Array) -> Array:
        """Return T with its columns added up over each cell, shape (m, cells)."""
        return np.add.reduceat(target, self._starts(np.arange(self.count)), axis=1)

    def patterns(self, cells: Places) -> Places:
        """Return patterns of steps from those of cells, shape (a multiple of patterns, most), filled up with n.

        Each pattern of cells gives its steps at every place of a cell, once for each of `_SHIFTS` shifts.
        """
        draws, starts = np.random.default_rng(0), self._starts(cells)
        lengths, tight = self._starts(cells + 1) - starts, np.diff(cells, axis=1) == self._fewer
        found = []
        for _ in range(_SHIFTS):
            moves = draws.integers(0, self._longest, cells.shape)
            moves[:, 1:][tight] = 0
            places = np.cumsum(moves, axis=1)
            found += [starts + (places + place) % lengths for place in range(self._longest)]
        return np.minimum(np.concatenate(found), self._n)

    def gram(self, target: Array, sums: Array, cells: Array) -> Array:
        """Return an X of the steps from one of the cells, by its dual for steps at one place of their cells.

        Args:
            target: T.
            sums: see `sums`, any square root of the same Gram matrix.
            cells: X of the cells.
        """
        steps = np.arange(self._n)
        own = ((steps + 1) * self._fewer - 1) // self._separation
        places = steps - self._starts(own)
        solved = np.linalg.solve(cells, sums.T)
        dual = (solved @ solved.T)[own[:, None], own] * (places[:, None] == places)
        squares, left = np.linalg.eigh(target @ dual @ target.T)
        rows = (target.T @ left) / np.maximum(squares, _RIDGE * squares[-1]) ** 0.25
        return np.asarray(rows @ rows.T)

    def _starts(self, cells: Places) -> Places:
        return cells * self._separation // self._fewer
