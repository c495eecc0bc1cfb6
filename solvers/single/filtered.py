"""Filtered workloads, those with two and three states: sweeps over blocks of poles, in two threads where that pays.

A workload takes part by its kernels, which all have the same arguments: see `two_filter`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType

import numpy as np

from factorize.solvers.methods.bidiagonal_systems import accumulate, add_neighbour
from factorize.solvers.methods.compiled import Array, run
from factorize.solvers.methods.poles import UNIT, Poles
from factorize.solvers.single.streaming import Generators

_ROWS = 6  # of scratch that a kernel wants
_LANES = 16  # poles per sweep: two vectors; the stored filter of more would leave the cache
_PARALLEL_WORK = 1 << 17  # steps times poles from which a second thread pays for its start


class Filtered:
    """A workload ``A = S_lam diag(eta) M`` as `newton` and `streaming` want it, by filters from both ends.

    Args:
        steps: coefficients as the kernels want them, one row each, shape (coefficients, n).
        filters: the module with `predict`, `combine` and `close`.
        products: the module with `product_above` and `product_below`.
        accumulations: factors of M's accumulations from each step to the next, the first one first.
        states: s, so that the closed loop holds s^2 + s numbers.
        numbers: m that the filter from the end stores for each step.
    """

    eta: Array
    lam: Array

    def __init__(
        self,
        steps: Array,
        *,
        filters: ModuleType,
        products: ModuleType,
        accumulations: Sequence[Array],
        states: int,
        numbers: int,
    ) -> None:
        self.size = steps.shape[1]
        self._steps = steps
        self._filters, self._products = filters, products
        self._accumulations = accumulations
        self._states, self._numbers = states, numbers
        self._back = np.arange(self.size, dtype=np.int64)[::-1].copy()
        self._work: Array = np.empty((self.size, states * (states + 1), 0))

    def start(self) -> Array:
        """``v[i] = sqrt((A^T A)[i, i])``, the filter without observations."""
        stored = np.empty((self.size, self._numbers, 1))
        self._filters.predict(self._steps, np.zeros(self.size), np.ones(1), self._back, np.empty((_ROWS, 1)), stored)
        return np.sqrt(stored[:, 0, 0])

    def interval(self, v: Array) -> tuple[float, float]:
        """An interval that contains the spectrum of ``T = V^-1/2 L V^-1/2``.

        Right: ``||T|| <= ||H||_1 ||H||_inf``, ``H = V^-1/2 A^-1``.  Left: the inverse of the largest
        row sum of ``A^T A V``, non-negative.  Both are moved outwards by far more than they can be rounded.
        """
        root = np.sqrt(v)
        rows, columns = self._inverse_sums(root)
        upper = float(rows.max() * columns.max())
        slack = 1e-6 + 64.0 * self.size * UNIT
        return (1.0 - slack) / float(self._squared(v).max()), upper * (1.0 + slack)

    def _squared(self, y: Array) -> Array:
        """``A^T A y``, ``A = S_lam diag(eta) M``, for y >= 0."""
        y = accumulate(self.lam, self.eta * self._inner(y))
        return self._inner(self.eta * accumulate(self.lam, y, transposed=True), transposed=True)

    def _inverse_sums(self, root: Array) -> tuple[Array, Array]:
        """Absolute sums over each row and each column of ``V^-1/2 A^-1``, or more."""
        rows = self._inner_inverse(add_neighbour(self.lam, np.ones(self.size)) / self.eta)
        columns = self._inner_inverse(1.0 / root, transposed=True) / self.eta
        return rows / root, add_neighbour(self.lam, columns, transposed=True)

    def _inner(self, y: Array, *, transposed: bool = False) -> Array:
        """``M y`` or ``M^T y`` for y >= 0: one accumulation after another."""
        for factor in self._accumulations[:: -1 if transposed else 1]:
            y = accumulate(factor, y, transposed=transposed)
        return y

    def _inner_inverse(self, x: Array, *, transposed: bool = False) -> Array:
        """``|M^-1| x`` or its transpose times x, or more, for x >= 0."""
        for factor in self._accumulations[:: 1 if transposed else -1]:
            x = add_neighbour(factor, x, transposed=transposed)
        return x

    def diagonal(self, v: Array, poles: Poles) -> Array:
        """``X[i, i]`` for ``X = sum_j w_j (L + t_j V)^-1``, shape (n,)."""
        parts = _blocks(poles.nodes.size, _LANES)
        halves = [parts[: len(parts) // 2], parts[len(parts) // 2 :]] if self._pays(poles) else [parts]
        x = np.zeros((len(halves), self.size))
        run([partial(self._add, v, poles, half, x[k]) for k, half in enumerate(halves)], together=True)
        return x.sum(axis=0)

    def _add(self, v: Array, poles: Poles, parts: list[slice], x: Array) -> None:
        filtered = np.empty((self.size, self._numbers, 0))
        for part in parts:
            filtered, state = _resized(filtered, part.stop - part.start), np.empty((_ROWS, part.stop - part.start))
            self._filters.predict(self._steps, v, poles.nodes[part], self._back, state, filtered)
            self._filters.combine(self._steps, v, poles.nodes[part], poles.weights[part], state, filtered, x)

    def hessian(self, v: Array, poles: Poles) -> Callable[[Array], Array]:
        """The product ``x -> S x`` with ``S[i, k] = sum_j w_j t_j (K_j^-1)[i, k]^2 = -dX[i, i] / dv[k]``.

        The next call overwrites the array behind the product.
        """
        loops = self._work = _resized(self._work, poles.nodes.size)
        states = np.empty((2, _ROWS, poles.nodes.size))
        self._filters.close(self._steps, v, poles.nodes, poles.weights * poles.nodes, self._back, states[0], loops)
        pays = self._pays(poles)

        def product(x: Array) -> Array:
            above, below = np.empty_like(x), np.empty_like(x)
            run(
                [
                    partial(self._products.product_above, loops, self._back, states[0], x, above),
                    partial(self._products.product_below, loops, states[1], x, below),
                ],
                together=pays,
            )
            return np.add(above, below, out=above)

        return product

    def generators(self, v: Array, poles: Poles) -> Generators:
        """As many states per pole as the workload has: transition ``Phi[i-1]^T``, input e1, output ``w sigma``."""
        n, count, s = self.size, poles.nodes.size, self._states
        loops, state = np.empty((n, s * (s + 1), count)), np.empty((_ROWS, count))
        self._filters.close(self._steps, v, poles.nodes, poles.weights**2, self._back, state, loops)
        transition = np.zeros((n, count, s, s))
        transition[1:] = loops[:-1, : s * s].reshape(n - 1, s, s, count).transpose(0, 3, 2, 1)
        inputs = np.zeros((n, count, s))
        inputs[:, :, 0] = 1.0
        return Generators(transition, inputs, np.ascontiguousarray(np.moveaxis(loops[:, s * s :], 1, -1)))

    def _pays(self, poles: Poles) -> bool:
        return self.size * poles.nodes.size >= _PARALLEL_WORK


def _blocks(count: int, lanes: int) -> list[slice]:
    return [slice(a, min(a + lanes, count)) for a in range(0, count, lanes)]


def _resized(array: Array, count: int) -> Array:
    """The array itself if it has ``count`` entries in its last dimension: fresh pages cost more than the sweep."""
    return array if array.shape[2] == count else np.empty((*array.shape[:2], count))
