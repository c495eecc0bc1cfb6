"""The privacy loss distribution of Poisson sampling, every mass rounded up (theorem 10).

One step, at which an example is sampled with probability q, has the likelihood ratio L = 1 - q + q e^(w Z - w^2 / 2), Z
normal, where w is the norm of the example's column of C over sigma; a run has the product of k independent copies of L.
As for random allocation, mass is moved to the ends of a cell about its mean, and one law serves both directions.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from flint import arb, ctx

from factorize.checker.arithmetic.balls import normal
from factorize.checker.arithmetic.near import UNIT
from factorize.checker.sampling.allocation import (
    CELLS,
    LEAST,
    REACH,
    GridLaw,
    Losses,
    power,
    product,
    shift_of,
    width_of,
)

_MOST_CELLS = 20_000  # of one step, at the finest grid; a coarser one moves more mass, and is true
_WIDEST = 0.25
"""Deviation above which grids get no coarser: a step with little noise is mostly far from where its moments are."""


def losses_of_samples(square: Fraction, scale: float, probability: float, number: int, cells: int = CELLS) -> Losses:
    """Return the law of so many steps that sample independently.

    Args:
        square: at least the largest squared norm of a column of C.
        scale: at most sigma of an entry for contributions of norm 1.
        probability: q, in (0, 1].
        number: k.
        cells: of a standard deviation of the logarithm of L, where there are not too many.

    Raises:
        InvalidParameter: there is so little noise that nothing is private.
    """
    width = width_of(square, scale)
    deviation = min(math.sqrt(math.log1p(probability**2 * math.expm1(width * width))), _WIDEST)
    one = _step_law(width, probability, deviation / cells, _MOST_CELLS * cells // CELLS)
    law = power(one, number, product, lambda m: deviation * math.sqrt(m))
    return Losses(law, 0.0, shift_of(number, 1, width))


@ctx.workprec(128)  # chances within 2^-124, so that all masses, and the mean, are within 2^-80
def _step_law(width: float, probability: float, finest: float, most: int) -> GridLaw:
    """Return the law of L on a grid; what is beyond Z = REACH + w has less than 7e-31, of the mass and of the mean."""
    top = math.log1p(probability * math.expm1(width * (REACH + width / 2)))
    low = math.log1p(-probability) if probability < 1 else -width * (REACH + width / 2)
    step = max(finest, (top - low) / most)
    first, cells = math.floor(low / step) - 1, math.ceil((top - low) / step) + 3
    w, q = arb(width), arb(probability)
    place, gap = (arb(step) * first).exp(), arb(step).exp()
    masses = np.zeros(cells + 1)

    def below(place: arb) -> tuple[arb, arb]:
        """Return the chances that L is below a place, without and with the example."""
        rest = place - (1 - q)
        if not rest > 0:
            return arb(0), arb(0)
        z = ((rest / q).log() + w * w / 2) / w
        return normal(z), normal(z - w)

    without, taking = below(place)
    for i in range(cells):
        beyond = place * gap
        next_without, next_taking = below(beyond)
        mass = next_without - without
        mean = (1 - q) * mass + q * (next_taking - taking)
        right = (mean - mass * place) / (beyond - place)
        masses[i] += float(mass - right)
        masses[i + 1] += float(right)
        without, taking, place = next_without, next_taking, beyond
    return GridLaw(first, np.maximum(masses, 0.0) * (1 + 8 * UNIT), step, 0.0, 2 * LEAST + 2.0**-80)
