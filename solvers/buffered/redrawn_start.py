"""The start of the search for a strategy with redraws: the inverse of the optimum, fitted by decays.

A column j of C^-1 answers to draw j. Redraws let its states start afresh after each return of its class, so that what
has to be fitted by p decays is one epoch's stretch at a time: smooth, and without the edge that the optimum has where
a class returns. Each stretch is fitted where it counts, in W A C^-1, by least squares, and the error that it leaves in
the sums is taken back by the draw that returns.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.buffered.redrawn_loss import BidiagonalDecoder, RedrawnNumbers
from factorize.solvers.methods.bidiagonal_systems import solve
from factorize.solvers.methods.compiled import Array

_MIN_STRENGTH = 1e-6  # a fit leaves out directions that are weaker than this part of the strongest
_MAX_COMPARED_ROWS = 256  # a stretch of up to this many rows compares all; a longer one as many, spread like the decays
_SLOW_RATE, _FAST_RATE = 13.0, 0.75  # numerators of the rates of decay, fitted by hand to epochs of 32 to 128 steps


def usual_rates(buffers: int, length: int) -> tuple[float, float]:
    """Return the slowest and the fastest rate of decay that suit epochs of a length."""
    return _SLOW_RATE / (length * buffers**1.1), _FAST_RATE * buffers**0.55


def decays_between(slow: float, fast: float, buffers: int) -> Array:
    """Return decays, shape (buffers,), whose rates are spread evenly in their logarithm; one is in the middle."""
    rates = np.geomspace(slow, fast, buffers) if buffers > 1 else np.array([np.sqrt(slow * fast)])
    return np.asarray(np.exp(-rates))


def fitted(inverse: Array, decoder: BidiagonalDecoder, epochs: int, redraws: int, decay: Array) -> RedrawnNumbers:
    """Return numbers with these decays at every step, near a matrix C^-1.

    Args:
        inverse: C^-1, lower triangular, shape (n, n).
        decoder: the weighted workload, which says what an error costs.
        epochs: k; divides n.
        redraws: q < k.
        decay: shape (p,), within (0, 1).
    """
    n, p = len(inverse), len(decay)
    b = n // epochs
    entering, through = np.zeros((redraws + 1, n, p)), np.zeros((redraws + 1, n))
    through[0] = np.diagonal(inverse)
    fit = _Fit(decoder, decay)
    carried, left = np.zeros((n, p)), np.zeros(n)  # the states of each column, and the error of its sum
    for first in range(1, n + 1):
        step = first - 1  # its draw, and the draws of its class, are read; the stretch begins with the next row
        columns = np.arange(step, -1, -b)[: redraws + 1]
        again = columns[1:]
        orders = np.arange(1, len(columns))
        owed = decoder.follow[step] / decoder.feed[step] * left[again]
        through[orders, step] = inverse[step, again] - carried[again].sum(axis=1) - owed
        states = np.zeros((len(columns), p))
        states[1:] = decay * carried[again]
        left[columns] = 0.0
        if first < n:
            ends = len(columns) - 1 if len(columns) > redraws else len(columns)  # the last redraw's runs to the end
            for which, stop in ((slice(0, ends), min(step + b, n)), (slice(ends, None), n)):
                group = columns[which]
                if len(group) and stop > first:
                    entry, error = fit(inverse[first:stop, group], first)
                    entering[np.arange(len(columns))[which], step] = entry - states[which]
                    carried[group], left[group] = entry * decay ** (b - 1), error
    return RedrawnNumbers(np.tile(decay, (n, 1)), np.ones((n, p)), entering, through)


class _Fit:
    """Least squares by decays: states at the first row of a stretch, from its sums in W A C^-1."""

    def __init__(self, decoder: BidiagonalDecoder, decay: Array) -> None:
        self._decoder, self._p = decoder, len(decay)
        self._powers = decay ** np.arange(len(decoder.feed))[:, None]
        steady = np.ptp(decoder.feed) == 0.0 == np.ptp(decoder.follow[1:])
        self._known: dict[int, Array] | None = {} if steady else None  # then equal lengths share their inverse

    def __call__(self, stretch: Array, first: int) -> tuple[Array, Array]:
        """Return the states (columns, p), and the error of the sums after the last row."""
        length, p = len(stretch), self._p
        follow, feed = self._decoder.follow[first + 1 : first + length], self._decoder.feed[first : first + length]
        sums = solve(np.ones(length), follow, feed[:, None] * np.concatenate([self._powers[:length], stretch], axis=1))
        rows, weights = _compared(length)
        seen = weights[:, None] * sums[rows]
        states = self._inverse(length, seen[:, :p]) @ seen[:, p:]
        return states.T, sums[-1, :p] @ states - sums[-1, p:]

    def _inverse(self, length: int, design: Array) -> Array:
        if self._known is not None and length in self._known:
            return self._known[length]
        inverse = np.asarray(np.linalg.pinv(design, rcond=_MIN_STRENGTH), dtype=np.float64)
        if self._known is not None:
            self._known[length] = inverse
        return inverse


@lru_cache(maxsize=2**14)
def _compared(length: int) -> tuple[NDArray[np.int64], Array]:
    """Return the rows of a stretch that a fit compares, and the root of how many each stands for."""
    if length <= _MAX_COMPARED_ROWS:
        return np.arange(length), np.ones(length)
    rows = np.unique(np.geomspace(1, length, _MAX_COMPARED_ROWS).astype(np.int64)) - 1
    return rows, np.sqrt(np.diff(rows, prepend=-1).astype(np.float64))
