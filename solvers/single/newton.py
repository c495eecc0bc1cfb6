"""Newton's method for the dual of single participation, in the logarithm of the dual weights.

With ``D = diag(sqrt(v))``, ``T = D^-1 (A^T A)^-1 D^-1`` and ``X(v) = D^-1 T^-1/2 D^-1``, every ``v > 0`` gives

    lower bound   N^2 / sum(v),   N = tr(T^-1/2) = ||A D||_* = sum_i v_i X_ii
    upper bound   N max_i X_ii    (the loss of X / max X_ii, which is feasible)

of ``min tr(A^T A X^-1)`` over ``diag(X) <= 1``; both are attained where ``diag(X)`` is constant.  A
workload takes part by what it knows of X at any v, a `DualPoint`: by decompositions (dense.py), or, where it is a
recurrence, by a rational function in place of ``T^-1/2`` and sweeps for the diagonal of ``(L + t V)^-1``: see
`Structure`. No step of these forms an n x n array.

A step solves ``S diag(v) dlog v = diag(X) - mean`` with ``S = -d diag(X) / dv``, symmetric positive definite.  In the
unknown ``y = sqrt(v) dlog v`` its matrix has its spectrum in ``(0, mean / 2]`` near the optimum, hence conjugate
gradients without a preconditioner.  They control a norm weighted with v, which may span thirty decades; entries
that this norm does not see, and that end with a larger residual than they began with, are set back to a power step, and
a few Richardson steps clean up. A few power steps ``v <- v X_ii^2`` come
first; they never lower N^2 / sum(v), since ``||A D||_*`` is convex in the diagonal of D.

The approximations follow the progress: poles for a hundredth of the gap that the step can reach, and for S, which
only steers, poles for 6.5 % throughout.

Reference: Denisov, McMahan, Rush, Smith, Guha Thakurta, Improved differential privacy for SGD via optimal private
linear operators on adaptive streams (2022), for the dual and its fixed point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np

from factorize.solvers.methods.compiled import Array, Product
from factorize.solvers.methods.poles import Poles, zolotarev
from factorize.solvers.methods.search import End, conjugate_gradients, run

_POWER_STEPS = 4
_MAX_POWER_SPREAD = 0.05  # Newton's method is safe from the start below this spread of diag(X)
_SMOOTHING_STEPS = 4
_MAX_STEPS = 60
_MAX_PRODUCTS = 80
_STALL_STEPS = 8  # after this many steps without a better gap rounding is what is missing, not work
_MAX_CACHED_STEPS = 1 << 16  # up to this many steps 16 poles cost no more than 8
_HESSIAN_ERROR = 0.065
_TRUST_RADIUS = 1.0  # a direction is not followed beyond this root mean square of dlog v, weighted with v
_MAX_RISE, _MAX_FALL = 3.5, 1.5  # a weight rises to 4.5 times itself at most, and falls to a part of 4.5
_MAX_RATIO = 1e4  # rounding has made a ratio of diag(X) to its mean that is beyond this


class DualPoint(Protocol):
    """Dual weights v and what is known of X there."""

    @property
    def v(self) -> Array:
        """Dual weights, positive, shape (n,)."""

    @property
    def ratio(self) -> Array:
        """``diag(X)`` over its mean that v weighs, shape (n,)."""

    @property
    def slack(self) -> Array | float:
        """The excess of the second derivative's diagonal where a constraint is not tight, not negative."""

    @property
    def lower(self) -> float:
        """A lower bound up to `delta`."""

    @property
    def gap(self) -> float:
        """Gap of the bounds, all errors included."""

    @property
    def delta(self) -> float:
        """Relative error of the root of `lower`."""

    def hessian(self) -> Product:
        """The product with ``-d diag(X) / dv`` over the same mean; good until the next call."""


Point = TypeVar("Point", bound=DualPoint)


class Structure(Protocol):
    """A workload A as the method needs to know it, with ``L = (A^T A)^-1``."""

    size: int

    def start(self) -> Array:
        """Dual weights to start from, ``sqrt((A^T A)_ii)``."""

    def interval(self, v: Array) -> tuple[float, float]:
        """An interval that contains the spectrum of ``V^-1/2 L V^-1/2``, rounding included."""

    def diagonal(self, v: Array, poles: Poles) -> Array:
        """The diagonal of ``sum_j w_j (L + t_j V)^-1``."""

    def hessian(self, v: Array, poles: Poles) -> Product:
        """The product with ``sum_j w_j t_j ((L + t_j V)^-1)_ik^2``; good until the next call."""


