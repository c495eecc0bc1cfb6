"""The law of random allocation on a C with one band: each example draws one step of every epoch anew.

The epochs are k independent blocks of b steps, and their likelihood ratios multiply (theorem 9). The same bounds hold
where each example chooses k of all n = k b steps: that is a random order of the steps, which may be public, and then
one step of each block of it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Self

import numpy as np

from factorize.accounting.law import MARGIN, Bound, Law, multiplier_about
from factorize.certificate.sensitivity import Sensitivity
from factorize.checker.sampling.allocation import Losses, largest_square, losses_of_blocks
from factorize.checker.strategy import Strategy
from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.numbers.falling import descend_near
from factorize.numbers.scalars import double_above
from factorize.structures.endless import AnyStrategy

if TYPE_CHECKING:
    from flint import arb

LARGEST_BLOCK = 1 << 24


class AllocationLaw(Law):
    """One step of each example in every epoch: bounds at several noise multipliers.

    Args:
        steps: n.
        bins: b = n / k, the steps of an epoch.
        square: the largest squared entry of C, from above.
        signed: whether an entry may be negative.
    """

    name = "random_allocation"
    tolerance = 2e-4  # places move with the multiplier, and delta is not smooth on a finer scale

    def __init__(self, steps: int, bins: int, square: float, *, signed: bool) -> None:
        super().__init__(steps, bins, math.sqrt(square * (steps // bins)) * (1 + MARGIN), signed=signed)
        self._square = square

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
        losses = self._losses(multiplier)
        return _bound(None if losses is None else losses.removal(epsilon))

    def addition(self, multiplier: float, epsilon: float) -> Bound:
        """Return the bound by the losses where the example is left out."""
        losses = self._losses(multiplier)
        return _bound(None if losses is None else losses.addition(epsilon))

    def sigma(self, epsilon: float, delta: float) -> float:
        """Return an s that gives (epsilon, delta); see `Law.sigma`."""
        target = math.log(delta)

        def excess(x: float) -> float:
            return self.log_delta(math.exp(x), epsilon) - target

        about = math.sqrt(self._square) * multiplier_about(epsilon, delta, self.epochs, 1 / self.bins)
        found = descend_near(excess, math.log(about), 2 * target, tolerance=self.tolerance, reach=1.0)
        return super().sigma(epsilon, delta) if found is None else math.exp(found[0])

    def stated(self, strategy: AnyStrategy) -> Sensitivity:
        """Return that of all choices of steps that the law allows."""
        pattern = {"kind": self.name, "bins": self.bins, "epochs": self.epochs}
        return Sensitivity(self.sensitivity, "upper_bound", "largest entry for each step", pattern)

    def _losses(self, multiplier: float) -> Losses | None:
        return _losses(self._square, multiplier, self.bins, self.epochs)


@lru_cache(maxsize=32)
def _losses(square: float, multiplier: float, bins: int, blocks: int) -> Losses | None:
    """Return the checker's law, None where there is so little noise that nothing is private."""
    try:
        return losses_of_blocks(Fraction(square), multiplier, bins, blocks)
    except InvalidParameter:
        return None


def _bound(delta: arb | None) -> Bound:
    """Return the logarithm of a delta, a little more than that."""
    value = 0.0 if delta is None else math.log(float(delta.upper()))
    return Bound("loss_distribution", min(value + MARGIN * (1 + abs(value)), 0.0))
