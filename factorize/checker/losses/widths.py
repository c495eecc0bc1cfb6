"""How wide an enclosure of losses may be that proves them."""

from __future__ import annotations

import math
from collections.abc import Iterable

WIDEST = 1e-9
"""Relative width of the losses above which they count as not enclosed."""


def width_of_losses(ends: Iterable[tuple[float, float]]) -> float:
    """Return the largest relative width of an enclosure; infinity where one has no end."""
    ends = list(ends)
    if not all(math.isfinite(high) for _, high in ends):
        return math.inf
    return max((high - low) / high if high else 0.0 for low, high in ends)
