"""Descent on the loss of a banded Gram matrix and the shares of its columns, until the bound over the class is near.

Limited-memory BFGS (methods/quasi_newton.py) with an approximate inverse of the second derivative
(preconditioner.py). A step needs one evaluation (band_kernels.py), O(n bands^2) for any
workload that is a recursion with few states. A step that leaves the positive definite matrices is shortened: the
factorization finds out, the loss alone would not.

The bound over the class (checker/bounds/classes.py) is below the loss by |G X T^-1|^2 to second order, G + G^T being W
within the band and off its diagonal. Products with random signs estimate this norm, and end the search.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from factorize.factors.solution import Outcome
from factorize.numbers.state_space import StateSpace
from factorize.solvers.banded.band_kernels import backward, forward
from factorize.solvers.banded.preconditioner import Preconditioner
from factorize.solvers.methods.compiled import Array
from factorize.solvers.methods.quasi_newton import Memory
from factorize.solvers.methods.search import End, run
from factorize.structures.banded import BandedMatrix

MIN_SHARE = 1e-10
"""The least weight of a step, as a part of the largest: a step that moves nothing needs a column that is not 0."""

_PAIRS = 10
_MAX_STEPS = 2000
_SUFFICIENT_DECREASE = 1e-4
_SHRINKAGE = 0.4  # a step out of the positive definite matrices is shortened to this part
_MIN_LENGTH = 1e-6
_ROUNDING = 1e-14
_MIN_GAIN = 1e-18  # a step that may gain less than this part of the loss is far below its rounding
_PERIOD_STEPS, _PERIOD_FALL = 50, 0.1  # within these steps the gap has to fall to this part, or the memory misleads
_SAFETY_FACTOR = 20  # at the end the estimated gap is at most the tolerance over this
_PROBES = 8
_MEASUREMENT_STEPS, _NEAR_FACTOR = 16, 10.0
"""The gap is measured every 16 steps, and at each step once it is within about this factor of the end."""


@dataclass(frozen=True)
class GramPoint:
    """The loss at one X.

    Attributes:
        unknowns: logarithms of the columns' shares, and X[j + d, j] at [d, j] of columns of norm 1, shape (bands, n).
        loss: tr(T^T T X^-1).
        gradient: derivative with respect to the unknowns.
        shares: squared column norms, which sum to 1 within a pattern, shape (n,).
        rows: C, as in band_kernels.py, of columns of norm 1.
        curvature: diagonals and offsets of W and X^-1, what a preconditioner is made of.
    """

    unknowns: Array
    loss: float
    gradient: Array
    shares: Array
    rows: Array
    curvature: tuple[Array, Array, Array, Array]


class Landscape:
    """The loss as a function of X; keeps its work arrays.

    Args:
        target: T as a recursion.
        n: number of steps.
        bands: number of diagonals of C.
        owners: number of the pattern that each step shares the sensitivity with, shape (n,).
        firsts: the first of the steps whose columns have the norm of this one's, shape (n,); by default itself.
    """

    def __init__(
        self, target: StateSpace, n: int, bands: int, owners: NDArray[np.intp], firsts: NDArray[np.intp] | None = None
    ) -> None:
        self.n, self.bands, self._owners = n, bands, owners
        self._firsts = np.arange(n) if firsts is None else firsts
        self._sizes = np.bincount(self._firsts, minlength=n)
        self.evaluations = 0
        follow, feed, read, through = map(np.ascontiguousarray, target)
        self._target, self._own = (follow, feed), own_forms(follow, feed, read, through)
        width = min(bands + 1, n)
        self.dead = np.asarray((target.through == 0) & ~target.feed.any(axis=1))
        self._idle = (np.bincount(self._firsts, ~self.dead, minlength=n) == 0) & (self._sizes > 0)
        states = target.feed.shape[1]
        self._theta = np.zeros((n, width)), np.zeros((n, states))
        self._bands = np.zeros((n, 2 * width - 1)), np.zeros((n, 2 * width - 1))
        self._scratch = [np.empty(shape) for shape in ((n, width), (n, states), (states, n))]
        self._lines = np.empty((3, width + states))
        self._probes = target.solve(np.random.default_rng(0).choice((-1.0, 1.0), (n, _PROBES)))
        self._squares = through**2

    def balanced(self, offsets: Array) -> GramPoint | None:
        """Return the point of some offsets, with the shares that are best for a diagonal X."""
        unknowns = np.concatenate([np.zeros((1, self.n)), offsets])
        point = self(unknowns)
        if point is None or point.shares.min() == 1.0:
            return point
        w = self.together(point.curvature[0])
        unknowns[0] = 0.5 * np.log(np.maximum(w, MIN_SHARE * w.max()))
        return self(unknowns)

    def __call__(self, unknowns: Array) -> GramPoint | None:
        """Return the loss and its gradient, or None where X is not positive definite."""
        self.evaluations += 1
        offsets = unknowns[1:]
        weights = np.where(self._idle, MIN_SHARE, np.exp(unknowns[0] - unknowns[0][self._firsts].max()))
        shares = shares_of(weights, self._owners, self._firsts)
        rows = _factor(offsets, *self._theta[0].shape)
        if rows is None:
            return None
        for array in self._scratch:
            array[:] = 0.0
        form, mixed, lagged = self._scratch
        (follow, feed), (of_x, of_u), root = self._target, self._own, 1 / np.sqrt(shares)
        system, own = (follow, feed * root[:, None]), (of_x / shares, of_u * root[:, None])
        backward(rows, system, own, self._theta, (form, mixed), self._lines)
        forward(rows, system, self._theta, self._bands, lagged, self._lines)
        (w, w_offsets), (s, s_offsets) = map(_split, self._bands)
        products = w_offsets[: self.bands - 1] * offsets
        parts = w + products.sum(axis=0)  # the diagonal of W X
        for d, some in enumerate(products, 1):
            parts[d:] += some[: self.n - d]
        loss = float(parts.sum())  # tr(W X)
        if not np.isfinite(loss):
            return None
        gradient = np.concatenate([[self._uneven(shares, parts)], -2.0 * w_offsets[: self.bands - 1]])
        gradient[0, self._idle] = 0.0
        return GramPoint(unknowns, loss, gradient, shares, rows, (w, w_offsets, s, s_offsets))

    def _within(self, values: Array) -> Array:
        """Return the sum over each step's pattern, shape (n,)."""
        return np.asarray(np.bincount(self._owners, values)[self._owners])

    def together(self, values: Array) -> Array:
        """Return the sum over the steps of one norm at the first of them, zero at the others, shape (n,)."""
        return np.asarray(np.bincount(self._firsts, values, minlength=self.n), dtype=np.float64)

    def _uneven(self, shares: Array, values: Array) -> Array:
        """Return what such sums lack beside their share of the pattern's, shape (n,)."""
        return np.where(self._sizes > 0, shares * self._within(values), 0.0) - self.together(values)

    def gap(self, point: GramPoint) -> float:
        """Return about the distance of the bound over the class, relative to the loss."""
        n, offsets, entries, w = self.n, point.unknowns[1:], point.gradient[1:] / 2, point.curvature[0]
        squares = self._squares / point.shares
        both = squares + squares[np.minimum(np.arange(n) + np.arange(1, self.bands)[:, None], n - 1)]
        probes = self._probes * np.sqrt(point.shares)[:, None]
        moved = _off_diagonal(offsets, offsets, probes) + probes
        below = entries * np.divide(squares, both, out=np.zeros_like(both), where=both > 0)
        uneven = (self._uneven(point.shares, w) / np.maximum(self._sizes, 1))[self._firsts] / 2
        moved = _off_diagonal(below, entries - below, moved) + uneven[:, None] * moved
        return float(np.vdot(moved, moved)) / (_PROBES * point.loss)

    def strategy(self, point: GramPoint) -> BandedMatrix:
        """Return C at a point."""
        rows, bands = point.rows, np.zeros((self.bands, self.n))
        for d in range(len(bands)):
            bands[d, : len(rows) - d] = rows[d:, rows.shape[1] - 1 - d]
        most = np.bincount(self._owners, self._sizes > 0).max()
        return BandedMatrix(bands * np.sqrt(most * point.shares) if most > 1 else bands)


