"""Enclosures of exp, log and the normal distribution function: decimals of many places, and doubles for whole arrays.

Python's decimals round exp, ln and the square root correctly; what a computation here loses is bounded by counting its
operations. For arrays, exp is evaluated by additions, multiplications and powers of two alone, which IEEE 754 rounds
correctly on every machine; no library's exp is trusted.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from math import factorial
from typing import NamedTuple

import numpy as np

PLACES = 60
"""Decimal places of everything that is not below 10^-60 itself."""
SLACK = Decimal(10) ** -40
"""More than what 10^9 operations on numbers below 10^8 lose at 60 places."""
FAR = 40
"""Beyond as many standard deviations the tail is enclosed by 0 and its leading term."""
EXP_SLACK = 2.0**-45
"""Relative error of `exponentials`; its derivation gives less than 2^-48."""

_LN2_HIGH = float.fromhex("0x1.62e42feep-1")  # 32 bits, so that multiples up to 2^20 are exact
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_COEFFICIENTS = [1.0 / factorial(k) for k in range(14, -1, -1)]
LEAST_EXPONENT = -700.0


class Enclosed(NamedTuple):
    """A real number between two decimals."""

    low: Decimal
    high: Decimal


def context(places: int = PLACES) -> Context:
    """Return how decimals are computed with here: no overflow below 10^(10^9)."""
    return Context(prec=places, rounding=ROUND_HALF_EVEN, Emin=-(10**9), Emax=10**9)


def decimal(value: float | int | Fraction) -> Decimal:
    """Return a number as a decimal: a double or an integer exactly, a fraction within 10^-59 of its size."""
    if isinstance(value, Fraction):
        with localcontext(context()):
            return Decimal(value.numerator) / Decimal(value.denominator)
    return Decimal(value)


def log_mean_exp(logarithms: list[Decimal]) -> Decimal:
    """Return log(mean(exp(x))), rounded up by more than what is lost."""
    with localcontext(context()):
        most = max(logarithms)
        total = sum(((x - most).exp() for x in logarithms), Decimal(0))
        return most + (total / len(logarithms)).ln() + SLACK


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


def normal(x: Decimal, digits: int = PLACES) -> Enclosed:
    """Enclose Phi(x), the distribution function of the standard normal law, within 10^(6 - digits).

    For x > 0, Phi(x) = 1/2 + phi(x) (x + x^3/3 + x^5/15 + ...), all of whose terms are positive; the tail of the other
    side is taken from 1 with as many places more as it is small (Abramowitz and Stegun 26.2.11).
    """
    size = x.copy_abs()  # abs() rounds to the places of the caller
    if size > FAR:
        tail = _leading_tail(size)
        return Enclosed(Decimal(0), tail) if x < 0 else Enclosed(1 - Decimal(10) ** -20, Decimal(1))
    places = digits + int(size * size * Decimal("0.2172")) + 5
    with localcontext(context(places + 15)):
        total = term = size
        square, k = size * size, 0
        enough, small = int(square) + 1, Decimal(10) ** -places  # from `enough` on each term is below half of the last
        while term and (k < enough or term > small):
            k += 1
            term = term * square / (2 * k + 1)
            total += term
        density = (-square / 2).exp() / (2 * pi(places + 15)).sqrt()
        above = Decimal("0.5") + density * total
        lost = Decimal(10) ** (5 - places)  # the tail of the series, and 10^10 roundings
        found = above if x >= 0 else 1 - above
        return Enclosed(max(found - lost, Decimal(0)), min(found + lost, Decimal(1)))


def _leading_tail(size: Decimal) -> Decimal:
    """phi(x) / x, above the tail, rounded up."""
    with localcontext(context()):
        return (-size * size / 2).exp() / (Decimal("2.5") * size)


@lru_cache(maxsize=64)
def pi(places: int) -> Decimal:
    """Return pi by Machin's formula, in integers, to so many places."""
    unit = 10 ** (places + 10)

    def arctan(divisor: int) -> int:
        total = term = unit // divisor
        k, sign = 1, -1
        while term:
            term //= divisor * divisor
            k += 2
            total += sign * (term // k)
            sign = -sign
        return total

    value = 4 * (4 * arctan(5) - arctan(239))
    with localcontext(context(places)):
        return Decimal(value) / Decimal(unit)