@dataclass(frozen=True)
class PolePoint:
    """Dual weights of a `Structure` and its bounds, up to rounding; the certificate proves its own.

    Attributes:
        structure: the workload.
        v: dual weights, shape (n,).
        x: ``diag(sum_j w_j (L + t_j V)^-1)``, shape (n,).
        poles: nodes t_j, weights w_j and their error ``delta``.
    """

    structure: Structure
    v: Array
    x: Array
    poles: Poles
    slack: ClassVar[float] = 0.0  # C needs columns near norm 1 whatever their weight

    @classmethod
    def at(cls, structure: Structure, v: Array, error: float) -> PolePoint:
        """Return the point at weights, with poles of that relative error.

        Raises:
            FloatingPointError: the workload leaves the range of float64.
        """
        poles = zolotarev(*structure.interval(v), error=error, multiple=8)
        point = cls(structure, v, structure.diagonal(v, poles), poles)
        if not 0.0 < point.mean < math.inf:
            raise FloatingPointError(
                f"the dual value is {point.mean}; scale the workload so that its entries lie near 1"
            )
        return point

    @property
    def mean(self) -> float:
        """Mean of ``diag(X)`` that v weighs."""
        return float((self.v * self.x).sum()) / float(self.v.sum())

    @property
    def ratio(self) -> Array:
        """See `DualPoint`."""
        return self.x / self.mean

    @property
    def lower(self) -> float:
        """The dual bound as the poles give it."""
        return self.mean * float((self.v * self.x).sum())

    @property
    def lower_bound(self) -> float:
        """A number below the optimum: ``N_r <= (1 + delta) ||A D||_*`` whatever the spectrum of T."""
        return self.lower / (1.0 + self.delta) ** 2

    @property
    def gap(self) -> float:
        """Gap of `lower_bound` to the loss of ``X / max(diag(X))``.

        On the interval of the poles ``1 / (x r(x)) <= r(x) / (1 - delta)^2``, so that this loss is at most
        ``N_r max(diag(X)) / (1 - delta)^2``.
        """
        return float(self.x.max()) / self.mean * ((1.0 + self.delta) / (1.0 - self.delta)) ** 2 - 1.0

    @property
    def delta(self) -> float:
        """Error of the poles."""
        return self.poles.delta

    def hessian(self) -> Product:
        """The product, by coarse poles: it only steers."""
        # a wider interval, since the derivative of the approximation is poor at its ends
        lanes = 16 if self.structure.size < _MAX_CACHED_STEPS else 8
        poles = zolotarev(0.25 * self.poles.lower, 4.0 * self.poles.upper, error=_HESSIAN_ERROR, multiple=lanes)
        product, mean = self.structure.hessian(self.v, poles), self.mean
        return lambda x: product(x / mean)


def maximise(
    structure: Structure, *, tolerance: float, report: Callable[[int, float], None] | None = None
) -> End[PolePoint]:
    """Maximise the dual bound of a structure until the gap is at most ``tolerance`` or rounding stops progress.

    Args:
        structure: the workload.
        tolerance: relative gap to reach, not negative.
        report: called with (number, gap) of each point; what it raises ends the solve.

    Raises:
        ValueError: if ``tolerance`` is out of range.
        FloatingPointError: if the workload leaves the range of float64.
    """
    if not 0.0 <= tolerance < math.inf:
        raise ValueError(f"tolerance={tolerance} must be a finite number, at least 0")

    def evaluate(v: Array, error: float) -> PolePoint:
        return PolePoint.at(structure, v, error)

    return ascend(evaluate, structure.start(), tolerance=tolerance, enough=0.9 * tolerance, report=report)


