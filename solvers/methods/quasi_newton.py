"""Quasi-Newton descent for smooth functions of many variables that are infinite outside their domain.

BFGS improves an approximate inverse of the Hessian. With few variables it begins with the Hessian by differences of
gradients: the loss of a buffered strategy has directions whose curvatures differ by six orders of magnitude, where
limited memory alone takes thousands of steps.

Limited-memory BFGS with a preconditioner is one object: pairs in, direction out.
"""

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np

from factorize.solvers.methods.compiled import Array
from factorize.solvers.methods.search import End, Function, Iterate, run

_PAIRS = 20
_FIRST_LENGTH = 0.01
_DECREASE, _CURVATURE = 1e-4, 0.9  # the constants of the weak Wolfe conditions
_TRIALS = 20
_MIN_SHARE = 0.1  # a length that was too long is shortened to this part at the least
_DIFFERENCE = 1e-4
_REPORT_ROWS = 8  # the caller is told again after this many rows of a Hessian
_MIN_CURVATURE = 1e-6  # curvatures of a Hessian are at least this part of the largest


def descend(
    function: Function,
    first: Iterate,
    *,
    tolerance: float,
    enough: float,
    window: int,
    most: int,
    report: Callable[[int, float], None],
    hessian: Array | None = None,
) -> End[Iterate]:
    """Minimise a positive function; each step satisfies the weak Wolfe conditions.

    Args:
        function: value and gradient.
        first: the point to start from, with a finite value.
        tolerance: a value at which the descent ends; and a window of steps that gains less is the last.
        enough: the same as a part of the value.
        window: steps over which the gain is judged.
        most: steps.
        report: told (steps so far, value); what it raises ends the descent.
        hessian: near the start, shape (size, size); the gradients' scale serves if it is left out.
    """
    search = _Descent(function, tolerance, enough, window, _Pairs if hessian is None else partial(_Whole, hessian))
    return run(search, first, enough=tolerance, most=most + 1, report=report)


def differences(function: Function, at: Iterate, alive: Callable[[], None]) -> Array:
    """Return the Hessian by forward differences of the gradient; rows of zeros for points outside the domain.

    Args:
        function: value and gradient.
        at: where.
        alive: told every few rows.
    """
    hessian = np.zeros((at.z.size, at.z.size))
    for k in range(at.z.size):
        if k % _REPORT_ROWS == 0:
            alive()
        moved = at.z.copy()
        moved[k] += _DIFFERENCE
        value, gradient = function(moved)
        if math.isfinite(value):
            hessian[k] = (gradient - at.gradient) / _DIFFERENCE
    return 0.5 * (hessian + hessian.T)


class _Approximation(Protocol):
    """The inverse of the Hessian as far as it is known."""

    def direction(self, gradient: Array) -> Array:
        """Return minus its product with the gradient."""

    def add(self, step: Array, change: Array) -> None:
        """Learn from a step and the change of the gradient along it."""


class _Pairs:
    """The last steps, upon the scale that fits the last of them: for many variables."""

    def __init__(self) -> None:
        self._memory = Memory(_PAIRS)

    def direction(self, gradient: Array) -> Array:
        scale = self._memory.scale(lambda vector: vector) or _FIRST_LENGTH / math.sqrt(float(gradient @ gradient))
        return self._memory.direction(-gradient, lambda vector: scale * vector)

    def add(self, step: Array, change: Array) -> None:
        self._memory.add(step, change)


class _Whole:
    """A matrix that all steps correct; at first the inverse of a Hessian whose curvatures are made positive."""

    def __init__(self, hessian: Array) -> None:
        curvatures, axes = np.linalg.eigh(hessian)
        sizes = np.abs(curvatures)
        self._inverse = (axes / np.maximum(sizes, _MIN_CURVATURE * sizes.max())) @ axes.T

    def direction(self, gradient: Array) -> Array:
        return np.asarray(-self._inverse @ gradient)

    def add(self, step: Array, change: Array) -> None:
        curvature, image = float(step @ change), self._inverse @ change
        if curvature > 0.0:
            half = np.outer((0.5 * (1.0 + (change @ image) / curvature) * step - image) / curvature, step)
            self._inverse += half + half.T


class _Descent:
    """Steps along the directions of BFGS."""

    def __init__(
        self, function: Function, tolerance: float, enough: float, window: int, begin: Callable[[], _Approximation]
    ) -> None:
        self._function, self._tolerance, self._enough = function, tolerance, enough
        self._values = deque[float](maxlen=window + 1)
        self._begin, self._approximation, self._learnt = begin, begin(), False

    def gap(self, at: Iterate) -> float:
        return at.value

    def step(self, at: Iterate, _number: int) -> Iterate | None:
        self._values.append(at.value)
        late = len(self._values) == self._values.maxlen
        if late and self._values[0] - at.value <= max(self._tolerance, self._enough * at.value):
            return None
        if not at.gradient.any():
            return None
        reached = _search(self._function, at, self._approximation.direction(at.gradient))
        if reached is None and self._learnt:  # the curvatures learnt no longer hold
            self._approximation, self._learnt = self._begin(), False
            reached = _search(self._function, at, self._approximation.direction(at.gradient))
        if reached is not None:
            self._approximation.add(reached.z - at.z, reached.gradient - at.gradient)
            self._learnt = True
        return reached


def _search(function: Function, at: Iterate, direction: Array) -> Iterate | None:
    """Return a point that is better along the direction, or None."""
    fall = float(at.gradient @ direction)
    if not fall < 0.0:
        return None
    length, low, high = 1.0, 0.0, math.inf
    best = None
    for _ in range(_TRIALS):
        trial = Iterate(at.z + length * direction, *function(at.z + length * direction))
        rise = trial.value - at.value - length * fall
        if not trial.value <= at.value + _DECREASE * length * fall:
            high = length
        else:
            best = trial
            if float(trial.gradient @ direction) >= _CURVATURE * fall:
                break
            low = length
        if math.isinf(high):
            length *= 2.0
        elif best is None and math.isfinite(rise):
            length *= max(_MIN_SHARE, -0.5 * length * fall / rise)  # a parabola through both values is lowest there
        else:
            length = 0.5 * (low + high)
    return best


class Memory:
    """The last few steps and what they changed in the gradient.

    Args:
        pairs: the number of pairs that are kept.
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
