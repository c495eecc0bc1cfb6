"""Projected gradient with Barzilai-Borwein steps, for smooth functions on a closed convex cone.

d = P(x - alpha g) - x is a descent direction for every alpha > 0; alpha is the inverse curvature s.s / s.y seen
over the last step, and a step is taken if it improves on the worst of the last few values. Near its minimum the
Toeplitz loss has a condition number of a few units in the coefficients themselves, so ten steps reach 1e-10 and no
matrix is kept.

Reference: Birgin, Martinez, Raydan, Nonmonotone spectral projected gradient methods on convex sets (2000).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from factorize.factors.solution import Outcome
from factorize.solvers.methods.compiled import Array
from factorize.solvers.methods.search import End, Function, run

_MEMORY = 6  # a new value is compared with this many of the last
_SUFFICIENT_DECREASE = 1e-4
_SHRINKAGE = 0.3
_MIN_FRACTION = 1e-9
_MAX_STEPS = 2000
_MAX_LENGTH, _MIN_LENGTH = 1e8, 1e-8
_ROUNDING = 1e-13  # smaller differences of a value near 1 are no evidence


@dataclass(frozen=True)
class Slope:
    """A point with what is known there, and the step that is tried from it.

    Attributes:
        x: shape (n,).
        value: the function.
        gradient: shape (n,).
        direction: the way to the projection of a step along the gradient.
        gap: |G|^2 / (2 mu) with the projected gradient G and the smallest curvature mu met on the last steps: what
            is left to gain if the function is no flatter than that around x. An estimate, not a bound.
    """

    x: Array
    value: float
    gradient: Array
    direction: Array
    gap: float


def descend(
    function: Function,
    start: Array,
    *,
    tolerance: float,
    report: Callable[[int, float], None],
    project: Callable[[Array], Array] | None = None,
) -> End[Slope]:
    """Minimise a function from a feasible point until the estimated gap is below the tolerance.

    Args:
        function: value (infinite outside its domain) and gradient.
        start: shape (n,), of norm near 1, since the first step has length 1.
        tolerance: tolerance of the function's value.
        report: called with (step, estimated gap); what it raises ends the descent.
        project: nearest point of the feasible set; None if there is no constraint.
    """
    search = _Spectral(function, project or (lambda point: point))
    end = run(search, search.at(start, *function(start)), enough=tolerance, most=_MAX_STEPS, report=report)
    outcome = Outcome.LOCAL_OPTIMUM if end.outcome is Outcome.CONVERGED else end.outcome
    return replace(end, outcome=outcome)


class _Spectral:
    """Steps whose length is the inverse of the curvature that was seen over the last one."""

    def __init__(self, function: Function, project: Callable[[Array], Array]) -> None:
        self._function, self._project = function, project
        self._recent: list[float] = []
        self._curvatures, self._length = [1.0], 1.0

    def at(self, x: Array, value: float, gradient: Array) -> Slope:
        self._recent = [*self._recent[1 - _MEMORY :], value]
        direction = self._project(x - self._length * gradient) - x
        gap = float(direction @ direction) / self._length**2 / (2 * min(self._curvatures[-_MEMORY:]))
        return Slope(x, value, gradient, direction, gap)

    def gap(self, at: Slope) -> float:
        return at.gap

    def step(self, at: Slope, _number: int) -> Slope | None:
        """Shorten the step until the value falls below the largest of the last few."""
        slope, length = float(at.gradient @ at.direction), 1.0
        while length > _MIN_FRACTION and slope < 0:
            x = at.x + length * at.direction
            value, gradient = self._function(x)
            if value <= max(self._recent) + _SUFFICIENT_DECREASE * length * slope + _ROUNDING:
                self._learn(x - at.x, gradient - at.gradient)
                return self.at(x, value, gradient)
            length *= _SHRINKAGE
        return None

    def _learn(self, change: Array, bend: Array) -> None:
        squared, product = float(change @ change), float(change @ bend)
        if product > 0:
            self._curvatures.append(product / squared)
            self._length = min(max(squared / product, _MIN_LENGTH), _MAX_LENGTH)
        else:
            self._length = min(4 * self._length, _MAX_LENGTH)
