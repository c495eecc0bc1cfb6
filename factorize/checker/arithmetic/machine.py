"""The machine's floating point: the checker's assumptions about it, and a test of them before they are relied on.

docs/notes/checker.md, "What is assumed of the machine", states the assumptions, and why probes of scaled integers show
that they hold. Each thread has its own mode of rounding and flushing. Any library may change it (those compiled with
-ffast-math do when they are loaded), so the mode is probed again each time.

The module also computes exp of whole arrays, by operations that IEEE 754 rounds correctly on every machine: no
library's exp is trusted.
"""

from functools import lru_cache
from math import factorial

import numpy as np

from factorize.checker.arithmetic.near import NotEnclosed
from factorize.errors import CertificateError

_SIDES = ((64, 512, 96), (384, 192, 384), (1, 1024, 64))
"""The rows, terms and columns of the products that are probed."""
_PROBE_BITS = 22  # Sums of 512 products of such integers stay below 2^53, so doubles hold them exactly.
_THREADED_SIDE = 64  # Libraries make a product of this side in several threads.
_SPREAD = 200  # The most binary places by which rows, columns and terms of a probe are scaled.


def check_mode() -> None:
    """Raise NotEnclosed unless this thread and its matrix products round to nearest and keep subnormal numbers."""
    if not _rounds_to_nearest():
        raise NotEnclosed("this machine's floating point cannot be relied on: sums are not rounded to nearest")
    if not _keeps_subnormal_numbers():
        raise NotEnclosed(
            "this thread flushes subnormal numbers to zero, which libraries compiled with -ffast-math cause; run the "
            "check in a process without them"
        )


def require_mode() -> None:
    """Raise CertificateError where `check_mode` raises, and nothing else could decide."""
    try:
        check_mode()
    except NotEnclosed as reason:
        raise CertificateError(str(reason)) from None


def check_products() -> None:
    """Raise NotEnclosed unless sums and products of this machine satisfy the assumptions of the enclosures."""
    check_mode()
    if reason := _fault():
        raise NotEnclosed(f"this machine's floating point cannot be relied on: {reason}")


@lru_cache(maxsize=1)
def _fault() -> str:
    """Return why products cannot be relied on, or an empty text."""
    if not _keeps_subnormal_numbers(_THREADED_SIDE):
        return "threads of its matrix products flush subnormal numbers to zero"
    return next((why for sides in _SIDES if (why := _fault_of_products(*sides))), "")


def _rounds_to_nearest() -> bool:
    ones, half = np.ones(64), np.full(64, 2.0**-53)
    up = half * (1 + 2.0**-52)
    return bool((ones + half == 1).all() and (ones + up == 1 + 2.0**-52).all() and (-ones - up == -1 - 2.0**-52).all())


def _keeps_subnormal_numbers(side: int = 8) -> bool:
    """Return whether bits and normal numbers agree; a thread that flushes subnormal numbers takes them for 0."""
    small, subnormal = np.full(4, 2.0**-1022), np.full(4, 1 << 51, dtype=np.int64).view(np.float64)
    places = np.tile(np.eye(side), (2, 1))
    products = (places * 2.0**-540) @ (places.T * 2.0**-530)
    sums = np.einsum("ij,ij->j", places * 2.0**-540, places * 2.0**-530)
    return bool(
        (_bits(small * 0.5) == 1 << 51).all()
        and (subnormal * 4.0 == 2.0**-1021).all()
        and (_bits(subnormal + subnormal * 0.5) == 3 << 50).all()
        and (_bits(products) == (places @ places.T).astype(np.int64) << 4).all()
        and (_bits(sums) == 2 << 4).all()
    )


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.int64)


def _fault_of_products(rows: int, terms: int, columns: int) -> str:
    """Multiply integers whose rows, columns and terms are far apart in size, and compare modulo 2^64."""
    random = np.random.default_rng(rows + terms + columns)
    bits = min(_PROBE_BITS, (53 - (terms - 1).bit_length()) // 2)
    left, right = (
        random.integers(-(1 << bits) + 1, 1 << bits, size=shape) for shape in ((rows, terms), (terms, columns))
    )
    sizes = [np.ldexp(1.0, random.integers(-_SPREAD, _SPREAD, size=side)) for side in (rows, terms, columns)]
    scaled = left * sizes[0][:, None] * sizes[1]
    other = right / sizes[1][:, None] * sizes[2]
    for product in (_product(scaled, other), _product(other.T, scaled.T).T):
        back = product / sizes[0][:, None] / sizes[2]
        v = random.integers(-(2**62), 2**62, size=(columns, 1))
        if (back != np.rint(back)).any() or (back.astype(np.int64) @ v != left @ (right @ v)).any():
            return f"a product over {terms} terms loses bits that any order of its sums would keep"
    square = left * sizes[1]
    # A matrix times its own transposed has another routine.
    if (_product(square.T, square) / sizes[1] / sizes[1][:, None] != left.T @ left).any():
        return f"a product of a matrix and its own transposed over {rows} terms loses bits"
    return ""


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.asarray(left @ right)


EXP_SLACK = 2.0**-45
"""Relative error of `exponentials`; its derivation gives less than 2^-48."""
MIN_EXPONENT = -700.0
"""The smallest argument of `exponentials`; its negative is the largest."""
_LN2_HIGH = float.fromhex("0x1.62e42feep-1")  # It has 32 bits, so that multiples up to 2^20 are exact.
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
