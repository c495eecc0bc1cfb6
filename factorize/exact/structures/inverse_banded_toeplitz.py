"""Inverses of Toeplitz matrices with few diagonals (structure `inverse_banded_toeplitz`), enclosed.

c_0 = 1 and c_t = sum_d w_d c_{t-d} with w_d >= 0 and sum w_d <= 1: no coefficient is above 1, and what a step cuts away
is carried on by at most its own size.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from factorize.errors import CorruptObject, InvalidStrategy
from factorize.exact.arithmetic.integers import Numbers
from factorize.exact.arithmetic.intervals import PLACES, dyadic


class Renewal(NamedTuple):
    """weights (bands,): 0 in front, then what is subtracted below the diagonal of C^-1."""

    weights: np.ndarray

    @property
    def nonnegative(self) -> bool:
        """No coefficient is negative."""
        return True

    @property
    def monotone(self) -> bool:
        """Not told by the weights alone, but for the identity; the majorant of the enclosed column tells."""
        return not self.weights.any()

    @property
    def bandwidth(self) -> int:
        """Diagonals that can be told apart from zero by the numbers alone."""
        return 1 << 62 if self.weights.any() else 1

    def series(self, n: int) -> Numbers:
        """Return c_0, ..., c_{n-1} in units of 2^-256, cut below, each off by less than a unit for every step."""
        given = [(d, dyadic(value)) for d, value in enumerate(self.weights.tolist()) if value]
        unit = min((weight.exponent for _, weight in given), default=0)
        terms = [(d, weight.value << (weight.exponent - unit)) for d, weight in given]
        found = [1 << PLACES]
        for t in range(1, n):
            found.append(sum(weight * found[t - d] for d, weight in terms if d <= t) >> -unit)
        return Numbers(np.array(found, dtype=object), -PLACES, n if terms else 0)


def read(parts: dict[str, np.ndarray], n: int) -> Renewal:
    """Take the tensor of the structure.

    Raises:
        CorruptObject: its shape does not fit n.
        InvalidStrategy: it does not begin with 1, or what follows is positive or sums to less than -1.
        KeyError: it is missing.
    """
    noising = parts.pop("inverse_coefficients")
    if noising.ndim != 1 or not 1 <= len(noising) <= n:
        raise CorruptObject(f"the column of an inverse with few diagonals and n={n} cannot have shape {noising.shape}")
    if noising[0] != 1 or (noising[1:] > 0).any() or sum(map(Fraction, noising.tolist())) < 0:
        raise InvalidStrategy("the inverse's column is not 1 and then numbers <= 0 that sum to at least -1")
    return Renewal(np.concatenate([[0.0], -noising[1:]]))
