"""The law of random allocation on a C with one band: each example draws one step of every epoch anew.

The epochs are k independent blocks of b steps, and moments of their likelihood ratios multiply (theorem 9). The same
bounds hold where each example chooses k of all n = k b steps: that is a random order of the steps, which may be public,
and then one step of each block of it.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Self

import numpy as np

from factorize.accounting.allocation_moments import LARGEST_ORDER, LARGEST_TILT, InverseMoments, log_moments
from factorize.accounting.law import MARGIN, Bound, Law
from factorize.accounting.payoff import log_call_ceiling
from factorize.certificate.sensitivity import Sensitivity
from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.exact.sampling.allocation import largest_square
from factorize.exact.strategy import Strategy
from factorize.numbers.scalars import double_above
from factorize.structures.endless import AnyStrategy

LARGEST_BLOCK = 1 << 24
_WIDEST = 400.0  # variance above which no moment means anything in doubles


class AllocationLaw(Law):
    """One step of each example in every epoch: bounds at several noise multipliers.

    Args:
        steps: n.
        bins: b = n / k, the steps of an epoch.
        square: the largest squared entry of C, from above.
        signed: whether an entry may be negative.
    """

    name = "random_allocation"

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
        """Return the bound by E L^m at its best m."""
        variance = self._variance(multiplier)
        if variance > _WIDEST:
            return Bound("moment", 0.0, 2.0)
        logs, orders = _moments(variance, self.bins), range(2, LARGEST_ORDER + 1)
        values = [self.epochs * float(logs[m]) + log_call_ceiling(epsilon, 0.0, m) for m in orders]
        best = int(np.argmin(values))
        return Bound("moment", _above(values[best]), float(orders[best]))

    def addition(self, multiplier: float, epsilon: float) -> Bound:
        """Return the bound by E L^-eta at its best whole eta: the log is convex in eta."""
        variance = self._variance(multiplier)
        if variance > _WIDEST:
            return Bound("moment", 0.0, 1.0)
        moments = _inverse(variance, self.bins)

        def value(eta: int) -> float:
            return self.epochs * moments.log(eta) - eta * epsilon + log_call_ceiling(0.0, 0.0, 1 + eta)

        low, high = 1, LARGEST_TILT
        while high > low:
            middle = (low + high) // 2
            low, high = (low, middle) if value(middle) <= value(middle + 1) else (middle + 1, high)
        return Bound("moment", _above(value(low)), float(low))

    def stated(self, strategy: AnyStrategy) -> Sensitivity:
        """Return that of all choices of steps that the law allows."""
        pattern = {"kind": self.name, "bins": self.bins, "epochs": self.epochs}
        return Sensitivity(self.sensitivity, "upper_bound", "largest entry for each step", pattern)

    def _variance(self, multiplier: float) -> float:
        return self._square / multiplier / multiplier


def _above(value: float) -> float:
    return value + MARGIN * (1 + abs(value))


@lru_cache(maxsize=64)
def _moments(variance: float, bins: int) -> np.ndarray:
    return log_moments(variance, bins)


@lru_cache(maxsize=64)
def _inverse(variance: float, bins: int) -> InverseMoments:
    return InverseMoments(variance, bins)
