"""Weights on both sides of a workload whose inverse is lower bidiagonal, in O(n) per pole.

Write G = A^-1 diag(u)^-1/2 for the inverse of diag(sqrt u) A, again bidiagonal with p[i], -q[i], and K = G G^T + t V.
From `bidiagonal` come X = sum_j w_j K_j^-1, with x = diag(X), and the derivative of x by v. The squared row
norms e and their derivative by u are the same functions of the transposed workload, whose inverse is bidiagonal too
once its rows and columns are reversed. What is left is the derivative of each side by the weights of the other,

    d x[k] / d log u[i] = sum_j w_j Y[k, i]^2,  Y = K^-1 G,      v[k] d x[k] / d log u[i] = u[i] d e[i] / d log v[k].

With the recurrences e, f of `bidiagonal` no difference of K^-1 is formed:

    Y[k, i] = (K^-1)[k, i] f[i] / p[i]                                          k <= i
    Y[k, i] = -(K^-1)[k, i+1] q[i+1] e[i] / (p[i]^2 + e[i])                     k > i

so every number that enters a sum is positive, and small weights keep their relative accuracy.
"""

import numpy as np

from factorize.solvers.methods.compiled import Array, FourArrays, Index, Product, TwoArrays, compiled
from factorize.solvers.methods.poles import Poles, zolotarev
from factorize.solvers.single.bidiagonal import Bidiagonal
from factorize.solvers.single.two_sided import Pair, iterate

_CURVATURE_ERROR = 1e-3
_REACH = 4.0  # the curvature's poles cover this much more at both ends, where derivatives of the approximation are poor


class TwoSidedBidiagonal:
    """A workload known by its bidiagonal inverse, as `two_sided` wants it.

    Args:
        p: diagonal of A^-1, positive, shape (n,).
        q: negated subdiagonal of A^-1, non-negative, shape (n,); ``q[0]`` is ignored.
    """

    def __init__(self, p: Array, q: Array) -> None:
        self._p, self._q = np.array(p, dtype=np.float64), np.array(q, dtype=np.float64)
        self._q[0] = 0.0
        self._back = np.arange(self._p.size, dtype=np.int64)[::-1].copy()

    def start(self) -> tuple[Array, Array]:
        """Return the norms of rows and of columns of A."""
        rows = Bidiagonal(self._p[::-1], _shifted(self._q))
        return rows.start()[::-1], Bidiagonal(self._p, self._q).start()

    def columns(self, u: Array) -> Bidiagonal:
        """Return the workload diag(sqrt u) A."""
        root = np.sqrt(u)
        return Bidiagonal(self._p / root, self._q / np.concatenate([[1.0], root[:-1]]))

    def rows(self, v: Array) -> Bidiagonal:
        """Return the workload diag(sqrt v) A^T with rows and columns reversed."""
        root = np.sqrt(v)
        return Bidiagonal((self._p / root)[::-1], _shifted(self._q / root))

    def poles(self, u: Array, v: Array, error: float) -> Poles:
        """Return poles for the spectrum of (diag(sqrt u) A diag(sqrt v))^-2."""
        return zolotarev(*self.columns(u).interval(v), error=error, multiple=8)

    def evaluate(self, u: Array, v: Array, error: float) -> Pair:
        """Return what belongs to weights that sum to 1."""
        columns, rows = self.columns(u), self.rows(v)
        poles = self.poles(u, v, error)
        x = columns.diagonal(v, poles)
        e = rows.diagonal(u[::-1].copy(), poles)[::-1].copy()
        value, delta = float((v * x).sum()), poles.delta
        x, e = x / value, e / float((u * e).sum())
        gap = float(x.max()) * float(e.max()) * ((1.0 + delta) / (1.0 - delta)) ** 2 - 1.0

        def solve(diagonal: Array, wanted: Array) -> Array:
            wide = zolotarev(poles.lower / _REACH, poles.upper * _REACH, error=_CURVATURE_ERROR, multiple=8)
            return iterate(self._curvature(u, v, wide, value), np.concatenate([u, v]), diagonal, wanted, gap)

        return Pair(u, v, e, x, value, gap, delta, solve)

    def _curvature(self, u: Array, v: Array, poles: Poles, value: float) -> Product:
        columns, n = self.columns(u), self._p.size
        own_v = columns.hessian(v, poles)
        own_u = self.rows(v).hessian(u[::-1].copy(), poles)
        ratio, scale, above, below = np.empty((4, n, poles.nodes.size))
        first, second = np.empty((2, poles.nodes.size))
        squares, factors, scratch = (columns.p**2, columns.q**2), (ratio, scale, above, below), (first, second)
        _cross_factor(squares, v, poles.nodes, poles.weights, self._back, first, factors)

        def product(step: Array) -> Array:
            along_u, along_v = u * step[:n], v * step[n:]
            by_u, by_v = np.zeros(n), np.zeros(n)
            _cross_below(factors, step[:n], along_v, scratch, by_u, by_v)
            _cross_above(factors, self._back, step[:n], along_v, scratch, by_u, by_v)
            of_u = u * own_u(along_u[::-1].copy())[::-1] - by_u
            return np.concatenate([of_u, v * (own_v(along_v) - by_v)]) / value

        return product


