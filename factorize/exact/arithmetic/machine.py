"""The machine's floating point: what the checker assumes of it, and a test of that before it is relied on.

Assumed is IEEE 754 double precision, rounded to nearest, without flushing subnormal numbers to zero; and that a matrix
product computes each entry from its own products alone, added in any order, with or without fused operations.
Strassen's algorithm and products in fewer bits break that. Probes are exactly representable: whoever keeps to it finds
the integers, whatever the order, and whoever does not loses their last bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import numpy as np

from factorize.exact.arithmetic.intervals import NotEnclosed

_SIDES = ((64, 512, 96), (384, 192, 384), (1, 1024, 64))
_BITS = 22  # of the probes' integers: sums of 512 products stay below 2^53
_SPREAD = 200  # binary places between rows, columns and terms


_INTEGERS_ONLY = ContextVar("integers_only", default=False)


@contextmanager
def integers_only() -> Iterator[None]:
    """Have everything decided by integers that integers can decide."""
    token = _INTEGERS_ONLY.set(True)
    try:
        yield
    finally:
        _INTEGERS_ONLY.reset(token)


def check_products() -> None:
    """Return if sums and products of this machine are what the enclosures assume.

    Raises:
        NotEnclosed: they are not; integers decide then.
    """
    if _INTEGERS_ONLY.get():
        raise NotEnclosed("integers were asked for")
    reason = _fault()
    if reason:
        raise NotEnclosed(f"this machine's floating point cannot be relied on: {reason}")


@lru_cache(maxsize=1)
def _fault() -> str:
    """Why not, or nothing."""
    if not _rounds_to_nearest():
        return "sums are not rounded to nearest, or subnormal numbers are flushed to zero"
    return next((why for sides in _SIDES if (why := _fault_of_products(*sides))), "")


def _rounds_to_nearest() -> bool:
    ones, half = np.ones(64), np.full(64, 2.0**-53)
    up = half * (1 + 2.0**-52)
    tiny = np.full((64, 64), 2.0**-540)
    return bool(
        (ones + half == 1).all()
        and (ones + up == 1 + 2.0**-52).all()
        and (-ones - up == -1 - 2.0**-52).all()
        and (np.full(64, 2.0**-1022) * 0.5 == np.ldexp(1.0, -1023)).all()
        and (tiny[:, :1] @ (tiny[:1] * 2.0**10) == np.ldexp(1.0, -1070)).all()
        and (np.einsum("ij,ij->j", tiny[:1] * 2.0**10, tiny[:1]) == np.ldexp(1.0, -1070)).all()
    )


def _fault_of_products(rows: int, terms: int, columns: int) -> str:
    """Multiply integers whose rows, columns and terms are far apart in size, and compare modulo 2^64."""
    random = np.random.default_rng(rows + terms + columns)
    bits = min(_BITS, (53 - (terms - 1).bit_length()) // 2)
    left, right = (
        random.integers(-(1 << bits) + 1, 1 << bits, size=shape) for shape in ((rows, terms), (terms, columns))
    )
    sizes = [np.ldexp(1.0, random.integers(-_SPREAD, _SPREAD, size=side)) for side in (rows, terms, columns)]
    scaled = left * sizes[0][:, None] * sizes[1]
    other = right / sizes[1][:, None] * sizes[2]
    for found in (_product(scaled, other), _product(other.T, scaled.T).T):
        back = found / sizes[0][:, None] / sizes[2]
        v = random.integers(-(2**62), 2**62, size=(columns, 1))
        if (back != np.rint(back)).any() or (back.astype(np.int64) @ v != left @ (right @ v)).any():
            return f"a product over {terms} terms loses bits that any order of its sums would keep"
    return ""


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.asarray(left @ right)
