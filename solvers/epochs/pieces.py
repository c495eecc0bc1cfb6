"""Pieces of epochs: the ring of `blocks` where W has blocks of its own for parts of a class, and none for some steps.

Patterns of steps that are b apart need not be whole classes: where b does not divide n the first epoch lacks steps, and
where an example takes part less often than there are epochs each class falls into several patterns. L = (A^T A)^-1 is
that of all epochs, and L + t W stays definite where W has rows of zeros. Blocks of patterns are filled up to one size
with steps that nobody has: they are apart from the others, move nothing, and their X is next to nothing.

The best weights of the classes hardly depend on how many epochs there are, but power steps find them the more slowly
the more there are: so they are first found for a few of the epochs.
"""

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.epochs import steps
from factorize.solvers.epochs.blocks import Progress, Ring, after_power_step, maximise
from factorize.solvers.methods.compiled import WIDTH, Array
from factorize.solvers.methods.poles import Poles, zolotarev

Places = NDArray[np.intp]

NOTHING = 1e-30
"""X of a step that nobody has."""

_SLACK = 1e-6  # for the rounding of the spectrum's ends
_FEW = 8  # steps of a pattern from which its weight is nearly right
_FEW_ACCURACY = 1e-3
_FEW_WORK = 1 << 20  # n x epochs^2 above which so manieth epochs are no few


class PieceRing:
    """A ring whose classes fall into patterns, as `factorize.solvers.epochs.blocks.maximise` wants it.

    Args:
        ring: all epochs.
        places: disjoint patterns of its steps, each within a class and in order, shape (patterns, most), filled up
            with -1.
    """

    least = 0.0

    def __init__(self, ring: Ring, places: Places) -> None:
        self.ring, self.places = ring, places
        b, k = ring.classes, ring.epochs
        here = places >= 0
        rows = np.where(here, places % b * k + places // b, 0)
        inner = rows[:, :, None] * k + np.where(here, places // b, 0)[:, None, :]
        self._entries = np.where(here[:, :, None] & here[:, None, :], inner, b * k * k)
        self._lacking = np.nonzero(~here)
        self._diagonal = steps.diagonal_above(ring.p, ring.q)

    @property
    def size(self) -> int:
        """The number of steps of all epochs."""
        return self.ring.size

    def start(self) -> Array:
        """W with w_j the mean norm of the columns of A in pattern j, and R_j = I."""
        roots = self._of_steps(np.sqrt(steps.column_norms(self.ring.p, self.ring.q)))
        weights = roots.sum(axis=1) / np.count_nonzero(roots, axis=1)
        return uncorrelated(weights, roots.shape[1])

    def poles(self, dual: Array, error: float) -> Poles:
        """Poles for the spectrum of W^-1/2 L W^-1/2 within the patterns."""
        p, q = self.ring.p, self.ring.q
        lower = steps.left_end(p, q, self._spread(dual), self._diagonal)
        upper = steps.right_end(dual, self._of_steps(self._diagonal))
        return zolotarev(lower * (1 - _SLACK), upper * (1 + _SLACK), error=error, multiple=WIDTH)

    def gradient(self, dual: Array, poles: Poles) -> tuple[Array, Array]:
        """X and ``sum_p w_p t_p (L + t_p W)^-1`` within the patterns, both of shape (patterns, most, most)."""
        x, y = (self._gathered(blocks) for blocks in self.ring.gradient(self._spread(dual), poles))
        pattern, place = self._lacking
        x[pattern, place, place] = NOTHING
        return x, y

    def _of_steps(self, values: Array) -> Array:
        """Values by pattern, zero where a step lacks."""
        return np.append(values, 0.0)[self.places]

    def _spread(self, dual: Array) -> Array:
        """The blocks of the classes, shape (b, k, k)."""
        b, k = self.ring.classes, self.ring.epochs
        flat = np.zeros(b * k * k + 1)
        flat[self._entries] = dual
        return flat[:-1].reshape(b, k, k)

    def _gathered(self, blocks: Array) -> Array:
        return np.append(blocks, 0.0)[self._entries]


def uncorrelated(weights: Array, most: int) -> Array:
    """Return W of weights, shape (patterns,), and R_j = I of side `most`."""
    return np.asarray((weights / weights.sum())[:, None, None] * np.eye(most))


def dual_of_pieces(pieces: PieceRing, accuracy: float, report: Progress) -> Array:
    """Return W with a bound within about `accuracy` of what such W can prove, shape (patterns, most, most).

    Args:
        pieces: the workload.
        accuracy: relative gap to the loss of a matrix for these patterns, to second order.
        report: called with (step, gap); what it raises ends the search.
    """
    start = start_of(pieces, report)
    point = maximise(pieces, tolerance=accuracy, report=report, start=start, coarse=True).best
    return after_power_step(point)


def start_of(pieces: PieceRing, report: Progress) -> Array:
    """Return W of the weights that are best for every so manieth epoch, shape (patterns, most, most).

    Epochs are counted from the first step that somebody has, whose class weighs most.

    Args:
        pieces: the workload.
        report: see `dual_of_pieces`.
    """
    ring, places = pieces.ring, pieces.places
    stride = -(-places.shape[1] // _FEW)
    b, first = ring.classes, int(places[places >= 0].min())
    whole = (ring.size - first) // b
    chosen = np.arange(stride // 2, whole, stride)
    if stride == 1 or b * chosen.size**3 > _FEW_WORK:
        return pieces.start()
    epochs = np.full(ring.epochs + 1, -1)
    epochs[chosen] = np.arange(chosen.size)
    later = np.where(places >= 0, places - first, ring.size)
    places_chosen = epochs[later // b]
    kept = np.where(places_chosen >= 0, places_chosen * b + later % b, -1)
    kept = np.take_along_axis(kept, np.argsort(kept < 0, axis=1, kind="stable"), axis=1)
    some = kept[:, 0] >= 0
    p, q = (part[first : first + whole * b].reshape(whole, b)[chosen].ravel() for part in (ring.p, ring.q))
    q[0] = 0.0
    few = PieceRing(Ring(p, q, chosen.size), kept[some, : (kept >= 0).sum(axis=1).max()])
    weights = np.empty(len(places))
    weights[some] = maximise(few, tolerance=_FEW_ACCURACY, report=report, coarse=True).best.dual[:, 0, 0]
    weights[~some] = weights[some].min()
    return uncorrelated(weights, places.shape[1])
