"""Limited-memory BFGS for smooth functions of many variables that are infinite outside their domain."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from factorize.solvers.methods.arrays import Array
from factorize.solvers.methods.limited_memory import Memory
from factorize.solvers.methods.search import End, Function, Iterate, run

_PAIRS = 20
_FIRST_LENGTH = 0.01
_DECREASE, _CURVATURE = 1e-4, 0.9  # of the weak Wolfe conditions
_TRIALS = 20
_WINDOW = 100  # steps over which the gain is judged


def descend(
    function: Function,
    start: Array,
    *,
    tolerance: float,
    enough: float,
    most: int,
    report: Callable[[int, float], None],
) -> End[Iterate]:
    """Minimise a positive function; each step satisfies the weak Wolfe conditions, by bisection.

    Args:
        function: value and gradient.
        start: a point with a finite value, shape (size,).
        tolerance: a value at which the descent ends; and a hundred steps that gain less are the last.
        enough: the same as a part of the value.
        most: steps.
        report: told (steps so far, value); what it raises ends the descent.
    """
    first = Iterate(start, *function(start))
    return run(_Descent(function, tolerance, enough), first, enough=tolerance, most=most + 1, report=report)


class _Descent:
    """Steps along the directions of limited-memory BFGS."""

    def __init__(self, function: Function, tolerance: float, enough: float) -> None:
        self._function, self._tolerance, self._enough = function, tolerance, enough
        self._memory, self._values = Memory(_PAIRS), deque[float](maxlen=_WINDOW + 1)

    def gap(self, at: Iterate) -> float:
        return at.value

    def step(self, at: Iterate, _number: int) -> Iterate | None:
        self._values.append(at.value)
        late = len(self._values) > _WINDOW
        size = math.sqrt(float(at.gradient @ at.gradient))
        if size == 0.0 or (late and self._values[0] - at.value <= max(self._tolerance, self._enough * at.value)):
            return None
        fitted = self._memory.scale(lambda vector: vector)
        scale = fitted or _FIRST_LENGTH / size
        reached = _search(self._function, at, self._memory.direction(-at.gradient, lambda vector: scale * vector))
        if reached is None and fitted is not None:
            self._memory = Memory(_PAIRS)  # the curvatures remembered no longer hold
            reached = _search(self._function, at, -_FIRST_LENGTH / size * at.gradient)
        if reached is not None:
            self._memory.add(reached.z - at.z, reached.gradient - at.gradient)
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
        if not trial.value <= at.value + _DECREASE * length * fall:
            high = length
        else:
            best = trial
            if float(trial.gradient @ direction) >= _CURVATURE * fall:
                break
            low = length
        length = 2.0 * length if math.isinf(high) else 0.5 * (low + high)
    return best
