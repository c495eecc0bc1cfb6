"""Damped square roots without end (structure `nu_toeplitz`): the coefficients of (1 - (1 - nu) x)^(-1/2).

The squared norm of a column is 1 / agm(1, sqrt(nu (2 - nu))).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from factorize.checker.participation import Allowed, pattern_sums
from factorize.errors import TooLarge

_LARGEST_SERIES = 1 << 23
_NEGLIGIBLE = 40.0  # nu times a number of steps after which a coefficient is below e^-40 of the first


def squared_limit(parts: Mapping[str, np.ndarray], separation: int, most: int) -> tuple[Fraction, Fraction]:
    """Enclose the limit of the squared sensitivity to at most `most` participations `separation` or more apart.

    Patterns of several by their first terms and a bound on the others.

    Raises:
        TooLarge: it takes too many coefficients.
    """
    from flint import arb, ctx

    from factorize.checker.arithmetic.balls import PLACES, ends

    given = float(parts["nu"][0])
    if most > 1:
        return _pattern(given, separation, most)
    with ctx.workprec(4 * PLACES):
        nu = arb(given)
        return ends(1 / arb(1).agm((nu * (2 - nu)).sqrt()))


def _pattern(given: float, separation: int, most: int) -> tuple[Fraction, Fraction]:
    """Enclose the limit for several participations.

    Doubles stand for the coefficients up to relative t (1 + 2 |log(1 - nu)|) roundings each, and with S = steps -
    (K - 1) b the terms from `steps` on are at most K^2 sum_{t >= S} c_t^2 <= K^2 c_S^2 / (1 - (1 - nu)^2).
    """
    kept = math.ceil(_NEGLIGIBLE / given)
    steps = kept + (most - 1) * separation
    if steps > _LARGEST_SERIES:
        raise TooLarge(
            f"{most} participations {separation} apart with nu={given!r} take {steps} coefficients, above "
            f"{_LARGEST_SERIES}; use blt, whose limit is a closed form, or a larger nu",
            field="/mechanism/nu",
        )
    t = np.arange(1.0, steps)
    with np.errstate(under="ignore"):
        column = np.cumprod(np.append(1.0, (t - 0.5) / t)) * np.exp(np.arange(steps) * math.log1p(-given))
    found = Fraction(math.fsum((pattern_sums(column, Allowed(separation, most, False)) ** 2).tolist()))
    roundings = Fraction(math.ceil(steps * (1 - 2 * math.log1p(-given))) + 160, 1 << 52)
    nu, last = Fraction(given), Fraction(max(float(column[kept - 1]), 1e-290)) ** 2
    return found * (1 - 2 * roundings), (found + most**2 * last / (nu * (2 - nu))) * (1 + roundings) ** 2
