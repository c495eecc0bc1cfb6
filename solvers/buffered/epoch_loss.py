"""The loss of a strategy with few states under fixed epochs, as a function of all its numbers."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.buffered import epoch_adjoints as adjoints
from factorize.solvers.buffered import epoch_kernels as kernels
from factorize.structures.buffered import BufferedMatrix

Array = NDArray[np.float64]

_MARGIN = 2.0**-30  # below a sensitivity of 1, by more than recursions and certificate round; the loss is the same
_UNIT = 3.0  # of transitions, times the root of an epoch's steps: the longer, the stiffer; up to four times fewer steps


class EpochRecurrence(NamedTuple):
    """A strategy with few states: Z_i = A_i S_{i-1}, S_i = Z_i + g_i e_i^T, C_i. = h_i . Z_i + d_i e_i^T.

    Attributes:
        transition: A, shape (n, m, m).
        inputs: g, shape (n, m).
        outputs: h, shape (n, m).
        diagonal: d, shape (n,), positive.
    """

    transition: Array
    inputs: Array
    outputs: Array
    diagonal: Array


class Decoder(NamedTuple):
    """W A as a recursion: u_i = follow_i u_{i-1} + feed_i x_i, output read_i . u_i.

    Attributes:
        follow: shape (n, q, q).
        feed: shape (n, q).
        read: shape (n, q).
    """

    follow: Array
    feed: Array
    read: Array


def bidiagonal_decoder(p: Array, q: Array) -> Decoder:
    """Return W A whose inverse has diagonal p and subdiagonal -q, both of shape (n,)."""
    return Decoder((q / p)[:, None, None], (1.0 / p)[:, None], np.ones((len(p), 1)))


class EpochLoss:
    """Relative distance of the loss to a lower bound, with its gradient by every number of the recurrence.

    Args:
        decoder: the weighted workload.
        epochs: k.
        states: how many.
        lower_bound: of the loss at sensitivity 1.
    """

    def __init__(self, decoder: Decoder, epochs: int, states: int, lower_bound: float) -> None:
        n, m = len(decoder.feed), states
        self.kink = 0.0
        self._n, self._m, self._epochs, self._bound = n, m, epochs, lower_bound
        self._unit = min(1.0, _UNIT / math.sqrt(n // epochs))
        self._decoder = decoder
        self._below, self._through, self._below_bar = np.empty((3, n, m, m))
        self._y, self._reach, self._onto, self._y_bar, self._reach_bar, self._onto_bar = np.empty((6, n, m))
        self._before, self._epochs_bar = np.empty((n, *(m + decoder.feed.shape[1],) * 2)), np.empty((epochs, m, m))
        self._entries, self._sums = np.zeros((n // epochs, epochs, epochs)), np.empty(n // epochs)

    def pack(self, recurrence: EpochRecurrence) -> Array:
        """Return the variables of a recurrence: its numbers, and the logarithm of its diagonal."""
        scaled = recurrence._replace(
            transition=recurrence.transition / self._unit, diagonal=np.log(recurrence.diagonal)
        )
        return np.concatenate([part.ravel() for part in scaled])

    def unpack(self, z: Array) -> EpochRecurrence:
        """Return the recurrence of the variables."""
        parts = self._parts(z)
        with np.errstate(over="ignore"):
            return parts._replace(transition=self._unit * parts.transition, diagonal=np.exp(parts.diagonal))

    def soften(self, z: Array, share: float) -> None:
        """Round the kink of absolute values off below this share of a step's part in its class."""
        self.kink = 0.0
        self.value(z)
        self.kink = share * float(self._sums.mean()) / self._epochs

    def value(self, z: Array) -> float:
        """Return loss / lower bound - 1."""
        return self._evaluate(self.unpack(z)) / self._bound - 1.0

    def __call__(self, z: Array) -> tuple[float, Array]:
        """Return loss / lower bound - 1, infinite where numbers overflow, and its gradient."""
        at, gradient = self.unpack(z), np.empty(z.size)
        loss = self._evaluate(at)
        if not np.isfinite(loss):
            return np.inf, np.zeros(z.size)
        bars = self._parts(gradient)
        roots, roots_bar = np.sqrt(self._sums), np.empty(self._n)
        adjoints.error_adjoint(
            *at, *self._decoder, np.tile(roots, self._epochs), self._before, *bars, roots_bar
        )  # fmt: skip
        sums_bar = 0.5 * roots_bar.reshape(self._epochs, -1).sum(axis=0) / roots
        adjoints.classes_adjoint(
            at.inputs, at.diagonal, self._epochs, self._below, self._through, self._reach, self._onto, self.kink,
            self._entries, sums_bar, self._below_bar, self._reach_bar, self._onto_bar, self._epochs_bar,
            bars.inputs, bars.diagonal,
        )  # fmt: skip
        adjoints.epochs_adjoint(
            at.transition, at.inputs, self._epochs, self._y, self._through, self._reach_bar, self._onto_bar,
            self._epochs_bar, bars.transition, bars.inputs, self._y_bar,
        )  # fmt: skip
        adjoints.gram_adjoint(*at, self._below, self._below_bar, self._y_bar, *bars)
        bars.transition[:] *= self._unit
        bars.diagonal[:] *= at.diagonal
        gradient /= self._bound
        return (loss / self._bound - 1.0, gradient) if np.isfinite(gradient).all() else (np.inf, np.zeros(z.size))

    def strategy(self, z: Array) -> BufferedMatrix:
        """Return C, every class scaled so that what it reveals is bounded by just below 1."""
        self.kink, kept = 0.0, self.kink
        at = self.unpack(z)
        self._evaluate(at)
        self.kink = kept
        scale = np.tile((1.0 - _MARGIN) / np.sqrt(self._sums), self._epochs)
        return BufferedMatrix(at.diagonal * scale, at.transition, at.inputs * scale[:, None], at.outputs)

    def _parts(self, z: Array) -> EpochRecurrence:
        n, m = self._n, self._m
        cuts = np.cumsum([n * m * m, n * m, n * m])
        transition, inputs, outputs, diagonal = np.split(z, cuts)
        return EpochRecurrence(transition.reshape(n, m, m), inputs.reshape(n, m), outputs.reshape(n, m), diagonal)

    def _evaluate(self, at: EpochRecurrence) -> float:
        kernels.gram(*at, self._epochs, self._below, self._y, self._through, self._reach, self._onto)
        kernels.classes(
            at.inputs, at.diagonal, self._epochs, self._below, self._through, self._reach, self._onto, self.kink,
            self._entries, self._sums,
        )  # fmt: skip
        roots = np.tile(np.sqrt(self._sums), self._epochs)
        return float(kernels.error(*at, *self._decoder, roots, self._before))