def shares_of(weights: Array, owners: NDArray[np.intp], firsts: NDArray[np.intp]) -> Array:
    """Return squared column norms in proportion to the weights of the first steps, which sum to 1 within a pattern."""
    own = np.where(firsts == np.arange(len(firsts)), weights, 0.0)
    return np.asarray(weights[firsts] / np.bincount(owners, own)[owners])


def _factor(offsets: Array, n: int, width: int) -> Array | None:
    """Return C with C^T C = X, as in band_kernels.py, or None where X is not positive definite."""
    from scipy.linalg.lapack import dpbtrf

    band, rows = np.ones((len(offsets) + 1, n)), np.zeros((n, width))
    for d, entries in enumerate(offsets, 1):  # C^T is a Cholesky factor from the last step to the first
        band[d, : n - d] = entries[n - d - 1 :: -1]
    factor, failed = dpbtrf(band, lower=1, overwrite_ab=1)
    if failed:
        return None
    for d in range(len(band)):
        rows[d:, width - 1 - d] = factor[d, n - d - 1 :: -1]
    return rows


def own_forms(follow: Array, feed: Array, read: Array, through: Array) -> tuple[Array, Array]:
    """Return what the variance of all outputs from a step on has of x_i^2 and x_i u_i, shapes (n,) and (n, states).

    The arguments are those of `StateSpace`, and the first is the diagonal of T^T T.
    """
    form, states = np.zeros((*read.shape, read.shape[1])), read[:, :, None] * read[:, None]
    for i in range(len(read) - 1, 0, -1):
        form[i - 1] = states[i] + follow[i].T @ form[i] @ follow[i]
    fed = np.einsum("ist,it->is", form, feed)
    of_u = through[:, None] * read + np.einsum("its,it->is", follow, fed)
    return through**2 + (feed * fed).sum(axis=1), of_u


