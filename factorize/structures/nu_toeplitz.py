"""Coefficients of (1 - (1 - nu) x)^(-1/2) and of its inverse: the strategies of nu-DP-FTRL (C24, section 4)."""

import math

import numpy as np

FLUSH = 1e-300
"""Coefficients below are set to zero: denormal numbers are slow and carry no accuracy."""


def strategy_coefficients(n: int, nu: float) -> np.ndarray:
    """Return the first n coefficients of (1 - (1 - nu) x)^(-1/2), nu in [0, 1): positive and decreasing.

    c_t = c_{t-1} (t - 1/2) / t for nu = 0, times exp(t log1p(-nu)), which does not round 1 - nu.
    """
    t = np.arange(1.0, n)
    return _damp(np.cumprod(np.concatenate([[1.0], (t - 0.5) / t])), nu)


def noising_coefficients(n: int, nu: float) -> np.ndarray:
    """Return the first n coefficients of (1 - (1 - nu) x)^(1/2): 1, then negative; what noise is multiplied with."""
    t = np.arange(1.0, n)
    return _damp(np.cumprod(np.concatenate([[1.0], (t - 1.5) / t])), nu)


def flushed(series: np.ndarray) -> np.ndarray:
    """Return the series with what is below 1e-300 set to zero."""
    return np.where(np.abs(series) < FLUSH, 0.0, series)


def _damp(series: np.ndarray, nu: float) -> np.ndarray:
    with np.errstate(under="ignore"):
        damped = series * np.exp(np.arange(len(series)) * math.log1p(-nu))
    return flushed(damped)
