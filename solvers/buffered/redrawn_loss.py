"""The loss of a strategy that draws again what earlier epochs drew, as a function of all its numbers.

C^-1 is stored. With draws y and m = 0 .. q,

    x_i = h_i . s + sum_m c_{m,i} y_{i - m b},      s <- d_i s + sum_m g_{m,i} y_{i - m b}.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from factorize.solvers.buffered.phases import ClassGrams, Phases
from factorize.solvers.methods.compiled import Array

SCALE_MARGIN = 2.0**-30
"""What every class reveals is scaled below 1 by this, more than recursions and certificate round."""

_DECAY_UNIT = 3.0  # the unit of decays is this over the root of an epoch's steps: the longer, the stiffer


class RedrawnNumbers(NamedTuple):
    """The numbers of C^-1, or derivatives by them.

    Attributes:
        decay: d, shape (n, p).
        output: h, shape (n, p).
        input: g, shape (q + 1, n, p), zero where i < m b.
        direct: c, shape (q + 1, n), zero where i < m b; positive for m = 0.
    """

    decay: Array
    output: Array
    input: Array
    direct: Array


class BidiagonalDecoder(NamedTuple):
    """W A: u_i = follow_i u_{i-1} + feed_i x_i, output u_i.

    Attributes:
        follow: shape (n,).
        feed: shape (n,).
    """

    follow: Array
    feed: Array


class RedrawnLoss:
    """Relative distance of the loss to a lower bound, with its gradient by every number of C^-1.

    Every class is scaled so that sum |C^T C| over its steps is 1; the loss is that of the scaled strategy.

    Args:
        decoder: the weighted workload.
        epochs: k.
        buffers: p.
        redraws: q, below k.
        lower_bound: lower bound of the loss at sensitivity 1.
    """

    def __init__(self, decoder: BidiagonalDecoder, epochs: int, buffers: int, redraws: int, lower_bound: float) -> None:
        n = len(decoder.feed)
        self.kink = 0.0
        self._bound, self._n, self._k, self._p, self._q = lower_bound, n, epochs, buffers, redraws
        self._b = n // epochs
        self._unit = min(1.0, _DECAY_UNIT / math.sqrt(self._b))
        self._follow, self._feed = (self._by_phase(part) for part in decoder)
        later = (np.arange(n) >= self._b * np.arange(redraws + 1)[:, None]).astype(np.float64)
        everywhere = np.ones((n, buffers))
        both = np.broadcast_to(later[:, :, None], (redraws + 1, n, buffers))
        self._free = self._join(RedrawnNumbers(everywhere, everywhere, both, later)).astype(np.float64)
        again = np.eye(epochs, k=-1)
        self._again = np.asarray(np.kron(again, np.eye(buffers)), dtype=np.float64)
        self._again_summed = np.zeros((epochs * (buffers + 1),) * 2)
        self._again_summed[: epochs * buffers, : epochs * buffers] = self._again
        self._again_summed[epochs * buffers :, epochs * buffers :] = again

    def pack(self, numbers: RedrawnNumbers) -> Array:
        """Return the variables: decays in their unit, the logarithm of the diagonal, and the rest as it is."""
        direct = numbers.direct.copy()
        direct[0] = np.log(direct[0])
        return self._join(numbers._replace(decay=numbers.decay / self._unit, direct=direct)) * self._free

    def unpack(self, z: Array) -> RedrawnNumbers:
        """Return the numbers of the variables."""
        parts = self._parts(z * self._free)
        parts.decay[:] *= self._unit
        with np.errstate(over="ignore"):
            parts.direct[0] = np.exp(parts.direct[0])
        return parts

    def value(self, z: Array) -> float:
        """Return loss / lower bound - 1, infinite outside the domain."""
        try:
            with np.errstate(over="raise", invalid="raise", divide="raise"):
                return self._evaluate(self.unpack(z)).value
        except (FloatingPointError, np.linalg.LinAlgError):
            return math.inf

    def __call__(self, z: Array) -> tuple[float, Array]:
        """Return loss / lower bound - 1, infinite where numbers overflow, and its gradient."""
        try:
            with np.errstate(over="raise", invalid="raise", divide="raise"):
                at = self._evaluate(self.unpack(z))
                gradient = self._gradient(at)
        except (FloatingPointError, np.linalg.LinAlgError):
            return math.inf, np.zeros(z.size)
        return at.value, gradient

    def share(self, z: Array) -> float:
        """Return a step's mean part in what its class reveals, the measure of the kink."""
        kept, self.kink = self.kink, 0.0
        share = float((self._evaluate(self.unpack(z)).roots ** 2).mean()) / self._k
        self.kink = kept
        return share

    def scaled(self, z: Array) -> RedrawnNumbers:
        """Return the numbers with what every class reveals scaled to just below 1."""
        kept, self.kink = self.kink, 0.0
        numbers = self.unpack(z)
        roots = np.tile(self._evaluate(numbers).roots, self._k) * (1.0 + SCALE_MARGIN)
        self.kink = kept
        return numbers._replace(output=numbers.output * roots[:, None], direct=numbers.direct * roots)

    def _evaluate(self, numbers: RedrawnNumbers) -> _Evaluated:
        own = self._phases(numbers)
        inverse = np.asarray(np.linalg.inv(own.direct), dtype=np.float64)
        read = inverse @ own.read
        strategy = ClassGrams(Phases(own.follow - own.feed @ read, own.feed @ inverse, -read, inverse), self._again)
        sizes = np.sqrt(strategy.blocks**2 + self.kink**2)
        roots = np.asarray(np.sqrt(sizes.sum(axis=(1, 2))), dtype=np.float64)
        decoder = ClassGrams(self._summed(own, roots), self._again_summed)
        loss = float(np.einsum("tii->", decoder.blocks))
        return _Evaluated(numbers, own, inverse, strategy, sizes, roots, decoder, loss / self._bound - 1.0)

    def _summed(self, own: Phases, roots: Array) -> Phases:
        """Return W A diag(roots) C^-1: the states of C^-1 and one sum for each epoch."""
        b, k, s = own.read.shape
        sums, epochs = slice(s, s + k), np.arange(k)
        rates = self._feed * roots[:, None]
        follow, feed, read = np.zeros((b, s + k, s + k)), np.empty((b, s + k, k)), np.zeros((b, k, s + k))
        follow[:, :s, :s], feed[:, :s] = own.follow, own.feed
        read[:, :, :s], feed[:, sums] = rates[:, :, None] * own.read, rates[:, :, None] * own.direct
        read[:, epochs, s + epochs] = self._follow
        follow[:, sums] = read
        return Phases(follow, feed, read, feed[:, sums])

    def _gradient(self, at: _Evaluated) -> Array:
        own, s = at.own, at.own.follow.shape[1]
        bars = at.decoder.adjoint(np.broadcast_to(np.eye(self._k) / self._bound, at.decoder.blocks.shape))
        rates = (self._feed * at.roots[:, None])[:, :, None]
        read_bar = bars.follow[:, s:, :s] + bars.read[:, :, :s]
        direct_bar = bars.feed[:, s:] + bars.direct
        rates_bar = (read_bar * own.read).sum(axis=2) + (direct_bar * own.direct).sum(axis=2)
        sums_bar = (rates_bar * self._feed).sum(axis=1) / (2.0 * at.roots)
        summed = Phases(bars.follow[:, :s, :s], bars.feed[:, :s], rates * read_bar, rates * direct_bar)
        signs = at.strategy.blocks / np.maximum(at.sizes, np.finfo(float).tiny)
        strategy = self._inverted(own, at.inverse, at.strategy.adjoint(sums_bar[:, None, None] * signs))
        parts = self._numbers(Phases(*(a + b for a, b in zip(summed, strategy, strict=True))))
        parts.decay[:] *= self._unit
        parts.direct[0] *= at.numbers.direct[0]
        return self._join(parts) * self._free

    @staticmethod
    def _inverted(own: Phases, inverse: Array, bars: Phases) -> Phases:
        """Return derivatives by C^-1's phases, from those by the phases of C."""
        up, read = np.swapaxes(inverse, 1, 2), inverse @ own.read
        fed = np.swapaxes(own.feed, 1, 2)
        back = fed @ bars.follow
        inverse_bar = (fed @ bars.feed) - (back + bars.read) @ np.swapaxes(own.read, 1, 2) + bars.direct
        return Phases(
            bars.follow,
            bars.feed @ up - bars.follow @ np.swapaxes(read, 1, 2),
            -up @ (bars.read + back),
            -up @ inverse_bar @ up,
        )

    def _phases(self, numbers: RedrawnNumbers) -> Phases:
        k, p = self._k, self._p
        decay, output = self._by_phase(numbers.decay), self._by_phase(numbers.output)
        follow, feed = np.zeros((self._b, k * p, k * p)), np.zeros((self._b, k * p, k))
        read, direct = np.zeros((self._b, k, k * p)), np.zeros((self._b, k, k))
        states = np.arange(k * p)
        follow[:, states, states] = decay.reshape(self._b, -1)
        for e in range(k):
            read[:, e, e * p : (e + 1) * p] = output[:, e]
        for m in range(self._q + 1):
            entering, through = self._by_phase(numbers.input[m]), self._by_phase(numbers.direct[m])
            for e in range(m, k):
                feed[:, e * p : (e + 1) * p, e - m] = entering[:, e]
                direct[:, e, e - m] = through[:, e]
        return Phases(follow, feed, read, direct)

    def _numbers(self, phases: Phases) -> RedrawnNumbers:
        """Return the entries that stand for numbers of C^-1: the transpose of `_phases`."""
        b, k, p = self._b, self._k, self._p
        states, epochs = np.arange(k * p), range(k)
        decay = phases.follow[:, states, states].reshape(b, k, p)
        output = np.stack([phases.read[:, e, e * p : (e + 1) * p] for e in epochs], axis=1)
        entering, through = np.zeros((self._q + 1, b, k, p)), np.zeros((self._q + 1, b, k))
        for m in range(self._q + 1):
            for e in range(m, k):
                entering[m, :, e] = phases.feed[:, e * p : (e + 1) * p, e - m]
                through[m, :, e] = phases.direct[:, e, e - m]
        steps = [np.stack([self._by_step(part) for part in parts]) for parts in (entering, through)]
        return RedrawnNumbers(self._by_step(decay), self._by_step(output), *steps)

    def _by_phase(self, steps: Array) -> Array:
        """Return (b, k, ...) of (n, ...)."""
        return np.swapaxes(steps.reshape(self._k, self._b, *steps.shape[1:]), 0, 1)

    def _by_step(self, phases: Array) -> Array:
        return np.swapaxes(phases, 0, 1).reshape(self._n, *phases.shape[2:])

    def _join(self, parts: RedrawnNumbers) -> Array:
        return np.concatenate([part.ravel() for part in parts])

    def _parts(self, z: Array) -> RedrawnNumbers:
        n, p, m = self._n, self._p, self._q + 1
        decay, output, entering, through = np.split(z, np.cumsum([n * p, n * p, m * n * p]))
        return RedrawnNumbers(
            decay.reshape(n, p), output.reshape(n, p), entering.reshape(m, n, p), through.reshape(m, n)
        )


class _Evaluated(NamedTuple):
    numbers: RedrawnNumbers
    own: Phases
    inverse: Array
    strategy: ClassGrams
    sizes: Array
    roots: Array
    decoder: ClassGrams
    value: float
