"""Limited-memory BFGS with a preconditioner, as one object: pairs in, direction out.

Products of vectors are compiled here: those of BLAS wake threads that spin, which on a busy machine costs more than the
product.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.methods.compiled import compiled

Array = NDArray[np.float64]


class Memory:
    """The last few steps and what they changed in the gradient.

    Args:
        pairs: how many are kept.
    """

    def __init__(self, pairs: int) -> None:
        self._pairs: deque[tuple[Array, Array, float]] = deque(maxlen=pairs)

    def add(self, step: Array, change: Array) -> None:
        """Remember a step and the change of the gradient along it, unless rounding has hidden the curvature."""
        curvature = dot(step, change)
        if curvature > 0:
            self._pairs.append((step, change, 1.0 / curvature))

    def scale(self, inverse: Callable[[Array], Array]) -> float | None:
        """Return the factor that fits an approximate inverse to the last pair, or None before the first."""
        if not self._pairs:
            return None
        _, change, reciprocal = self._pairs[-1]
        return 1.0 / (reciprocal * dot(change, inverse(change)))

    def direction(self, gradient: Array, inverse: Callable[[Array], Array]) -> Array:
        """Return about the inverse of the second derivative times the gradient.

        Args:
            gradient: any shape.
            inverse: an approximate inverse, symmetric and positive definite, to start from.
        """
        left, weights = gradient.copy(), []
        for step, change, reciprocal in reversed(self._pairs):
            weights.append(reciprocal * dot(step, left))
            add(-weights[-1], change, left)
        out = inverse(left)
        for (step, change, reciprocal), weight in zip(self._pairs, reversed(weights), strict=True):
            add(weight - reciprocal * dot(change, out), step, out)
        return out


def dot(a: Array, b: Array) -> float:
    """Return the sum of products of two arrays of one shape."""
    return _dot(a.ravel(), b.ravel())


def add(factor: float, a: Array, b: Array) -> None:
    """Add factor times a to b, in place."""
    _add(factor, a.reshape(-1), b.reshape(-1))


@compiled
def _dot(a: Array, b: Array) -> float:
    total = 0.0
    for i in range(a.size):
        total += a[i] * b[i]
    return total


@compiled
def _add(factor: float, a: Array, b: Array) -> None:
    for i in range(a.size):
        b[i] += factor * a[i]