def _split(both: Array) -> tuple[Array, Array]:
    """Return the diagonal, shape (n,), and the entries below it, shape (b - 1, n), of a band with both halves."""
    n, b = len(both), both.shape[1] // 2 + 1
    offsets = np.zeros((b - 1, n))
    for d in range(1, b):
        offsets[d - 1, : n - d] = both[: n - d, b - 1 + d]
    return both[:, b - 1].copy(), offsets


def _off_diagonal(below: Array, above: Array, vectors: Array) -> Array:
    """Return a band times vectors, shape (n, any); entries (j + d, j) and (j, j + d) are at [d - 1, j]."""
    from scipy.sparse import dia_array

    n = len(vectors)
    left, right = (dia_array((part, -np.arange(1, len(part) + 1)), shape=(n, n)) for part in (below, above))
    return np.asarray(left @ vectors + right.T @ vectors)


class GramDescent:
    """Steps towards the optimum.

    Args:
        landscape: the loss.
        first: the point to start from.
    """

    def __init__(self, landscape: Landscape, first: GramPoint) -> None:
        self.landscape, self._at = landscape, first
        self._closest = self._mark = np.inf
        self._lag, self._since, self._enough = 0.0, 0, 0.0
        self._forget()

    def descend(self, tolerance: float, report: Callable[[int, float], None]) -> End[GramPoint]:
        """Descend until the bound over the class is nearer than the tolerance.

        Args:
            tolerance: relative.
            report: told after each step about how far it is, relative to the loss.
        """
        if self.landscape.bands == 1:  # the shares of a diagonal X are a closed form
            return End(self._at, 0.0, Outcome.CLOSED_FORM, 0)
        self._enough = tolerance / _SAFETY_FACTOR
        end = run(self, self._at, enough=self._enough, most=_MAX_STEPS, report=report)
        return replace(end, best=self._at)  # the loss falls with every step, what is left does not

    def gap(self, at: GramPoint) -> float:
        """Return about the distance of the bound over the class, relative to the loss; the direction stays.

        Between two measurements it is in proportion to what a step may still gain.
        """
        self._at = at
        self._direction = self._memory.direction(at.gradient, lambda g: self._factor * self._apply(g))
        gain = float(np.vdot(at.gradient, self._direction)) / 2 / at.loss
        self._since += 1
        if self._since < _MEASUREMENT_STEPS and self._lag * gain > _NEAR_FACTOR * self._enough:
            return self._lag * gain
        gap = self.landscape.gap(at)
        self._since, self._lag = 0, gap / gain if gain > 0 else np.inf
        self._closest = min(self._closest, gap)
        return gap

    def _forget(self) -> None:
        self._memory = Memory(_PAIRS)
        self._factor = 0.25  # a factor of the approximate inverse: a diagonal entry of H is four times w s
        self._renew()

    def _renew(self) -> None:
        if self.landscape.bands > 1:
            self._preconditioner, w = (
                Preconditioner.at(*self._at.curvature, self.landscape.bands),
                self._at.curvature[0],
            )
            w = self.landscape.together(w)
            self._stiffness = np.maximum(w, MIN_SHARE * w.max()) / 4
            self._factor = self._memory.scale(self._apply) or self._factor

    def _apply(self, gradient: Array) -> Array:
        """Return about the inverse of the second derivative times a gradient, up to a constant factor."""
        return np.concatenate([gradient[:1] / self._stiffness, self._preconditioner.apply(gradient[1:])])

    def step(self, at: GramPoint, number: int) -> GramPoint | None:
        """Take a step, without the memory where it misleads; None if rounding hides any progress."""
        if number % _PERIOD_STEPS == 0:
            if self._closest > _PERIOD_FALL * self._mark:
                self._forget()
                self.gap(at)
            self._mark = self._closest
        following = self._along(at, number)
        if following is None:
            self._forget()
            self.gap(at)
            following = self._along(at, number)
        return following

    def _along(self, at: GramPoint, number: int) -> GramPoint | None:
        """Go along the direction as far as the loss falls as it should."""
        decrease, length = float(np.vdot(at.gradient, self._direction)) / 2, 1.0
        while length > _MIN_LENGTH and decrease > _MIN_GAIN * at.loss:
            trial = self.landscape(at.unknowns - length * self._direction)
            allowed = at.loss * (1 + _ROUNDING) - 2 * _SUFFICIENT_DECREASE * length * decrease
            if trial is not None and trial.loss <= allowed:
                self._memory.add(trial.unknowns - at.unknowns, trial.gradient - at.gradient)
                self._at = trial
                self._factor *= length  # a step that had to be shortened says that it was too large
                if number & (number - 1) == 0:  # later the memory holds more than a new one brings
                    self._renew()
                return trial
            length *= _SHRINKAGE if trial is None else _shorter(length, 2 * decrease, trial.loss - at.loss)
        return None


def _shorter(length: float, slope: float, rise: float) -> float:
    """Return the factor to the lowest point of the parabola with that slope at 0 and that rise at `length`."""
    return min(max(0.5 * slope * length / (rise + slope * length), 0.1), 0.7)
