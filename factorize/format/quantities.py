"""Numbers of claims and of receipts, read strictly by name, within limits that are checked before any arithmetic.

Every reader uses this one table, so that all readers refuse the same numbers.
"""

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import partial
from typing import Any

from factorize.format.claims import MIN_SENSITIVITY, check_fields
from factorize.numbers.scalars import MAX_SCALE, MIN_SCALE

MAX_EPSILON = 1e6
"""The largest epsilon of a claim; with a larger one nothing is private, and exp(epsilon) is of no use."""
MAX_COUNT = 1 << 53
"""The largest count; doubles hold every integer up to it."""
_SCALES = MIN_SCALE, MAX_SCALE
_MULTIPLIERS = 1e-9, 1e9  # Searches end a little before these limits.
_SENSITIVITIES = MIN_SENSITIVITY, 1e300
_EPSILONS = 0.0, MAX_EPSILON
MIN_DELTA = 1e-300
"""The smallest delta of a claim."""
_DELTAS = MIN_DELTA, 1 - 2.0**-53
LIMITS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("clip_norm", "sigma", "sigma_of_sums", "second_sigma_of_sums"), _SCALES),
    **dict.fromkeys(("sigma_of_means", "second_sigma_of_means"), (MIN_SCALE / MAX_COUNT, MAX_SCALE)),
    **dict.fromkeys(("sensitivity", "largest_column"), _SENSITIVITIES),
    **dict.fromkeys(("noise_multiplier", "mu"), _MULTIPLIERS),
    **dict.fromkeys(("epsilon", "epsilon_without_secrecy", "epsilon_at_delta"), _EPSILONS),
    "delta": _DELTAS,
    "overflow_delta": (0.0, 1.0),
    **dict.fromkeys(("sampling_probability", "rate"), (1 / MAX_COUNT, 1.0)),
    "weight": (1e-12, 1e12),
    "lambda": (1e-300, 1e300),
    "eta": (1e-300, 4096.0),
    "reach": (1e-12, 1e12),
    "shared": (0.0, 1e3),
    "mean": (1.0, 1e6),
    "surplus": (0.0, 1e17),
}
"""The least and the largest value by name. Within the limits of scales, float32 noise is neither zero nor infinite."""


class ClaimRefused(Exception):
    """A claim or a receipt is malformed, or contradicts itself, its limits or the file."""


check_keys = partial(check_fields, refusal=ClaimRefused)
"""The function that returns an object with these fields and no other, or raises ClaimRefused."""


def require(holds: bool, otherwise: str) -> None:
    """Raise ClaimRefused unless a condition holds."""
    if not holds:
        raise ClaimRefused(otherwise)


def number(given: Mapping[str, Any], name: str) -> Fraction:
    """Return a JSON number within its limits, or raise ClaimRefused."""
    value = given[name]
    if type(value) not in (int, float):
        raise ClaimRefused(f"{name} is {str(value)[:40]!r}, not a number")
    return Fraction(_within(name, value))


def real(given: Mapping[str, Any], name: str) -> float:
    """Return a double in the form of `float.hex` within its limits, or raise ClaimRefused."""
    text = given[name]
    try:
        value = float.fromhex(text)
    except (TypeError, ValueError, OverflowError):
        raise ClaimRefused(f"{name} is {str(text)[:40]!r}, not a double as float.hex writes it") from None
    require(value.hex() == text, f"{name} is {text[:40]!r}, but float.hex writes that number as {value.hex()}")
    return _within(name, value)


def _within(name: str, value: float) -> float:
    low, high = LIMITS[name]
    if not (math.isfinite(value) and low <= value <= high):
        raise ClaimRefused(f"{name} is {value!r}, outside [{low:g}, {high:g}]")
    return value


def integer(given: Mapping[str, object], name: str, least: int = 1, most: int = MAX_COUNT) -> int:
    """Return an integer from `least` to `most`, or raise ClaimRefused."""
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ClaimRefused(f"{name} is {str(value)[:40]}; it must be an integer from {least} to {most}")
    return value


def at_most(value: float | Fraction, digits: int = 6) -> str:
    """Return a number in digits that are not below it, as an upper bound is printed."""
    return _shown(value, digits, ROUND_CEILING)


def at_least(value: float | Fraction, digits: int = 6) -> str:
    """Return a number in digits that are not above it, as a lower bound is printed."""
    return _shown(value, digits, ROUND_FLOOR)


def _shown(value: float | Fraction, digits: int, rounding: str) -> str:
    """Return digits of a number, where a double is the shortest text that reads back as it."""
    context = Context(prec=digits, rounding=rounding)
    if isinstance(value, Fraction):
        rounded = context.divide(Decimal(value.numerator), Decimal(value.denominator))
    else:
        rounded = context.create_decimal(repr(float(value)))
    return f"{float(rounded):.{digits}g}"
