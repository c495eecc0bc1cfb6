"""Losses of long strategies that are recursions: row i of A x has the squared norm of row i of A C^-1 as its variance.

Here y is white noise and x = C^-1 y. Both x and A x are recursions of a few states, whose covariance is carried along
(see structures/covariances.py). No n x n array is formed, and no B: this proves nothing about a B that a job computes.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from factorize.checker.arithmetic.near import NotEnclosed, outwards
from factorize.checker.spec.objectives import Weighing, weighing_of
from factorize.checker.spec.workloads import program_of
from factorize.checker.strategy import Strategy

MAX_WIDTH = 1e-9
"""The largest relative width of losses that count as enclosed."""
_SLACK = 2.0**-44  # Sums of doubles and a few operations on them lose a smaller share.


class Ends(NamedTuple):
    """Enclosures of the losses at sensitivity 1, each (low, high)."""

    total: tuple[float, float]
    largest: tuple[float, float]
    last: tuple[float, float]
    objective: tuple[float, float]


def losses(strategy: Strategy, workload: Mapping[str, object], objective: Mapping[str, object], most: int) -> Ends:
    """Return the losses at sensitivity 1, with at most `most` units of work.

    Raises:
        NotEnclosed: C or A is no recursion here, the work is too much, or doubled precision does not suffice.
    """
    program = program_of(workload)
    if program is None:
        raise NotEnclosed("the workload is not a recursion of few states")
    weighing, ends = weighing_of(objective, strategy.n), strategy.reading.variances(program, most, strategy.scale)
    if weighing.tau is None or weighing.tau >= strategy.n:  # No row comes after a restart.
        return weighed(ends, weighing)
    since = program.since_reference(strategy.n, weighing.tau)
    return weighed(ends, weighing, strategy.reading.variances(since, most, strategy.scale))


def weighed(ends: np.ndarray, weighing: Weighing, since: np.ndarray | None = None) -> Ends:
    """Return the losses of the variances of rows; the objective weighs `since` in their place, where that is given."""
    below, above = _outwards(ends)
    total = outwards((math.fsum(below), math.fsum(above)), _SLACK)
    largest = (float(below.max()), float(above.max()))
    if weighing.weights is None:
        chosen = largest
    elif weighing.divisor is not None:
        chosen = outwards((total[0] / weighing.divisor, total[1] / weighing.divisor), _SLACK)
    else:
        low, high = (below, above) if since is None else _outwards(since)
        chosen = outwards((math.fsum(weighing.doubles * low), math.fsum(weighing.doubles * high)), _SLACK)
    return Ends(total, largest, (float(below[-1]), float(above[-1])), chosen)


def _outwards(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.maximum(ends[0] * (1 - _SLACK), 0.0), ends[1] * (1 + _SLACK)


def width_of_losses(ends: Iterable[tuple[float, float]]) -> float:
    """Return the largest relative width of an enclosure; infinity where one has an infinite end."""
    ends = list(ends)
    if not all(math.isfinite(high) for _, high in ends):
        return math.inf
    return max((high - low) / high if high else 0.0 for low, high in ends)
