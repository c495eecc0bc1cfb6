"""Columns of a banded optimum at knots, and the others interpolated: what makes very many steps affordable.

Columns of the optimum vary smoothly in two ways. Near the first step they form combs, one for each step of an epoch of
`bands` steps, and each comb varies with the epoch; near the last step they depend on the steps that are left. Both
change on the scale of the distance from their end. So the knots are whole epochs: all of them near both ends, then as
many to each doubling of the distance, and column j is interpolated from the same step of the four epochs around it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.banded.gram_descent import GramPoint
from factorize.solvers.banded.knot_kernels import backward, factor, forward
from factorize.structures.banded import BandedMatrix
from factorize.workloads.state_space import StateSpace

Array = NDArray[np.float64]
Places = NDArray[np.int32]

_SPACING = 1 / 64  # of the distance from the nearer end
_MOST_PAIRS, _LEAST_PAIRS = 40, 10
_PAIR_NUMBERS = 2**25  # in all pairs, half of them steps
_STENCIL = 4


@dataclass(frozen=True)
class Knots:
    """Which columns are kept.

    Attributes:
        n: number of steps.
        bands: number of diagonals of C, and steps of an epoch.
        starts: first step of each epoch that is kept, increasing, from 0 to n - bands.
    """

    n: int
    bands: int
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, n: int, bands: int, spacing: float = _SPACING) -> Knots:
        """Choose them; n is at least eight epochs.

        Args:
            n: number of steps.
            bands: number of diagonals.
            spacing: between knots, relative to the distance from the nearer end.
        """
        distances, epoch, middle = [], 0, n // (2 * bands)
        while epoch < middle:
            distances.append(epoch)
            epoch += max(1, int(spacing * epoch))
        steps = bands * np.array(distances)
        return cls(n, bands, np.concatenate([steps, (n - bands - steps)[::-1]]))

    @cached_property
    def columns(self) -> NDArray[np.int64]:
        """The steps of all knots, shape (knots * bands,)."""
        return (self.starts[:, None] + np.arange(self.bands)).ravel()

    @cached_property
    def width(self) -> Array:
        """How many epochs each of these columns stands for."""
        return np.repeat(np.maximum(np.gradient(self.starts.astype(float)) / self.bands, 1.0), self.bands)

    @cached_property
    def gap(self) -> Array:
        """Epochs from each of these columns to the next knot, 1 from the last."""
        return np.repeat(np.append(np.diff(self.starts) / self.bands, 1.0), self.bands)

    @cached_property
    def places(self) -> tuple[Array, Places, Places, Places]:
        """Weights, unit, place and knot, as knot_kernels.py takes them."""
        n, b = self.n, self.bands
        j = np.arange(n)
        interval = np.searchsorted(self.starts, j, side="right") - 1
        epoch = (j - self.starts[interval]) // b
        phase = j - self.starts[interval] - epoch * b
        first = np.clip(interval - 1, 0, len(self.starts) - _STENCIL)
        fresh = np.flatnonzero(phase == 0)
        unit = (np.searchsorted(fresh, j, side="right") - 1).astype(np.int32)
        weights = _lagrange(
            self.starts[first[fresh][:, None] + np.arange(_STENCIL)].astype(float), j[fresh].astype(float)
        )
        knot = np.full(n, -1, dtype=np.int32)
        knot[self.columns] = np.arange(len(self.columns))
        return weights, unit, (first * b + phase).astype(np.int32), knot


def _lagrange(nodes: Array, at: Array) -> Array:
    """Weights of the cubic through four nodes, shape (len(at), 4); exactly 0 and 1 at a node."""
    weights = np.ones_like(nodes)
    for m in range(_STENCIL):
        for other in range(_STENCIL):
            if other != m:
                weights[:, m] *= (at - nodes[:, other]) / (nodes[:, m] - nodes[:, other])
    return weights


class KnotLandscape:
    """The loss as a function of the columns of X at the knots; like `gram_descent.Landscape` otherwise.

    Args:
        target: T as a recursion.
        knots: of all steps.
    """

    def __init__(self, target: StateSpace, knots: Knots) -> None:
        self.knots, self.n, self.bands = knots, knots.n, knots.bands
        self.evaluations = 0
        fitting = _PAIR_NUMBERS // (2 * len(knots.columns) * max(knots.bands - 1, 1))
        self.pairs = min(max(fitting, _LEAST_PAIRS), _MOST_PAIRS)
        self.dead = np.asarray((target.through == 0) & ~target.feed.any(axis=1))
        follow, feed, read, through = map(np.ascontiguousarray, target.parts())
        self._target = follow, feed, read, through
        self.spacing: tuple[Array, Array] | None = (knots.width, knots.gap)
        self._buffers: tuple[Array, Array, Array] | None = None

    def __call__(self, offsets: Array) -> GramPoint | None:
        """Return the loss and its gradient at columns of shape (bands - 1, knots * bands), or None as there."""
        self.evaluations += 1
        weights, unit, place, knot = self.knots.places
        rows, theta, theta_u = self._held()
        if not factor(np.ascontiguousarray(offsets.T), weights, unit, place, rows):
            return None
        backward(rows, *self._target, theta, theta_u)
        size = len(self.knots.columns)
        gradient, both = np.zeros((size, self.bands - 1)), np.zeros((2, size, self.bands + 1))
        loss = forward(rows, *self._target, theta, theta_u, weights, unit, place, knot, gradient, both[0], both[1])
        if not np.isfinite(loss):
            return None
        w, s = both[0].T.copy(), both[1].T.copy()
        return GramPoint(offsets, loss, gradient.T.copy(), offsets[:0], (w[0], w[1:], s[0], s[1:]))

    def strategy(self, point: GramPoint) -> BandedMatrix:
        """Return C, factored again; what an evaluation needs is given back until the next one."""
        weights, unit, place, _ = self.knots.places
        self._buffers = None
        rows = np.empty((self.n, self.bands + 1))
        factor(np.ascontiguousarray(point.offsets.T), weights, unit, place, rows)
        bands = np.zeros((self.bands, self.n))
        for d in range(self.bands):
            bands[d, : self.n - d] = rows[d:, d]
        del rows
        return BandedMatrix(bands)

    def _held(self) -> tuple[Array, Array, Array]:
        if self._buffers is None:
            n, width, states = self.n, self.bands + 1, self._target[1].shape[1]
            self._buffers = np.zeros((n, width)), np.zeros((n, width)), np.zeros((n, states))
        return self._buffers
