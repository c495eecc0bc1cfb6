"""Starting points, and the smallest loss found from them: BFGS on a handful of variables.

A rational approximation of the square root has poles and zeros in geometric progression, from about 1/n to 1; the
starting points are such progressions with different ends. With more buffers than a problem has use for, two merge or
one fades, which makes for flat directions and several minima: so all starts are tried for a few steps, and the best
are followed to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from factorize.solution import Outcome
from factorize.solvers.blt.parameters import Alternating
from factorize.solvers.problem import UNKEPT, Loop

Array = NDArray[np.float64]
Loss = Callable[[Array], tuple[float, Array]]

_TRIED = 25  # steps of each start
_FOLLOWED = 2
_MOST_STEPS = 400
_WINDOW = 25  # steps without progress after which a descent has ended
_FLATTEST = 1e-11  # of a gradient: below is rounding


@dataclass(frozen=True)
class BltMinimum:
    """Where a descent ended.

    Attributes:
        variables: the best point.
        value: logarithm of the loss there.
        gap: g . H^-1 g / 2 with the approximate inverse Hessian: an estimate of what is left, not a bound.
        outcome: how it stopped.
        steps: over all starts.
    """

    variables: Array
    value: float
    gap: float
    outcome: Outcome
    steps: int


def progressions(parameters: Alternating, n: int, separation: int) -> list[Array]:
    """Return starting points: 2d places in geometric progression, from parts of 1/n and of 1/separation to nearly 1."""
    found = []
    for lowest in sorted({0.5 / n, 0.5 / separation, 4.0 / separation}):
        for highest in (0.95, 0.3):
            low = min(lowest, 0.3 * highest)
            found.append(parameters.variables_of(np.geomspace(low, highest, 2 * parameters.buffers)))
    return found


def minimise(
    loss: Loss, starts: Iterable[Array], *, tolerance: float, report: Callable[[int], None], loop: Loop = UNKEPT
) -> BltMinimum:
    """Return the best of several descents.

    Args:
        loss: value and gradient.
        starts: first points.
        tolerance: relative gap at which a descent may end.
        report: told the number of each step; what it raises ends the search.
        loop: its part of unfinished work.
    """
    return _Search(loss, np.array(list(starts)), tolerance, report, loop).run()


class _Search:
    """Descents from several starts, one after the other: first some steps of each, then the best to the end.

    Args:
        loss: value and gradient.
        points: where each descent is, shape (starts, variables).
        tolerance: relative gap at which a descent may end.
        report: told the number of each step.
        loop: its part of unfinished work.
    """

    def __init__(self, loss: Loss, points: Array, tolerance: float, report: Callable[[int], None], loop: Loop) -> None:
        self._loss, self._points, self._tolerance, self._report, self._loop = loss, points, tolerance, report, loop
        found = loop.found(points=points.shape, stage=(1,))
        self._steps, self._stage = 0, 0
        if found is not None and self._fallen(found.arrays["points"]):
            self._points = found.arrays["points"]
            self._steps, self._stage = found.step - 1, int(np.clip(found.arrays["stage"][0], 0, len(points)))

    def run(self) -> BltMinimum:
        """Return the best end."""
        tried = [self._tried(place) for place in range(len(self._points))]
        order = sorted(range(len(tried)), key=lambda place: tried[place].value)
        self._stage = len(tried)
        ended = [
            tried[place]
            if tried[place].gap <= self._tolerance
            else self._descend(place, tried[place].variables, _MOST_STEPS)
            for place in order[:_FOLLOWED]
        ]
        best = min(ended, key=lambda found: found.value)
        return BltMinimum(best.variables, best.value, best.gap, best.outcome, self._steps)

    def _fallen(self, points: Array) -> bool:
        """Whether the loss is nowhere larger than at the start, as descents leave it."""
        return all(self._value(point) <= self._value(start) for point, start in zip(points, self._points, strict=True))

    def _value(self, point: Array) -> float:
        with np.errstate(all="ignore"):
            value = float(self._loss(point)[0])
        return value if np.isfinite(value) else np.inf

    def _tried(self, place: int) -> BltMinimum:
        """Take some steps from a start, unless the solve that was cut off had taken them."""
        if place >= self._stage:
            self._stage = place
            return self._descend(place, self._points[place], _TRIED)
        return BltMinimum(self._points[place], self._value(self._points[place]), np.inf, Outcome.ITERATION_LIMIT, 0)

    def _descend(self, place: int, start: Array, most: int) -> BltMinimum:
        def told(point: Array) -> None:
            self._steps += 1
            self._points[place] = point
            self._report(self._steps)
            self._loop.offer(self._steps, points=self._points, stage=np.array([float(self._stage)]))

        return _descend(self._loss, start, most, self._tolerance, told)


def _descend(loss: Loss, start: Array, most: int, tolerance: float, told: Callable[[Array], None]) -> BltMinimum:
    from scipy.optimize import OptimizeResult, minimize

    values: list[float] = []

    def watch(intermediate_result: OptimizeResult) -> None:
        told(intermediate_result.x)
        values.append(float(intermediate_result.fun))
        if len(values) > _WINDOW and values[-_WINDOW] - values[-1] < 1e-2 * tolerance:
            raise StopIteration

    options = {"gtol": _FLATTEST, "maxiter": most}
    with np.errstate(all="ignore"):
        found = minimize(loss, start, jac=True, method="BFGS", callback=watch, options=options)
    gap = 0.5 * float(found.jac @ found.hess_inv @ found.jac)
    flat = len(values) > _WINDOW and values[-_WINDOW] - values[-1] < 1e-2 * tolerance
    stopped = Outcome.ITERATION_LIMIT if len(values) >= most else Outcome.ROUNDING_LIMIT
    outcome = Outcome.LOCAL_OPTIMUM if flat or gap <= tolerance else stopped
    return BltMinimum(found.x, float(found.fun), gap, outcome, len(values))
