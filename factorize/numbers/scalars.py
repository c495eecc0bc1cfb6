"""Single values, checked when they come from outside, and numbers rounded towards safety."""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from fractions import Fraction
from numbers import Integral, Real
from typing import Any, TypeVar

from factorize.errors import InvalidParameter

MAX_STEPS = 100_000_000
"""The most steps of a run."""
MIN_SCALE, MAX_SCALE = 1e-30, 1e30
"""The limits of clip norms and of sigma: noise is float32, and norms of clipped vectors are sums of squares."""

Given = TypeVar("Given")


def finite_real(name: str, value: object, *, low: float = 0.0, strict: bool = True, remedy: str) -> float:
    """Return a number from outside as a finite double above `low` (or equal to it, unless strict).

    Raises:
        InvalidParameter: it is no real number (booleans and texts are none), not finite, or too small.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        kind = type(value).__name__
        raise InvalidParameter(f"{name} is of type {kind}, not a real number; {remedy}", field=name)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < low or (strict and number == low):
        limit = f"finite and {'>' if strict else '>='} {low:g}"
        raise InvalidParameter(f"{name}={number} must be {limit}; {remedy}", field=name)
    return number


def whole_number(name: str, value: object, *, low: int = 1, high: int | None = None, remedy: str = "give one") -> int:
    """Return an integer from outside, of Python or numpy, from `low` to `high`.

    Raises:
        InvalidParameter: it is no integer (booleans are none), or outside the limits.
    """
    known = isinstance(value, Integral) and not isinstance(value, bool)
    number = int(value) if isinstance(value, Integral) else 0
    if not known or number < low or (high is not None and number > high):
        text = repr(value) if isinstance(value, str) else str(value)
        limit = f">= {low}" if high is None else f"from {low} to {high}"
        raise InvalidParameter(f"{name}={text[:20]} is not an integer {limit}; {remedy}", field=name)
    return number


def check_choice(name: str, value: Given, known: Collection[str]) -> Given:
    """Return one of the known texts; raise InvalidParameter for anything else."""
    if not isinstance(value, str) or value not in known:
        raise InvalidParameter(f"{name}={str(value)[:20]!r} is not one of {', '.join(known)}", field=name)
    return value


def check_type(name: str, value: object, kind: Any, *, remedy: str) -> None:
    """Raise InvalidParameter for a value that is not of a type."""
    if not isinstance(value, kind):
        raise InvalidParameter(f"{name} is of type {type(value).__name__}; {remedy}", field=name)


def within_scale(name: str, value: float) -> float:
    """Return a clip norm or a sigma, if single precision holds numbers of its size.

    Raises:
        InvalidParameter: it is outside [1e-30, 1e30], where float32 noise is zero or infinite, and norms underflow.
    """
    if not MIN_SCALE <= value <= MAX_SCALE:
        raise InvalidParameter(
            f"{name}={value!r} is outside [{MIN_SCALE:g}, {MAX_SCALE:g}], the range in which noise in float32 is "
            "neither zero nor infinite; check the units of the clip norm",
            field=name,
        )
    return value


def double_above(value: Fraction, name: str) -> float:
    """Return the smallest double that is not below an exact positive value."""
    try:
        nearest = float(value)
    except OverflowError:
        raise InvalidParameter(
            f"{name} would exceed the largest double, 1.8e308; rescale the numbers that it is computed from", field=name
        ) from None
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def root_above(square: Fraction | int, name: str) -> float:
    """Return a double that is not below the root of an exact positive value, and at most 2 ulp above it."""
    root = math.sqrt(double_above(Fraction(square), name))
    return root if Fraction(root) ** 2 >= square else math.nextafter(root, math.inf)


def multiplier_of(sigma: float, *, clip_norm: float, sensitivity: float | Fraction = 1.0) -> float:
    """Return sigma / (clip_norm * sensitivity), rounded down."""
    exact = Fraction(sigma) / Fraction(clip_norm) / Fraction(sensitivity)
    return float(exact) * (1 - 2.0**-51)


@contextmanager
def within_doubles(what: str) -> Iterator[None]:
    """Raise InvalidParameter where numbers overflow in the block, or are divided by one that underflowed."""
    import numpy as np

    try:
        with np.errstate(all="ignore"):
            yield
    except (OverflowError, ZeroDivisionError) as error:
        raise _beyond(what, str(error)) from None


def refuse_infinite(what: str, document: object) -> None:
    """Raise InvalidParameter where an answer in plain data holds a number which is not finite."""
    if isinstance(document, dict):
        for name, value in document.items():
            refuse_infinite(f"{what}/{name}", value)
    elif isinstance(document, (list, tuple)):
        for value in document:
            refuse_infinite(what, value)
    elif isinstance(document, float) and not math.isfinite(document):
        raise _beyond(what, f"it is {document}")


def _beyond(what: str, how: str) -> InvalidParameter:
    return InvalidParameter(
        f"{what} is outside the range of doubles, 5e-324 to 1.8e308 ({how}); scale the numbers that you give towards 1"
    )
