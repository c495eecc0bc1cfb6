"""The call: what is left of (L - T)_+ where the part of L that all bins share is integrated in closed form.

Let L = L0 e^(t g - t^2 / 2) with a standard normal g that is independent of L0. Given L0 = e^y the mean of (L - T)_+ is

    call(y) = e^y Phi(d) - T Phi(d - t),    d = (y - log T) / t + t / 2,

the price of a call option. It grows with y, and its logarithm is concave: a convolution of two log-concave functions.
docs/notes/bins-1.md says what doubles lose of it.
"""

from __future__ import annotations

import math

import numpy as np

from factorize.errors import InvalidParameter

LEAST_SPREAD = 2.0**-5
"""Smallest t: below it the two terms of the call cancel too far, and a bet without it is as good."""
DEEPEST = 30.0
"""Standard deviations below which y is raised: -d at most."""
LARGEST_SPREAD = 30.0
"""Of t: far beyond, nothing is private, and e^(t^2 / 2) is no double."""
THINNED_CHUNK = 16384
"""Candidates of one chunk of a thinned bet, most of which cost no more than their tuple."""
LARGEST_LEVEL = 1000.0
"""Of |epsilon|: beyond, doubles lose too much of d."""

_WIDTH = 1e-9  # of the bracket around the maximum
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def raised(y: np.ndarray, level: float, spread: float) -> np.ndarray:
    """Return y, or where it is less the y at which d = -30: there e^(-m y) call(y) is larger."""
    return np.maximum(y, level - spread * (DEEPEST + spread / 2))


def log_call(y: np.ndarray, level: float, spread: float) -> np.ndarray:
    """Return log call(y), for y that are raised.

    Args:
        y: log L0, any shape.
        level: log T.
        spread: t, at least 2^-5.
    """
    return _log_call_and_slope(np.asarray(y, dtype=float), level, spread)[0]


def log_put(y: np.ndarray, level: float, spread: float) -> np.ndarray:
    """Return log E (1 - T e^(y + t g - t^2 / 2))_+ = u + log call(-u) at T = 1, u = log T + y, -u raised."""
    u = level + np.asarray(y, dtype=float)
    return u + log_call(-u, 0.0, spread)


def best_shared_tilt(kbar: float, kappa: float, level: float, spread: float) -> float:
    """Return the eta of the lowest ceiling of the other direction, whose log is convex in eta, by its derivative."""
    low, high = -spread * (DEEPEST + spread / 2), 1.0

    def falling(x: float) -> float:  # of the derivative by eta where the maximum is at x; eta = slope(x) - 1
        return kbar / 2 - level - x + kappa * (_slope(x, 0.0, spread) - 1)

    while falling(high) > 0:
        high *= 2
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return max(_slope(high, 0.0, spread) - 1, 1e-6)


def log_call_ceiling(level: float, spread: float, order: float) -> float:
    """Return the largest value of log call(y) - m y, from above: its tangent at one end of a bracket.

    Args:
        level: log T.
        spread: t.
        order: m, any real number above 1.

    Raises:
        InvalidParameter: no call of the protocol: t, epsilon or m is beyond its limits.
    """
    check_level(level)
    if not LEAST_SPREAD <= spread <= LARGEST_SPREAD:
        raise InvalidParameter(
            f"the shared part has the deviation {spread:.3g}; it is {LEAST_SPREAD} to {LARGEST_SPREAD:g}; use "
            "a bet without a shared part",
            field="shared",
        )
    low, high = level - spread * (DEEPEST + spread / 2), level + 1.0
    if _slope(low, level, spread) < order:
        raise InvalidParameter(
            f"order m={order:g} is too large for a shared part of standard deviation {spread:.3g}; use a smaller one",
            field="order",
        )
    while _slope(high, level, spread) > order:
        high = level + 2 * (high - level)
    while high - low > _WIDTH * max(1.0, abs(low)):
        middle = (low + high) / 2
        low, high = (middle, high) if _slope(middle, level, spread) > order else (low, middle)
    value, slope = (float(part) for part in _log_call_and_slope(np.array(low), level, spread))
    return value - order * low + max(slope - order, 0.0) * (high - low)


def check_level(level: float) -> None:
    """Refuse an epsilon at which doubles lose too much.

    Raises:
        InvalidParameter: it is beyond 1000.
    """
    if not abs(level) <= LARGEST_LEVEL:
        raise InvalidParameter(
            f"epsilon={level:.4g} is beyond {LARGEST_LEVEL:g}, the limit of a shared part; use a bet without one",
            field="epsilon",
        )


def _slope(y: float, level: float, spread: float) -> float:
    return float(_log_call_and_slope(np.array(y), level, spread)[1])


def _log_call_and_slope(y: np.ndarray, level: float, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Return log call(y) and its derivative, e^y Phi(d) / call(y).

    Below the money both terms are e^y phi(d) times a Mills ratio, so that small numbers are never subtracted from each
    other's rounding.
    """
    from scipy.special import erfcx, ndtr

    d = (y - level) / spread + spread / 2
    z, inside = np.maximum(-d, 0.0), np.maximum(d, 0.0)
    first = math.sqrt(math.pi / 2) * erfcx(z / math.sqrt(2))
    gap = first - math.sqrt(math.pi / 2) * erfcx((z + spread) / math.sqrt(2))
    below = y - z * z / 2 - _HALF_LOG_TAU + np.log(gap)
    whole = ndtr(inside)
    left = whole - np.exp(np.minimum(level - y, spread**2 / 2)) * ndtr(inside - spread)
    money = d > 0
    return np.where(money, y + np.log(left), below), np.where(money, whole / left, first / gap)
