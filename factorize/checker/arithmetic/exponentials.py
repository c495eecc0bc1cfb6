"""exp of whole arrays, by operations that IEEE 754 rounds correctly on every machine: no library's exp is trusted."""

from math import factorial

import numpy as np

EXP_SLACK = 2.0**-45
"""Relative error of `exponentials`; its derivation gives less than 2^-48."""
LEAST_EXPONENT = -700.0
_LN2_HIGH = float.fromhex("0x1.62e42feep-1")  # 32 bits, so that multiples up to 2^20 are exact
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_COEFFICIENTS = [1.0 / factorial(k) for k in range(14, -1, -1)]


def exponentials(x: np.ndarray) -> np.ndarray:
    """Return exp(x) for -700 <= x <= 700, within `EXP_SLACK` of it.

    x = k ln 2 + r: k times the high part of ln 2 is exact, so is its difference to x but for one rounding of a number
    below 0.35; r is off by less than 2^-53. The Taylor polynomial of degree 14 is off by less than 2^-60, Horner's
    rule by less than 2^-50, and the power of two is exact.
    """
    k = np.rint(x * 1.4426950408889634)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    total = np.full_like(r, _COEFFICIENTS[0])
    for coefficient in _COEFFICIENTS[1:]:
        total *= r
        total += coefficient
    return np.ldexp(total, k.astype(np.int32))
