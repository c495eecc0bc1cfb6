"""Single participation for workloads whose inverse is lower bidiagonal.

``G = A^-1`` with ``G[i, i] = p[i] > 0`` and ``G[i, i-1] = -q[i] <= 0``: prefix sums (p = q = 1), learning rates
(p = q = 1 / eta), decoupled weight decay, ``Lambda_tau`` times a prefix sum (where q is zero at block starts).
With ``K = G G^T + t diag(v)``, the diagonal of ``K^-1`` and the squares of its entries come out of one recurrence
from each end that adds, multiplies and divides positive numbers only:

    e[0] = t v[0],           e[i] = t v[i] + q[i]^2 e[i-1] / (p[i-1]^2 + e[i-1])
    f[n-1] = p[n-1]^2,       f[i] = p[i]^2 h[i+1] / (q[i+1]^2 + h[i+1]),      h[i] = t v[i] + f[i]
    (K^-1)[i, i] = 1 / (e[i] + f[i])
    (K^-1)[i, k] = (K^-1)[k, k] rho[k+1] ... rho[i]  (i > k),   rho[i] = q[i] p[i-1] / (q[i]^2 + h[i]) < 1

so nothing is lost to the condition number, whatever the schedule.  Cost: O(n) per pole; memory O(n) for the diagonal.

"""

from functools import partial

import numpy as np

from factorize.solvers.methods.bidiagonal_systems import solve
from factorize.solvers.methods.compiled import Array, Index, Product, TwoArrays, compiled, run, sum_of
from factorize.solvers.methods.poles import UNIT, Poles
from factorize.solvers.single.newton import require_range, vectors
from factorize.solvers.single.streaming import Generators
from factorize.workloads import BidiagonalInverse

_CHUNK_BYTES = 1 << 20  # bytes of e for all poles of a block: few calls, and all in the cache
_PARALLEL_WORK = 1 << 21  # steps times poles from which a second thread pays for its start
_STATE_PADDING = 4  # times the poles of a row, or two threads would write to one line of the cache


def refuse_far(inverse: BidiagonalInverse) -> str | None:
    """Return why the numbers of a workload's inverse are too far from 1 for `Bidiagonal`, or None."""
    try:
        Bidiagonal(inverse.p, inverse.q)
    except ValueError as reason:
        return f"buffered_linear needs learning rates and weights near 1 ({reason}); or use dense"
    return None


