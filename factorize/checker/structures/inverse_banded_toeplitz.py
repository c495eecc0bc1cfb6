"""Inverses of Toeplitz matrices with few diagonals (structure `inverse_banded_toeplitz`), enclosed.

c_0 = 1 and c_t = sum_d w_d c_{t-d} with w_d >= 0 and sum w_d <= 1: no coefficient is above 1, and what a step cuts away
is carried on by at most its own size.
"""

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from factorize.checker.arithmetic.balls import PLACES, Balls
from factorize.checker.arithmetic.near import Near, share
from factorize.checker.losses.covariances import Factor, Recursion, Statement
from factorize.checker.structures.base import ComputedToeplitzReading


class InverseBandedToeplitzReading(ComputedToeplitzReading):
    """C by the first column of C^-1 as far as it is not 0: 1, then the negated weights."""

    signed = False

    def __init__(self, parts: Mapping[str, np.ndarray], n: int) -> None:
        weights = np.concatenate([[0.0], -parts["inverse_coefficients"][1:]])
        self.n, self._weights, self.diagonal = n, weights, np.ones(1)
        self.bandwidth = n if weights.any() else 1

    @cached_property
    def series(self) -> Balls:
        """The first column."""
        from flint import arb, ctx

        terms = [(d, arb(weight)) for d, weight in enumerate(self._weights.tolist()) if weight]
        with ctx.workprec(PLACES):
            column = [arb(1)]
            for t in range(1, self.n):
                column.append(sum((weight * column[t - d] for d, weight in terms if d <= t), arb(0)))
        return column

    @cached_property
    def near_series(self) -> Near:
        """The first column, with a share for the roundings that sums of doubles would meet."""
        return Near(self._rounded[0], share(roundings=3 * self.n) if self._weights.any() else 0.0)

    def inverse(self) -> Recursion:
        """Return the noise less the weights times the last of it, which is kept."""
        terms: dict[tuple[int, int], Factor] = {(1, d): -float(w) for d, w in enumerate(self._weights) if w}
        return Recursion([Statement(0, terms), Statement(1, {}), Statement(0, {(0, 0): 1.0, (1, 0): 1.0})], noise=1)
