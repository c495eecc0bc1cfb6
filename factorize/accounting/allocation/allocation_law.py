"""The law of random allocation on a C with one band: k of the n steps, by independent blocks of n / k steps.

A uniform choice of k steps is a random order of the steps, which may be public, and then one step of each block of it.
Divergences are jointly convex, and with C = I every order gives the same pair: k independent blocks (theorem 10).
"""

from __future__ import annotations

import hashlib
import math
import struct
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np

from factorize.accounting.allocation.allocation_moments import (
    LARGEST_ORDER,
    LARGEST_TILT,
    InverseMoments,
    log_moments,
)
from factorize.accounting.bins_claim import Direction, Evidence
from factorize.accounting.laws.bounded_law import BoundedLaw
from factorize.accounting.star_bound import log_constant
from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.numbers.rounding import square_root_up
from factorize.numbers.scalars import double_above
from factorize.structures.endless import AnyStrategy

LARGEST_BLOCK = 1 << 24
_UP = 2.0**-50
_WIDEST = 400.0  # variance above which no moment means anything in doubles


class AllocationLaw(BoundedLaw):
    """K steps of each example, chosen uniformly among all n: bounds at several noise multipliers.

    Args:
        steps: n.
        bins: b = n / k.
        square: the largest squared entry of C, from above.
        signed: whether an entry may be negative.
    """

    sampling: ClassVar[str] = "random_allocation"
    rule: ClassVar[str] = "largest entry for each step"

    def __init__(self, steps: int, bins: int, square: float, *, signed: bool) -> None:
        self.n, self.bins, self._square, self._signed = steps, bins, square, signed

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
                "steps of an example share depends on how near they are; use redrawn_bins or balls_in_bins",
                field="sampling",
            )
        n = held.n
        if isinstance(bins, bool) or not isinstance(bins, (int, np.integer)) or not 1 <= bins <= min(n, LARGEST_BLOCK):
            raise InvalidParameter(f"bins={bins!r} is not an integer from 1 to n={n}, the steps for each", field="bins")
        if n % bins:
            raise InvalidParameter(
                f"bins={bins} do not divide n={n} steps into k blocks; give n / k for a k that divides n", field="bins"
            )
        return cls(n, int(bins), double_above(held.largest_column(), "sensitivity"), signed=held.signed)

    @property
    def sensitivity(self) -> float:
        """Of any k steps."""
        return square_root_up(self._square * self.epochs * (1 + 2 * _UP))

    @property
    def signed(self) -> bool:
        """Whether an entry may be negative."""
        return self._signed

    @property
    def digest(self) -> str:
        """Of the largest squared entry, a little-endian double."""
        return "sha256:" + hashlib.sha256(struct.pack("<d", self._square)).hexdigest()

    def log_removal(self, multiplier: float, epsilon: float) -> tuple[Evidence, float]:
        """Return the bound by E L^m at its best m."""
        variance = self._variance(multiplier)
        if variance > _WIDEST:
            return Evidence(rule="moment", tilt=2.0), math.inf
        logs = _moments(variance, self.bins)
        found = [self.epochs * float(logs[m]) + log_constant(epsilon, m) for m in range(2, LARGEST_ORDER + 1)]
        best = int(np.argmin(found))
        return Evidence(rule="moment", tilt=float(best + 2)), self._above(found[best])

    def log_addition(self, multiplier: float, epsilon: float) -> tuple[Evidence, float]:
        """Return the bound by E L^-eta at its best whole eta."""
        variance = self._variance(multiplier)
        if variance > _WIDEST:
            return Evidence(rule="moment", tilt=1.0), math.inf
        low, high = 1, LARGEST_TILT
        while high > low:  # the log is convex in eta
            middle = (low + high) // 2
            if self._addition(variance, epsilon, middle) <= self._addition(variance, epsilon, middle + 1):
                high = middle
            else:
                low = middle + 1
        return Evidence(rule="moment", tilt=float(low)), self._addition(variance, epsilon, low)

    def log_bound(self, direction: Direction, evidence: Evidence, multiplier: float, epsilon: float) -> float:
        """Return the bound by one moment."""
        variance, tilt = self._variance(multiplier), evidence.tilt or 0.0
        if direction == "qp":
            usable = 1 <= tilt <= LARGEST_TILT and variance <= _WIDEST
            return self._addition(variance, epsilon, tilt) if usable else math.inf
        if not (2 <= tilt <= LARGEST_ORDER and variance <= _WIDEST):
            return math.inf
        moment = float(_moments(variance, self.bins)[int(tilt)])
        return self._above(self.epochs * moment + log_constant(epsilon, int(tilt)))

    def _addition(self, variance: float, epsilon: float, eta: float) -> float:
        """Return log of sup (1 - x) x^eta T^-eta E L^-eta, L of all blocks."""
        moment = self.epochs * _inverse(variance, self.bins).log(eta)
        return self._above(moment + eta * (math.log(eta) - epsilon) - (1 + eta) * math.log1p(eta))

    def _variance(self, multiplier: float) -> float:
        return self._square / multiplier / multiplier * (1 + 4 * _UP)

    @staticmethod
    def _above(value: float) -> float:
        return value + 64 * _UP * (1 + abs(value))


@lru_cache(maxsize=64)
def _moments(variance: float, bins: int) -> np.ndarray:
    return log_moments(variance, bins)


@lru_cache(maxsize=64)
def _inverse(variance: float, bins: int) -> InverseMoments:
    return InverseMoments(variance, bins)
