"""Limited-memory BFGS for smooth functions of many variables that are infinite outside their domain."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.methods.limited_memory import Memory

Array = NDArray[np.float64]
Function = Callable[[Array], tuple[float, Array]]

_PAIRS = 20
_FIRST_LENGTH = 0.01
_DECREASE, _CURVATURE = 1e-4, 0.9  # of the weak Wolfe conditions
_TRIALS = 20
_WINDOW = 100  # steps over which the gain is judged


@dataclass(frozen=True)
class Descent:
    """Where a descent ended.

    Attributes:
        z: the last and best point.
        value: the function there.
        steps: taken.
        finished: whether the rule on gains stopped it, or no step gains any more; else it was the limit of steps.
    """

    z: Array
    value: float
    steps: int
    finished: bool


def descend(
    function: Function,
    start: Array,
    *,
    tolerance: float,
    enough: float,
    most: int,
    report: Callable[[int, float], None],
    near: float = 0.0,
) -> Descent:
    """Minimise a positive function; each step satisfies the weak Wolfe conditions, by bisection.

    Args:
        function: value and gradient.
        start: a point with a finite value, shape (size,).
        tolerance: a hundred steps that gain less are the last.
        enough: the same as a part of the value.
        most: steps.
        report: told (steps so far, value); what it raises ends the descent.
        near: a value from which on nothing more is asked for.
    """
    z, (value, gradient) = start, function(start)
    memory, values = Memory(_PAIRS), [value]

    def ended(finished: bool) -> Descent:
        return Descent(z, value, len(values) - 1, finished)

    while len(values) <= most:
        size = math.sqrt(float(gradient @ gradient))
        if size == 0.0:
            return ended(finished=True)
        fitted = memory.scale(lambda vector: vector)
        found = _search(function, z, value, gradient, _direction(memory, gradient, fitted or _FIRST_LENGTH / size))
        if found is None and fitted is not None:
            memory = Memory(_PAIRS)  # the curvatures remembered no longer hold
            found = _search(function, z, value, gradient, -_FIRST_LENGTH / size * gradient)
        if found is None:
            return ended(finished=True)
        after, value, slope = found
        memory.add(after - z, slope - gradient)
        z, gradient = after, slope
        values.append(value)
        report(len(values) - 1, value)
        if value <= near:
            return ended(finished=True)
        if len(values) > _WINDOW and values[-1 - _WINDOW] - value <= max(tolerance, enough * value):
            return ended(finished=True)
    return ended(finished=False)


def _direction(memory: Memory, gradient: Array, scale: float) -> Array:
    return memory.direction(-gradient, lambda vector: scale * vector)


def _search(
    function: Function, z: Array, value: float, gradient: Array, direction: Array
) -> tuple[Array, float, Array] | None:
    """Return a point that is better along the direction, with its value and gradient, or None."""
    fall = float(gradient @ direction)
    if not fall < 0.0:
        return None
    length, low, high = 1.0, 0.0, math.inf
    best = None
    for _ in range(_TRIALS):
        point = z + length * direction
        trial, slope = function(point)
        if not trial <= value + _DECREASE * length * fall:
            high = length
        else:
            best = point, trial, slope
            if float(slope @ direction) >= _CURVATURE * fall:
                break
            low = length
        length = 2.0 * length if math.isinf(high) else 0.5 * (low + high)
    return best
