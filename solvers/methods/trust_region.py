"""Trust-region minimisation of a smooth function of some hundred variables that is far from convex.

The loss of a buffered strategy has directions whose curvatures differ by six orders of magnitude, some of them negative
at the start; limited-memory methods take thousands of steps.  Here the Hessian comes from differences of gradients,
each later gradient corrects it by the symmetric rank-one formula, and after some steps it is taken anew.

Reference: Nocedal, Wright, Numerical Optimization (2006), Algorithm 6.2 and section 4.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from factorize.solvers.methods.arrays import Array
from factorize.solvers.methods.search import End, Function, Iterate, run

_DIFFERENCE = 1e-4
_ROWS = 8  # of a Hessian that are taken before the caller is told again
_ROUND = 40  # steps between two Hessians
_ENOUGH = 0.002  # a round that gains less than this part of the value is the last
_RADIUS = 1.0
_CONVEX = 1e-14  # least curvature of a shifted Hessian, as a part of the largest


class TrustRegion:
    """Steps to the minimum of a quadratic model in a ball that grows and shrinks with its success.

    A round of steps that gains less than the tolerance, or less than 0.2 % of the value, is the last.

    Args:
        function: value (infinite outside its domain) and gradient; it tends to zero as it improves.
        trial: the same where a point is to be gone to, which may refuse more points.
        report: told (steps so far, value); what it raises ends the minimisation.
        hessian: an approximation to begin with, shape (size, size), if there is one.
        tolerance: on the value.
        renew: whether each further round takes differences; otherwise the approximation is only corrected.

    Attributes:
        hessian: the last approximation.
    """

    def __init__(
        self,
        function: Function,
        trial: Function,
        report: Callable[[int, float], None],
        hessian: Array | None,
        *,
        tolerance: float,
        renew: bool,
    ) -> None:
        self._function, self._trial, self._report = function, trial, report
        self._tolerance, self._renew = tolerance, renew
        self._radius, self._left, self._before = _RADIUS, 0, math.inf
        self.hessian = None if hessian is None else hessian.copy()

    def minimise(self, start: Array, *, rounds: int) -> End[Iterate]:
        """Return the best point; the outcome says whether the rule on gains ended it, or the number of rounds.

        Args:
            start: a point with a finite value, shape (size,).
            rounds: of 40 steps, at most.
        """
        first = Iterate(start, *self._function(start))
        return run(self, first, enough=-math.inf, most=rounds * _ROUND + 1, report=self._report)

    def gap(self, at: Iterate) -> float:
        """The value."""
        return at.value

    def step(self, at: Iterate, number: int) -> Iterate | None:
        """Return the minimum of the model if the function is lower there; None once a round has gained too little."""
        if self._left == 0:
            if self._before - at.value <= max(self._tolerance, _ENOUGH * at.value):
                return None
            self._radius = max(self._radius, 0.1 * _RADIUS)
            if self.hessian is None or (self._renew and math.isfinite(self._before)):
                alive = partial(self._report, number - 1, at.value)
                self.hessian = _differences(self._function, at.z, at.gradient, alive)
            self._left, self._before = _ROUND, at.value
        assert self.hessian is not None  # from the first round on
        self._left -= 1
        step, predicted = _best_step(self.hessian, at.gradient, self._radius)
        value, gradient = self._trial(at.z + step)
        length = float(np.linalg.norm(step))
        ratio = (at.value - value) / predicted if predicted > 0.0 else -1.0
        if math.isfinite(value):
            _correct(self.hessian, step, gradient - at.gradient)
        if not ratio > 0.1:
            self._radius = 0.5 * min(self._radius, length)
        elif ratio > 0.75 and length > 0.8 * self._radius:
            self._radius *= 2.0
        if self._radius < 1e-7 * _RADIUS:
            self._left = 0
        return Iterate(at.z + step, value, gradient) if value < at.value else at


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
    curvatures, axes = np.linalg.eigh(hessian)
    along = axes.T @ gradient
    raised = curvatures + max(0.0, -curvatures[0]) + _CONVEX * np.abs(curvatures).max()
    moves = -along / raised
    # Newton's method for the reciprocal of the length, which is concave: the length falls to the radius from above.
    while (length := float(np.linalg.norm(moves))) > 1.1 * radius:
        raised += (length / radius - 1.0) * length**2 / (moves @ (moves / raised))
        moves = -along / raised
    if length > radius:
        moves *= radius / length
    return axes @ moves, -float(moves @ along) - 0.5 * float(moves @ (curvatures * moves))


def _correct(hessian: Array, step: Array, change: Array) -> None:
    """The symmetric rank-one correction in place, skipped where its denominator is lost."""
    missing = change - hessian @ step
    scale = float(missing @ step)
    if abs(scale) > 1e-8 * float(np.linalg.norm(step) * np.linalg.norm(missing)):
        hessian += np.outer(missing, missing / scale)
