"""The law of participation on one C: closed bounds of delta, and one search for whichever number is not given.

Bounds are in plain doubles with a margin upward of about 1e-9: the checker proves the claims that are published.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from factorize.errors import InvalidParameter
from factorize.factors.sensitivity import Sensitivity, sensitivity_of
from factorize.format.quantities import MAX_EPSILON
from factorize.numbers.gaussian import MAX_NOISE_MULTIPLIER, check_delta, gaussian_delta, noise_multiplier_for_epsilon
from factorize.numbers.scalars import finite_real
from factorize.participation import MinSep
from factorize.structures.endless import AnyStrategy

MARGIN = 1e-9
"""Relative margin of a logarithm, upward: doubles lose less."""


class Bound(NamedTuple):
    """An upper bound of delta in one direction.

    Attributes:
        rule: the rule that a claim names for it: `star_bound`, `chain_bound`, `closed_form`, `curved_bound`,
            `loss_distribution` or `gaussian`.
        log_delta: the logarithm of the bound.
        tilt: m, where the rule has one.
        rate: q, where the rule has one.
        reach: the largest |u_t|, where the rule has one.
    """

    rule: str
    log_delta: float
    tilt: float | None = None
    rate: float | None = None
    reach: float | None = None


class Curve(ABC):
    """Delta of a run as a falling function of the noise and of epsilon, and one search for whichever is not given.

    Args:
        sensitivity: the sensitivity of C under the law, if the draws become known.
    """

    tolerance: ClassVar[float] = 1e-7
    """Absolute tolerance of the logarithm of a multiplier that is searched for."""
    epsilon_tolerance: ClassVar[float] = 1e-7
    """Absolute tolerance of an epsilon that is searched for."""

    def __init__(self, sensitivity: float) -> None:
        self.sensitivity = sensitivity
        self._remember()

    def _remember(self) -> None:  # noqa: B027  most laws remember nothing
        """Begin to remember what takes long to compute."""

    def __getstate__(self) -> dict[str, object]:
        """Return what a copy or a pickle needs, which begins to remember anew."""
        return {name: value for name, value in vars(self).items() if not hasattr(value, "cache_info")}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore it."""
        vars(self).update(state)
        self._remember()

    @abstractmethod
    def log_delta(self, multiplier: float, epsilon: float) -> float:
        """Return the logarithm of delta for both directions, at most 0."""

    def guess(self, epsilon: float, delta: float) -> float | None:
        """Return an s near the one that gives (epsilon, delta), or None where no such guess is known."""
        return None

    def delta(self, multiplier: float, epsilon: float) -> float:
        """Return an upper bound, never 0, on the delta of the run at epsilon.

        Args:
            multiplier: s = sigma / clip_norm, for sums of contributions.
            epsilon: the epsilon, at least 0.
        """
        noise = finite_real("multiplier", multiplier, remedy="give sigma / clip_norm, above 0")
        level = finite_real("epsilon", epsilon, strict=False, remedy="give a finite epsilon >= 0")
        return min(math.nextafter(math.exp(self.log_delta(noise, level)), 1.0), 1.0)

    def epsilon(self, multiplier: float, delta: float) -> float:
        """Return an epsilon that the run has at delta, within the tolerance of the smallest one.

        Raises:
            InvalidParameter: a value outside its range, or so little noise that no epsilon up to 10^6 holds.
        """
        noise = finite_real("multiplier", multiplier, remedy="give sigma / clip_norm, above 0")
        excess = _excess(lambda epsilon: self.log_delta(noise, epsilon), delta)
        if excess(0.0) <= 0:
            return 0.0
        high = 1.0
        while excess(high) > 0:
            high *= 2
            if high > MAX_EPSILON:
                raise InvalidParameter(
                    f"at sigma = {noise:g} clip norms no epsilon up to {MAX_EPSILON:g} reaches delta={delta!r}; use a "
                    "larger sigma",
                    field="sigma",
                )
        return descend(excess, 0.0 if high == 1.0 else high / 2, high, tolerance=self.epsilon_tolerance)

    def sigma(
        self, epsilon: float, delta: float, *, near: float | None = None, tolerance: float | None = None
    ) -> float:
        """Return an s = sigma / clip_norm that gives (epsilon, delta), near the smallest.

        It is at most that of the Gaussian mechanism without amplification, up to the tolerance.

        Args:
            epsilon: the epsilon of (epsilon, delta)-DP.
            delta: the delta of (epsilon, delta)-DP.
            near: a guess where the search begins; by default `guess`.
            tolerance: relative tolerance of s; by default that of the class.

        Raises:
            InvalidParameter: a value outside its range.
        """
        level, close = finite_real("epsilon", epsilon, remedy="give an epsilon above 0"), tolerance or self.tolerance
        seen: dict[float, float] = {}
        at = _excess(lambda log_multiplier: self.log_delta(math.exp(log_multiplier), level), delta)

        def excess(point: float) -> float:
            if point not in seen:
                seen[point] = at(point)
            return seen[point]

        high = math.log(noise_multiplier_for_epsilon(level, delta) * self.sensitivity) + 2 * MARGIN
        start = near or self.guess(level, delta)
        # delta is about a Gaussian tail e^(-s^2 c), which has this slope
        crossing = start and descend_near(excess, math.log(start), 2 * math.log(delta), tolerance=close, reach=1.0)
        if crossing:
            return math.exp(crossing[0])
        high = min((point for point, value in seen.items() if value <= 0), default=high)
        low = max((point for point, value in seen.items() if value > 0 and point < high), default=high - 0.5)
        while excess(low) <= 0:
            low, high = low - 1.0, low
        return math.exp(descend(excess, low, high, tolerance=close))


