"""The call: the mean of (L - T)_+ given the part of L that is drawn, and its largest value over y (theorem 5 a).

With L = e^(y + t g - t^2 / 2), g standard normal, it is e^y Phi(d) - T Phi(d - t), d = (y - log T) / t + t / 2; with
t = 0 it is (e^y - T)_+ itself. Its logarithm is concave in y, so that a tangent bounds it.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np

from factorize.checker.arithmetic.enclosures import SLACK, Enclosed, context, decimal, normal
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


def log_most(near: Decimal, shared: float, order: int | Decimal) -> Decimal:
    """Return the largest log call(y) - m y, rounded up: a tangent at the left end of a bracket of the maximum.

    Raises:
        InvalidParameter: the maximum is farther out than y may be raised.
    """
    with localcontext(context()):
        m, spread = Decimal(order), decimal(shared).sqrt()
        if m <= 1:
            raise InvalidParameter(f"order {order} is 1 in decimals of 60 places; it has to be above", field="order")
        if not spread:
            return (m - 1) * ((m - 1).ln() - near) - m * m.ln() + SLACK
        low, high = near - spread * (Decimal(DEEPEST) + spread / 2), near + 1
        if _tangent(low, near, spread, m)[1].low < 0:
            raise InvalidParameter(f"order {order} is too large for the shared part {shared!r}", field="order")
        while _tangent(high, near, spread, m)[1].high > 0:
            high = near + 2 * (high - near)
        while high - low > Decimal(10) ** -6:
            middle = (low + high) / 2
            slope = _tangent(middle, near, spread, m)[1]
            if slope.low > 0:
                low = middle
            elif slope.high < 0:
                high = middle
            else:
                break
        value, slope = _tangent(low, near, spread, m)
        return value.high + slope.high * (high - low) + SLACK  # at low the slope is not below 0


def _tangent(y: Decimal, near: Decimal, spread: Decimal, order: Decimal) -> tuple[Enclosed, Enclosed]:
    """Enclose log call(y) - m y, and its slope."""
    with localcontext(context()):
        d = (y - near) / spread + spread / 2
        first, second = (Enclosed(normal(x - SLACK).low, normal(x + SLACK).high) for x in (d, d - spread))
        grown = (near - y).exp()
        call = Enclosed(first.low - grown * (1 + SLACK) * second.high, first.high - grown * (1 - SLACK) * second.low)
        if call.low <= 0:
            raise InvalidParameter("the call is too small for decimals of 60 places", field="shared")
        value = Enclosed(y + call.low.ln() - order * y - SLACK, y + call.high.ln() - order * y + SLACK)
        return value, Enclosed(first.low / call.high - order - SLACK, first.high / call.low - order + SLACK)
