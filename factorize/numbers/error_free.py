"""Error-free products: a product of doubles, and what rounding took from it, which is a double again.

Overflow above 1e300 and bits lost below 1e-290 or so are the caller's to rule out. Sources: Veltkamp 1968 (the split),
Dekker, "A floating-point technique for extending the available precision", Numer. Math. 18 (1971).
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

Doubles = TypeVar("Doubles", float, np.ndarray)

_SPLIT = 134_217_729.0  # 2^27 + 1: splits a double into two halves of 26 bits


def rest_of_product(a: Doubles, b: Doubles, product: Doubles) -> Doubles:
    """Return a b - product exactly, for the rounded product; element by element, shapes broadcast."""
    a_high, b_high = _upper_half(a), _upper_half(b)
    a_low, b_low = a - a_high, b - b_high
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _upper_half(number: Doubles) -> Doubles:
    moved = number * _SPLIT
    return moved - (moved - number)
