"""The law of random allocation on a C with one band: each example draws one step of every epoch anew.

The epochs are k independent blocks of b steps, and their likelihood ratios multiply (theorem 9). The same bounds hold
where each example chooses k of all n = k b steps: that is a random order of the steps, which may be public, and then
one step of each block of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from typing import Self

import numpy as np

from factorize.accounting.allocation_losses import AllocationLosses, allocation_losses
from factorize.accounting.law import MARGIN, Bound, Law
from factorize.certificate.sensitivity import Sensitivity
from factorize.checker.sampling.allocation import CELLS, LARGEST_VARIANCE, largest_square
from factorize.checker.strategy import Strategy
from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.numbers.falling import descend_near
from factorize.numbers.scalars import double_above
from factorize.structures.endless import AnyStrategy

LARGEST_BLOCK = 1 << 24
_COARSE, _NEAR, _STEP = 5, 0.1, 0.01
"""Cells of the first search; logarithms of multipliers: how far from it the root may be, and a difference."""
_LOST = 2.0**-38
"""For each step a part of delta, for each block and level a part of epsilon: more than the checker rounds up by."""


class AllocationLaw(Law):
    """One step of each example in every epoch: bounds at several noise multipliers.

    Args:
        steps: n.
        bins: b = n / k, the steps of an epoch.
        square: the largest squared entry of C, from above.
        signed: whether an entry may be negative.
    """

    name = "random_allocation"
    tolerance = 1e-4  # places move with the multiplier, and delta is not smooth on a finer scale

    def __init__(self, steps: int, bins: int, square: float, *, signed: bool) -> None:
        super().__init__(steps, bins, math.sqrt(square * (steps // bins)) * (1 + MARGIN), signed=signed)
        self._square = square
        self._cells = CELLS

    @classmethod
    def of(cls, matrix: AnyStrategy, bins: int) -> Self:
        """Return the law on a C with one band.

        Raises:
            ConditionNotMet: C has more bands.
            InvalidParameter: bins do not divide n, or a C without end.
        """
        if matrix.side is None:
            raise InvalidParameter(
                "a C without end has no steps to choose from; solve for a finite n, or calibrate without sampling",
                field="sampling",
            )
        held = matrix.finite()
        if held.bandwidth() > 1:
            raise ConditionNotMet(
                f"this C has {held.bandwidth()} bands, and random allocation is for C = I: with more bands, what two "
                "steps of an example share depends on how near they are; use balls_in_bins",
                field="sampling",
            )
        n = held.n
        if isinstance(bins, bool) or not isinstance(bins, (int, np.integer)) or not 1 <= bins <= min(n, LARGEST_BLOCK):
            raise InvalidParameter(f"bins={bins!r} is not an integer from 1 to n={n}, the steps for each", field="bins")
        if n % bins:
            raise InvalidParameter(
                f"bins={bins} do not divide n={n} steps into k blocks; give n / k for a k that divides n", field="bins"
            )
        square = largest_square(Strategy(held.structure, held.tensors(), n))
        return cls(n, int(bins), double_above(square, "sensitivity"), signed=held.signed)

    def removal(self, multiplier: float, epsilon: float) -> Bound:
        """Return the bound by the losses where the example takes part."""
        return self._bound(multiplier, epsilon, AllocationLosses.log_removal)

    def addition(self, multiplier: float, epsilon: float) -> Bound:
        """Return the bound by the losses where the example is left out."""
        return self._bound(multiplier, epsilon, AllocationLosses.log_addition)

    def sigma(self, epsilon: float, delta: float) -> float:
        """Return an s that gives (epsilon, delta); see `Law.sigma`. Most of the search is on coarse grids."""
        if self._cells <= _COARSE:
            return super().sigma(epsilon, delta)
        coarse = copy(self)
        coarse._cells = _COARSE
        near, target = math.log(coarse.sigma(epsilon, delta)), math.log(delta)
        slope = (coarse.log_delta(math.exp(near + _STEP), epsilon) - coarse.log_delta(math.exp(near), epsilon)) / _STEP

        def excess(x: float) -> float:
            return self.log_delta(math.exp(x), epsilon) - target

        root = descend_near(excess, near, slope, tolerance=self.tolerance / 4, reach=_NEAR) if slope < 0 else None
        if root is None or excess(root + self.tolerance / 2) > 0:
            return super().sigma(epsilon, delta)
        return math.exp(root + self.tolerance / 2)

    def stated(self, strategy: AnyStrategy) -> Sensitivity:
        """Return that of all choices of steps that the law allows."""
        pattern = {"kind": self.name, "bins": self.bins, "epochs": self.epochs}
        return Sensitivity(self.sensitivity, "upper_bound", "largest entry for each step", pattern)

    def _bound(self, multiplier: float, epsilon: float, log_delta: Callable[[AllocationLosses, float], float]) -> Bound:
        variance = self._square / multiplier / multiplier * (1 + MARGIN)
        if variance > LARGEST_VARIANCE:
            return Bound("loss_distribution", 0.0)
        losses = allocation_losses(variance, self.bins, self.epochs, self._cells)
        level = epsilon - _LOST * self.epochs * (2 * math.log2(self.bins) + 8 + variance)
        value = log_delta(losses, level)
        return Bound("loss_distribution", value + MARGIN * (1 + abs(value)) + _LOST * self.steps)
