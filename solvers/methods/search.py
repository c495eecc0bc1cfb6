"""Search: the one loop of all solvers, from point to point until what is left is small enough or nothing helps.

Conjugate gradients have a rule of the caller's for when to end.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from factorize.factors.solution import Outcome
from factorize.solvers.methods.compiled import Array

GAP_SHARE = 0.3
"""The part of the tolerance to which solvers close their gap, so that the certificate's own allowances fit in."""
Function = Callable[[Array], tuple[float, Array]]
"""Value, infinite outside the function's domain, and gradient."""

Point = TypeVar("Point")
_MIN_RISE = 0.1  # a bound that rises by less than this part of the gap that is enough makes no progress


class Search(Protocol[Point]):
    """A solver's way from one point to the next."""

    def gap(self, at: Point) -> float:
        """Return how far the point is from what is searched for."""

    def step(self, at: Point, number: int) -> Point | None:
        """Return the point after the step of that number, counted from 1; None where rounding hides any progress."""


@dataclass(frozen=True)
class Iterate:
    """A point of a minimisation with what is known there.

    Attributes:
        z: shape (size,).
        value: the function.
        gradient: shape (size,).
    """

    z: Array
    value: float
    gradient: Array


@dataclass(frozen=True)
class End(Generic[Point]):
    """The end of a search.

    Attributes:
        best: the point with the smallest gap.
        gap: its gap.
        outcome: why no further step was taken.
        steps: points that were looked at.
    """

    best: Point
    gap: float
    outcome: Outcome
    steps: int


def run(
    search: Search[Point],
    first: Point,
    *,
    enough: float,
    most: int,
    report: Callable[[int, float], None] | None = None,
    stall: float = math.inf,
    clear: float = 0.9,
    lower: Callable[[Point], float] = lambda _: 0.0,
    before: int = 0,
) -> End[Point]:
    """Take steps until the gap is small enough, rounding hides any progress, or the steps are used up.

    Args:
        search: gives gaps and steps.
        first: the point to start from.
        enough: the gap at which the search ends.
        most: points to look at.
        report: told (number, gap) of each point; what it raises ends the search.
        stall: steps without clear progress after which rounding, not work, is what is missing.
        clear: part of the last gap that was clear progress, below which one is such again.
        lower: a lower bound at a point, whose rise is clear progress, too.
        before: points that an earlier search has looked at.
    """
    at = best = first
    closest = mark = math.inf
    highest, number = -math.inf, before + 1
    latest = number
    while True:
        gap, bound = search.gap(at), lower(at)
        if report is not None:
            report(number, gap)
        if gap < clear * mark or bound > highest + _MIN_RISE * enough * abs(highest):
            latest, mark = number, min(gap, mark)
        highest = max(highest, bound)
        if gap < closest:
            best, closest = at, gap
        if closest <= enough:
            return End(best, closest, Outcome.CONVERGED, number)
        if number >= before + most:
            return End(best, closest, Outcome.ITERATION_LIMIT, number)
        following = None if number >= latest + stall else search.step(at, number + 1)
        if following is None:
            return End(best, closest, Outcome.ROUNDING_LIMIT, number)
        at, number = following, number + 1


def conjugate_gradients(
    apply: Callable[[Array], Array],
    right: Array,
    start: Array,
    *,
    ended: Callable[[Array, Array], bool],
    most: int,
    scaling: Array | float = 1.0,
    flat: float = 0.0,
) -> tuple[Array, Array, int]:
    """Solve ``apply(y) = right`` for a symmetric positive definite map.

    Args:
        apply: the map; its values are overwritten.
        right: right-hand side, shape (n,).
        start: y to begin with, shape (n,).
        ended: whether y and its residual will do.
        most: products, of which the residual of the start is one.
        scaling: diagonal of a preconditioner.
        flat: curvature along a direction, beside its squared length, that is none.

    Returns:
        (y, residual, number of products). A direction without curvature ends it too.
    """
    y = start.copy()
    residual, used = right - apply(y), 1
    along = scaling * residual
    norm = float(residual @ along)
    while used < most and not ended(y, residual):
        image = apply(along)
        used += 1
        curvature = float(along @ image)
        if not curvature > flat * float(along @ along):
            break
        image *= norm / curvature
        residual -= image
        y += np.multiply(norm / curvature, along, out=image)
        preconditioned = np.multiply(scaling, residual, out=image)
        previous, norm = norm, float(residual @ preconditioned)
        along *= norm / previous
        along += preconditioned
    return y, residual, used
