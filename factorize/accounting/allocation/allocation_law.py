"""The law of random allocation on a C with one band: each example draws one step of every epoch anew.

The epochs are k independent blocks of b steps, and moments of their likelihood ratios multiply (theorem 9). The same
bounds hold where each example chooses k of all n = k b steps: that is a random order of the steps, which may be public,
and then one step of each block of it.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Self

import numpy as np

from factorize.accounting.allocation.allocation_moments import (
    LARGEST_ORDER,
    LARGEST_TILT,
    InverseMoments,
    log_moments,
)
from factorize.accounting.bins_claim import Direction, Evidence
from factorize.accounting.star_bound import BinsDelta, log_constant, log_gaussian
from factorize.certificate.sensitivity import Sensitivity
from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.numbers.falling import descend
from factorize.numbers.gaussian import check_delta, noise_multiplier_for_epsilon
from factorize.numbers.rounding import square_root_up
from factorize.numbers.scalars import double_above, finite_real
from factorize.structures.endless import AnyStrategy

LARGEST_BLOCK = 1 << 24
LARGEST_EPSILON = 1e6
_UP = 2.0**-50
_WIDEST = 400.0  # variance above which no moment means anything in doubles


class AllocationLaw:
    """One step of each example in every epoch: bounds at several noise multipliers.

    Args:
        steps: n.
        bins: b = n / k, the steps of an epoch.
        square: the largest squared entry of C, from above.
        signed: whether an entry may be negative.
    """

    def __init__(self, steps: int, bins: int, square: float, *, signed: bool) -> None:
        self.n, self.bins, self.signed, self._square = steps, bins, signed, square

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
        return cls(n, int(bins), double_above(held.largest_column(), "sensitivity"), signed=held.signed)

    @property
    def sensitivity(self) -> float:
        """Of any k steps, without secrecy; rounded up."""
        return square_root_up(self._square * self.epochs * (1 + 2 * _UP))

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

    @property
    def epochs(self) -> int:
        """Ceil(n / b)."""
        return -(-self.n // self.bins)

    def plain(self, multiplier: float, epsilon: float) -> float:
        """Return the log of the delta that holds if the draws become known."""
        return log_gaussian(self.sensitivity, multiplier, epsilon)

    def evidence(self, multiplier: float, epsilon: float) -> tuple[tuple[Evidence, float], tuple[Evidence, float]]:
        """Return the smaller bound of each direction with its log: by sampling, or without."""
        without = Evidence(rule="gaussian"), self.plain(multiplier, epsilon)
        removal, addition = self.log_removal(multiplier, epsilon), self.log_addition(multiplier, epsilon)
        return min(removal, without, key=lambda one: one[1]), min(addition, without, key=lambda one: one[1])

    def delta(self, multiplier: float, epsilon: float) -> BinsDelta:
        """Return the bounds of both directions."""
        (removal, log_pq), (addition, log_qp) = self.evidence(multiplier, epsilon)
        order = int(removal.tilt or 0)
        return BinsDelta(min(log_pq, 0.0), min(log_qp, 0.0), order, removal.rule, addition.rule)

    def sigma(self, epsilon: float, delta: float) -> float:
        """Return an s = sigma / clip_norm that gives (epsilon, delta), within 1e-6 of the smallest by these bounds.

        Raises:
            InvalidParameter: a value outside its range.
        """
        level = finite_real("epsilon", epsilon, remedy="give an epsilon above 0")
        target = math.log(check_delta(delta))
        plain = noise_multiplier_for_epsilon(level, delta) * self.sensitivity * (1 + 16 * _UP)

        def removal(log_multiplier: float) -> float:
            return min(self.log_removal(math.exp(log_multiplier), level)[1], 0.0) - target

        def addition(log_multiplier: float) -> float:
            return min(self.log_addition(math.exp(log_multiplier), level)[1], 0.0) - target

        least = _falls_to(addition, math.log(plain))
        if removal(least) > 0:
            least = _falls_to(removal, math.log(plain), least)
        return min(math.exp(least) * (1 + 4 * _UP), plain * (1 + 64 * _UP))

    def epsilon(self, multiplier: float, delta: float) -> float:
        """Return an epsilon that the run has at delta, within 1e-7 of the smallest that the bounds give.

        Raises:
            InvalidParameter: a value outside its range, or so little noise that no epsilon below 10^6 holds.
        """
        noise = finite_real("multiplier", multiplier, remedy="give sigma / clip_norm, above 0")
        target = math.log(check_delta(delta))
        if self.delta(noise, 0.0).log_delta <= target:
            return 0.0
        high = 1.0
        while self.delta(noise, high).log_delta > target:
            high *= 2
            if high > LARGEST_EPSILON:
                raise InvalidParameter(
                    f"no epsilon below {LARGEST_EPSILON:g} has delta={delta} at multiplier={noise:g}; give more noise",
                    field="sigma",
                )
        return descend(lambda epsilon: self.delta(noise, epsilon).log_delta - target, 0.0, high)

    def stated(self) -> Sensitivity:
        """Return the sensitivity of all choices of steps that the law allows, without amplification."""
        pattern = {"kind": "random_allocation", "bins": self.bins, "epochs": self.epochs}
        return Sensitivity(self.sensitivity, "upper_bound", "largest entry for each step", pattern)

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


def _falls_to(excess: Callable[[float], float], high: float, low: float | None = None) -> float:
    """Return where a falling function is 0, from above; `high` where it is positive there, and never below `low`."""
    if excess(high) > 0:
        return high
    if low is None:
        low = high - 0.5
        while excess(low) <= 0:
            low, high = low - 0.5, low
    return descend(excess, low, high, tolerance=1e-6)
