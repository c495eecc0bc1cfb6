"""Fixed epochs for any workload that is a recursion with few states: the blocks of X in O(n q^2 k^2) per pole.

The dual is that of `blocks`, whose ascent is used here too. Only the resolvents differ: (M^-1 + t W)^-1,
M = A^T A, is the posterior covariance of z = A^T w, w white, when it is observed with noise of covariance (t W)^-1.
A^T is a recursion backwards in the steps. All epochs together take b steps of it, with q k states that are s at the end
of the epochs and, since the end of one epoch is the start of the next, return to s one epoch later. A filter carries

    x = Phi s + noise of covariance P,   and the information O that was gained on s,

from the last class to the first; closing the ring is a linear system of 2 q k unknowns, and a smoother (the derivative
of the log-determinant, Bryson and Frazier) goes back and finds U = (M + (t W)^-1)^-1 within the classes, so that

    (M^-1 + t W)^-1 = (t W)^-1 - (t W)^-1 U (t W)^-1.

M is never formed nor inverted: what is lost to rounding is u cond(A), not u cond(M), and A may be singular (rates of
zero). One epoch, k = 1, is single participation. We found this use of the filters in no publication.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from factorize.numbers.state_space import StateSpace
from factorize.solvers.epochs import ring_kernels as kernels
from factorize.solvers.epochs.blocks import BlockPoint
from factorize.solvers.epochs.ring_kernels import Ends, Filters, System
from factorize.solvers.methods.compiled import WIDTH, Array, TwoArrays, run
from factorize.solvers.methods.poles import Poles, zolotarev

_PARALLEL_WORK = 1 << 21  # multiplications from which a second thread pays for its start
_UPWARD_STEPS, _DOWNWARD_STEPS = 4, 6  # steps of the power method at either end of the spectrum, from the last vectors
_UPWARD_MARGIN, _DOWNWARD_MARGIN = 1.2, 2.0
_MAX_CONDITION = 1e26
"""A larger condition of M does not count: what singular values below 1e-13 of the largest add is below rounding."""
_MIN_WEIGHT = 1e-14
_CHUNK_CLASSES = 4  # the columns of this many classes are filled together


class _Work:
    """Arrays of one thread, kept from call to call: fresh pages cost more than the sweeps.

    Args:
        classes: b.
        epochs: k.
        side: S = q k.
    """

    def __init__(self, classes: int, epochs: int, side: int) -> None:
        wide, narrow = (classes, side * epochs * WIDTH), (classes, epochs**2 * WIDTH)
        self.filters = (_empty(wide), _empty(narrow), _empty(wide))
        self.sums = np.empty((4, classes, epochs, epochs))
        self.scratch = _empty((7, side * epochs * WIDTH))
        self.ends = (_empty((side**2 * WIDTH,)), _empty((side**2 * WIDTH,)), _empty((side**2 * WIDTH,)))


def _empty(shape: tuple[int, ...]) -> Array:
    """An array that starts where a line of the cache does."""
    size = math.prod(shape)
    whole = np.empty(size + WIDTH)
    first = -(whole.ctypes.data // 8) % WIDTH
    return whole[first : first + size].reshape(shape)


@dataclass(frozen=True)
class _Sweep:
    """The traces that one group of eight poles leaves behind for the columns of X."""

    filters: Filters
    responses: TwoArrays
    squares: Array


class _Recursion:
    """A recursion from step to step, y_i = read_i s_i + through_i x_i and s_{i+1} = follow_i s_i + feed_i x_i.

    With y_i (or x_i) and s_{i+1} as the unknowns of step i, it is a triangular system with few diagonals.
    """

    def __init__(self, system: System) -> None:
        follow, self._feed, read, self._through = system
        n, q = self._feed.shape
        forth = np.zeros((2 * q + 1, n, q + 1))
        forth[0] = 1.0
        for c in range(q):
            for r in range(q + 1):
                forth[q + r - c, :-1, c + 1] = -(follow[1:, r - 1, c] if r else read[1:, c])
        back = forth.copy()
        back[0, :, 0] = self._through
        for c in range(q):
            back[q - c, :-1, c + 1] *= -1.0
            back[c + 1, :, 0] = -self._feed[:, c]
        # LAPACK works in the order of columns without a copy.
        self._forth, self._back = (np.asfortranarray(bands.reshape(2 * q + 1, -1)) for bands in (forth, back))

    def apply(self, x: Array) -> Array:
        """``y = A x``."""
        right = np.empty((len(x), self._feed.shape[1] + 1))
        right[:, 0], right[:, 1:] = self._through * x, self._feed * x[:, None]
        return self._solved(self._forth, right)

    def solve(self, y: Array) -> Array:
        """``x = A^-1 y``, no `through` being zero."""
        right = np.zeros((len(y), self._feed.shape[1] + 1))
        right[:, 0] = y
        return self._solved(self._back, right)

    def _solved(self, bands: Array, right: Array) -> Array:
        from scipy.linalg.lapack import dtbtrs

        return np.asarray(dtbtrs(bands, right.reshape(-1, 1), uplo="L", overwrite_b=1)[0]).reshape(right.shape)[:, 0]


class RecursionRing:
    """A recursion folded by epochs, as `factorize.solvers.epochs.blocks.maximise` wants it.

    Args:
        system: the weighted workload, square, n steps.
        epochs: k, a divisor of n.
        floor: stands for rates of zero, relative to the largest.

    Raises:
        ValueError: numbers of the recursion are not finite.
    """

    def __init__(self, system: StateSpace, epochs: int, floor: float = 1e-9) -> None:
        self.size, self.epochs, self.least = len(system.through), epochs, _MIN_WEIGHT
        follow, feed, read, through = (np.array(part, dtype=np.float64, order="C") for part in system)
        scale = np.abs(through).max()
        if not all(np.isfinite(part).all() for part in (follow, feed, read / scale, through / scale)):
            raise ValueError("the numbers of the recursion are not finite")
        read, through = read / scale, through / scale
        through[through == 0] = floor
        self._system: System = (follow, feed, read, through)
        adjoint = _of_each(lambda part: part[::-1], (follow.transpose(0, 2, 1), read, feed, through))
        self._forth, self._back = _Recursion(self._system), _Recursion(adjoint)
        self._folded = _of_each(lambda part: part.reshape(epochs, -1, *part.shape[1:]).swapaxes(0, 1), self._system)
        self._work: list[_Work] = []
        self._largest, self._smallest = np.random.default_rng(0).standard_normal((2, self.size))

    @property
    def classes(self) -> int:
        """The number b of classes."""
        return self.size // self.epochs

    @property
    def states(self) -> int:
        """The number of states of all epochs."""
        return int(self._folded[1].shape[1] * self._folded[1].shape[2])

    @cached_property
    def norms(self) -> Array:
        """Squared norms of the columns of A, shape (n,)."""
        follow, feed, read, through = self._system
        out, seen = np.empty(self.size), np.zeros(follow.shape[1:])
        for i in range(self.size - 1, -1, -1):
            out[i] = through[i] ** 2 + feed[i] @ seen @ feed[i]
            seen = follow[i].T @ seen @ follow[i] + np.outer(read[i], read[i])
        return out

    def start(self) -> Array:
        """W with w_j the mean norm of the columns of A in class j, and R_j = I; little for steps that are lost."""
        roots = np.sqrt(self.norms).reshape(self.epochs, -1).mean(axis=0)
        roots = np.maximum(roots, 1e-9 * roots.max())
        return np.asarray((roots / roots.sum())[:, None, None] * np.eye(self.epochs))

    def poles(self, dual: Array, error: float) -> Poles:
        """Poles for the spectrum of W^-1/2 M^-1 W^-1/2, as far as it is not beyond what counts."""
        factors = np.asarray(np.linalg.cholesky(dual), dtype=np.float64)
        largest = _UPWARD_MARGIN * self._power(factors)
        lower = 1.0 / largest
        upper = min(_MAX_CONDITION * lower, _DOWNWARD_MARGIN * self._inverse_power(factors))
        return zolotarev(lower, max(upper, 4 * lower), error=error, multiple=WIDTH)

    def _power(self, factors: Array) -> float:
        """Return the largest eigenvalue of F^T M F from below."""
        x, value = self._largest, 0.0
        for _ in range(_UPWARD_STEPS):
            x = self._times(factors, x / np.linalg.norm(x))
            y = self._forth.apply(x)
            value = float(y @ y)
            x = self._times(factors.transpose(0, 2, 1), self._back.apply(y[::-1])[::-1])
        self._largest = x
        return value

    def _inverse_power(self, factors: Array) -> float:
        """Return the largest eigenvalue of (F^T M F)^-1 from below."""
        inverse = np.asarray(np.linalg.inv(factors), dtype=np.float64)
        x, value = self._smallest, 0.0
        for _ in range(_DOWNWARD_STEPS):
            x = self._times(inverse.transpose(0, 2, 1), x / np.linalg.norm(x))
            x = self._back.solve(x[::-1])[::-1]
            value = float(x @ x)
            x = self._times(inverse, self._forth.solve(x))
        self._smallest = x
        return value

    def _times(self, blocks: Array, x: Array) -> Array:
        """Return the block diagonal matrix of the classes times a vector in order of the steps."""
        by_class = x.reshape(self.epochs, -1).T[:, :, None]
        return np.ascontiguousarray((blocks @ by_class)[:, :, 0].T).ravel()

    def work(self, poles: int) -> float:
        """Return the multiplications of a gradient with so many poles, about."""
        return 4.0 * self.classes * self.states**2 * self.epochs * poles

    def gradient(self, dual: Array, poles: Poles) -> tuple[Array, Array]:
        """X and ``sum_p w_p t_p (M^-1 + t_p W)^-1`` within the classes, both of shape (b, k, k)."""
        inverse = np.asarray(np.linalg.inv(dual), dtype=np.float64)
        x, y, _ = self._sweeps(inverse, poles, keep=False)
        return x, y

    def whole_gram(self, at: BlockPoint) -> Array:
        """Return X / N in order of the steps, shape (n, n); its class traces are 1 at the optimum."""
        n, k, b = self.size, self.epochs, self.classes
        inverse = np.asarray(np.linalg.inv(at.dual), dtype=np.float64)
        x, _, sweeps = self._sweeps(inverse, at.poles, keep=True)
        gram = np.zeros((n, n))
        chunks = [np.arange(first, min(first + _CHUNK_CLASSES, b)) for first in range(0, b, _CHUNK_CLASSES)]
        run([partial(self._spread, sweeps, chunks[half::2], gram) for half in (0, 1)], together=True)
        right = (gram.reshape(n, b, 1, k) @ -inverse).reshape(b, k, n)
        both = (inverse @ right).reshape(b, k, b, k)
        whole = np.ascontiguousarray(both.transpose(1, 0, 3, 2)).reshape(n, n)
        whole += whole.T
        classes = np.arange(b)
        whole.reshape(k, b, k, b)[:, classes, :, classes] = x
        whole /= at.norm
        return whole

    def _spread(self, sweeps: Sequence[_Sweep], chunks: Sequence[NDArray[np.int64]], gram: Array) -> None:
        scratch = _empty((2, self.states * self.epochs * WIDTH))
        for chunk in chunks:
            for s in sweeps:
                kernels.spread_out(self._folded, s.filters, s.responses, s.squares, chunk, gram, scratch)

    def _sweeps(self, inverse: Array, poles: Poles, *, keep: bool) -> tuple[Array, Array, list[_Sweep]]:
        """Return the sums of `gradient`, and what is kept of each group of poles."""
        count = poles.nodes.size // WIDTH
        pays = self.work(poles.nodes.size) > _PARALLEL_WORK
        # Whatever the machine has: the order of a sum may not depend on its cores.
        halves = [range(0, count, 2), range(1, count, 2)] if pays else [range(count)]
        while len(self._work) < len(halves):
            self._work.append(_Work(self.classes, self.epochs, self.states))
        kept: list[list[_Sweep]] = [[] for _ in halves]
        run(
            [
                partial(self._groups, inverse, poles, groups, self._work[i], kept[i] if keep else None)
                for i, groups in enumerate(halves)
            ],
            together=True,
        )
        x, y, later_x, later_y = np.sum([work.sums for work in self._work[: len(halves)]], axis=0)
        return _resolved(inverse, x, later_x), _resolved(inverse, y, later_y), [s for part in kept for s in part]

    def _groups(
        self, inverse: Array, poles: Poles, groups: Sequence[int], work: _Work, kept: list[_Sweep] | None
    ) -> None:
        system, filters = self._folded, work.filters
        work.sums[:] = 0.0
        x, y, later_x, later_y = work.sums
        adjoints = states = np.empty((self.classes, 0))
        for group in groups:
            part = slice(group * WIDTH, (group + 1) * WIDTH)
            t, w = poles.nodes[part], poles.weights[part]
            if kept is not None:
                gains, starts, adjoints, states = (_empty(filters[0].shape) for _ in range(4))
                filters = (gains, filters[1], starts)
            kernels.forward(system, inverse, (t, w), (x, y), filters, work.ends, work.scratch)
            ends = _closed(work.ends, states=system[1].shape[2], side=self.states)
            shares, responses = (w / t**2, w / t), (adjoints, states)
            kernels.backward(
                system, filters, ends, shares, (later_x, later_y), responses, kept is not None, work.scratch
            )
            if kept is not None:
                kept.append(_Sweep(filters, responses, shares[0]))


def _closed(ends: Ends, *, states: int, side: int) -> Ends:
    """Join the end of each epoch to the start of the next: the adjoints of P, Phi and O.

    The states s return as Sh (Phi s + noise), Sh the shift by an epoch, so with N = (I - Sh Phi)

        [[O, N^T], [N, -Sh P Sh^T]]^-1 = [[a, c], [c^T, d]],   P' = -Sh^T d Sh,   Phi' = -2 Sh^T c^T,   O' = a.
    """
    p, phi, o = (part.reshape(side, side, WIDTH).transpose(2, 0, 1) for part in ends)
    shift = np.eye(side, k=states)
    across = np.eye(side) - shift @ phi
    joint = np.empty((WIDTH, 2 * side, 2 * side))
    joint[:, :side, :side], joint[:, side:, side:] = o, -shift @ p @ shift.T
    joint[:, side:, :side], joint[:, :side, side:] = across, across.transpose(0, 2, 1)
    inverse = np.linalg.inv(joint)
    a, c, d = inverse[:, :side, :side], inverse[:, :side, side:], inverse[:, side:, side:]
    back = -shift.T @ ((d + d.transpose(0, 2, 1)) / 2) @ shift
    return _in_lanes(back), _in_lanes(-2 * (c @ shift).transpose(0, 2, 1)), _in_lanes((a + a.transpose(0, 2, 1)) / 2)


def _in_lanes(matrices: Array) -> Array:
    return np.ascontiguousarray(matrices.transpose(1, 2, 0)).ravel()


def _of_each(change: Callable[[Array], Array], parts: System) -> System:
    follow, feed, read, through = (np.ascontiguousarray(change(part)) for part in parts)
    return follow, feed, read, through


def _resolved(inverse: Array, filtered: Array, later: Array) -> Array:
    """``sum (t W)^-1 V Z - (t W)^-1 (U - V) (t W)^-1`` from the sums without W, the second one lower triangles."""
    later = np.tril(later) + np.tril(later, -1).transpose(0, 2, 1)
    product = inverse @ filtered - inverse @ later @ inverse
    return np.asarray((product + product.transpose(0, 2, 1)) / 2)
