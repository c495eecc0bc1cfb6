"""Single participation for a cascade of three recursions: SRG, or momentum twice.

``A = S_lam diag(eta) M_beta L_decay``: L accumulates the gradients (factor ``decay[i]`` from step i to i+1), M the
result (``beta[i]``), S the iterate (``lam[i]``).  As in `solvers.momentum`, ``(L + t V)^-1`` is the posterior
covariance of ``z = A^T w``, observed with precision ``tau = t v``; backwards in i, after scaling the states by (decay,
beta, lam),

    c += w,   m += eta c,   l += m,   z = l,       state (l, m, c).

Scaling, adding to the last state and adding a multiple of one state to its neighbour keep a covariance totally
nonnegative.  So it is carried as ``U diag(d1, d2, d3) U^T``, U unit lower triangular with rows (1), (r1, 1) and
(r1 a, a + b, 1), so that b is its remaining minor over r1; the information as ``W diag(e1, e2, e3) W^T``, W unit upper
triangular with rows (1, a + b, w23 a), (1, w23) and (1), a and b its own.  All these numbers are non-negative and have
recursions without a subtraction: an observation changes d1 and e1 alone, new noise d3 and e3 alone, and the rest
follows from the formula of Cauchy and Binet, as does the posterior variance with its denominator
``det(I + D M E M^T)``, ``M = U^T W``.

Cost: O(n) per pole.  We found these recursions in no publication.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from solvers import cascade_product, three_filter
from solvers.newton import Optimum, Progress, maximise, require_range
from solvers.poles import UNIT, Poles
from solvers.streaming import Generators
from solvers.threads import run

Array = NDArray[np.float64]

_LANES = 16  # poles per sweep: two vectors; the stored filter of more would leave the cache
_TRACKED_LANES = 4  # 42 numbers are stored for each
_PARALLEL_WORK = 1 << 17  # steps times poles from which a second thread pays for its start


def solve(
    beta: Array,
    eta: Array,
    lam: Array,
    decay: Array,
    *,
    tolerance: float,
    callback: Progress | None = None,
    start: Array | None = None,
) -> Optimum:
    """Minimise ``tr(A^T A X^-1)`` over ``diag(X) <= 1`` for ``A = S_lam diag(eta) M_beta L_decay``.

    Args:
        beta: momentum factor from each step to the next, in (0, 1], shape (n,); the last is ignored.  For zero use
            `solvers.momentum`.
        eta: learning rates, positive, shape (n,).
        lam: decay of the iterate from each step to the next, positive, at most 1, shape (n,); the last is ignored.
        decay: factor of the first accumulation from each step to the next, positive, shape (n,); the last is ignored.
        tolerance: relative gap between the bounds at which to stop.
        callback: called with (iteration, relative gap); an exception raised in it ends the solve.
        start: dual weights to start from, positive, shape (n,); their scale does not matter.

    Returns:
        Dual weights with a lower and an upper bound of the minimum; the gap may exceed ``tolerance``.

    Raises:
        ValueError: if the arrays do not fit together or leave the stated ranges.
    """
    return maximise(Cascade(beta, eta, lam, decay), tolerance=tolerance, callback=callback, start=start)


class Cascade:
    """``A = S_lam diag(eta) M_beta L_decay`` as `solvers.newton` and `solvers.streaming` want it.

    Args:
        beta: momentum factor from each step to the next, in (0, 1], shape (n,); the last is ignored.  For zero use
            `solvers.momentum`.
        eta: learning rates, positive, shape (n,).
        lam: decay of the iterate from each step to the next, positive, at most 1, shape (n,); the last is ignored.
        decay: factor of the first accumulation from each step to the next, positive, shape (n,); the last is ignored.
    """

    def __init__(self, beta: Array, eta: Array, lam: Array, decay: Array) -> None:
        given = {"beta": beta, "eta": eta, "lam": lam, "decay": decay}
        arrays = {name: np.array(a, dtype=np.float64) for name, a in given.items()}
        shapes = {a.shape for a in arrays.values()}
        if len(shapes) > 1 or arrays["eta"].ndim != 1 or not arrays["eta"].size:
            raise ValueError(f"beta, eta, lam and decay must be vectors of one length, got shapes {sorted(shapes)}")
        require_range("eta", arrays["eta"], 1e-40, 1e40)
        require_range("beta", arrays["beta"], 1e-40, 1.0)
        require_range("lam", arrays["lam"], 1e-40, 1.0)
        require_range("decay", arrays["decay"], 1e-40, 1e3)
        self.beta, self.eta, self.lam, self.decay = arrays.values()
        self.size = self.eta.size
        self._steps = np.stack([self.beta, self.eta, self.lam, self.decay])
        self._back = np.arange(self.size, dtype=np.int64)[::-1].copy()
        self._work: Array = np.empty((self.size, 12, 0))

    def start(self) -> Array:
        """``v[i] = sqrt((A^T A)[i, i])``, the filter without observations."""
        stored = np.empty((self.size, 6, 1))
        three_filter.predict(self._steps, np.zeros(self.size), np.ones(1), self._back, stored)
        return np.sqrt(stored[:, 0, 0])

    def interval(self, v: Array) -> tuple[float, float]:
        """An interval that contains the spectrum of ``T = V^-1/2 L V^-1/2``.

        Right: ``||T|| <= ||H||_1 ||H||_inf``, ``H = V^-1/2 A^-1``.  Left: the Collatz-Wielandt bound for the
        non-negative ``T^-1`` after one power step.  Both are moved outwards by far more than they can be rounded.
        """
        inverse_lower, upper = three_filter.interval(self._steps, v)
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
        filtered = np.empty((self.size, 6, 0))
        for part in parts:
            filtered = _resized(filtered, part.stop - part.start)
            three_filter.predict(self._steps, v, poles.nodes[part], self._back, filtered)
            three_filter.combine(self._steps, v, poles.nodes[part], poles.weights[part], filtered, x)

    def _add_tracked(self, v: Array, poles: Poles, parts: list[slice], x: Array, error: Array) -> None:
        filtered = np.empty((self.size, 42, 0))
        for part in parts:
            nodes, weights = poles.nodes[part], poles.weights[part]
            filtered = _resized(filtered, nodes.size)
            three_filter.predict_tracked(self._steps, v, nodes, self._back, filtered)
            three_filter.combine_tracked(self._steps, v, nodes, weights, filtered, x, error)

    def hessian(self, v: Array, poles: Poles) -> Callable[[Array], Array]:
        """The product ``x -> S x`` with ``S[i, k] = sum_j w_j t_j (K_j^-1)[i, k]^2 = -dX[i, i] / dv[k]``.

        The next call overwrites the array behind the product.
        """
        count = poles.nodes.size
        loops = self._work = _resized(self._work, count)
        three_filter.close(self._steps, v, poles.nodes, poles.weights * poles.nodes, self._back, loops)
        pays = self._pays(poles)

        def product(x: Array) -> Array:
            above, below = np.empty_like(x), np.empty_like(x)
            run(
                [
                    partial(cascade_product.product_above, loops, self._back, x, above),
                    partial(cascade_product.product_below, loops, x, below),
                ],
                together=pays,
            )
            return np.add(above, below, out=above)

        return product

    def generators(self, v: Array, poles: Poles) -> Generators:
        """Three states per pole: transition ``Phi[i-1]^T``, input e1, output ``w sigma``."""
        n, count = self.size, poles.nodes.size
        loops = np.empty((n, 12, count))
        three_filter.close(self._steps, v, poles.nodes, poles.weights**2, self._back, loops)
        transition = np.zeros((n, count, 3, 3))
        transition[1:] = loops[:-1, :9].reshape(n - 1, 3, 3, count).transpose(0, 3, 2, 1)
        inputs = np.zeros((n, count, 3))
        inputs[:, :, 0] = 1.0
        return Generators(transition, inputs, np.ascontiguousarray(np.moveaxis(loops[:, 9:], 1, -1)))

    def _pays(self, poles: Poles) -> bool:
        return self.size * poles.nodes.size >= _PARALLEL_WORK


def _blocks(count: int, lanes: int) -> list[slice]:
    return [slice(a, min(a + lanes, count)) for a in range(0, count, lanes)]


def _resized(array: Array, count: int) -> Array:
    """The array itself if it has ``count`` entries in its last dimension: fresh pages cost more than the sweep."""
    return array if array.shape[2] == count else np.empty((*array.shape[:2], count))
