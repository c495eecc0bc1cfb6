"""Trust-region minimisation of a smooth function of some hundred variables that is far from convex.

The loss of a buffered strategy has directions whose curvatures differ by six orders of magnitude, some of them negative
at the start; limited-memory methods take thousands of steps.  Here the Hessian comes from differences of gradients,
each later gradient corrects it by the symmetric rank-one formula, and after some steps it is taken anew.  Its factors
are compiled here: matrices are too small for the threads of a linear algebra library to pay.

Reference: Nocedal, Wright, Numerical Optimization (2006), Algorithm 6.2 and section 4.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.methods.compiled import compiled
from factorize.solvers.methods.conjugate_gradients import dot

Array = NDArray[np.float64]
Function = Callable[[Array], tuple[float, Array]]
Differences = Callable[[Array, Array, float, Callable[[], None]], Array]

_DIFFERENCE = 1e-4
_ROWS = 8  # of a Hessian that are taken before the caller is told again
_ROUND = 40  # steps between two Hessians
_ENOUGH = 0.004  # a round that gains less than this part of the value is the last
_RADIUS = 1.0
_SHIFTS = 30


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
    differences: Differences | None = None,
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
        differences: returns the Hessian by differences; called with the point, the gradient there, the step of the
            differences and a function that is to be called between parts. Left out, gradients are taken one by one.
    """
    differences = differences or partial(_differences, function)
    z, (value, gradient) = start, function(start)
    approximation = None if hessian is None else hessian.copy()
    radius, steps, gain = _RADIUS, 0, math.inf
    for number in range(rounds):
        if approximation is None or (renew and number > 0):
            approximation = differences(z, gradient, _DIFFERENCE, partial(report, steps, value))
        before = value
        radius = max(radius, 0.1 * _RADIUS)
        for _ in range(_ROUND):
            step, predicted = _best_step(approximation, gradient, radius)
            trial, slope = function(z + step)
            steps += 1
            report(steps, min(value, trial))
            length = math.sqrt(dot(step, step))
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


def _differences(function: Function, z: Array, gradient: Array, step: float, alive: Callable[[], None]) -> Array:
    """Hessian by forward differences of the gradient; rows of zeros for points outside the function's domain."""
    hessian = np.zeros((z.size, z.size))
    for k in range(z.size):
        if k % _ROWS == 0:
            alive()
        moved = z.copy()
        moved[k] += step
        value, slope = function(moved)
        if math.isfinite(value):
            hessian[k] = (slope - gradient) / step
    return 0.5 * (hessian + hessian.T)


def _best_step(hessian: Array, gradient: Array, radius: float) -> tuple[Array, float]:
    """Minimise the quadratic model in a ball, to a tenth of its radius; return the step and the decrease it predicts.

    The shift of the Hessian is found by Newton's method on 1 / length, inside a bracket (Moré and Sorensen).
    """
    size = float(np.sqrt(dot(gradient, gradient)))
    low, high = 0.0, size / radius + float(np.abs(hessian).sum(axis=1).max())
    work, step, best = np.empty_like(hessian), np.empty_like(gradient), np.zeros_like(gradient)
    shift = 0.0
    for _ in range(_SHIFTS):
        length, slope = _shifted(hessian, shift, gradient, work, step)
        if length >= 0.0:
            best[:] = step
            if abs(length - radius) <= 0.1 * radius or (shift == 0.0 and length < radius):
                break
        if 0.0 <= length < radius:
            high = shift
        else:
            low = shift
        shift = shift + (length / radius - 1.0) * length**2 / slope if length >= 0.0 else -1.0
        if not low < shift < high:
            shift = math.sqrt(max(low, 1e-8 * high) * high)
    length = float(np.sqrt(dot(best, best)))
    if length > radius:
        best *= radius / length
    return best, -dot(best, gradient) - 0.5 * _quadratic(hessian, best)


@compiled
def _shifted(hessian: Array, shift: float, gradient: Array, root: Array, step: Array) -> tuple[float, float]:
    """Solve ``(H + shift I) step = -gradient`` by Cholesky; return the step's length, or -1 if it is indefinite.

    The second number is ``||L^-1 step||^2``, which makes the derivative of the length by the shift.
    """
    n = gradient.size
    for a in range(n):
        for b in range(a + 1):
            total = hessian[a, b]
            for c in range(b):
                total -= root[a, c] * root[b, c]
            if a > b:
                root[a, b] = total / root[b, b]
            elif total + shift > 1e-14 * (abs(hessian[a, a]) + shift):
                root[a, a] = math.sqrt(total + shift)
            else:
                return -1.0, 0.0
    for a in range(n):
        total = -gradient[a]
        for c in range(a):
            total -= root[a, c] * step[c]
        step[a] = total / root[a, a]
    for a in range(n - 1, -1, -1):
        total = step[a]
        for c in range(a + 1, n):
            total -= root[c, a] * step[c]
        step[a] = total / root[a, a]
    squared, inner = 0.0, 0.0
    half = np.empty(n)
    for a in range(n):
        squared += step[a] * step[a]
        total = step[a]
        for c in range(a):
            total -= root[a, c] * half[c]
        half[a] = total / root[a, a]
        inner += half[a] * half[a]
    return math.sqrt(squared), inner


@compiled
def _quadratic(hessian: Array, step: Array) -> float:
    total = 0.0
    for a in range(step.size):
        for b in range(step.size):
            total += step[a] * hessian[a, b] * step[b]
    return total


@compiled
def _correct(hessian: Array, step: Array, change: Array) -> None:
    """The symmetric rank-one correction in place, skipped where its denominator is lost."""
    n = step.size
    missing = np.empty(n)
    scale, length, size = 0.0, 0.0, 0.0
    for a in range(n):
        missing[a] = change[a]
        for b in range(n):
            missing[a] -= hessian[a, b] * step[b]
        scale += missing[a] * step[a]
        length += step[a] * step[a]
        size += missing[a] * missing[a]
    if abs(scale) > 1e-8 * math.sqrt(length * size):
        for a in range(n):
            for b in range(n):
                hessian[a, b] += missing[a] * (missing[b] / scale)