def _shifted(q: Array) -> Array:
    """Return the subdiagonal of the reversed transpose."""
    return np.concatenate([[0.0], q[:0:-1]])


@compiled
def _cross_factor(
    squares: TwoArrays, v: Array, t: Array, w: Array, back: Index, state: Array, factors: FourArrays
) -> None:
    """Fill ``ratio`` with rho^2, ``scale`` with w ((K^-1)[i, i])^2, ``above`` and ``below`` with the factors of Y^2."""
    (p2, q2), (ratio, scale, above, below) = squares, factors
    n, count = ratio.shape
    for j in range(count):
        state[j] = 0.0
    for i in range(n):
        decay = p2[i - 1] if i > 0 else 1.0
        for j in range(count):
            kept = state[j] / (decay + state[j])
            below[i, j] = q2[i] * kept * kept
            state[j] = t[j] * v[i] + q2[i] * kept
            scale[i, j] = state[j]
    for j in range(count):
        state[j] = p2[n - 1]
    for step in range(n):
        i = back[step]
        before = p2[i - 1] if i > 0 else 0.0
        for j in range(count):
            h = t[j] * v[i] + state[j]
            inverse = 1.0 / (scale[i, j] + state[j])
            scale[i, j] = w[j] * inverse * inverse
            above[i, j] = state[j] * (state[j] / p2[i])
            passed = before / (q2[i] + h)
            ratio[i, j] = q2[i] * passed / (q2[i] + h)
            state[j] = passed * h


@compiled
def _cross_below(factors: FourArrays, a: Array, b: Array, states: TwoArrays, by_u: Array, by_v: Array) -> None:
    """Add to R a the entries i < k, and to R^T b the entries k <= i."""
    (ratio, scale, above, below), (from_u, from_v) = factors, states
    n, count = ratio.shape
    for j in range(count):
        from_u[j] = from_v[j] = 0.0
    for i in range(n):
        before = a[i - 1] if i > 0 else 0.0
        to_u, to_v = 0.0, 0.0
        for j in range(count):
            from_u[j] = ratio[i, j] * from_u[j] + scale[i, j] * below[i, j] * before
            from_v[j] = ratio[i, j] * from_v[j] + scale[i, j] * b[i]
            to_v += from_u[j]
            to_u += above[i, j] * from_v[j]
        by_v[i] += to_v
        by_u[i] += to_u


@compiled
def _cross_above(
    factors: FourArrays, back: Index, a: Array, b: Array, states: TwoArrays, by_u: Array, by_v: Array
) -> None:
    """Add to R a the entries i >= k, and to R^T b the entries k > i."""
    (ratio, scale, above, below), (from_u, from_v) = factors, states
    n, count = ratio.shape
    for j in range(count):
        from_u[j] = from_v[j] = 0.0
    for step in range(n):
        i = back[step]
        to_u, to_v = 0.0, 0.0
        for j in range(count):
            here_u, here_v = above[i, j] * a[i] + from_u[j], b[i] + from_v[j]
            to_v += scale[i, j] * here_u
            to_u += below[i, j] * scale[i, j] * here_v
            from_u[j] = ratio[i, j] * here_u
            from_v[j] = ratio[i, j] * here_v
        by_v[i] += to_v
        if i > 0:
            by_u[i - 1] += to_u
