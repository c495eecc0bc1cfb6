"""Single participation for momentum with learning rates and weight decay.

``A = S_lam diag(eta) M_beta``, where ``M_beta`` accumulates momentum (factor ``beta[i]`` from step i to i+1) and
``S_lam`` the iterate (factor ``lam[i]`` from step i to i+1, 1 without weight decay).  ``A^-1`` has three diagonals;
forming ``L + t V`` from them would lose the small eigenvalues, so ``(L + t V)^-1`` is read as a posterior
covariance: of ``z = A^T w``, w white, where z[i] is observed with precision ``tau[i] = t v[i]``.  Backwards in i

    c[i] = lam[i] c[i+1] + w[i],    m[i] = beta[i] m[i+1] + eta[i] c[i],    z[i] = m[i],

a state of two numbers with ``F = [beta e1 | lam g]``, ``g = (eta, 1)``.  A filter from the end carries the predicted
covariance as ``a (1, r)(1, r)^T + c e2 e2^T``, one from the start the information ``e e1 e1^T + d (rho, 1)(rho, 1)^T``.
In these variables every operation of both filters and of the posterior variance s1 adds, multiplies or divides
positive numbers; the covariance s2 with the second state subtracts once:

    a+ = a / (1 + tau[i+1] a),  u = beta + eta lam r,  c1 = 1 + lam^2 c
    a <- a+ u^2 + eta^2 c1,     r <- (lam r a+ u + eta c1) / a,     c <- beta^2 a+ c1 / a          (a, u new first)

    e' = e + tau[i],  k = 1 + rho eta,  gam = e' eta + d rho k,  del = e' eta^2 + d k^2,  h = 1 / (1 + del)
    s1 = a (1 + c d) / den,  s2 = a (r - c d rho) / den,  den = (1 + a e')(1 + c d) + a d (rho + r)^2
    d <- lam^2 del h,   rho <- beta gam / (lam del),   e <- beta^2 e' d / del                       (d old on the right)

    (K^-1)[i, k] = e1 . Phi[i] ... Phi[k-1] (s1, s2)[k]  (i <= k)
    Phi = [[beta h (1 + d k), eta lam h], [-beta h gam, lam h]]

Cost: O(n) per pole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from solvers import two_filter
from solvers.newton import Optimum, Progress, maximise, require_range
from solvers.poles import UNIT, Poles
from solvers.streaming import Generators
from solvers.threads import run

Array = NDArray[np.float64]

_LANES = 16  # poles per sweep: two vectors; the stored filter of more would leave the cache
_TRACKED_LANES = 8  # 12 numbers are stored for each
_PARALLEL_WORK = 1 << 17  # steps times poles from which a second thread pays for its start


def solve(
    beta: Array,
    eta: Array,
    lam: Array,
    *,
    tolerance: float,
    callback: Progress | None = None,
    start: Array | None = None,
) -> Optimum:
    """Minimise ``tr(A^T A X^-1)`` over ``diag(X) <= 1`` for ``A = S_lam diag(eta) M_beta``.

    Args:
        beta: momentum factor from each step to the next, in [0, 1], shape (n,); the last is ignored.
        eta: learning rates, positive, shape (n,).
        lam: decay of the iterate from each step to the next, positive, at most 1, shape (n,); the last is ignored.
        tolerance: relative gap between the bounds at which to stop.
        callback: called with (iteration, relative gap); an exception raised in it ends the solve.
        start: dual weights to start from, positive, shape (n,); their scale does not matter.

    Returns:
        Dual weights with a lower and an upper bound of the minimum; the gap may exceed ``tolerance``.

    Raises:
        ValueError: if the arrays do not fit together or leave the stated ranges.
    """
    return maximise(Momentum(beta, eta, lam), tolerance=tolerance, callback=callback, start=start)


class Momentum:
    """``A = S_lam diag(eta) M_beta`` as `solvers.newton` and `solvers.streaming` want it.

    Args:
        beta: momentum factor from each step to the next, in [0, 1], shape (n,); the last is ignored.
        eta: learning rates, positive, shape (n,).
        lam: decay of the iterate from each step to the next, positive, at most 1, shape (n,); the last is ignored.
    """

    def __init__(self, beta: Array, eta: Array, lam: Array) -> None:
        self.beta, self.eta, self.lam = (np.array(a, dtype=np.float64) for a in (beta, eta, lam))
        if self.eta.ndim != 1 or not self.eta.size or not self.beta.shape == self.eta.shape == self.lam.shape:
            raise ValueError(
                "beta, eta and lam must be vectors of one length, got shapes "
                f"{self.beta.shape}, {self.eta.shape} and {self.lam.shape}"
            )
        require_range("eta", self.eta, 1e-60, 1e60)
        require_range("beta", self.beta, 0.0, 1.0)
        require_range("lam", self.lam, 1e-60, 1.0)
        self.size = self.eta.size
        self._steps = np.stack([self.beta, self.eta, self.lam])
        self._back = np.arange(self.size, dtype=np.int64)[::-1].copy()
        self._work: Array = np.empty((self.size, 6, 0))

    def start(self) -> Array:
        """``v[i] = sqrt((A^T A)[i, i])``, the filter without observations."""
        stored = np.empty((self.size, 3, 1))
        two_filter.predict(self._steps, np.zeros(self.size), np.ones(1), self._back, stored)
        return np.sqrt(stored[:, 0, 0])

    def interval(self, v: Array) -> tuple[float, float]:
        """An interval that contains the spectrum of ``T = V^-1/2 L V^-1/2``.

        Right: ``||T|| <= ||H||_1 ||H||_inf``, ``H = V^-1/2 A^-1``.  Left: the Collatz-Wielandt bound for the
        non-negative ``T^-1`` after one power step.  Both are moved outwards by far more than they can be rounded.
        """
        inverse_lower, upper = two_filter.interval(self._steps, v)
        slack = 1e-6 + 64.0 * self.size * UNIT
        return (1.0 - slack) / inverse_lower, upper * (1.0 + slack)

    def diagonal(self, v: Array, poles: Poles) -> Array:
        """``X[i, i]`` for ``X = sum_j w_j (L + t_j V)^-1``, shape (n,)."""
        return self._in_halves(self._add, v, poles, _LANES)[0]

    def certified_diagonal(self, v: Array, poles: Poles) -> tuple[Array, Array]:
        """``X[i, i]`` and a bound on the relative error of each, both of shape (n,)."""
        x, error = self._in_halves(self._add_tracked, v, poles, _TRACKED_LANES)
        bound = (error / x + poles.nodes.size + 4.0) * UNIT * 1.01
        if not np.all(bound < 1e-3):
            raise FloatingPointError(f"rounding may reach {bound.max():.1e} of the diagonal; rescale the workload")
        return x, bound

    def _in_halves(
        self, add: Callable[[Array, Poles, list[slice], Array, Array], None], v: Array, poles: Poles, lanes: int
    ) -> tuple[Array, Array]:
        parts = _blocks(poles.nodes.size, lanes)
        halves = [parts[: len(parts) // 2], parts[len(parts) // 2 :]] if self._pays(poles) else [parts]
        x, error = np.zeros((len(halves), self.size)), np.zeros((len(halves), self.size))
        run([partial(add, v, poles, half, x[k], error[k]) for k, half in enumerate(halves)], together=True)
        return x.sum(axis=0), error.sum(axis=0)

    def _add(self, v: Array, poles: Poles, parts: list[slice], x: Array, error: Array) -> None:
        filtered = np.empty((self.size, 3, 0))
        for part in parts:
            filtered = _resized(filtered, part.stop - part.start)
            two_filter.predict(self._steps, v, poles.nodes[part], self._back, filtered)
            two_filter.combine(self._steps, v, poles.nodes[part], poles.weights[part], filtered, x)

    def _add_tracked(self, v: Array, poles: Poles, parts: list[slice], x: Array, error: Array) -> None:
        filtered = np.empty((self.size, 12, 0))
        for part in parts:
            nodes, weights = poles.nodes[part], poles.weights[part]
            filtered = _resized(filtered, nodes.size)
            two_filter.predict_tracked(self._steps, v, nodes, self._back, filtered)
            two_filter.combine_tracked(self._steps, v, nodes, weights, filtered, x, error)

    def hessian(self, v: Array, poles: Poles) -> Callable[[Array], Array]:
        """The product ``x -> S x`` with ``S[i, k] = sum_j w_j t_j (K_j^-1)[i, k]^2 = -dX[i, i] / dv[k]``.

        The next call overwrites the array behind the product.
        """
        count = poles.nodes.size
        loops = self._work = _resized(self._work, count)
        two_filter.close(self._steps, v, poles.nodes, poles.weights * poles.nodes, self._back, loops)
        pays = self._pays(poles)

        def product(x: Array) -> Array:
            above, below = np.empty_like(x), np.empty_like(x)
            run(
                [
                    partial(two_filter.product_above, loops, self._back, x, above),
                    partial(two_filter.product_below, loops, x, below),
                ],
                together=pays,
            )
            return np.add(above, below, out=above)

        return product

    def generators(self, v: Array, poles: Poles) -> Generators:
        """Two states per pole: transition ``Phi[i-1]^T``, input e1, output ``w sigma``."""
        n, count = self.size, poles.nodes.size
        loops = np.empty((n, 6, count))
        two_filter.close(self._steps, v, poles.nodes, poles.weights**2, self._back, loops)
        transition = np.zeros((n, count, 2, 2))
        for k, (row, column) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
            transition[1:, :, column, row] = loops[:-1, k]
        inputs = np.zeros((n, count, 2))
        inputs[:, :, 0] = 1.0
        return Generators(transition, inputs, np.ascontiguousarray(np.moveaxis(loops[:, 4:], 1, -1)))

    def _pays(self, poles: Poles) -> bool:
        return self.size * poles.nodes.size >= _PARALLEL_WORK


def _blocks(count: int, lanes: int) -> list[slice]:
    return [slice(a, min(a + lanes, count)) for a in range(0, count, lanes)]


def _resized(array: Array, count: int) -> Array:
    """The array itself if it has ``count`` entries in its last dimension: fresh pages cost more than the sweep."""
    return array if array.shape[2] == count else np.empty((*array.shape[:2], count))
