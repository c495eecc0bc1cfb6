"""The optimal strategy as a recurrence with finitely many buffers, and as a dense matrix.

The optimum of single participation is a sum over poles, so below the diagonal it factors through m states:

    X[i, k] = h[i] . R[i] R[i-1] ... R[k+1] g[k]   (i > k),      X[k, k] = h[k] . g[k].

Its lower-triangular factor, ``X = C^T C``, has the same transitions and inputs.  Backwards from ``P = 0``:

    delta^2 = h . g - g . P g,   eta = (h - P g) / delta,   P <- R^T (eta eta^T + P) R
    C[i, i] = delta[i],          C[i, k] = eta[i] . R[i] ... R[k+1] g[k]

in O(n m^2) time and O(n m) memory.  R is diagonal (one state per pole) or block diagonal (s states per pole).

Unlike the sweeps that found X this recursion subtracts, so nothing about C is taken on trust: its columns are
divided by their norms, and whoever certifies C has to start from the stored tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from factorize.numbers.compiling import assign
from factorize.solvers.methods.compiled import compiled
from factorize.solvers.methods.poles import Poles
from factorize.solvers.methods.threads import run

Array = NDArray[np.float64]
Index = NDArray[np.int64]

_MARGIN = 2.0**-40  # scaled below 1 by more than the recursion and the dense product round
_LEAF = 32  # columns below which a matrix product does not pay
_COLUMNS = 512  # of a product at a time: the right factor stays in the second-level cache
_PARALLEL_SIZE = 512  # columns from which a second thread pays for its start


@dataclass(frozen=True)
class Generators:
    """``X[i, k] = outputs[i] . transition[i] ... transition[k+1] inputs[k]`` for i >= k.

    Attributes:
        transition: shape (n, poles, s, s), block diagonal over the poles; ``transition[0]`` is ignored.
        inputs: shape (n, poles, s).
        outputs: shape (n, poles, s).
    """

    transition: Array
    inputs: Array
    outputs: Array


class StreamableWorkload(Protocol):
    """A workload whose optimum factors through few states."""

    def generators(self, v: Array, poles: Poles) -> Generators:
        """Generators of ``X = sum_j w_j (L + t_j V)^-1``."""


@dataclass(frozen=True)
class StreamingFactor:
    """Lower-triangular C with buffers: diagonal and generators below it.

    Attributes:
        diagonal: C[i, i], shape (n,).
        transition: shape (n, poles, s, s).
        inputs: shape (n, poles, s).
        outputs: shape (n, poles, s).
    """

    diagonal: Array
    transition: Array
    inputs: Array
    outputs: Array

    def tensors(self) -> dict[str, Array]:
        """The tensors of the structure "buffered" (one state per pole) or "state_space" of the public contract."""
        n = self.diagonal.size
        named = {"diagonal": self.diagonal}
        if self.transition.shape[-1] == 1:
            named["decay"] = self.transition.reshape(n, -1)
        else:
            named["transition"] = self.transition
        return {**named, "input": self.inputs.reshape(n, -1), "output": self.outputs.reshape(n, -1)}

    def dense(self) -> Array:
        """C as an array of shape (n, n), by products of inner dimension m."""
        n = self.diagonal.size
        c = np.zeros((n, n))
        back = _backwards(n)
        transition, inputs, outputs = (_poles_last(a) for a in (self.transition, self.inputs, self.outputs))
        run(
            [partial(_leaves, self.diagonal, transition, inputs, outputs, start, c) for start in (0, _LEAF)],
            together=n >= _PARALLEL_SIZE,
        )
        size = _LEAF
        while size < n:
            for first in range(0, n - size, 2 * size):
                middle, last = first + size, min(n, first + 2 * size)
                rows = _padded(_rows(transition, outputs, middle, last), 2, 4)
                columns = _padded(_columns(transition, inputs, first, middle, back), 1, 4).T.copy()
                cut = middle + (last - middle + 3) // 4 * 2  # even, so that pairs of rows stay together
                run(
                    [
                        partial(_multiply, rows[a - middle : b - middle], columns, c[a : min(b, last), first:middle])
                        for a, b in ((middle, cut), (cut, middle + rows.shape[0]))
                    ],
                    together=size >= _PARALLEL_SIZE,
                )
            size *= 2
        return c


def streaming_factor(structure: StreamableWorkload, v: Array, poles: Poles) -> StreamingFactor:
    """Return C with ``C^T C`` proportional, column by column, to ``X = sum_j w_j (L + t_j V)^-1``.

    Args:
        structure: the workload.
        v: dual weights, shape (n,).
        poles: poles and weights; their number (times the states per pole) is the number of buffers.

    Returns:
        The factor, its columns scaled to a norm of ``1 - 2^-40`` up to rounding.

    Raises:
        FloatingPointError: if rounding makes a pivot ``delta^2`` non-positive.
    """
    x = structure.generators(v, poles)
    n = x.inputs.shape[0]
    transition, inputs, targets = (_poles_last(a) for a in (x.transition, x.inputs, x.outputs))
    diagonal, outputs = np.empty(n), np.empty_like(targets)
    failed = _riccati(transition, inputs, targets, _backwards(n), diagonal, outputs)
    if failed >= 0:
        raise FloatingPointError(
            f"the pivot of step {failed} is lost to rounding; the workload is numerically singular"
        )
    scale = (1.0 - _MARGIN) / np.sqrt((x.inputs * x.outputs).sum(axis=(1, 2)))
    return StreamingFactor(
        diagonal * scale,
        x.transition,
        x.inputs * scale[:, None, None],
        np.ascontiguousarray(np.moveaxis(outputs, -1, 1)),
    )


def _poles_last(array: Array) -> Array:
    """Compiled loops run over poles innermost, for the vector units."""
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def _backwards(n: int) -> Index:
    return np.arange(n, dtype=np.int64)[::-1].copy()


def _padded(array: Array, rows: int, columns: int) -> Array:
    """The array with rows and columns of zeros up to multiples of ``rows`` and ``columns``."""
    return np.pad(array, [(0, -array.shape[0] % rows), (0, -array.shape[1] % columns)])


@compiled
def _riccati(transition: Array, inputs: Array, outputs: Array, back: Index, diagonal: Array, eta: Array) -> int:
    """Fill ``diagonal`` and ``eta``; return the step that failed, or -1."""
    n, states, count = inputs.shape
    gram = np.zeros((states, count, states, count))
    row, now = np.zeros((states, states, count)), np.zeros((states, count))
    for step in range(n):
        i = back[step]
        square = 0.0
        for a in range(states):
            for j in range(count):
                image = 0.0
                for b in range(states):
                    for k in range(count):
                        image += gram[a, j, b, k] * inputs[i, b, k]
                now[a, j] = outputs[i, a, j] - image
                square += now[a, j] * inputs[i, a, j]
        if not square > 0.0:
            return i
        diagonal[i] = math.sqrt(square)
        now /= diagonal[i]
        assign(eta[i], now)
        for j in range(count):
            for a in range(states):
                for b in range(states):
                    row[a, b] = 0.0
                    for d in range(states):
                        factor = now[a, j]
                        for k in range(count):
                            row[a, b, k] += (gram[a, j, d, k] + factor * now[d, k]) * transition[i, d, b, k]
            for a in range(states):
                for b in range(states):
                    gram[a, j, b] = 0.0
                    for d in range(states):
                        factor = transition[i, d, a, j]
                        for k in range(count):
                            gram[a, j, b, k] += factor * row[d, b, k]
    return -1


@compiled
def _leaves(diagonal: Array, transition: Array, inputs: Array, outputs: Array, start: int, c: Array) -> None:
    """Every other diagonal block of C, from ``start``, entry by entry."""
    n, states, count = inputs.shape
    state, new = np.zeros((states, count)), np.zeros((states, count))
    for first in range(start, n, 2 * _LEAF):
        for k in range(first, min(first + _LEAF, n)):
            c[k, k] = diagonal[k]
            assign(state, inputs[k])
            for i in range(k + 1, min(first + _LEAF, n)):
                total = 0.0
                for a in range(states):
                    new[a] = 0.0
                    for b in range(states):
                        for j in range(count):
                            new[a, j] += transition[i, a, b, j] * state[b, j]
                    for j in range(count):
                        total += outputs[i, a, j] * new[a, j]
                assign(state, new)
                c[i, k] = total


@compiled
def _rows(transition: Array, outputs: Array, middle: int, last: int) -> Array:
    """``output[i] transition[i] ... transition[middle]`` for i in [middle, last), shape (rows, m)."""
    _, states, count = outputs.shape
    out = np.zeros((last - middle, states, count))
    product, new = _identity(states, count), np.zeros((states, states, count))
    for i in range(middle, last):
        new[:] = 0.0
        for a in range(states):
            for d in range(states):
                for b in range(states):
                    for j in range(count):
                        new[a, b, j] += transition[i, a, d, j] * product[d, b, j]
        assign(product, new)
        for a in range(states):
            for b in range(states):
                for j in range(count):
                    out[i - middle, b, j] += outputs[i, a, j] * product[a, b, j]
    return out.reshape(last - middle, states * count)


@compiled
def _columns(transition: Array, inputs: Array, first: int, middle: int, back: Index) -> Array:
    """``transition[middle-1] ... transition[k+1] input[k]`` for k in [first, middle), shape (columns, m)."""
    n, states, count = inputs.shape
    out = np.zeros((middle - first, states, count))
    product, new = _identity(states, count), np.zeros((states, states, count))
    for step in range(n - middle, n - first):
        k = back[step]
        for a in range(states):
            for b in range(states):
                for j in range(count):
                    out[k - first, a, j] += product[a, b, j] * inputs[k, b, j]
        new[:] = 0.0
        for a in range(states):
            for d in range(states):
                for b in range(states):
                    for j in range(count):
                        new[a, b, j] += product[a, d, j] * transition[k, d, b, j]
        assign(product, new)
    return out.reshape(middle - first, states * count)


@compiled
def _identity(states: int, count: int) -> Array:
    out = np.zeros((states, states, count))
    for a in range(states):
        out[a, a] = 1.0
    return out


@compiled
def _multiply(left: Array, right: Array, out: Array) -> None:
    """``out = left @ right`` for a small inner dimension, without the threads of a linear algebra library.

    Two rows by four terms at a time: six loads for eight multiplications.  The caller pads to that.
    """
    for first in range(0, out.shape[1], _COLUMNS):
        last = min(first + _COLUMNS, out.shape[1])
        upper, lower = np.empty(last - first), np.empty(last - first)
        for i in range(0, left.shape[0], 2):
            upper[:] = 0.0
            lower[:] = 0.0
            for r in range(0, left.shape[1], 4):
                a0, a1, a2, a3 = left[i, r], left[i, r + 1], left[i, r + 2], left[i, r + 3]
                b0, b1, b2, b3 = left[i + 1, r], left[i + 1, r + 1], left[i + 1, r + 2], left[i + 1, r + 3]
                r0, r1 = right[r, first:last], right[r + 1, first:last]
                r2, r3 = right[r + 2, first:last], right[r + 3, first:last]
                for k in range(last - first):
                    upper[k] += a0 * r0[k] + a1 * r1[k] + a2 * r2[k] + a3 * r3[k]
                    lower[k] += b0 * r0[k] + b1 * r1[k] + b2 * r2[k] + b3 * r3[k]
            assign(out[i, first:last], upper)
            if i + 1 < out.shape[0]:
                assign(out[i + 1, first:last], lower)