class Bidiagonal:
    """A workload known by its bidiagonal inverse, as `newton` wants it.

    Args:
        p: diagonal of ``A^-1``, positive, shape (n,).
        q: negated subdiagonal of ``A^-1``, non-negative, shape (n,); ``q[0]`` is ignored.

    Raises:
        ValueError: the arrays do not fit together or leave the stated ranges.
    """

    def __init__(self, p: Array, q: Array) -> None:
        self.p, self.q = vectors(p=p, q=q)
        self.q[0] = 0.0
        require_range("p", self.p, 1e-60, 1e60)
        require_range("q", self.q[self.q != 0.0], 1e-60, 1e60)
        self._squares = self.p**2, self.q**2
        self.size = self.p.size
        self._back = np.arange(self.size, dtype=np.int64)[::-1].copy()
        self._work: Array | None = None

    def start(self) -> Array:
        """Return ``v[i] = sqrt((A^T A)[i, i])``."""
        return np.sqrt(solve(self._squares[0], self._squares[1][1:], np.ones(self.size), transposed=True))

    def interval(self, v: Array) -> tuple[float, float]:
        """An interval that contains the spectrum of ``V^-1/2 G G^T V^-1/2``.

        The right end is Gershgorin's; the left end the inverse of the largest row sum of the non-negative matrix
        ``A^T A V``.  Both are moved outwards by far more than they can be rounded.
        """
        root, p, q = np.sqrt(v), self.p, self.q
        inverse_lower = float(solve(p, q[1:], solve(p, q[1:], v), transposed=True).max())
        beside = np.zeros(self.size + 1)
        beside[1:-1] = q[1:] * p[:-1] / (root[1:] * root[:-1])
        upper = float(((p / root) ** 2 + (q / root) ** 2 + beside[:-1] + beside[1:]).max())
        slack = 1e-6 + 32.0 * self.size * UNIT
        return (1.0 - slack) / inverse_lower, upper * (1.0 + slack)

    def diagonal(self, v: Array, poles: Poles) -> Array:
        """Return ``X[i, i]`` for ``X = sum_j w_j (G G^T + t_j V)^-1``, shape (n,)."""
        count, pays = poles.nodes.size, self._pays(poles)
        cuts = [0, -(-count // 16) * 8, count] if pays and count > 8 else [0, count]
        parts = [slice(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
        x = np.zeros((len(parts), self.size))
        run(
            [partial(self._sweep, v, poles.nodes[s], poles.weights[s], x[k]) for k, s in enumerate(parts)],
            together=pays,
        )
        return x.sum(axis=0)

    def _sweep(self, v: Array, t: Array, w: Array, x: Array) -> None:
        """Fill ``x`` by chunks: e is swept again in each from the state saved at its start, for memory in O(n)."""
        chunk = max(32, _CHUNK_BYTES // (8 * t.size))
        starts = range(0, self.size, chunk)
        saved, (e, ratio) = np.zeros((len(starts) + 1, t.size)), np.empty((2, min(chunk, self.size), t.size))
        for k, first in enumerate(starts):
            saved[k + 1] = saved[k]
            rise(self._squares, v, t, first, saved[k + 1], e[: self.size - first])
        f = np.full(t.size, self._squares[0][-1])
        for k, first in reversed([*enumerate(starts)]):
            rows = e[: self.size - first]
            if k + 1 < len(starts):
                rise(self._squares, v, t, first, saved[k], rows)
            fall(self._squares, v, t, w, self._back, first, f, (ratio, rows), x)

    def hessian(self, v: Array, poles: Poles) -> Product:
        """The product ``x -> S x`` with ``S[i, k] = sum_j w_j t_j (K_j^-1)[i, k]^2 = -dX[i, i] / dv[k]``.

        The next call overwrites the arrays behind the product: mapping them afresh would cost more than filling them.
        """
        if self._work is None or self._work.shape[2] != poles.nodes.size:
            self._work = np.empty((2, self.size, poles.nodes.size))
        (ratio, scale), state = self._work, np.empty((2, _STATE_PADDING * poles.nodes.size))
        self._factor(v, poles, ratio, scale)
        below = partial(product_below, ratio, scale, state[0])
        return sum_of(below, partial(product_above, ratio, scale, self._back, state[1]), together=self._pays(poles))

    def generators(self, v: Array, poles: Poles) -> Generators:
        """One buffer per pole: decay rho, input w (K^-1)[k, k], output 1."""
        decay, inputs = np.empty((2, self.size, poles.nodes.size, 1))
        self._factor(v, poles, decay[..., 0], inputs[..., 0])
        np.sqrt(decay, out=decay)
        inputs *= (poles.weights / poles.nodes)[:, None]
        np.sqrt(inputs, out=inputs)
        return Generators(decay[..., None], inputs, np.ones_like(inputs))

    def _factor(self, v: Array, poles: Poles, ratio: Array, scale: Array) -> None:
        """Fill ``ratio`` with ``rho^2`` and ``scale`` with ``w t ((K^-1)[i, i])^2``, both of shape (n, poles)."""
        t, ends = poles.nodes, (np.zeros(poles.nodes.size), np.full(poles.nodes.size, self._squares[0][-1]))
        rise(self._squares, v, t, 0, ends[0], scale)
        x = np.empty(self.size)
        fall(self._squares, v, t, poles.weights, self._back, 0, ends[1], (ratio, scale), x)

    def _pays(self, poles: Poles) -> bool:
        return self.size * poles.nodes.size >= _PARALLEL_WORK


@compiled
def rise(squares: TwoArrays, v: Array, t: Array, first: int, state: Array, e: Array) -> None:
    """Fill ``e`` with those of some steps, a row for each; ``state`` is that before the first one, and of the last."""
    p2, q2 = squares
    for i in range(first, first + e.shape[0]):
        decay = p2[i - 1] if i > 0 else 1.0
        for j in range(t.size):
            state[j] = t[j] * v[i] + q2[i] * state[j] / (decay + state[j])
            e[i - first, j] = state[j]


@compiled
def fall(
    squares: TwoArrays, v: Array, t: Array, w: Array, back: Index, first: int, state: Array, out: TwoArrays, x: Array
) -> None:
    """Fill, for the steps of `rise`, ``x`` with ``sum_j w_j (K_j^-1)[i, i]``, and what products take.

    Args:
        squares: squares of p and q, both of shape (n,).
        v: shape (n,).
        t: nodes.
        w: their weights.
        back: n - 1, ..., 0.
        first: the first of the steps.
        state: f after the last step, and before the first one.
        out: ``rho^2``, a row for each step; and what is e at first, ``w t ((K^-1)[i, i])^2``.
        x: out, shape (n,).
    """
    (p2, q2), (ratio, scale) = squares, out
    end = v.size - first
    for step in range(end - scale.shape[0], end):
        i = back[step]
        total = 0.0
        before = p2[i - 1] if i > 0 else 0.0
        for j in range(t.size):
            h = t[j] * v[i] + state[j]
            inverse, by = 1.0 / (scale[i - first, j] + state[j]), 1.0 / (q2[i] + h)
            total += w[j] * inverse
            scale[i - first, j] = w[j] * t[j] * inverse * inverse
            ratio[i - first, j] = q2[i] * before * by * by
            state[j] = before * by * h
        x[i] = total


@compiled
def product_below(ratio: Array, scale: Array, state: Array, x: Array, y: Array) -> None:
    """Return ``y[i] = sum over k <= i`` of ``S[i, k] x[k]``."""
    n, count = ratio.shape
    for j in range(count):
        state[j] = 0.0
    for i in range(n):
        total = 0.0
        for j in range(count):
            state[j] = ratio[i, j] * state[j] + scale[i, j] * x[i]
            total += state[j]
        y[i] = total


@compiled
def product_above(ratio: Array, scale: Array, back: Index, state: Array, x: Array, y: Array) -> None:
    """Return ``y[i] = sum over k > i`` of ``S[i, k] x[k]``."""
    n, count = ratio.shape
    for j in range(count):
        state[j] = 0.0
    for step in range(n):
        i = back[step]
        total = 0.0
        for j in range(count):
            total += scale[i, j] * state[j]
            state[j] = ratio[i, j] * (state[j] + x[i])
        y[i] = total
