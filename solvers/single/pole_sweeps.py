"""Sweeps over blocks of poles for workloads of two and three states, in two threads where that pays.

A workload takes part by its kernels, which all have the same arguments: see `momentum_filters`. Arrays with one row per
step have the poles last, for the vector units; ``state`` is scratch for six rows. The products of the Hessian depend on
the number of states alone.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from factorize.solvers.methods.bidiagonal_systems import accumulate, add_neighbour
from factorize.solvers.methods.compiled import Array, Index, Product, compiled, inlined, run, sum_of
from factorize.solvers.methods.poles import UNIT, Poles
from factorize.solvers.single.streaming import Generators

_ROWS = 6  # a kernel wants this many rows of scratch
_LANES = 16  # a sweep has this many poles: two vectors; the stored filter of more would leave the cache
_PARALLEL_WORK = 1 << 17  # steps times poles from which a second thread pays for its start


class Filters(NamedTuple):
    """The kernels of one form of A.

    Attributes:
        predict: the filter from the end, what it stores of each step.
        combine: the filter from the start, adding the variances of all poles to x.
        close: the closed loop of each step.
    """

    predict: Callable[..., object]
    combine: Callable[..., object]
    close: Callable[..., object]


class Filtered:
    """A workload ``A = S_lam diag(eta) M`` as `newton` and `streaming` want it, by filters from both ends.

    Args:
        steps: coefficients as the kernels want them, one row each, shape (coefficients, n).
        filters: its kernels.
        accumulations: factors of M's accumulations from each step to the next, the first one first.
        states: s, two or three, so that the closed loop holds s^2 + s numbers.
        numbers: m that the filter from the end stores for each step.
    """

    eta: Array
    lam: Array

    def __init__(
        self, steps: Array, *, filters: Filters, accumulations: Sequence[Array], states: int, numbers: int
    ) -> None:
        self.size = steps.shape[1]
        self._steps = steps
        self._filters = filters
        self._accumulations = accumulations
        self._states, self._numbers = states, numbers
        self._back = np.arange(self.size, dtype=np.int64)[::-1].copy()
        self._work: Array = np.empty((self.size, states * (states + 1), 0))

    def start(self) -> Array:
        """Return ``v[i] = sqrt((A^T A)[i, i])``, the filter without observations."""
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
        """Return ``A^T A y``, ``A = S_lam diag(eta) M``, for y >= 0."""
        y = accumulate(self.lam, self.eta * self._inner(y))
        return self._inner(self.eta * accumulate(self.lam, y, transposed=True), transposed=True)

    def _inverse_sums(self, root: Array) -> tuple[Array, Array]:
        """Return absolute sums over each row and each column of ``V^-1/2 A^-1``, or more."""
        rows = self._inner_inverse(add_neighbour(self.lam, np.ones(self.size)) / self.eta)
        columns = self._inner_inverse(1.0 / root, transposed=True) / self.eta
        return rows / root, add_neighbour(self.lam, columns, transposed=True)

    def _inner(self, y: Array, *, transposed: bool = False) -> Array:
        """Return ``M y`` or ``M^T y`` for y >= 0: one accumulation after another."""
        for factor in self._accumulations[:: -1 if transposed else 1]:
            y = accumulate(factor, y, transposed=transposed)
        return y

    def _inner_inverse(self, x: Array, *, transposed: bool = False) -> Array:
        """Return ``|M^-1| x`` or its transpose times x, or more, for x >= 0."""
        for factor in self._accumulations[:: 1 if transposed else -1]:
            x = add_neighbour(factor, x, transposed=transposed)
        return x

    def diagonal(self, v: Array, poles: Poles) -> Array:
        """Return ``X[i, i]`` for ``X = sum_j w_j (L + t_j V)^-1``, shape (n,)."""
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

    def hessian(self, v: Array, poles: Poles) -> Product:
        """The product ``x -> S x`` with ``S[i, k] = sum_j w_j t_j (K_j^-1)[i, k]^2 = -dX[i, i] / dv[k]``.

        The next call overwrites the array behind the product.
        """
        loops = self._work = _resized(self._work, poles.nodes.size)
        states = np.empty((2, _ROWS, poles.nodes.size))
        self._filters.close(self._steps, v, poles.nodes, poles.weights * poles.nodes, self._back, states[0], loops)
        sum_above, sum_below = (_above_two, _below_two) if self._states == 2 else (_above_three, _below_three)
        above = partial(sum_above, loops, self._back, states[0])
        return sum_of(above, partial(sum_below, loops, states[1]), together=self._pays(poles))

    def generators(self, v: Array, poles: Poles) -> Generators:
        """Return the workload's number of states per pole: transition ``Phi[i-1]^T``, input e1, output ``w sigma``."""
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
    """Return the array itself if its last dimension has ``count`` entries: fresh pages cost more than the sweep."""
    return array if array.shape[2] == count else np.empty((*array.shape[:2], count))


