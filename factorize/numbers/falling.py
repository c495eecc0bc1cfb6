"""Roots of falling functions, from the side where they are not positive."""

from __future__ import annotations

from collections.abc import Callable

_STEPS = 200
_SECANTS = 8
_SMOOTH = 8.0  # tolerances, on whose scale a difference says the slope


def descend(excess: Callable[[float], float], low: float, high: float, *, tolerance: float = 1e-7) -> float:
    """Return a point within a tolerance of where a falling function crosses 0, on the side where it is at most 0.

    False position with halved ends (Illinois), and a bisection every third step, so that both ends move.
    """
    at_low, at_high = excess(low), excess(high)
    for step in range(_STEPS):
        if high - low <= tolerance:
            break
        share = at_low / (at_low - at_high) if at_high < 0 < at_low and step % 3 < 2 else 0.5
        edge = tolerance / 4 / (high - low)
        point = low + (high - low) * min(max(share, edge), 1 - edge)
        value = excess(point)
        if value > 0:
            low, at_low, at_high = point, value, at_high / 2
        else:
            high, at_high, at_low = point, value, at_low / 2
    return high


def descend_near(
    excess: Callable[[float], float], near: float, slope: float, *, tolerance: float, reach: float
) -> tuple[float, float] | None:
    """Return a point within a tolerance above where a falling function crosses 0, and the slope there, by secants.

    The function was seen at most 0 at the point. Where secants do not lead there, the answer is None.

    Args:
        excess: the function.
        near: a guess.
        slope: of the function there, about; negative.
        tolerance: of the point; the function need not be smooth on that scale.
        reach: from the guess; what is beyond is not looked for.
    """
    point, value = near, excess(near)
    for _ in range(_SECANTS):
        if slope * tolerance <= value <= 0:
            return point, slope
        step = tolerance / 2 - value / slope
        if abs(point + step - near) > reach:
            return None
        there = excess(point + step)
        if abs(step) > _SMOOTH * tolerance:
            slope = (there - value) / step
        if not slope < 0:
            return None
        point, value = point + step, there
    return None