def ascend(
    evaluate: Callable[[Array, float], Point],
    v: Array,
    *,
    tolerance: float,
    enough: float,
    report: Callable[[int, float], None] | None = None,
    before: int = 0,
    power_steps: int = _POWER_STEPS,
) -> End[Point]:
    """Maximise a dual bound in log v.

    Args:
        evaluate: the point at weights, with a relative error that may be allowed.
        v: weights to start from, shape (n,).
        tolerance: relative gap asked for, which says how exact points have to be.
        enough: relative gap to reach.
        report: see `maximise`.
        before: points that an earlier ascent has looked at.
        power_steps: at first, where the spread of diag(X) is large.
    """
    search = _Newton(evaluate, max(1e-15, 1e-2 * tolerance), power_steps)
    first = evaluate(v, max(search.finest, 1e-3))
    return run(
        search,
        first,
        enough=enough,
        most=_MAX_STEPS,
        stall=_STALL_STEPS,
        clear=1.0,
        lower=lambda at: at.lower * (1.0 - 2.0 * at.delta),
        report=report,
        before=before,
    )


class _Newton(Generic[Point]):
    """Steps of Newton's method, the first ones power steps."""

    def __init__(self, evaluate: Callable[[Array, float], Point], finest: float, power_steps: int) -> None:
        self.evaluate, self.finest, self.power_steps = evaluate, finest, power_steps

    def gap(self, at: Point) -> float:
        return at.gap

    def step(self, at: Point, number: int) -> Point:
        """Backtrack on the lower bound; a power step, at first and if four lengths fail."""
        error = max(self.finest, min(1e-3, 1e-2 * at.gap * max(at.gap, 1e-3)))
        if number > self.power_steps + 1 or np.abs(at.ratio - 1.0).max() <= _MAX_POWER_SPREAD:
            direction, length = _direction(at), 1.0
            for _ in range(4):
                trial = self.evaluate(at.v * _growth(length * direction), error)
                if trial.lower >= at.lower * (1.0 - 4.0 * (at.delta + trial.delta)):
                    return trial
                length *= 0.3
        return self.evaluate(at.v * np.clip(at.ratio, 1.0 / _MAX_RATIO, _MAX_RATIO) ** 2, error)


def _direction(at: DualPoint) -> Array:
    """Return Newton's direction in log v, by conjugate gradients and smoothing."""
    hessian, root = at.hessian(), np.sqrt(at.v)
    largest = np.full_like(root, 0.5) + at.slack

    def apply(y: Array) -> Array:
        product = hessian(root * y)
        product *= root
        return product + at.slack * y

    right = root * (at.ratio - 1.0)
    norm, budget = float(right @ right), float(at.v.sum())
    enough = norm * min(0.05, max(1e-3, (norm / budget) ** 0.25)) ** 2
    longest = _TRUST_RADIUS**2 * budget  # a map that is nearly singular is not followed to its end

    def ended(y: Array, residual: Array) -> bool:
        return float(residual @ residual) <= enough or float(y @ y) >= longest

    y, residual, _ = conjugate_gradients(apply, right, right / largest, ended=ended, most=_MAX_PRODUCTS)
    lost = np.abs(residual) > np.maximum(np.abs(right), 0.1 * np.abs(at.ratio - 1.0).max() * root)
    y[lost] = (right / largest)[lost]
    for _ in range(_SMOOTHING_STEPS):
        y += (right - apply(y)) / largest
    return y / root


def _growth(step: Array) -> Array:
    """Return the factor of v: linear upwards, since diag(X) sees neighbours; exponential downwards, so positive."""
    return np.where(step > 0.0, 1.0 + np.minimum(step, _MAX_RISE), np.exp(np.clip(step, -_MAX_FALL, 0.0)))


def vectors(**given: Array) -> list[Array]:
    """Return the arrays in double precision, copied, if they are vectors of one length that is not 0.

    Raises:
        ValueError: with their names and shapes.
    """
    arrays = [np.array(a, dtype=np.float64) for a in given.values()]
    shapes = [a.shape for a in arrays]
    if len(set(shapes)) > 1 or arrays[0].ndim != 1 or not arrays[0].size:
        raise ValueError(f"{', '.join(given)} must be vectors of one length, got shapes {', '.join(map(str, shapes))}")
    return arrays


def require_range(name: str, values: Array, low: float, high: float) -> None:
    """Refuse values outside [low, high], where the recurrences could leave the range of float64.

    Raises:
        ValueError: with the first offending value.
    """
    wrong = ~((values >= low) & (values <= high))  # it is true for NaN, too
    if wrong.any():
        raise ValueError(f"{name} holds {values[wrong][0]}, outside [{low:g}, {high:g}]; rescale the workload")
