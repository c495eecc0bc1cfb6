"""Inverses of Toeplitz matrices with few diagonals (structure `inverse_banded_toeplitz`), enclosed.

c_0 = 1 and c_t = sum_d w_d c_{t-d} with w_d >= 0 and sum w_d <= 1: no coefficient is above 1, and what a step cuts away
is carried on by at most its own size.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from factorize.errors import CorruptObject, InvalidStrategy
from factorize.exact.arithmetic.integers import Numbers
from factorize.exact.arithmetic.intervals import PLACES, dyadic
from factorize.exact.arithmetic.near import Near, share
from factorize.exact.spec.programs import Coefficient, Program, Statement, X
from factorize.exact.structures.base import ComputedToeplitzReading, compiled


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


class InverseBandedToeplitzReading(ComputedToeplitzReading):
    """C by the few diagonals of its inverse.

    Args:
        renewal: the numbers.
        n: side.
    """

    parts = frozenset({"inverse_coefficients"})
    scalable = True

    def __init__(self, renewal: Renewal, n: int) -> None:
        self.n, self._renewal = n, renewal
        self.monotone = renewal.monotone

    @classmethod
    def read(cls, parts: dict[str, np.ndarray], n: int) -> Self:
        """Take the tensor; see `read`."""
        return cls(read(parts, n), n)

    @property
    def diagonal(self) -> np.ndarray:
        """A 1, which c_0 is."""
        return np.ones(1)

    @property
    def signed(self) -> bool:
        """No coefficient is negative."""
        return not self._renewal.nonnegative

    @property
    def bandwidth(self) -> int:
        """Diagonals that can be told apart from zero by the numbers alone."""
        return min(self._renewal.bandwidth, self.n)

    @cached_property
    def series(self) -> Numbers:
        """The first column."""
        return self._renewal.series(self.n)

    @cached_property
    def near_series(self) -> Near:
        """The first column: sums of positive terms, which meet two roundings at most for each step that they reach."""
        from factorize.exact.structures.kernels import renewal

        renewal(self._renewal.weights, column := np.empty(self.n))
        return Near(column, share(roundings=2 * self.n + 2) if self._renewal.weights.any() else 0.0)

    def variances(self, program: Program, ends: np.ndarray, most: int) -> bool | None:
        """Write variances with the diagonals of C^-1 as statements, and noise in place of C^-1 y; see `Reading`."""
        moved = after_diagonals(program, self._renewal.weights)
        states = len(moved.statements)
        if self.n * (1 + states) * (1 + 2 * states) > most:
            return None
        from factorize.exact.losses.variance_kernels import banded

        ones = np.ones((1, self.n))
        return bool(banded(ones, np.stack([ones[0], 0 * ones[0]], axis=1), *compiled(moved), ends))


def after_diagonals(program: Program, weights: np.ndarray) -> Program:
    """Return the same of x = y - sum of w_d y_{i - d}: the input is y, and kept for as long."""
    used = np.flatnonzero(weights).tolist()
    made, kept = len(program.statements), max(used, default=0)
    one, late = Fraction(1), [X, *range(made + 1, made + 1 + kept)]
    first: dict[int, Coefficient] = {X: one, **{late[d]: -Fraction(float(weights[d])) for d in used}}
    found: list[Statement] = [(made, first)]
    found += [(late[d], {late[d - 1]: one}) for d in range(kept, 0, -1)]
    return program.fed(found, made)
