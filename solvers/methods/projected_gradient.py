"""Projected gradient with Barzilai-Borwein steps, for smooth functions on a closed convex cone.

d = P(x - alpha g) - x is a descent direction for every alpha > 0; alpha is the inverse curvature s.s / s.y seen
over the last step, and a step is taken if it improves on the worst of the last few values. Near its minimum the
Toeplitz loss has a condition number of a few units in the coefficients themselves, so ten steps reach 1e-10 and no
matrix is kept.

Reference: Birgin, Martinez, Raydan, Nonmonotone spectral projected gradient methods on convex sets (2000).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from factorize.solution import Outcome

Array = NDArray[np.float64]

_MEMORY = 6  # values that a new one may be compared with
_SUFFICIENT = 1e-4
_SHRINK = 0.3
_SHORTEST = 1e-9
_MOST_STEPS = 2000
_LONGEST, _SMALLEST = 1e8, 1e-8
_ROUNDING = 1e-13  # of a value near 1: differences below it are no evidence


@dataclass(frozen=True)
class Minimum:
    """Where the descent ended.

    Attributes:
        x: the best point, shape (n,).
        value: the function there.
        gap: |G|^2 / (2 mu) with the projected gradient G and the smallest curvature mu met on the last steps: what
            is left to gain if the function is no flatter than that around x. An estimate, not a bound.
        outcome: how it stopped.
        steps: number of steps.
    """

    x: Array
    value: float
    gap: float
    outcome: Outcome
    steps: int


def descend(
    function: Callable[[Array], tuple[float, Array]],
    start: Array,
    *,
    tolerance: float,
    report: Callable[[int, float], None],
    project: Callable[[Array], Array] | None = None,
) -> Minimum:
    """Minimise a function from a feasible point until the estimated gap is below the tolerance.

    Args:
        function: value (infinite outside its domain) and gradient.
        start: shape (n,), of norm near 1, since the first step has length 1.
        tolerance: of the function's value.
        report: called with (step, estimated gap); what it raises ends the descent.
        project: nearest point of the feasible set; None if there is no constraint.
    """
    feasible = project or (lambda point: point)
    x, (value, gradient) = start, function(start)
    recent, curvatures, length = [value], [1.0], 1.0
    best = Minimum(x, value, np.inf, Outcome.ITERATION_LIMIT, 0)
    for step in range(1, _MOST_STEPS + 1):
        direction = feasible(x - length * gradient) - x
        slope = float(gradient @ direction)
        gap = float(direction @ direction) / length**2 / (2 * min(curvatures[-_MEMORY:]))
        report(step, gap)
        if value <= best.value:
            best = Minimum(x, value, gap, Outcome.ITERATION_LIMIT, step)
        if gap <= tolerance:
            return Minimum(x, value, gap, Outcome.LOCAL_OPTIMUM, step)
        found = _search(function, x, direction, slope, max(recent[-_MEMORY:]))
        if found is None:
            return Minimum(best.x, best.value, best.gap, Outcome.ROUNDING_LIMIT, step)
        moved, value, new_gradient = found
        change, bend = moved - x, new_gradient - gradient
        squared, product = float(change @ change), float(change @ bend)
        if product > 0:
            curvatures.append(product / squared)
        length = min(max(squared / product, _SMALLEST), _LONGEST) if product > 0 else min(4 * length, _LONGEST)
        recent.append(value)
        x, gradient = moved, new_gradient
    return best


def _search(
    function: Callable[[Array], tuple[float, Array]], x: Array, direction: Array, slope: float, ceiling: float
) -> tuple[Array, float, Array] | None:
    """Shorten the step until the value falls below the ceiling; None if rounding hides any progress."""
    length = 1.0
    while length > _SHORTEST and slope < 0:
        trial = x + length * direction
        value, gradient = function(trial)
        if value <= ceiling + _SUFFICIENT * length * slope + _ROUNDING:
            return trial, value, gradient
        length *= _SHRINK
    return None
