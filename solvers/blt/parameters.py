"""The numbers that a descent varies: the decays of C and of C^-1, which alternate.

C(x) = prod (1 - theta'_r x) / prod (1 - theta_r x) has positive scales omega exactly if

    1 > theta_1 > theta'_1 > theta_2 > ... > theta_d > theta'_d,

theta' being the decays of C^-1. Kept in [0, 1] that also gives sum omega = sum (theta_r - theta'_r) <= 1, so that all
coefficients of C fall and the leading pattern is its sensitivity. So the unknowns are points 0 = p_0 < p_1 < ... < p_2d
< 1, p = 1 - theta for the odd ones and 1 - theta' for the even, and these come from 2d + 1 gaps that sum to 1. All
scales are products and quotients of distances, which are sums of gaps: nothing is subtracted, however small 1 - theta.

Under one participation the coefficients need not fall: there the last theta' is free to become negative, C^-1 then
having one alternating part.

Reference: Dvijotham, McMahan, Pillutla, Steinke, Thakurta, Efficient and Near-Optimal Noise Generation for Streaming
Differential Privacy (2024), Lemma 5.2, for the scales in terms of both sets of decays.

The smallest loss is found from starting points by BFGS on a handful of variables. A rational approximation of the
square root has poles and zeros in geometric progression, from about 1/n to 1; the starting points are such progressions
with different ends. With more buffers than a problem has use for, two merge or one fades, which makes for flat
directions and several minima: so all starts are tried for a few steps, and the best are followed to the end.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from factorize.factors.solution import Outcome
from factorize.solvers.methods.compiled import Array
from factorize.solvers.methods.search import Function

MIN_GAP = 2.0**-42
"""The least gap between neighbouring points; decays of C stay twice that apart."""

_MAX_EXPONENT = 50.0


@dataclass(frozen=True)
class BltPoint:
    """Decays, scales, and what is needed to follow a gradient back.

    Attributes:
        shares: softmax of the variables that share the unit interval; with a free end all but the last of them.
        extent: length of the last gap where it is free, else 0.
        places: p_0 .. p_2d, shape (2d + 1,).
        scales: at odd places the omega of C; at even places the weights of the series of S C^-1, shape (2d + 1,).
        slopes: derivative of log scale a with respect to place a through its distance from place q, shape (2d+1, 2d+1).
    """

    shares: Array
    extent: float
    places: Array
    scales: Array
    slopes: Array

    @property
    def theta(self) -> Array:
        """Decays of C, from the largest."""
        return 1.0 - self.places[1::2]

    @property
    def omega(self) -> Array:
        """Scales of C."""
        return self.scales[1::2]


class Alternating:
    """Maps 2d unconstrained variables to decays and scales, and gradients back.

    The series of S C^-1 is sum_r beta_r phi_r^t, phi_0 = 1 and phi_r = theta'_r, with positive weights beta.

    Args:
        buffers: d.
        free_end: whether p_2d may exceed 1.
    """

    def __init__(self, buffers: int, *, free_end: bool = False) -> None:
        self.buffers = buffers
        self.free_end = free_end
        index, gaps = np.arange(2 * buffers + 1), np.arange(1, 2 * buffers + 1)
        low, high = np.minimum.outer(index, index), np.maximum.outer(index, index)
        self._between = ((low[:, :, None] < gaps) & (gaps <= high[:, :, None])).astype(np.float64)
        self._sign = np.sign(np.subtract.outer(index, index)).astype(np.float64)
        alike = np.add.outer(index, index) % 2 == 0
        self._power = np.where(alike, -1.0, 1.0)
        np.fill_diagonal(self._power, 0.0)
        self._power[1::2, 0] = 0.0  # p_0 is a pole of the prefix sum, not of C^-1

    def at(self, variables: Array) -> BltPoint:
        """Return decays and scales.

        Args:
            variables: logarithms of the first gaps over the one that ends at 1, shape (2d,); with a free end the last
                is the logarithm of the gap before p_2d.
        """
        padded = np.append(variables[:-1] if self.free_end else variables, 0.0)
        shares = np.exp(padded - padded.max())
        shares /= shares.sum()
        gaps = MIN_GAP + (1.0 - len(shares) * MIN_GAP) * shares
        extent = float(np.exp(min(variables[-1], _MAX_EXPONENT))) if self.free_end else 0.0
        gaps[-1] = MIN_GAP + extent
        distance = self._between @ gaps[: 2 * self.buffers]
        places = distance[0].copy()
        np.fill_diagonal(distance, 1.0)
        scales = np.exp((self._power * np.log(distance)).sum(axis=1))
        return BltPoint(shares, extent, places, scales, self._power * self._sign / distance)

    def back(self, point: BltPoint, by_place: Array, by_log_scale: Array) -> Array:
        """Return the gradient in the variables from that in places and in logarithms of scales, shape (2d,)."""
        total = by_place + by_log_scale * point.slopes.sum(axis=1) - by_log_scale @ point.slopes
        by_gap, shares = np.cumsum(total[::-1])[::-1][1:], point.shares
        sharing = np.append(by_gap[: len(shares) - 1], 0.0)
        shared = (shares * (sharing - shares @ sharing))[:-1] * (1.0 - len(shares) * MIN_GAP)
        return np.append(shared, by_gap[-1] * point.extent) if self.free_end else shared

    def variables_of(self, places: Array) -> Array:
        """Return the variables of increasing places p_1 .. p_2d in (0, 1), shape (2d,)."""
        gaps = np.maximum(np.diff(np.concatenate([[0.0], places, [1.0]])), 2 * MIN_GAP)
        if self.free_end:
            return np.append(np.log(gaps[:-2] / (1.0 - places[-2])), np.log(gaps[-2]))
        return np.log(gaps[:-1] / gaps[-1])


_TRIAL_STEPS = 25  # each start is followed for this many steps at first
_FOLLOWED_STARTS = 2
_MAX_STEPS = 400
_WINDOW_STEPS = 25  # a descent ends after this many steps without progress
_MIN_GRADIENT = 1e-11  # a smaller gradient is rounding


@dataclass(frozen=True)
class BltMinimum:
    """The end of a descent.

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

    tried = sorted([descend(start, _TRIAL_STEPS) for start in starts], key=_value)
    ended = [one if one.gap <= tolerance else descend(one.variables, _MAX_STEPS) for one in tried[:_FOLLOWED_STARTS]]
    return replace(min(ended, key=_value), steps=next(steps) - 1)