class Law(Curve):
    """A law of participation on one C.

    Args:
        steps: n.
        bins: the number of steps of an epoch, in one of which an example takes part.
        sensitivity: the sensitivity of C under the law, if the draws become known.
        signed: whether |C| stands in for C, so that the answer may be larger than necessary.
    """

    name: ClassVar[str]
    margin: ClassVar[float] = 0.005
    """Relative margin of sigma that a claim adds to the estimate. With less, the estimate's own error decides, and a
    verifier with another seed may refuse a claim that passed by luck."""

    first_tolerance: ClassVar[float] = 2e-3
    """Relative tolerance of sigma in the first look, which decides how many samples the second one takes."""

    def __init__(self, steps: int, bins: int, sensitivity: float, *, signed: bool) -> None:
        super().__init__(sensitivity)
        self.steps, self.bins, self.signed = steps, bins, signed

    @property
    def epochs(self) -> int:
        """The number of epochs, ceil(n / b)."""
        return -(-self.steps // self.bins)

    @abstractmethod
    def removal(self, multiplier: float, epsilon: float) -> Bound:
        """Return the bound of (P, Q), the data with the example against the data without it."""

    @abstractmethod
    def addition(self, multiplier: float, epsilon: float) -> Bound:
        """Return the bound of (Q, P)."""

    def stated(self, strategy: AnyStrategy) -> Sensitivity:
        """Return the sensitivity without amplification, of steps at least b apart, which a calibration states."""
        apart = min(self.bins, self.steps)
        return sensitivity_of(strategy, MinSep(kind="min_sep", min_sep=apart, max_participations=self.epochs))

    def bounds(self, multiplier: float, epsilon: float) -> tuple[Bound, Bound]:
        """Return the smaller bound of each direction, with the draws secret or known."""
        mu = self.sensitivity / multiplier * (1 + MARGIN)  # a mixture is at most as far from Q as its farthest part
        known = gaussian_delta(epsilon, max(mu, 1 / MAX_NOISE_MULTIPLIER)) if mu < MAX_NOISE_MULTIPLIER else 1.0
        plain = Bound("gaussian", math.log(known))
        pq, qp = self.removal(multiplier, epsilon), self.addition(multiplier, epsilon)
        return min(pq, plain, key=lambda bound: bound.log_delta), min(qp, plain, key=lambda bound: bound.log_delta)

    def total_variation(self, multiplier: float) -> float:
        """Return an upper bound on delta at epsilon 0, the most that an attack gains; both directions have the same."""
        return min(math.exp(min(bound.log_delta for bound in self.bounds(multiplier, 0.0))) * (1 + MARGIN), 1.0)

    def log_delta(self, multiplier: float, epsilon: float) -> float:
        """Return the larger bound of both directions, at most 0."""
        return min(max(bound.log_delta for bound in self.bounds(multiplier, epsilon)), 0.0)


def multiplier_about(epsilon: float, delta: float, copies: int, chance: float) -> float:
    """Return an approximate s for steps, or blocks, whose losses were those of one Gaussian mechanism.

    Args:
        epsilon: the epsilon of (epsilon, delta)-DP.
        delta: the delta of (epsilon, delta)-DP.
        copies: the number k of independent steps or blocks.
        chance: the p for which the likelihood ratio of each has the variance p (e^(1 / s^2) - 1).
    """
    each = noise_multiplier_for_epsilon(epsilon, delta) ** -2 / copies
    return float(math.log1p(math.expm1(min(each, 500.0)) / chance) ** -0.5)


def _excess(log_delta: Callable[[float], float], delta: float) -> Callable[[float], float]:
    target = math.log(check_delta(delta))
    return lambda point: log_delta(point) - target


_MAX_STEPS = 200
"""The most steps of a search: 66 of them are bisections, which shrink the interval by a factor of 10^19."""
_MAX_SECANTS = 8
"""The most steps of a search by secants, which gives up where they do not converge at once."""
_MIN_SLOPE_STEP = 8.0
"""The shortest step, in tolerances, whose difference gives a new slope: functions need not be smooth below it."""


def descend(excess: Callable[[float], float], low: float, high: float, *, tolerance: float = 1e-7) -> float:
    """Return a point within a tolerance of where a falling function crosses 0, on the side where it is at most 0.

    It takes false positions with halved ends (Illinois), and a bisection every third step, so that both ends move.
    """
    at_low, at_high = excess(low), excess(high)
    for step in range(_MAX_STEPS):
        if high - low <= tolerance:
            break
        share = at_low / (at_low - at_high) if at_high < 0 < at_low and step % 3 < 2 else 0.5
        edge = tolerance / 4 / (high - low)
        point = low + (high - low) * min(max(share, edge), 1 - edge)
        value = excess(point)
        if value > 0:
            low, at_low, at_high = point, value, at_high / 2
        else:
            high, at_high, at_low = point, value, at_low / 2
    return high


def descend_near(
    excess: Callable[[float], float], near: float, slope: float, *, tolerance: float, reach: float
) -> tuple[float, float] | None:
    """Return a point within a tolerance above where a falling function crosses 0, and the slope there, by secants.

    The function was seen to be at most 0 at the point. Where secants do not lead there, the answer is None.

    Args:
        excess: the function.
        near: a guess.
        slope: the approximate slope of the function there, which is negative.
        tolerance: tolerance of the point; the function need not be smooth on that scale.
        reach: the largest distance from the guess at which the search looks.
    """
    point, value, low = near, excess(near), -math.inf
    for _ in range(_MAX_SECANTS):
        if value > 0:
            low = max(low, point)
        elif slope * tolerance <= value or 0 <= point - low <= tolerance:
            return point, slope
        step = tolerance / 2 - value / slope
        if abs(point + step - near) > reach:
            return None
        there = excess(point + step)
        if abs(step) > _MIN_SLOPE_STEP * tolerance:
            slope = (there - value) / step
        if not slope < 0:
            return None
        point, value = point + step, there
    return None
