"""Fixed epochs for workloads with a bidiagonal inverse: the optimum in O(n k^2) per pole.

The dual is that of `decompositions`: maximise N^2 over W = (+)_j w_j R_j with sum_j w_j = 1 and correlation matrices
R_j, where N = ||A W^1/2||_* = sum_j tr(W_j X_j) and, with L = (A^T A)^-1 = G G^T, G bidiagonal,

    X = W^-1/2 (W^-1/2 L W^-1/2)^-1/2 W^-1/2 ~ sum_p w_p (L + t_p W)^-1        (Zolotarev's poles)

Only the blocks X_j within the classes are needed.  In the order of the classes L + t W is a ring: k x k blocks coupled
to their neighbours by diagonal matrices, the last class to the first one an epoch later.  Folded (class m beside class
b - 1 - m) it is block tridiagonal with 2k x 2k blocks, and elimination from both ends gives the diagonal blocks of its
inverse.  An odd b gets one more class that splits the edges between epochs in two: an edge of conductance 1 is two
edges of conductance 2 in a row.

The ascent is the power step with Anderson's extrapolation, on poles that are only as good as the root of the
tolerance: the gap is quadratic in the error of W, and so is the loss in that of X once X is made feasible.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, Protocol

import numpy as np

from factorize.factors.solution import Outcome
from factorize.solvers.epochs import class_blocks
from factorize.solvers.epochs.block_kernels import eliminate, invert, tiles
from factorize.solvers.epochs.correlation_blocks import pack
from factorize.solvers.methods.anderson import Anderson
from factorize.solvers.methods.compiled import WIDTH, Array
from factorize.solvers.methods.compiled import run as run_threads
from factorize.solvers.methods.poles import Poles, zolotarev
from factorize.solvers.methods.search import End, run

Progress = Callable[[int, float], None]

_ULP = 2.0**-52
_MAX_STEPS = 400
_STALL_STEPS = 25
_FAR_GAP, _FAR_FACTOR = 1e-9, 4
"""Rounding does not explain a gap above this: the search then waits this many times as long."""
_RIDGE_SHARES = (0.0, 1e-9, 1e-6, 1e-3)  # shares of the identity, added to correlations that are singular in doubles
_POLE_ERROR = 0.01  # relative error of the poles over the root of the gap, until the tolerance asks for less
_FIRST_POLE_ERROR = 1e-3  # relative error of the poles before any gap is known
_MIN_WEIGHT = 1e-300  # the correlations of a smaller w_j are lost to rounding
_PARALLEL_WORK = 1 << 21  # multiplications from which a second thread pays for its start


@dataclass(frozen=True)
class Ring:
    """A workload folded by epochs.

    Attributes:
        p: diagonal of A^-1 by steps, positive, shape (n,).
        q: negated subdiagonal, q[0] = 0, shape (n,).
        epochs: k.
    """

    p: Array
    q: Array
    epochs: int
    least: ClassVar[float] = 0.0

    @property
    def size(self) -> int:
        """The number n of steps."""
        return self.p.size

    @property
    def classes(self) -> int:
        """The number b of classes."""
        return self.p.size // self.epochs

    def folded(self) -> tuple[Array, Array]:
        """Coefficients by class and epoch, shape (b, k); with one more class between epochs if b is odd."""
        p, q = (np.ascontiguousarray(a.reshape(self.epochs, -1).T) for a in (self.p, self.q))
        if self.classes % 2:
            half = np.full((1, self.epochs), math.sqrt(2.0))
            p, q = np.concatenate([p, half]), np.concatenate([q, half])
            p[-2] *= half[0]
            q[0] *= half[0]
        return p, q

    def start(self) -> Array:
        """W with w_j the mean norm of the columns of A in class j, and R_j = I."""
        roots = np.sqrt(class_blocks.column_norms(self.p, self.q)).reshape(self.epochs, -1).mean(axis=0)
        return np.asarray((roots / roots.sum())[:, None, None] * np.eye(self.epochs))

    def poles(self, dual: Array, error: float) -> Poles:
        """Poles for the spectrum of W^-1/2 L W^-1/2."""
        slack = 1e-6
        lower, upper = class_blocks.interval(self.p, self.q, dual)
        return zolotarev(lower * (1 - slack), upper * (1 + slack), error=error, multiple=WIDTH)

    @cached_property
    def chain(self) -> Chain:
        """The classes, two in a block, to be eliminated from either end."""
        return Chain(*self.folded())

    def gradient(self, dual: Array, poles: Poles) -> tuple[Array, Array]:
        """X and ``sum_p w_p t_p (L + t_p W)^-1`` within the classes, both of shape (b, k, k)."""
        chain, k = self.chain, self.epochs
        weights = chain.weights(dual)
        cut = -(-poles.nodes.size // (2 * WIDTH)) * WIDTH
        pays = 12.0 * self.p.size * k**2 * poles.nodes.size > _PARALLEL_WORK
        # Whatever the machine has: the order of a sum may not depend on its cores.
        parts = [slice(0, cut), slice(cut, None)] if pays and cut < poles.nodes.size else [slice(None)]
        sums_by_part = np.zeros((len(parts), *weights.shape, 2))
        run_threads(
            [partial(chain.add, weights, poles, s, sums_by_part[i]) for i, s in enumerate(parts)], together=pays
        )
        sums, place = sums_by_part.sum(axis=0).transpose(2, 0, 1), tiles(2 * k)[1]
        pairs = np.concatenate([sums[:, :, place[:k, :k]], sums[:, ::-1, place[k:, k:]]], axis=1)
        x, y = pairs[:, : self.classes]
        return x, y


class Chain:
    """The ring folded: blocks of the classes m and b - 1 - m, as `block_kernels` eliminates them from either end.

    Args:
        p: coefficients by class and epoch, shape (b, k), b even.
        q: the same.

    Attributes:
        across: products of the coefficients of the edges from each block to the next, shape (b / 2, 2 k); those of the
            last block join its two halves.
    """

    def __init__(self, p: Array, q: Array) -> None:
        (b, k), half = p.shape, len(p) // 2
        places, (entries, _) = np.arange(2 * k), tiles(2 * k)
        near = np.concatenate([p[:half], q[: half - 1 : -1]], axis=1)  # at the own end of the edges
        far = np.concatenate([q[1 : half + 1], p[half - 1 : b - 1][::-1]], axis=1)
        self.across = near * far
        matrices = np.zeros((4, half, 2 * k, 2 * k))
        matrices[0, :, places, places], matrices[1, :, places, places] = near.T**2, far.T**2
        matrices[2] = self.across[:, :, None] * self.across[:, None, :]
        first, last = matrices[3, 0], matrices[3, -1] if half > 1 else np.zeros((2 * k, 2 * k))
        first[places[k:], places[k:]] = p[-1] ** 2
        first[places[1:k], places[1:k]] = q[0, 1:] ** 2
        first[places[k:-1], places[1:k]] = first[places[1:k], places[k:-1]] = -p[-1, :-1] * q[0, 1:]
        last[places, places] = near[-1] ** 2
        last[places[:k], places[k:]] = last[places[k:], places[:k]] = -self.across[-1, k:]
        at_near, at_far, products, _ = matrices.reshape(4, half, -1)[:, :, entries]
        ends = first.ravel()[entries], last.ravel()[entries]
        inwards = np.vstack([ends[0], at_far[:-1]]), np.roll(products, 1, axis=0), at_near
        outwards = np.vstack([ends[1], at_near[-2::-1]]), products[::-1], np.roll(at_far, 1, axis=0)[::-1]
        self._inwards, self._outwards = np.stack(inwards), np.stack(outwards)

    def weights(self, dual: Array) -> Array:
        """Return the tiles of W, shape (b / 2, entries); an extra class of an odd b carries no weight."""
        half, k = len(self.across), dual.shape[1]
        whole = np.zeros((2 * half, k, k))
        whole[: len(dual)] = dual
        matrices = np.zeros((half, 2 * k, 2 * k))
        matrices[:, :k, :k], matrices[:, k:, k:] = whole[:half], whole[: half - 1 : -1]
        return np.take(matrices.reshape(half, -1), tiles(2 * k)[0], axis=1)

    def blocks(self, weights: Array, t: Array, pivots: Array) -> Array:
        """Return minus the diagonal blocks of K^-1 for eight nodes, shape (b / 2, entries, lanes).

        Args:
            weights: tiles of W.
            t: the nodes.
            pivots: out, minus the inverses of the blocks with all that lies outside of them; see `eliminate`.
        """
        (half, entries), side = weights.shape, self.across.shape[1]
        scratch = np.empty((2, 2 * side * WIDTH))
        inside, inverses = np.empty((2, half, entries * WIDTH))
        reverse = np.ascontiguousarray(weights[::-1])
        eliminate(self._outwards, reverse, t, side // 2, scratch, inside[:0], inside, pivots[:1])
        eliminate(self._inwards, weights, t, side // 2, scratch, inside, inverses, pivots)
        invert(inverses, 0, half, side // 2, scratch)
        return inverses.reshape(half, entries, WIDTH)

    def add(self, weights: Array, poles: Poles, some: slice, sums: Array) -> None:
        """Add ``sum w K^-1`` and ``sum w t K^-1`` of some poles, shape (b / 2, entries, 2)."""
        nodes, shares = poles.nodes[some], poles.weights[some]
        pivots = np.empty((1, weights.shape[1] * WIDTH))
        for first in range(0, nodes.size, WIDTH):
            t, w = nodes[first : first + WIDTH], shares[first : first + WIDTH]
            sums -= self.blocks(weights, t, pivots) @ np.stack([w, w * t], axis=1)


@dataclass(frozen=True)
class BlockPoint:
    """A dual point and what it proves.

    Attributes:
        dual: W, shape (b, k, k), sum of the diagonal constants 1.
        x: X within the classes, shape (b, k, k).
        poles: the poles with which X was found.
        norm: N = ||A W^1/2||_*.
        lower: a lower bound of the optimum, error of the poles allowed for.
        proven_gap: relative distance to the loss of a feasible matrix; falls like the error of W.
        gap: the same for the matrix C is made from, right to second order, rounding allowed for; falls like the square.
    """

    dual: Array
    x: Array
    poles: Poles
    norm: float
    lower: float
    proven_gap: float
    gap: float


class Folded(Protocol):
    """A workload folded by epochs: `Ring`, or `factorize.solvers.epochs.ring.RecursionRing`."""

    @property
    def size(self) -> int:
        """The number n of steps."""

    @property
    def least(self) -> float:
        """The smallest w_j that X is right for, of a sum of 1; what is cut off costs the bound as much per class."""

    def start(self) -> Array:
        """W to start from, shape (b, k, k)."""

    def poles(self, dual: Array, error: float) -> Poles:
        """Poles for the spectrum of W^-1/2 L W^-1/2."""

    def gradient(self, dual: Array, poles: Poles) -> tuple[Array, Array]:
        """X and ``sum_p w_p t_p (L + t_p W)^-1`` within the classes, both of shape (b, k, k)."""


def evaluate(ring: Folded, dual: Array, error: float) -> BlockPoint:
    """Return a dual point with its bounds."""
    poles = ring.poles(dual, error)
    x, y = ring.gradient(dual, poles)
    norm, proven, second = class_blocks.measure(dual, x, y, float(poles.weights.sum()))
    lower, proven = (norm / (1 + poles.delta)) ** 2, (1 + proven) * (1 + poles.delta) ** 4 - 1
    second = second if second >= 0 else math.inf  # X is not definite, or lost to rounding
    return BlockPoint(dual, x, poles, norm, lower, proven, second + 4 * ring.size * _ULP)


def maximise(
    ring: Folded,
    *,
    tolerance: float,
    beyond: float = math.inf,
    report: Progress | None = None,
    start: Array | None = None,
    proven: bool = False,
    patience: int = _STALL_STEPS,
    coarse: bool = False,
    most_steps: int = _MAX_STEPS,
) -> End[BlockPoint]:
    """Raise the dual bound until the gap is below the tolerance.

    Args:
        ring: the workload.
        tolerance: relative gap.
        beyond: a smaller gap, to which it goes on as long as every step wins a tenth.
        report: called with (step, gap); what it raises ends the ascent.
        start: W to start from, shape (b, k, k), its diagonal constant within classes.
        proven: whether to go by the gap that is proven without C, which takes twice the digits in W.
        patience: steps without a clearly better gap after which rounding, not work, is what is missing; a gap that
            no rounding explains is given four times as many.
        coarse: whether W is asked for and not what is proven with it: its poles may stay as coarse as the tolerance.
        most_steps: the most steps of the ascent.
    """
    finest = _POLE_ERROR * (tolerance if proven else math.sqrt(tolerance))
    error = finest if coarse else min(1e-6, max(1e-10, finest))
    search, most = _PowerSteps(ring, error, proven=proven), min(most_steps, _MAX_STEPS)
    at, number = evaluate(ring, ring.start() if start is None else start, _FIRST_POLE_ERROR if coarse else error), 1
    while True:
        for enough, stall in ((max(tolerance, _FAR_GAP), _FAR_FACTOR * patience), (tolerance, patience), (beyond, 1)):
            end = run(search, at, enough=enough, most=most + 1 - number, stall=stall, report=report, before=number - 1)
            at, number = end.best, end.steps
            if end.gap > enough:
                break
        outcome = Outcome.CONVERGED if end.gap <= tolerance else Outcome.ROUNDING_LIMIT
        if end.gap > tolerance or coarse or at.poles.delta <= 2 * error:
            return replace(end, outcome=outcome)
        at = evaluate(ring, at.dual, error)


class _PowerSteps:
    """Power steps with Anderson's extrapolation."""

    def __init__(self, ring: Folded, error: float, *, proven: bool) -> None:
        self._ring, self._error, self._proven, self._mixer = ring, error, proven, Anderson()

    def gap(self, at: BlockPoint) -> float:
        return at.proven_gap if self._proven else at.gap

    def step(self, at: BlockPoint, _number: int) -> BlockPoint:
        """Extrapolate; take the plain power step where that is not allowed or loses ground."""
        wide = min(self.gap(at), 0.01)
        error = max(self._error, _POLE_ERROR * (wide if self._proven else math.sqrt(wide)))
        diagonal = at.dual[:, 0, 0]
        now = pack(diagonal, at.dual / diagonal[:, None, None])
        weights, correlations = class_blocks.power_step(at.dual, at.x)
        mixed = self._mixer.mix(now, pack(weights, correlations), class_blocks.importance(at.dual))
        if mixed is not None:
            dual = class_blocks.unpack(mixed, *at.dual.shape[:2])
            if dual is not None:
                trial = evaluate(self._ring, _raised(dual, self._ring.least), error)
                if trial.lower >= at.lower * (1 - 1e-13 - 4 * at.poles.delta):
                    return trial
            self._mixer.forget()
        return evaluate(self._ring, _raised(_definite(weights, correlations), self._ring.least), error)


def after_power_step(at: BlockPoint) -> Array:
    """Return W after a plain power step, shape (b, k, k); what it proves is not below what `at` does."""
    return _definite(*class_blocks.power_step(at.dual, at.x))


def _definite(weights: Array, correlations: Array) -> Array:
    """Return W of weights and correlations, with as little of the identity as makes it definite."""
    for share in _RIDGE_SHARES:
        mixed = (1 - share) * correlations + share * np.eye(correlations.shape[1])
        dual = class_blocks.unpack(pack(weights, mixed), *correlations.shape[:2])
        if dual is not None:
            return dual
    raise FloatingPointError("the correlations of a class are not definite in double precision")


def _raised(dual: Array, least: float) -> Array:
    """Return W with no w_j below `least`; one that has underflowed has no correlations any more."""
    weights = dual[:, 0, 0]
    if weights.min() >= least:
        return dual
    raised, lost = np.maximum(weights, least), weights < _MIN_WEIGHT
    correlations = dual / np.where(lost, 1.0, weights)[:, None, None]
    correlations[lost] = np.eye(dual.shape[1])
    return np.asarray(correlations * (raised / raised.sum())[:, None, None])