def _value(minimum: BltMinimum) -> float:
    return minimum.value


def _descend(loss: Function, start: Array, most: int, tolerance: float, counted: Callable[[], None]) -> BltMinimum:
    from scipy.optimize import OptimizeResult, minimize

    values: list[float] = []

    def watch(intermediate_result: OptimizeResult) -> None:
        counted()
        values.append(float(intermediate_result.fun))
        if len(values) > _WINDOW_STEPS and values[-_WINDOW_STEPS] - values[-1] < 1e-2 * tolerance:
            raise StopIteration

    options = {"gtol": _MIN_GRADIENT, "maxiter": most}
    with np.errstate(all="ignore"):
        minimum = minimize(loss, start, jac=True, method="BFGS", callback=watch, options=options)
    gap = 0.5 * float(minimum.jac @ minimum.hess_inv @ minimum.jac)
    flat = len(values) > _WINDOW_STEPS and values[-_WINDOW_STEPS] - values[-1] < 1e-2 * tolerance
    stopped = Outcome.ITERATION_LIMIT if len(values) >= most else Outcome.ROUNDING_LIMIT
    outcome = Outcome.LOCAL_OPTIMUM if flat or gap <= tolerance else stopped
    return BltMinimum(minimum.x, float(minimum.fun), gap, outcome, len(values))
