"""Balls of Arb (python-flint): a midpoint of many digits and a radius, which every operation keeps true.

All threads share the precision of `flint.ctx`; a thread that changes it makes the balls of others wider, never false.
flint is imported with the first ball.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from flint import arb

PLACES = 256
"""The binary places in which columns and bounds on delta are computed."""
Balls: TypeAlias = "list[arb]"
"""A column of balls, one for each row."""


def ball(value: Fraction) -> arb:
    """Return a ball around a rational number."""
    from flint import arb, fmpq

    return arb(fmpq(value.numerator, value.denominator))


def of_doubles(numbers: np.ndarray) -> Balls:
    """Return doubles as balls without a radius."""
    from flint import arb

    return [arb(number) for number in numbers.tolist()]


def nearest(column: Iterable[arb]) -> np.ndarray:
    """Return doubles near the midpoints; only guesses are made from them."""
    return np.array([float(each) for each in column])


def errors_of(column: Iterable[arb], near: np.ndarray) -> np.ndarray:
    """Return the most by which each double may differ from the column that it is near."""
    apart = [float((each - value).abs_upper()) for each, value in zip(column, near.tolist(), strict=True)]
    return np.array(apart) * (1 + 2.0**-50)


def normal(x: arb) -> arb:
    """Return Phi(x), the distribution function of the standard normal law."""
    from flint import arb

    return (-x / arb(2).sqrt()).erfc() / 2


def double_above(number: arb) -> float:
    """Return a double that is not below a ball, whose exponent may be far too small for a fraction in memory."""
    return math.nextafter(float(number.upper()), math.inf)


def ends(number: arb) -> tuple[Fraction, Fraction]:
    """Return both ends of a ball, whatever precision is set."""
    middle, radius = (
        Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
        for mantissa, exponent in (number.mid().man_exp(), number.rad().man_exp())
    )
    return middle - radius, middle + radius
