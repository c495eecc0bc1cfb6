"""The law whose privacy is known by bounds alone: what it has to answer, and what follows for all of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Self

from factorize.accounting.bins_claim import Direction, Evidence
from factorize.accounting.star_bound import BinsDelta, log_gaussian
from factorize.certificate.sensitivity import Sensitivity
from factorize.errors import InvalidParameter
from factorize.numbers.falling import descend
from factorize.numbers.gaussian import check_delta, noise_multiplier_for_epsilon
from factorize.numbers.scalars import finite_real
from factorize.structures.endless import AnyStrategy

LARGEST_EPSILON = 1e6
_UP = 2.0**-50


class BoundedLaw(ABC):
    """A law of participation together with what it has to know of one C.

    Attributes:
        sampling: its name.
        rule: of the sensitivity without secrecy.
        n: steps of the run.
        bins: b, the steps of an epoch.
    """

    sampling: ClassVar[str]
    rule: ClassVar[str]
    n: int
    bins: int

    @classmethod
    @abstractmethod
    def of(cls, matrix: AnyStrategy, bins: int) -> Self:
        """Return the law on a C, or raise InvalidParameter, ConditionNotMet or TooLarge."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """Without secrecy, rounded up."""

    @property
    @abstractmethod
    def signed(self) -> bool:
        """Whether |C| stood in for a C that has, or may have, negative entries."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """`sha256:` of the numbers that the bounds are made of; `gram` of the claim."""

    @abstractmethod
    def log_removal(self, multiplier: float, epsilon: float) -> tuple[Evidence, float]:
        """Return the best bound by sampling for the data with the example against those without, and its log."""

    @abstractmethod
    def log_addition(self, multiplier: float, epsilon: float) -> tuple[Evidence, float]:
        """Return the same for the other direction."""

    @abstractmethod
    def log_bound(self, direction: Direction, evidence: Evidence, multiplier: float, epsilon: float) -> float:
        """Return the log of the delta that a claim's evidence shows, from above; its rule is not `gaussian`."""

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
        pattern = {"kind": self.sampling, "bins": self.bins, "epochs": self.epochs}
        return Sensitivity(self.sensitivity, "upper_bound", self.rule, pattern)


def _falls_to(excess: Callable[[float], float], high: float, low: float | None = None) -> float:
    """Return where a falling function is 0, from above; `high` where it is positive there, and never below `low`."""
    if excess(high) > 0:
        return high
    if low is None:
        low = high - 0.5
        while excess(low) <= 0:
            low, high = low - 0.5, low
    return descend(excess, low, high, tolerance=1e-6)
