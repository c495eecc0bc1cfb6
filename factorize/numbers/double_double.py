"""Numbers as unevaluated sums of two doubles: 106 bits, for compiled code. Imported on first use, since numba is heavy.

With u = 2^-53: a sum is within 8 u^2 (|a| + |b|) of the true one; a product, a reciprocal and a root are within 32 u^2
of their true values, relative, unless they or their factors are below 1e-270. Source: Dekker 1971; Joldes, Muller,
Popescu, Tight and rigorous error bounds for basic building blocks of double-word arithmetic, 2017. The compiler has no
leave to reorder.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numba
from numba import types
from numba.extending import intrinsic


def _fused_multiply_add(_context: Any, _a: Any, _b: Any, _c: Any) -> tuple[Any, Any]:
    def generate(_generation: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float64(types.float64, types.float64, types.float64), generate


_fused: Callable[[float, float, float], float] = cast(Any, intrinsic(_fused_multiply_add))
"""The first times the second plus the third, rounded once."""


@numba.njit(cache=True, nogil=True)
def add(ah: float, al: float, bh: float, bl: float) -> tuple[float, float]:
    """Return a + b."""
    total = ah + bh
    shifted = total - ah
    rest = (ah - (total - shifted)) + (bh - shifted) + (al + bl)
    high = total + rest
    return high, rest - (high - total)


@numba.njit(cache=True, nogil=True)
def multiply(ah: float, al: float, bh: float, bl: float) -> tuple[float, float]:
    """Return a b."""
    product = ah * bh
    rest = _fused(ah, bh, -product) + (ah * bl + al * bh)
    high = product + rest
    return high, rest - (high - product)


@numba.njit(cache=True, nogil=True)
def reciprocal(ah: float, al: float) -> tuple[float, float]:
    """Return 1 / a for a > 0: one step of Newton's method from the double."""
    guess = 1.0 / ah
    rest = guess * (_fused(-ah, guess, 1.0) - al * guess)
    high = guess + rest
    return high, rest - (high - guess)


@numba.njit(cache=True, nogil=True)
def root(ah: float, al: float) -> tuple[float, float]:
    """Return sqrt(a) for a > 0: one step of Newton's method from the double."""
    guess = math.sqrt(ah)
    rest = (_fused(-guess, guess, ah) + al) / (2.0 * guess)
    high = guess + rest
    return high, rest - (high - guess)
