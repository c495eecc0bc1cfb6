"""Damped square roots without end (structure `nu_toeplitz`): the coefficients of (1 - (1 - nu) x)^(-1/2).

The squared norm of a column is 1 / agm(1, sqrt(nu (2 - nu))).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Self

import numpy as np

from factorize.checker.structures.base import EndlessReading
from factorize.errors import InvalidStrategy, TooLarge

_ROOT_UNIT = 1 << 1200  # the smallest nu is 2^-1074, and its root is taken


class EndlessNuReading(EndlessReading):
    """C by its parameter.

    Args:
        nu: the parameter.
    """

    parts = frozenset({"nu"})

    def __init__(self, nu: float) -> None:
        self._nu = Fraction(nu)

    @classmethod
    def read(cls, parts: dict[str, np.ndarray]) -> Self:
        """Take the tensor; see `EndlessReading.read`."""
        if set(parts) != {"nu"} or parts["nu"].shape != (1,) or not 0 < parts["nu"][0] < 1:
            raise InvalidStrategy("nu is not one number in (0, 1), where columns without end have a finite norm")
        return cls(float(parts["nu"][0]))

    def squared_sensitivity(self, separation: int, most: int) -> tuple[Fraction, Fraction]:
        """Enclose the squared norm of one column; see `EndlessReading`."""
        if most > 1:
            raise TooLarge("no exact rule reaches several participations of nu_toeplitz without end")
        return _damped(self._nu)


def _damped(nu: Fraction) -> tuple[Fraction, Fraction]:
    """Return 1 / agm(1, sqrt(nu (2 - nu))) between two, with both means cut down, or both up."""
    means = []
    for up in (0, 1):
        square = nu * (2 - nu) * _ROOT_UNIT**2
        a, g = _ROOT_UNIT, math.isqrt(math.floor(square)) + up
        while abs(a - g) > 4:
            a, g = (a + g + up) // 2, math.isqrt(a * g) + up
        means.append(max(a, g) if up else min(a, g))
    return Fraction(_ROOT_UNIT, means[1]), Fraction(_ROOT_UNIT, means[0])
