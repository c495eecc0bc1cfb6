"""Damped square roots without end (structure `nu_toeplitz`): the coefficients of (1 - (1 - nu) x)^(-1/2).

The squared norm of a column is 1 / agm(1, sqrt(nu (2 - nu))).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Self

import numpy as np

from factorize.checker.structures.base import EndlessReading
from factorize.errors import TooLarge


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
        """Enclose the squared norm of one column; see `EndlessReading`."""
        if most > 1:
            raise TooLarge("no exact rule reaches several participations of nu_toeplitz without end")
        from flint import arb, ctx

        from factorize.checker.arithmetic.balls import PLACES, ends

        with ctx.workprec(4 * PLACES):
            nu = arb(self._nu)
            return ends(1 / arb(1).agm((nu * (2 - nu)).sqrt()))