Three = tuple[float, float, float]
Four = tuple[float, float, float, float]


@inlined
def _carry_two(f: Four, m: Three) -> Three:
    """Return ``F M F^T``: F row by row, M symmetric, its entries 11, 12, 22."""
    f11, f12, f21, f22 = f
    m11, m12, m22 = m
    a1, a2 = f11 * m11 + f12 * m12, f11 * m12 + f12 * m22
    b1, b2 = f21 * m11 + f22 * m12, f21 * m12 + f22 * m22
    return a1 * f11 + a2 * f12, a1 * f21 + a2 * f22, b1 * f21 + b2 * f22


@compiled
def _above_two(loops: Array, back: Index, state: Array, x: Array, y: Array) -> None:
    """``y[i] = sum over k > i``: first entry of ``Q = Phi[i] M[i+1] Phi[i]^T``, ``M[i] = Q + x[i] sigma sigma^T``."""
    n, _, count = loops.shape
    m11, m12, m22 = state[0], state[1], state[2]
    for j in range(count):
        m11[j] = m12[j] = m22[j] = 0.0
    for step in range(n):
        i = back[step]
        total = 0.0
        for j in range(count):
            phi = (loops[i, 0, j], loops[i, 1, j], loops[i, 2, j], loops[i, 3, j])
            q11, q12, q22 = _carry_two(phi, (m11[j], m12[j], m22[j]))
            s1, s2 = loops[i, 4, j], loops[i, 5, j]
            m11[j] = q11 + x[i] * s1 * s1
            m12[j] = q12 + x[i] * s1 * s2
            m22[j] = q22 + x[i] * s2 * s2
            total += q11
        y[i] = total


@compiled
def _below_two(loops: Array, state: Array, x: Array, y: Array) -> None:
    """``y[i] = sum over k <= i``: ``sigma^T N sigma``, ``N = Z[i] + x[i] e1 e1^T``, ``Z[i+1] = Phi[i]^T N Phi[i]``."""
    n, _, count = loops.shape
    z11, z12, z22 = state[0], state[1], state[2]
    for j in range(count):
        z11[j] = z12[j] = z22[j] = 0.0
    for i in range(n):
        total = 0.0
        for j in range(count):
            s1, s2 = loops[i, 4, j], loops[i, 5, j]
            m11, m12, m22 = z11[j] + x[i], z12[j], z22[j]
            total += s1 * (m11 * s1 + 2.0 * m12 * s2) + m22 * s2 * s2
            f11, f12, f21, f22 = loops[i, 0, j], loops[i, 1, j], loops[i, 2, j], loops[i, 3, j]
            z11[j], z12[j], z22[j] = _carry_two((f11, f21, f12, f22), (m11, m12, m22))
        y[i] = total


Six = tuple[float, float, float, float, float, float]


