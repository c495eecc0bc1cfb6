"""The call: the mean of (L - T)_+ given the part of L that is drawn, and its largest value over y (theorem 5 a).

With L = e^(y + t g - t^2 / 2), g standard normal, it is e^y Phi(d) - T Phi(d - t), d = (y - log T) / t + t / 2; with
t = 0 it is (e^y - T)_+ itself. Its logarithm is concave in y, so that a tangent bounds it.
"""

from __future__ import annotations

import math

import numpy as np
from flint import arb, ctx

from factorize.checker.arithmetic.balls import PLACES, normal
from factorize.errors import InvalidParameter

LEAST_SPREAD, MOST_SPREAD = 2.0**-5, 30.0
"""Of t, where it is not 0."""
DEEPEST = 30.0
"""Standard deviations that d is below 0 at most: y is raised to there."""


def log_call(y: np.ndarray, near: float, spread: float) -> np.ndarray:
    """Return log call(y), -inf for nothing; below the money by two Mills ratios, whose difference loses no digits."""
    from scipy.special import erfcx, ndtr

    with np.errstate(divide="ignore"):
        if spread == 0:
            return np.asarray(y + np.log(-np.expm1(np.minimum(near - y, 0.0))))
        d = (y - near) / spread + spread / 2
        z, inside = np.maximum(-d, 0.0) / math.sqrt(2), np.maximum(d, 0.0)
        mills = math.sqrt(math.pi / 2) * (erfcx(z) - erfcx(z + spread / math.sqrt(2)))
        out = y - z * z - 0.5 * math.log(2 * math.pi) + np.log(mills)
        left = ndtr(inside) - np.exp(np.minimum(near - y, spread**2 / 2)) * ndtr(inside - spread)
        return np.where(d > 0, y + np.log(left), out)


@ctx.workprec(PLACES)
def log_most(near: arb, shared: float, order: arb) -> arb:
    """Return at least the largest log call(y) - m y: a tangent at the left end of a bracket of the maximum.

    Raises:
        InvalidParameter: the maximum is farther out than y may be raised, or m is 1.
    """
    spread = arb(shared).sqrt()
    if not order > 1:
        raise InvalidParameter(f"order {order} is 1 in balls of {PLACES} places; it has to be above", field="order")
    if not shared:
        return (order - 1) * ((order - 1).log() - near) - order * order.log()
    low, high = near - spread * (DEEPEST + spread / 2), near + 1
    if not _tangent(low, near, spread, order)[1] >= 0:
        raise InvalidParameter(f"order {order} is too large for the shared part {shared!r}", field="order")
    while _tangent(high, near, spread, order)[1] > 0:
        high = near + 2 * (high - near)
    while high - low > 1e-6:
        middle = (low + high) / 2
        slope = _tangent(middle, near, spread, order)[1]
        if slope > 0:
            low = middle
        elif slope < 0:
            high = middle
        else:
            break
    value, slope = _tangent(low, near, spread, order)
    return value + slope * (high - low)  # at low the slope is not below 0


def _tangent(y: arb, near: arb, spread: arb, order: arb) -> tuple[arb, arb]:
    """Return log call(y) - m y, and its slope."""
    d = (y - near) / spread + spread / 2
    first = normal(d)
    call = first - (near - y).exp() * normal(d - spread)
    if not call > 0:
        raise InvalidParameter(f"the call is too small for balls of {PLACES} places", field="shared")
    return y + call.log() - order * y, first / call - order
