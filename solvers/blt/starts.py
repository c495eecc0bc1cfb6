"""Starting points, and the smallest loss found from them: BFGS on a handful of variables.

A rational approximation of the square root has poles and zeros in geometric progression, from about 1/n to 1; the
starting points are such progressions with different ends. With more buffers than a problem has use for, two merge or
one fades, which makes for flat directions and several minima: so all starts are tried for a few steps, and the best
are followed to the end.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from factorize.solution import Outcome
from factorize.solvers.blt.parameters import Alternating
from factorize.solvers.methods.compiled import Array
from factorize.solvers.methods.search import Function

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
    starting = []
    for lowest in sorted({0.5 / n, 0.5 / separation, 4.0 / separation}):
        for highest in (0.95, 0.3):
            low = min(lowest, 0.3 * highest)
            starting.append(parameters.variables_of(np.geomspace(low, highest, 2 * parameters.buffers)))
    return starting


def minimise(loss: Function, starts: Iterable[Array], *, tolerance: float, report: Callable[[int], None]) -> BltMinimum:
    """Return the best of several descents.

    Args:
        loss: value and gradient.
        starts: first points.
        tolerance: relative gap at which a descent may end.
        report: told the number of each step; what it raises ends the search.
    """
    steps = count(1)

    def descend(start: Array, most: int) -> BltMinimum:
        return _descend(loss, start, most, tolerance, lambda: report(next(steps)))

    tried = sorted([descend(start, _TRIED) for start in starts], key=_value)
    ended = [one if one.gap <= tolerance else descend(one.variables, _MOST_STEPS) for one in tried[:_FOLLOWED]]
    return replace(min(ended, key=_value), steps=next(steps) - 1)


def _value(minimum: BltMinimum) -> float:
    return minimum.value


def _descend(loss: Function, start: Array, most: int, tolerance: float, counted: Callable[[], None]) -> BltMinimum:
    from scipy.optimize import OptimizeResult, minimize

    values: list[float] = []

    def watch(intermediate_result: OptimizeResult) -> None:
        counted()
        values.append(float(intermediate_result.fun))
        if len(values) > _WINDOW and values[-_WINDOW] - values[-1] < 1e-2 * tolerance:
            raise StopIteration

    options = {"gtol": _FLATTEST, "maxiter": most}
    with np.errstate(all="ignore"):
        minimum = minimize(loss, start, jac=True, method="BFGS", callback=watch, options=options)
    gap = 0.5 * float(minimum.jac @ minimum.hess_inv @ minimum.jac)
    flat = len(values) > _WINDOW and values[-_WINDOW] - values[-1] < 1e-2 * tolerance
    stopped = Outcome.ITERATION_LIMIT if len(values) >= most else Outcome.ROUNDING_LIMIT
    outcome = Outcome.LOCAL_OPTIMUM if flat or gap <= tolerance else stopped
    return BltMinimum(minimum.x, float(minimum.fun), gap, outcome, len(values))