@inlined
def _carry_three(f1: Three, f2: Three, f3: Three, m: Six) -> Six:
    """Return ``F M F^T``: F by its rows, M symmetric, its entries 11, 12, 13, 22, 23, 33."""
    a1, a2, a3 = _times(f1, m)
    b1, b2, b3 = _times(f2, m)
    c1, c2, c3 = _times(f3, m)
    return (
        a1 * f1[0] + a2 * f1[1] + a3 * f1[2],
        a1 * f2[0] + a2 * f2[1] + a3 * f2[2],
        a1 * f3[0] + a2 * f3[1] + a3 * f3[2],
        b1 * f2[0] + b2 * f2[1] + b3 * f2[2],
        b1 * f3[0] + b2 * f3[1] + b3 * f3[2],
        c1 * f3[0] + c2 * f3[1] + c3 * f3[2],
    )


@inlined
def _times(f: Three, m: Six) -> Three:
    """Return ``f^T M``."""
    f1, f2, f3 = f
    m11, m12, m13, m22, m23, m33 = m
    return f1 * m11 + f2 * m12 + f3 * m13, f1 * m12 + f2 * m22 + f3 * m23, f1 * m13 + f2 * m23 + f3 * m33


@compiled
def _above_three(loops: Array, back: Index, state: Array, x: Array, y: Array) -> None:
    """``y[i] = sum over k > i``: first entry of ``Q = Phi[i] M[i+1] Phi[i]^T``, ``M[i] = Q + x[i] sigma sigma^T``."""
    n, _, count = loops.shape
    m = state
    for k in range(6):
        for j in range(count):
            m[k, j] = 0.0
    for step in range(n):
        i = back[step]
        total = 0.0
        for j in range(count):
            q11, q12, q13, q22, q23, q33 = _carry_three(
                (loops[i, 0, j], loops[i, 1, j], loops[i, 2, j]),
                (loops[i, 3, j], loops[i, 4, j], loops[i, 5, j]),
                (loops[i, 6, j], loops[i, 7, j], loops[i, 8, j]),
                (m[0, j], m[1, j], m[2, j], m[3, j], m[4, j], m[5, j]),
            )
            s1, s2, s3 = loops[i, 9, j], loops[i, 10, j], loops[i, 11, j]
            m[0, j] = q11 + x[i] * s1 * s1
            m[1, j] = q12 + x[i] * s1 * s2
            m[2, j] = q13 + x[i] * s1 * s3
            m[3, j] = q22 + x[i] * s2 * s2
            m[4, j] = q23 + x[i] * s2 * s3
            m[5, j] = q33 + x[i] * s3 * s3
            total += q11
        y[i] = total


@compiled
def _below_three(loops: Array, state: Array, x: Array, y: Array) -> None:
    """``y[i] = sum over k <= i``: ``sigma^T N sigma``, ``N = Z[i] + x[i] e1 e1^T``, ``Z[i+1] = Phi[i]^T N Phi[i]``."""
    n, _, count = loops.shape
    z = state
    for k in range(6):
        for j in range(count):
            z[k, j] = 0.0
    for i in range(n):
        total = 0.0
        for j in range(count):
            m11, m12, m13, m22, m23, m33 = z[0, j] + x[i], z[1, j], z[2, j], z[3, j], z[4, j], z[5, j]
            s1, s2, s3 = loops[i, 9, j], loops[i, 10, j], loops[i, 11, j]
            total += s1 * (m11 * s1 + 2.0 * (m12 * s2 + m13 * s3)) + s2 * (m22 * s2 + 2.0 * m23 * s3) + m33 * s3 * s3
            f11, f12, f13 = loops[i, 0, j], loops[i, 1, j], loops[i, 2, j]
            f21, f22, f23 = loops[i, 3, j], loops[i, 4, j], loops[i, 5, j]
            f31, f32, f33 = loops[i, 6, j], loops[i, 7, j], loops[i, 8, j]
            z[0, j], z[1, j], z[2, j], z[3, j], z[4, j], z[5, j] = _carry_three(
                (f11, f21, f31), (f12, f22, f32), (f13, f23, f33), (m11, m12, m13, m22, m23, m33)
            )
        y[i] = total
