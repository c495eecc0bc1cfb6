"""Newton's method for the dual of single participation, in the logarithm of the dual weights.

With ``D = diag(sqrt(v))``, ``T = D^-1 (A^T A)^-1 D^-1`` and ``X(v) = D^-1 T^-1/2 D^-1``, every ``v > 0`` gives

    lower bound   N^2 / sum(v),   N = tr(T^-1/2) = ||A D||_* = sum_i v_i X_ii
    upper bound   N max_i X_ii    (the loss of X / max X_ii, which is feasible)

of ``min tr(A^T A X^-1)`` over ``diag(X) <= 1``; both are attained where ``diag(X)`` is constant.  ``T^-1/2`` is
replaced by a rational function, so a workload takes part by its sweeps for the diagonal of ``(L + t V)^-1`` alone:
see `Structure`.  No step forms an n x n array.

A step solves ``S diag(v) dlog v = diag(X) - mean`` with ``S = -d diag(X) / dv``, symmetric positive definite.  In the
unknown ``y = sqrt(v) dlog v`` its matrix has its spectrum in ``(0, mean / 2]`` near the optimum, hence conjugate
gradients without a preconditioner.  They control a norm weighted with v, which may span thirty decades; entries
that this norm does not see, and that end with a larger residual than they began with, are set back to a power step, and
a few Richardson steps clean up.  A few power steps ``v <- v X_ii^2`` come
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
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.methods.conjugate_gradients import conjugate_gradients
from factorize.solvers.methods.poles import Poles, zolotarev

Array = NDArray[np.float64]
Progress = Callable[[int, float], None]

_POWER_STEPS = 4
_POWER_UNTIL = 0.05  # spread of diag(X) below which Newton's method is safe from the start
_SMOOTHING_STEPS = 4
_MOST_STEPS = 60
_MOST_PRODUCTS = 60
_STALL = 8  # steps without a better gap after which rounding, not work, is what is missing
_CACHED = 1 << 16  # steps up to which 16 poles cost no more than 8
_HESSIAN_ERROR = 0.065
_TRUST = 1.0  # root mean square of dlog v, weighted with v, beyond which a direction is not followed
_LONGEST_RISE, _LONGEST_FALL = 3.5, 1.5  # factors 4.5 upwards and downwards


class Structure(Protocol):
    """What the method needs to know of a workload A, with ``L = (A^T A)^-1``."""

    size: int

    def start(self) -> Array:
        """Dual weights to start from, ``sqrt((A^T A)_ii)``."""

    def interval(self, v: Array) -> tuple[float, float]:
        """An interval that contains the spectrum of ``V^-1/2 L V^-1/2``, rounding included."""

    def diagonal(self, v: Array, poles: Poles) -> Array:
        """The diagonal of ``sum_j w_j (L + t_j V)^-1``."""

    def hessian(self, v: Array, poles: Poles) -> Callable[[Array], Array]:
        """The product with ``sum_j w_j t_j ((L + t_j V)^-1)_ik^2``; good until the next call."""


@dataclass(frozen=True)
class Optimum:
    """Dual weights and the bounds that follow from them, up to rounding; the certificate proves its own.

    Attributes:
        v: dual weights, shape (n,).
        lower_bound: below the minimum of ``tr(A^T A X^-1)`` over ``diag(X) <= 1``; allows for the error of the poles
            everywhere on x > 0.
        upper_bound: above the loss of ``X / max(diag(X))``, ``X = sum_j w_j (L + t_j V)^-1``, with the same allowance.
        poles: nodes t_j, weights w_j and their error ``delta``.
        iterations: evaluations of the bounds.
        products: products with the Hessian.
    """

    v: Array
    lower_bound: float
    upper_bound: float
    poles: Poles
    iterations: int
    products: int

    @property
    def relative_gap(self) -> float:
        """``upper_bound / lower_bound - 1``."""
        return self.upper_bound / self.lower_bound - 1.0


@dataclass(frozen=True)
class _Iterate:
    v: Array
    x: Array
    poles: Poles
    total: float
    budget: float

    @property
    def mean(self) -> float:
        return self.total / self.budget

    @property
    def lower(self) -> float:
        return self.total * self.mean

    @property
    def spread(self) -> float:
        return max(float(self.x.max()) / self.mean - 1.0, 1.0 - float(self.x.min()) / self.mean)

    @property
    def gap(self) -> float:
        """Gap of the bounds, the error of the poles included."""
        delta = self.poles.delta
        return float(self.x.max()) / self.mean * ((1.0 + delta) / (1.0 - delta)) ** 2 - 1.0


def maximise(
    structure: Structure,
    *,
    tolerance: float,
    callback: Progress | None = None,
) -> Optimum:
    """Maximise the dual bound until the gap is at most ``tolerance`` or rounding stops progress.

    Args:
        structure: the workload.
        tolerance: relative gap to reach, not negative.
        callback: called with (iteration, relative gap) after each evaluation; what it raises ends the solve.

    Returns:
        The best iterate with its bounds; ``relative_gap`` may exceed ``tolerance``.

    Raises:
        ValueError: if ``tolerance`` is out of range.
        FloatingPointError: if the workload leaves the range of float64.
    """
    if not 0.0 <= tolerance < math.inf:
        raise ValueError(f"tolerance={tolerance} must be a finite number, at least 0")
    v, step = structure.start(), 1
    finest = max(1e-15, 1e-2 * tolerance)
    best = current = _evaluate(structure, v, max(finest, 1e-3))
    best_step = step
    products = 0
    while True:
        if callback is not None:
            callback(step, current.gap)
        if current.lower > best.lower * (1.0 + 2.0 * best.poles.delta):
            best_step = step
        if current.gap < best.gap:
            best, best_step = current, step
        if best.gap <= 0.9 * tolerance or step >= min(_MOST_STEPS, best_step + _STALL):
            return Optimum(best.v, *bounds(structure, best.v, best.poles), best.poles, step, products)
        error = max(finest, min(1e-3, 1e-2 * current.gap * max(current.gap, 1e-3)))
        if step <= _POWER_STEPS and current.spread > _POWER_UNTIL:
            current = _evaluate(structure, _power(current), error)
        else:
            direction, used = _direction(structure, current)
            products += used
            current = _search(structure, current, direction, error)
        step += 1


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
    wrong = ~((values >= low) & (values <= high))  # also true for NaN
    if wrong.any():
        raise ValueError(f"{name} holds {values[wrong][0]}, outside [{low:g}, {high:g}]; rescale the workload")


def _evaluate(structure: Structure, v: Array, error: float) -> _Iterate:
    poles = zolotarev(*structure.interval(v), error=error, multiple=8)
    x = structure.diagonal(v, poles)
    total, budget = float((v * x).sum()), float(v.sum())
    if not 0.0 < total < math.inf:
        raise FloatingPointError(f"the dual value is {total}; scale the workload so that its entries lie near 1")
    return _Iterate(v, x, poles, total, budget)


def _power(at: _Iterate) -> Array:
    """The power step ``v <- v X_ii^2``, at constant scale."""
    return at.v * (at.x / at.mean) ** 2


def _direction(structure: Structure, at: _Iterate) -> tuple[Array, int]:
    """Newton direction in log v by conjugate gradients and smoothing, and the number of products spent."""
    # a wider interval, since the derivative of the approximation is poor at its ends
    lanes = 16 if structure.size < _CACHED else 8
    poles = zolotarev(0.25 * at.poles.lower, 4.0 * at.poles.upper, error=_HESSIAN_ERROR, multiple=lanes)
    hessian = structure.hessian(at.v, poles)
    root, largest = np.sqrt(at.v), 0.5 * at.mean

    def apply(y: Array) -> Array:
        product = hessian(root * y)
        product *= root
        return product

    right = root * (at.x - at.mean)
    y = right / largest
    norm = float(right @ right)
    reach = math.sqrt(norm / at.budget) / at.mean
    enough = norm * min(0.05, max(1e-3, math.sqrt(reach))) ** 2
    longest = _TRUST**2 * at.budget  # a map that is nearly singular is not followed to its end

    def ended(y: Array, residual: Array) -> bool:
        return float(residual @ residual) <= enough or float(y @ y) >= longest

    y, residual, used = conjugate_gradients(apply, right, y, ended=ended, most=_MOST_PRODUCTS)
    lost = np.abs(residual) > np.maximum(np.abs(right), 0.1 * np.abs(at.x - at.mean).max() * root)
    y[lost] = right[lost] / largest
    for _ in range(_SMOOTHING_STEPS):
        y += (right - apply(y)) / largest
    y /= root
    return y, used + _SMOOTHING_STEPS


def _growth(step: Array) -> Array:
    """Factor for v: linear upwards, as diag(X) sees sums of neighbouring v; exponential downwards, to stay positive."""
    return np.where(step > 0.0, 1.0 + np.minimum(step, _LONGEST_RISE), np.exp(np.clip(step, -_LONGEST_FALL, 0.0)))


def _search(structure: Structure, at: _Iterate, direction: Array, error: float) -> _Iterate:
    """Backtrack on the lower bound; a power step if four lengths fail."""
    length = 1.0
    for _ in range(4):
        trial = _evaluate(structure, at.v * _growth(length * direction), error)
        if trial.lower >= at.lower * (1.0 - 4.0 * (at.poles.delta + trial.poles.delta)):
            return trial
        length *= 0.3
    return _evaluate(structure, _power(at), error)


def bounds(structure: Structure, v: Array, poles: Poles) -> tuple[float, float]:
    """Lower and upper bound of ``min tr(A^T A X^-1)`` over ``diag(X) <= 1`` from any dual weights.

    Lower: ``N_r = tr(r(T)) <= (1 + delta) ||A D||_*`` whatever the spectrum of T.  Upper: on the interval of the poles
    ``1 / (x r(x)) <= r(x) / (1 - delta)^2``, so the loss of ``X / max(diag(X))`` is at most
    ``N_r max(diag(X)) / (1 - delta)^2``.

    Args:
        structure: the workload.
        v: dual weights, positive, shape (n,).
        poles: a partial fraction whose interval contains the spectrum of ``V^-1/2 L V^-1/2``.

    Returns:
        (lower, upper); the lower one is valid for any interval.

    Raises:
        FloatingPointError: if the poles break their own promise at a sample of points.
    """
    poles.refute()
    x = structure.diagonal(v, poles)
    total = float((v * x).sum())
    lower = (total / (1.0 + poles.delta)) ** 2 / float(v.sum())
    return lower, total / (1.0 - poles.delta) ** 2 * float(x.max())
