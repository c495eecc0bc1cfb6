"""The ring of patterns: that of `blocks` where W has blocks of its own for parts of a class, and none for some steps.

Patterns of steps that are b apart need not be whole classes: where b does not divide n the first epoch lacks steps, and
where an example takes part less often than there are epochs each class falls into several patterns. L = (A^T A)^-1 is
that of all epochs, and L + t W stays definite where W has rows of zeros. Blocks of patterns are filled up to one size
with steps that nobody has: they are apart from the others, move nothing, and their X is next to nothing.
"""

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.epochs import class_blocks
from factorize.solvers.epochs.blocks import Ring
from factorize.solvers.methods.compiled import WIDTH, Array
from factorize.solvers.methods.poles import Poles, zolotarev

Places = NDArray[np.intp]

EMPTY_ENTRY = 1e-30
"""The entry of X of a step that nobody has."""

_SLACK = 1e-6  # room for the rounding of the spectrum's ends


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
        self._diagonal = class_blocks.diagonal_above(ring.p, ring.q)

    @property
    def size(self) -> int:
        """The number of steps of all epochs."""
        return self.ring.size

    def start(self) -> Array:
        """W with w_j the mean norm of the columns of A in pattern j, and R_j = I."""
        roots = self._of_steps(np.sqrt(class_blocks.column_norms(self.ring.p, self.ring.q)))
        weights = roots.sum(axis=1) / np.count_nonzero(roots, axis=1)
        return np.asarray((weights / weights.sum())[:, None, None] * np.eye(roots.shape[1]))

    def poles(self, dual: Array, error: float) -> Poles:
        """Poles for the spectrum of W^-1/2 L W^-1/2 within the patterns."""
        p, q = self.ring.p, self.ring.q
        lower = class_blocks.left_end(p, q, self._spread(dual), self._diagonal)
        upper = class_blocks.right_end(dual, self._of_steps(self._diagonal))
        return zolotarev(lower * (1 - _SLACK), upper * (1 + _SLACK), error=error, multiple=WIDTH)

    def gradient(self, dual: Array, poles: Poles) -> tuple[Array, Array]:
        """X and ``sum_p w_p t_p (L + t_p W)^-1`` within the patterns, both of shape (patterns, most, most)."""
        x, y = (self._gathered(blocks) for blocks in self.ring.gradient(self._spread(dual), poles))
        pattern, place = self._lacking
        x[pattern, place, place] = EMPTY_ENTRY
        return x, y

    def _of_steps(self, values: Array) -> Array:
        """Return values by pattern, zero where a step lacks."""
        return np.append(values, 0.0)[self.places]

    def _spread(self, dual: Array) -> Array:
        """Return the blocks of the classes, shape (b, k, k)."""
        b, k = self.ring.classes, self.ring.epochs
        flat = np.zeros(b * k * k + 1)
        flat[self._entries] = dual
        return flat[:-1].reshape(b, k, k)

    def _gathered(self, blocks: Array) -> Array:
        return np.append(blocks, 0.0)[self._entries]
