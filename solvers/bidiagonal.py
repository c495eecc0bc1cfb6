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

The kernels may reorder sums and contract ``a * b + c`` (``fastmath`` flags of ``_FLAGS``): with positive terms that
changes a result within the rounding allowance below, and it lets the compiler run eight poles per instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numba
import numpy as np
from numpy.typing import NDArray

from solvers.newton import Optimum, Progress, maximise, require_range
from solvers.poles import UNIT, Poles
from solvers.streaming import Generators
from solvers.threads import run

Array = NDArray[np.float64]

_FLAGS = {"reassoc", "contract", "nsz"}
_CHUNK_BYTES = 1 << 17  # one chunk of e for all poles of a block stays in the second-level cache
_PARALLEL_WORK = 1 << 21  # steps times poles from which a second thread pays for its start


def solve(
    p: Array, q: Array, *, tolerance: float, callback: Progress | None = None, start: Array | None = None
) -> Optimum:
    """Minimise ``tr(A^T A X^-1)`` over ``diag(X) <= 1`` for ``A^-1`` lower bidiagonal.

    Args:
        p: diagonal of ``A^-1``, positive, shape (n,).
        q: negated subdiagonal of ``A^-1``, non-negative, shape (n,); ``q[0]`` is ignored.
        tolerance: relative gap between the bounds at which to stop.
        callback: called with (iteration, relative gap); an exception raised in it ends the solve.
        start: dual weights to start from, positive, shape (n,); their scale does not matter.

    Returns:
        Dual weights with a lower and an upper bound of the minimum; the gap may exceed ``tolerance``.

    Raises:
        ValueError: if the arrays do not fit together or leave the stated ranges.
    """
    return maximise(Bidiagonal(p, q), tolerance=tolerance, callback=callback, start=start)


