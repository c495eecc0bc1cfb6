"""Damped square roots without end (structure `nu_toeplitz`): the coefficients of (1 - (1 - nu) x)^(-1/2).

The squared norm of a column is 1 / agm(1, sqrt(nu (2 - nu))).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Self

import numpy as np

from factorize.checker.participation import Allowed, pattern_sums
from factorize.checker.structures.base import EndlessReading
from factorize.errors import TooLarge

_LARGEST_SERIES = 1 << 23
_NEGLIGIBLE = 40.0  # nu times a number of steps after which a coefficient is below e^-40 of the first


class EndlessNuReading(EndlessReading):
    """C by its parameter.

    Args:
        nu: the parameter.
    """

    def __init__(self, nu: float) -> None:
        self._nu = nu

    @classmethod
    def read(cls, parts: Mapping[str, np.ndarray]) -> Self:
        """Take the tensor; see `EndlessReading.read`."""
        return cls(float(parts["nu"][0]))

    def squared_sensitivity(self, separation: int, most: int) -> tuple[Fraction, Fraction]:
        """Enclose the limit; see `EndlessReading`. Patterns by their first terms and a bound on the others."""
        from flint import arb, ctx

        from factorize.checker.arithmetic.balls import PLACES, ends

        with ctx.workprec(4 * PLACES):
            nu = arb(self._nu)
            column = ends(1 / arb(1).agm((nu * (2 - nu)).sqrt()))
        return column if most == 1 else self._pattern(separation, most)

    def _pattern(self, separation: int, most: int) -> tuple[Fraction, Fraction]:
        """Enclose the limit for several participations.

        Doubles stand for the coefficients up to relative t (1 + 2 |log(1 - nu)|) roundings each, and with S = steps -
        (K - 1) b the terms from `steps` on are at most K^2 sum_{t >= S} c_t^2 <= K^2 c_S^2 / (1 - (1 - nu)^2).
        """
        kept = math.ceil(_NEGLIGIBLE / self._nu)
        steps = kept + (most - 1) * separation
        if steps > _LARGEST_SERIES:
            raise TooLarge(
                f"{most} participations {separation} apart with nu={self._nu!r} take {steps} coefficients, above "
                f"{_LARGEST_SERIES}; use blt, whose limit is a closed form, or a larger nu",
                field="/mechanism/nu",
            )
        t = np.arange(1.0, steps)
        with np.errstate(under="ignore"):
            column = np.cumprod(np.append(1.0, (t - 0.5) / t)) * np.exp(np.arange(steps) * math.log1p(-self._nu))
        found = Fraction(math.fsum((pattern_sums(column, Allowed(separation, most, False)) ** 2).tolist()))
        roundings = Fraction(math.ceil(steps * (1 - 2 * math.log1p(-self._nu))) + 160, 1 << 52)
        nu, last = Fraction(self._nu), Fraction(max(float(column[kept - 1]), 1e-290)) ** 2
        return found * (1 - 2 * roundings), (found + most**2 * last / (nu * (2 - nu))) * (1 + roundings) ** 2
