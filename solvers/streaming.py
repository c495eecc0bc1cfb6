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
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from solvers.kernels import compiled
from solvers.poles import Poles

Array = NDArray[np.float64]

_MARGIN = 2.0**-40  # scaled below 1 by more than the recursion and the dense product round
_LEAF = 64  # columns below which a matrix product does not pay


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


class Streamable(Protocol):
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
        self._fill(c, 0, n)
        return c

    def _fill(self, c: Array, first: int, last: int) -> None:
        if last - first <= _LEAF:
            _leaf(self.diagonal, self.transition, self.inputs, self.outputs, first, last, c)
            return
        middle = (first + last) // 2
        self._fill(c, first, middle)
        self._fill(c, middle, last)
        left = _rows(self.transition, self.outputs, middle, last)
        right = _columns(self.transition, self.inputs, first, middle)
        np.matmul(left, right.T, out=c[middle:last, first:middle])


def streaming_factor(structure: Streamable, v: Array, poles: Poles) -> StreamingFactor:
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
    # the recursion runs over poles innermost, for the vector units
    transition, inputs, targets = (
        np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x.transition, x.inputs, x.outputs)
    )
    diagonal, outputs = np.empty(n), np.empty_like(targets)
    failed = _riccati(transition, inputs, targets, diagonal, outputs)
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


@compiled
def _riccati(transition: Array, inputs: Array, outputs: Array, diagonal: Array, eta: Array) -> int:
    """Fill ``diagonal`` and ``eta``; return the step that failed, or -1."""
    n, states, count = inputs.shape
    gram = np.zeros((states, count, states, count))
    row = np.zeros((states, states, count))
    for i in range(n - 1, -1, -1):
        square = 0.0
        for a in range(states):
            for j in range(count):
                image = 0.0
                for b in range(states):
                    for k in range(count):
                        image += gram[a, j, b, k] * inputs[i, b, k]
                eta[i, a, j] = outputs[i, a, j] - image
                square += eta[i, a, j] * inputs[i, a, j]
        if not square > 0.0:
            return i
        diagonal[i] = math.sqrt(square)
        eta[i] /= diagonal[i]
        for j in range(count):
            for a in range(states):
                for b in range(states):
                    row[a, b] = 0.0
                    for d in range(states):
                        for k in range(count):
                            whole = gram[a, j, d, k] + eta[i, a, j] * eta[i, d, k]
                            row[a, b, k] += whole * transition[i, d, b, k]
            for a in range(states):
                for b in range(states):
                    gram[a, j, b] = 0.0
                    for d in range(states):
                        for k in range(count):
                            gram[a, j, b, k] += transition[i, d, a, j] * row[d, b, k]
    return -1


@compiled
def _leaf(diagonal: Array, transition: Array, inputs: Array, outputs: Array, first: int, last: int, c: Array) -> None:
    _, count, states = inputs.shape
    state, new = np.empty((count, states)), np.empty(states)
    for k in range(first, last):
        c[k, k] = diagonal[k]
        state[:] = inputs[k]
        for i in range(k + 1, last):
            total = 0.0
            for j in range(count):
                for a in range(states):
                    new[a] = 0.0
                    for b in range(states):
                        new[a] += transition[i, j, a, b] * state[j, b]
                for a in range(states):
                    state[j, a] = new[a]
                    total += outputs[i, j, a] * new[a]
            c[i, k] = total


@compiled
def _rows(transition: Array, outputs: Array, middle: int, last: int) -> Array:
    """``output[i] transition[i] ... transition[middle]`` for i in [middle, last), shape (rows, m)."""
    _, count, states = outputs.shape
    out = np.zeros((last - middle, count, states))
    product, new = np.zeros((count, states, states)), np.empty((states, states))
    for j in range(count):
        for a in range(states):
            product[j, a, a] = 1.0
    for i in range(middle, last):
        for j in range(count):
            new[:] = 0.0
            for a in range(states):
                for b in range(states):
                    for d in range(states):
                        new[a, b] += transition[i, j, a, d] * product[j, d, b]
            product[j] = new
            for a in range(states):
                for b in range(states):
                    out[i - middle, j, b] += outputs[i, j, a] * new[a, b]
    return out.reshape(last - middle, count * states)


@compiled
def _columns(transition: Array, inputs: Array, first: int, middle: int) -> Array:
    """``transition[middle-1] ... transition[k+1] input[k]`` for k in [first, middle), shape (columns, m)."""
    _, count, states = inputs.shape
    out = np.zeros((middle - first, count, states))
    product, new = np.zeros((count, states, states)), np.empty((states, states))
    for j in range(count):
        for a in range(states):
            product[j, a, a] = 1.0
    for k in range(middle - 1, first - 1, -1):
        for j in range(count):
            for a in range(states):
                for b in range(states):
                    out[k - first, j, a] += product[j, a, b] * inputs[k, j, b]
            new[:] = 0.0
            for a in range(states):
                for b in range(states):
                    for d in range(states):
                        new[a, b] += product[j, a, d] * transition[k, j, d, b]
            product[j] = new
    return out.reshape(middle - first, count * states)