class Bidiagonal:
    """A workload known by its bidiagonal inverse, as `solvers.newton` wants it.

    Args:
        p: diagonal of ``A^-1``, positive, shape (n,).
        q: negated subdiagonal of ``A^-1``, non-negative, shape (n,); ``q[0]`` is ignored.
    """

    def __init__(self, p: Array, q: Array) -> None:
        self.p, self.q = (np.array(a, dtype=np.float64) for a in (p, q))
        if self.p.ndim != 1 or self.p.shape != self.q.shape or not self.p.size:
            raise ValueError(f"p and q must be vectors of one length, got shapes {self.p.shape} and {self.q.shape}")
        self.q[0] = 0.0
        require_range("p", self.p, 1e-60, 1e60)
        require_range("q", self.q[self.q != 0.0], 1e-60, 1e60)
        self._p2, self._q2 = self.p**2, self.q**2
        self.size = self.p.size
        self._work: Array | None = None

    def start(self) -> Array:
        """``v[i] = sqrt((A^T A)[i, i])``."""
        return _start(self._p2, self._q2)

    def interval(self, v: Array) -> tuple[float, float]:
        """An interval that contains the spectrum of ``V^-1/2 G G^T V^-1/2``.

        The right end is Gershgorin's; the left end the Collatz-Wielandt bound for the non-negative matrix
        ``V^1/2 A^T A V^1/2`` after one power step.  Both are moved outwards by far more than they can be rounded.
        """
        inverse_lower, upper = _interval(self.p, self.q, v)
        slack = 1e-6 + 32.0 * self.size * UNIT
        return (1.0 - slack) / inverse_lower, upper * (1.0 + slack)

    def diagonal(self, v: Array, poles: Poles) -> Array:
        """``X[i, i]`` for ``X = sum_j w_j (G G^T + t_j V)^-1``, shape (n,)."""
        return self._sweep(v, poles, track=False)[0]

    def certified_diagonal(self, v: Array, poles: Poles) -> tuple[Array, Array]:
        """``X[i, i]`` and a bound on the relative error of each, both of shape (n,)."""
        x, error = self._sweep(v, poles, track=True)
        # first-order count, in units of u; the factor covers the products of errors as long as they are small
        bound = (error / x + poles.nodes.size + 4.0) * UNIT * 1.01
        if not np.all(bound < 1e-3):
            raise FloatingPointError(f"rounding may reach {bound.max():.1e} of the diagonal; rescale the workload")
        return x, bound

    def hessian(self, v: Array, poles: Poles) -> Callable[[Array], Array]:
        """The product ``x -> S x`` with ``S[i, k] = sum_j w_j t_j (K_j^-1)[i, k]^2 = -dX[i, i] / dv[k]``.

        The next call overwrites the arrays behind the product: mapping them afresh would cost more than filling them.
        """
        if self._work is None or self._work.shape[2] != poles.nodes.size:
            self._work = np.empty((2, self.size, poles.nodes.size))
        ratio, scale = self._work
        _factor(self._p2, self._q2, v, poles.nodes, poles.weights, ratio, scale)
        pays = self._pays(poles)

        def product(x: Array) -> Array:
            below, above = np.empty_like(x), np.empty_like(x)
            run(
                [partial(_product_below, ratio, scale, x, below), partial(_product_above, ratio, scale, x, above)],
                together=pays,
            )
            return np.add(below, above, out=below)

        return product

    def generators(self, v: Array, poles: Poles) -> Generators:
        """One buffer per pole: decay rho, input w (K^-1)[k, k], output 1."""
        decay, inputs = (np.empty((self.size, poles.nodes.size, 1)) for _ in range(2))
        _factor(self._p2, self._q2, v, poles.nodes, poles.weights, decay[..., 0], inputs[..., 0])
        np.sqrt(decay, out=decay)
        inputs *= (poles.weights / poles.nodes)[:, None]
        np.sqrt(inputs, out=inputs)
        return Generators(decay[..., None], inputs, np.ones_like(inputs))

    def _sweep(self, v: Array, poles: Poles, *, track: bool) -> tuple[Array, Array]:
        count, pays = poles.nodes.size, self._pays(poles)
        cuts = [0, -(-count // 16) * 8, count] if pays and count > 8 else [0, count]
        parts = [slice(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
        x = np.zeros((len(parts), self.size))
        error = np.zeros((len(parts), self.size if track else 1))
        chunk = max(32, _CHUNK_BYTES // (8 * count))
        calls = [
            partial(_diagonal, self._p2, self._q2, v, poles.nodes[s], poles.weights[s], chunk, track, x[k], error[k])
            for k, s in enumerate(parts)
        ]
        run(calls, together=pays)
        return x.sum(axis=0), error.sum(axis=0)

    def _pays(self, poles: Poles) -> bool:
        return self.size * poles.nodes.size >= _PARALLEL_WORK


@numba.njit(cache=True, nogil=True)
def _start(p2: Array, q2: Array) -> Array:
    v = np.empty_like(p2)
    carried = 0.0
    for i in range(p2.size - 1, -1, -1):
        square = (1.0 + carried) / p2[i]
        carried = q2[i] * square
        v[i] = np.sqrt(square)
    return v


@numba.njit(cache=True, nogil=True)
def _interval(p: Array, q: Array, v: Array) -> tuple[float, float]:
    n = p.size
    root = np.sqrt(v)
    upper, left = 0.0, 0.0
    for i in range(n):
        right = q[i + 1] * p[i] / (root[i] * root[i + 1]) if i + 1 < n else 0.0
        upper = max(upper, (p[i] / root[i]) ** 2 + (q[i] / root[i]) ** 2 + left + right)
        left = right
    inverse = 1.0 / p
    x = root / root.max()
    ratio = 0.0
    for _ in range(2):
        y = root * x
        y[0] *= inverse[0]
        for i in range(1, n):
            y[i] = (y[i] + q[i] * y[i - 1]) * inverse[i]
        y[n - 1] *= inverse[n - 1]
        for i in range(n - 2, -1, -1):
            y[i] = (y[i] + q[i + 1] * y[i + 1]) * inverse[i]
        y *= root
        ratio = (y / x).max()
        x = np.maximum(y / y.max(), 1e-150)  # any positive vector gives a bound
    return ratio, upper


@numba.njit(cache=True, nogil=True, fastmath=_FLAGS)
def _forward(
    p2: Array, q2: Array, v: Array, t: Array, first: int, last: int, e: Array, error: Array, track: bool
) -> None:
    """Rows 1.. of the buffers from row 0: row r holds index first + r - 1."""
    for i in range(first, last):
        r = i - first + 1
        decay = p2[i - 1] if i > 0 else 1.0
        for j in range(t.size):
            own, before = t[j] * v[i], e[r - 1, j]
            e[r, j] = own + q2[i] * before / (decay + before)
        if track:
            for j in range(t.size):
                own, before = t[j] * v[i], e[r - 1, j]
                passed = 5.0 + error[r - 1, j] * decay / (decay + before)
                error[r, j] = 1.0 + (own + (e[r, j] - own) * passed) / e[r, j]


@numba.njit(cache=True, nogil=True, fastmath=_FLAGS)
def _diagonal(
    p2: Array, q2: Array, v: Array, t: Array, w: Array, chunk: int, track: bool, x: Array, x_error: Array
) -> None:
    n, count = v.size, t.size
    chunks = (n + chunk - 1) // chunk
    saved = np.zeros((chunks, 2, count))
    e = np.zeros((chunk + 1, count))
    error = np.zeros((chunk + 1 if track else 1, count))
    for c in range(chunks):
        saved[c, 0], saved[c, 1] = e[-1], error[-1]
        if c + 1 < chunks:
            e[0], error[0] = saved[c, 0], saved[c, 1]
            _forward(p2, q2, v, t, c * chunk, (c + 1) * chunk, e, error, track)
    f, f_error = np.full(count, p2[n - 1]), np.ones(count)
    for c in range(chunks - 1, -1, -1):
        first, last = c * chunk, min(n, (c + 1) * chunk)
        e[0], error[0] = saved[c, 0], saved[c, 1]
        _forward(p2, q2, v, t, first, last, e, error, track)
        for i in range(last - 1, first - 1, -1):
            r = i - first + 1
            total, total_error = 0.0, 0.0
            if track:
                for j in range(count):
                    own = t[j] * v[i]
                    h = own + f[j]
                    inverse = 1.0 / (e[r, j] + f[j])
                    total_error += w[j] * inverse * inverse * (e[r, j] * error[r, j] + f[j] * f_error[j])
                    f_error[j] = 5.0 + (1.0 + (own + f[j] * f_error[j]) / h) * q2[i] / (q2[i] + h)
                x_error[i] = total_error
            before = p2[i - 1] if i > 0 else 0.0
            for j in range(count):
                h = t[j] * v[i] + f[j]
                total += w[j] / (e[r, j] + f[j])
                f[j] = before * h / (q2[i] + h)
            x[i] = total


@numba.njit(cache=True, nogil=True, fastmath=_FLAGS)
def _factor(p2: Array, q2: Array, v: Array, t: Array, w: Array, ratio: Array, scale: Array) -> None:
    n, count = ratio.shape
    for j in range(count):
        scale[0, j] = t[j] * v[0]
    for i in range(1, n):
        for j in range(count):
            before = scale[i - 1, j]
            scale[i, j] = t[j] * v[i] + q2[i] * before / (p2[i - 1] + before)
    f = np.full(count, p2[n - 1])
    for i in range(n - 1, -1, -1):
        before = p2[i - 1] if i > 0 else 0.0
        for j in range(count):
            h = t[j] * v[i] + f[j]
            inverse = 1.0 / (scale[i, j] + f[j])
            scale[i, j] = w[j] * t[j] * inverse * inverse
            passed = before / (q2[i] + h)
            ratio[i, j] = q2[i] * passed / (q2[i] + h)
            f[j] = passed * h


@numba.njit(cache=True, nogil=True, fastmath=_FLAGS)
def _product_below(ratio: Array, scale: Array, x: Array, y: Array) -> None:
    n, count = ratio.shape
    state = np.zeros(count)
    for i in range(n):
        total = 0.0
        for j in range(count):
            state[j] = ratio[i, j] * state[j] + scale[i, j] * x[i]
            total += state[j]
        y[i] = total


@numba.njit(cache=True, nogil=True, fastmath=_FLAGS)
def _product_above(ratio: Array, scale: Array, x: Array, y: Array) -> None:
    n, count = ratio.shape
    state = np.zeros(count)
    for i in range(n - 1, -1, -1):
        total = 0.0
        for j in range(count):
            total += scale[i, j] * state[j]
            state[j] = ratio[i, j] * (state[j] + x[i])
        y[i] = total
