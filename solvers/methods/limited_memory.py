"""Limited-memory BFGS with a preconditioner, as one object: pairs in, direction out."""

from collections import deque
from collections.abc import Callable

import numpy as np

from factorize.solvers.methods.compiled import Array


class Memory:
    """The last few steps and what they changed in the gradient.

    Args:
        pairs: how many are kept.
    """

    def __init__(self, pairs: int) -> None:
        self._pairs: deque[tuple[Array, Array, float]] = deque(maxlen=pairs)

    def add(self, step: Array, change: Array) -> None:
        """Remember a step and the change of the gradient along it, unless rounding has hidden the curvature."""
        curvature = float(np.vdot(step, change))
        if curvature > 0:
            self._pairs.append((step, change, 1.0 / curvature))

    def scale(self, inverse: Callable[[Array], Array]) -> float | None:
        """Return the factor that fits an approximate inverse to the last pair, or None before the first."""
        if not self._pairs:
            return None
        _, change, reciprocal = self._pairs[-1]
        return 1.0 / (reciprocal * float(np.vdot(change, inverse(change))))

    def direction(self, gradient: Array, inverse: Callable[[Array], Array]) -> Array:
        """Return about the inverse of the second derivative times the gradient.

        Args:
            gradient: any shape.
            inverse: an approximate inverse, symmetric and positive definite, to start from.
        """
        left, weights = gradient.copy(), []
        for step, change, reciprocal in reversed(self._pairs):
            weights.append(reciprocal * np.vdot(step, left))
            left -= weights[-1] * change
        out = inverse(left)
        for (step, change, reciprocal), weight in zip(self._pairs, reversed(weights), strict=True):
            out += (weight - reciprocal * np.vdot(change, out)) * step
        return out
