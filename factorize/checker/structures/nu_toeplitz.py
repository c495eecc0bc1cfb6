"""Damped square roots without end (structure `nu_toeplitz`): the coefficients of (1 - (1 - nu) x)^(-1/2).

The squared norm of a column is 1 / agm(1, sqrt(nu (2 - nu))).
"""

from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from factorize.checker.arithmetic.balls import PLACES, ends
from factorize.errors import TooLarge


def squared_limit(parts: Mapping[str, np.ndarray], _separation: int, most: int) -> tuple[Fraction, Fraction]:
    """Enclose the squared norm of a column.

    Raises:
        TooLarge: several participations, which have no closed limit.
    """
    from flint import arb, ctx

    if most > 1:
        raise TooLarge(
            f"{most} participations of nu_toeplitz have no closed limit; use blt, whose limit has",
            field="/participation/kind",
        )
    with ctx.workprec(4 * PLACES):
        nu = arb(float(parts["nu"][0]))
        return ends(1 / arb(1).agm((nu * (2 - nu)).sqrt()))
