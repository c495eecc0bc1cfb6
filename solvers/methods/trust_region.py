"""Trust-region minimisation of a smooth function of some hundred variables that is far from convex.

The loss of a buffered strategy has directions whose curvatures differ by six orders of magnitude, some of them negative
at the start; limited-memory methods take thousands of steps.  Here the Hessian comes from differences of gradients,
each later gradient corrects it by the symmetric rank-one formula, and after some steps it is taken anew.

Reference: Nocedal, Wright, Numerical Optimization (2006), Algorithm 6.2 and section 4.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Function = Callable[[Array], tuple[float, Array]]

_DIFFERENCE = 1e-4
_ROWS = 8  # of a Hessian that are taken before the caller is told again
_ROUND = 40  # steps between two Hessians
_ENOUGH = 0.004  # a round that gains less than this part of the value is the last
_RADIUS = 1.0
_CONVEX = 1e-14  # least curvature of a shifted Hessian, as a part of the largest


@dataclass(frozen=True)
class Stationary:
    """Where the minimisation ended.

    Attributes:
        z: the best point.
        value: the function there.
        hessian: the last approximation, shape (size, size).
        gain: what the last round gained.
        steps: evaluations of steps, those for differences not counted.
        finished: whether the rule on gains stopped it, not the number of rounds.
    """

    z: Array
    value: float
    hessian: Array
    gain: float
    steps: int
    finished: bool


def minimise(
    function: Function,
    start: Array,
    *,
    tolerance: float,
    rounds: int,
    report: Callable[[int, float], None],
    hessian: Array | None = None,
    renew: bool = True,
) -> Stationary:
    """Minimise a positive function whose value tends to zero as it improves.

    Args:
        function: value (infinite outside its domain) and gradient.
        start: a point with a finite value, shape (size,).
        tolerance: on the value; a round that gains less, or less than 0.4 % of the value, is the last.
        rounds: at most that many.
        report: told (steps so far, value); what it raises ends the minimisation.
        hessian: an approximation to begin with, if there is one.
        renew: whether each further round takes differences; otherwise the approximation is only corrected.
    """
    z, (value, gradient) = start, function(start)
    approximation = None if hessian is None else hessian.copy()
    radius, steps, gain = _RADIUS, 0, math.inf
    for number in range(rounds):
        if approximation is None or (renew and number > 0):
            approximation = _differences(function, z, gradient, partial(report, steps, value))
        before = value
        radius = max(radius, 0.1 * _RADIUS)
        for _ in range(_ROUND):
            step, predicted = _best_step(approximation, gradient, radius)
            trial, slope = function(z + step)
            steps += 1
            report(steps, min(value, trial))
            length = float(np.linalg.norm(step))
            ratio = (value - trial) / predicted if predicted > 0.0 else -1.0
            if math.isfinite(trial):
                _correct(approximation, step, slope - gradient)
            if not ratio > 0.1:
                radius = 0.5 * min(radius, length)
            elif ratio > 0.75 and length > 0.8 * radius:
                radius *= 2.0
            if trial < value:
                z, value, gradient = z + step, trial, slope
            if radius < 1e-7 * _RADIUS:
                break
        gain = before - value
        if gain <= max(tolerance, _ENOUGH * value):
            return Stationary(z, value, approximation, gain, steps, finished=True)
    assert approximation is not None
    return Stationary(z, value, approximation, gain, steps, finished=False)


def _differences(function: Function, z: Array, gradient: Array, alive: Callable[[], None]) -> Array:
    """Hessian by forward differences of the gradient; rows of zeros for points outside the function's domain."""
    hessian = np.zeros((z.size, z.size))
    for k in range(z.size):
        if k % _ROWS == 0:
            alive()
        moved = z.copy()
        moved[k] += _DIFFERENCE
        value, slope = function(moved)
        if math.isfinite(value):
            hessian[k] = (slope - gradient) / _DIFFERENCE
    return 0.5 * (hessian + hessian.T)


def _best_step(hessian: Array, gradient: Array, radius: float) -> tuple[Array, float]:
    """Minimise the quadratic model in a ball, to a tenth of its radius; return the step and the decrease it predicts.

    The step is ``-(H + shift I)^-1 gradient`` with the smallest shift that makes it convex and short enough.
    """
    from scipy.linalg import eigh
    from scipy.optimize import brentq

    curvatures, axes = eigh(hessian)
    along = axes.T @ gradient
    lowest, size = float(curvatures[0]), float(np.linalg.norm(gradient))

    def excess(shift: float) -> float:
        return float(np.linalg.norm(along / (curvatures + shift))) / radius - 1.0

    shift = max(0.0, -lowest) + _CONVEX * float(np.abs(curvatures).max())
    if excess(shift) > 0.1:
        shift = brentq(excess, shift, shift + size / radius, rtol=1e-3, xtol=0.05 * shift)
    moves = -along / (curvatures + shift)
    moves *= min(1.0, radius / float(np.linalg.norm(moves)))
    return axes @ moves, -float(moves @ along) - 0.5 * float(moves @ (curvatures * moves))


def _correct(hessian: Array, step: Array, change: Array) -> None:
    """The symmetric rank-one correction in place, skipped where its denominator is lost."""
    missing = change - hessian @ step
    scale = float(missing @ step)
    if abs(scale) > 1e-8 * float(np.linalg.norm(step) * np.linalg.norm(missing)):
        hessian += np.outer(missing, missing / scale)
