"""The payoff that an estimate averages: (L - T)_+, or where the noise that all bins share is integrated, a call option.

Let L = L0 e^(t g - t^2 / 2) with a standard normal g that is independent of L0. Given L0 = e^y the mean of (L - T)_+ is

    call(y) = e^y Phi(d) - T Phi(d - t),    d = (y - log T) / t + t / 2,

and (e^y - T)_+ itself for t = 0. It grows with y, and its logarithm is concave.
"""

import math

import numpy as np

from factorize.checker.sampling.bets import MAX_DEPTH, log_call

MAX_LEVEL = 1000.0
"""The largest |epsilon| of a payoff: above it, doubles lose too many digits of d."""


def raised(y: np.ndarray, level: float, spread: float) -> np.ndarray:
    """Return y, or the y at which d = -30 if y is less: there e^(-m y) call(y) is larger."""
    return np.maximum(y, level - spread * (MAX_DEPTH + spread / 2))


def log_put(y: np.ndarray | float, level: float, spread: float) -> np.ndarray:
    """Return log E (1 - T e^(y + t g - t^2 / 2))_+ = u + log call(-u) at T = 1, u = log T + y, -u raised."""
    u = level + np.asarray(y, dtype=float)
    return u + log_call(-u, 0.0, spread)


def log_call_ceiling(level: float, spread: float, order: float) -> float:
    """Return the largest value of log call(y) - m y over all y that `raised` returns.

    Args:
        level: log T.
        spread: t.
        order: m, any real number above 1.
    """
    less = order - 1
    if not spread:
        return less * (math.log(less) - level) - order * math.log(order)
    low, high = level - spread * (MAX_DEPTH + spread / 2), level + 1.0
    while _slope(high, level, spread) > order:
        high = level + 2 * (high - level)
    while high - low > 1e-9 * max(1.0, abs(low)):
        middle = (low + high) / 2
        low, high = (middle, high) if _slope(middle, level, spread) > order else (low, middle)
    return float(log_call(np.array(low), level, spread)) - order * low


def log_reverse_ceiling(kbar: float, kappa: float, level: float, eta: float, spread: float) -> float:
    """Return the log of sup put(y) e^(eta y) times the tilt's constant: the ceiling of the direction (Q, P)."""
    return log_call_ceiling(0.0, spread, 1 + eta) + eta * (kbar / 2 - level) + eta**2 * kappa / 2


def best_tilt(kbar: float, kappa: float, level: float, spread: float) -> float:
    """Return nearly the eta of the lowest ceiling of the direction (Q, P), whose log is convex in eta."""
    from scipy.optimize import minimize_scalar

    def ceiling(log_eta: float) -> float:
        return log_reverse_ceiling(kbar, kappa, level, math.exp(log_eta), spread)

    return math.exp(minimize_scalar(ceiling, bounds=(-14.0, 14.0), method="bounded", options={"xatol": 1e-3}).x)


def _slope(y: float, level: float, spread: float) -> float:
    """Return the derivative of log call(y), e^y Phi(d) / call(y), for t above 0."""
    from scipy.special import log_ndtr

    d = (y - level) / spread + spread / 2
    return math.exp(y + log_ndtr(d) - float(log_call(np.array(y), level, spread)))
