"""The search for a claim: estimate the number that is not given, add a margin, plan the bets, test the claim.

Nothing here is trusted. A plan that was too bold costs samples: its claim fails, and the next one has a larger margin
and states that it is not the first.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np

from factorize.accounting.bins_law import BinsLaw
from factorize.accounting.claim import ClaimEvidence, Direction, NoiseClaim, prefixed
from factorize.accounting.gram_matrix import BinGram
from factorize.accounting.law import MARGIN, Bound, Law
from factorize.accounting.min_sep_estimate import MinSepEstimate
from factorize.accounting.min_sep_law import MinSepLaw
from factorize.accounting.star_estimate import Sampled, StarEstimate, candidate_work, usual_samples
from factorize.checker.sampling.bets import CHUNK, MIN_WEALTH
from factorize.errors import CertificateError, InvalidParameter, TooLarge
from factorize.format.manifest import CertifiedFactors
from factorize.format.quantities import MAX_EPSILON, MIN_DELTA
from factorize.numbers.gaussian import gaussian_epsilon
from factorize.numbers.scalars import double_above, multiplier_of, within_scale
from factorize.privacy import PrivacyTarget
from factorize.privacy.question import WORK, GivenNoise, Question

MAX_ATTEMPTS = 16
"""The most attempts with bets, before a claim rests on bounds alone."""
MAX_SAMPLES = 1 << 30
"""The most samples of a bet: a bet that needs more is not planned."""
_MARGIN_STEP, _MARGIN_GROWTH = 0.0025, 1.15
"""The margin of sigma grows from one attempt to the next by this addition and by this factor, whichever is more."""
_GROWTH_SHARE = 0.8
"""If a plan takes too much work, the margin grows at least by this share of the root of the excess factor: work falls
faster than the square of the margin grows."""
_UNPLANNED_WORK = 4.0
"""If no bet would grow, the margin grows as if the plan took this many times the work."""
_MAX_MARGIN = 0.3
"""The largest relative margin of sigma that is tried with bets."""
MIN_EPSILON = 2.0**-30
"""The smallest epsilon of a claim: where delta holds already at epsilon 0, the claim states this epsilon."""
_SAMPLES_FACTOR = 2.0
"""Samples of a claim over the number that is expected to suffice: a verifier with another seed needs them, too."""
_MAX_ESTIMATE_ERROR = 0.05
"""Relative error of an estimated delta above which sigma is estimated again, with more samples."""
_POOR_ERROR = 0.1
"""Relative error of an estimate above which another strategy may be easier to claim."""
_MAX_NORMALS = 1 << 24
"""The most normals of a second estimate, with more samples."""
_LOOKS, _MIN_SAMPLES = 16, 1024
"""An estimate may take the work of the claim divided by the first number, since it is repeated about as often."""
_STAKE_SHARE = 0.9
"""The stake as a share of the largest lambda."""
_MIN_CEILING = 1.01
"""The smallest ceiling for the stake, in units of delta: a ceiling at or below delta would allow any stake."""
_BOOST = 4
"""The factor of a candidate's chance to be kept, under b-min-sep: it halves the samples, and more wastes noise."""
_DIRECTIONS: tuple[Direction, ...] = ("pq", "qp")
_MAX_ORDER = 2048
"""The largest order m of a bet: at a smaller epsilon or delta tuples are longer, and candidates take minutes."""
_BOUND_MARGINS = (MARGIN, 1e-7, 1e-5)
"""Relative margins that are added to bounds, in this order, until the checker agrees: its own rounding grows with n."""


class Level(NamedTuple):
    """The numbers of a possible claim: two of them are given, and the third is better the smaller it is."""

    multiplier: float
    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class FoundClaim:
    """A claim that the checker has accepted.

    Attributes:
        claim: the claim.
        bounded: the level that bounds give without samples.
        samples: number of samples drawn in all attempts, without those of estimates.
    """

    claim: NoiseClaim
    bounded: Level
    samples: int


class ClaimSearch:
    """Claims of growing margins, tested until one passes; the first is the smallest margin that the work allows.

    Args:
        law: the law of participation; bets are for balls in bins and for b-min-sep.
        asked: two of epsilon, delta and sigma.
        clip_norm: bound on one contribution.
        work: the most samples times bins of one direction; 0 leaves only bounds without sampling.
        seed: seed of the estimates, which decide only what is claimed.
    """

    def __init__(self, law: Law, asked: Question, *, clip_norm: float = 1.0, work: int = WORK, seed: int = 0) -> None:
        self._law, self._asked, self._clip, self._work, self._seed = law, asked, clip_norm, work, seed
        self._order = 0  # m of the last plan, or 0 to try all orders
        self._directions = _DIRECTIONS[::-1]  # the one that took too much work comes first: it may do so again

    def claim(self, factors: CertifiedFactors) -> FoundClaim:
        """Return the first claim that the checker accepts: one by bounds alone, if it accepts none with bets.

        Raises:
            InvalidParameter: there is so little noise that nothing is private.
            CertificateError: the bounds fail their own test.
        """
        drawn, reason = 0, ""
        for attempt, level, evidence in self._candidates():
            claim = self._claim(factors, level, evidence, attempt)
            try:
                report = claim.tested(factors)
            except TooLarge:
                if not any(part.samples for part in evidence):
                    raise
                continue  # a claim that no verifier would draw samples for is useless
            drawn += sum(report.calibration.get(direction, {}).get("samples", 0) for direction in ("pq", "qp"))
            if report.supported:
                return FoundClaim(claim=claim, bounded=self.bounded, samples=drawn)
            reason = report.failed[0]
        raise CertificateError(f"the checker rejects the bounds without sampling: {reason}; report this with the file")

    def _candidates(self) -> Iterator[tuple[int, Level, tuple[ClaimEvidence, ClaimEvidence]]]:
        """Yield attempts with bets, then the bounds, which no sample tests: their attempt counts as the first."""
        some, (multiplier, epsilon, _) = False, self.bounded
        if isinstance(self._law, MinSepLaw):
            self._law.enough_at(multiplier)
            some = self._law.can_be_sampled(multiplier, epsilon)
        elif isinstance(self._law, BinsLaw):
            some = self._law.bins > 1 and self._law.best_order(multiplier, epsilon)[0] <= _MAX_ORDER
        if some and self._work > 0:
            for attempt, (_, level, evidence) in zip(range(1, MAX_ATTEMPTS + 1), self.affordable_ones(), strict=False):
                yield attempt, level, evidence
        for more in _BOUND_MARGINS:
            level = self._raised(more)
            pq, qp = self._law.bounds(self._noise(level)[1], level.epsilon)
            yield 1, level, (_bounded_by(pq), _bounded_by(qp))

    @cached_property
    def estimate(self) -> StarEstimate | MinSepEstimate:
        """The estimate by samples, which is made only where something is to be sampled."""
        samples = max(_MIN_SAMPLES, self._looked // self._width)
        return self._estimate(self._seed, min(usual_samples(self._width), samples))

    @property
    def _width(self) -> int:
        """The approximate number of normals of a sample."""
        return max(self._law.steps // 2, 1) if isinstance(self._law, MinSepLaw) else self._law.bins

    @property
    def _looked(self) -> int:
        """The most normals of an estimate: it costs no more than the claim may."""
        return min(_MAX_NORMALS, self._work // _LOOKS)

    def _estimate(self, seed: int, samples: int | None = None) -> StarEstimate | MinSepEstimate:
        if isinstance(self._law, MinSepLaw):
            return MinSepEstimate(self._law, seed=seed, samples=samples, boost=_BOOST)
        assert isinstance(self._law, BinsLaw)
        return StarEstimate(BinGram(self._law.gram, self._law.steps, self._law.signed), seed=seed, samples=samples)

    @cached_property
    def point(self) -> float:
        """The estimated multiplier; where the samples see little, it is estimated again with more of them."""
        assert self._asked.epsilon is not None and self._asked.delta is not None
        level = {"epsilon": self._asked.epsilon, "delta": self._asked.delta}
        near = self.estimate.sigma(**level, tolerance=self._law.first_tolerance)
        if self.estimate.samples < usual_samples(self._width):
            return near
        samples = min(4 * self.estimate.samples, self._looked // self._width)
        error = self.estimate.forward(near, level["epsilon"]).relative_error
        if error > _MAX_ESTIMATE_ERROR and samples > self.estimate.samples:
            self.estimate = self._estimate(self._seed + 1, samples)
        # Delta is about a Gaussian tail, so its own error moves sigma by this share, below which a search finds noise.
        close = max(self.estimate.tolerance, min(error, 1.0) / (-2 * math.log(level["delta"])))
        return self.estimate.sigma(**level, near=near, tolerance=close)

    @cached_property
    def bounded(self) -> Level:
        """The level that bounds give without samples."""
        question, law = self._asked, self._law
        if isinstance(question, PrivacyTarget):
            assert question.epsilon is not None and question.delta is not None
            return Level(law.sigma(question.epsilon, question.delta), question.epsilon, question.delta)
        multiplier = multiplier_of(question.sigma, clip_norm=self._clip)
        if question.delta is not None:
            return Level(multiplier, max(law.epsilon(multiplier, question.delta), MIN_EPSILON), question.delta)
        assert question.epsilon is not None
        delta = max(law.delta(multiplier, question.epsilon), MIN_DELTA)
        if delta >= 1:
            raise InvalidParameter(
                f"sigma={question.sigma!r} is too small for any delta below 1 at epsilon={question.epsilon!r}; use a "
                "larger sigma, or a larger epsilon",
                field="sigma",
            )
        return Level(multiplier, question.epsilon, delta)

    def _raised(self, more: float) -> Level:
        """Return the level of bounds without samples, with a little more of the number that is not given."""
        multiplier, epsilon, delta = self.bounded
        if isinstance(self._asked, PrivacyTarget):
            return Level(multiplier * (1 + more), epsilon, delta)
        if self._asked.delta is not None:
            return Level(multiplier, min(epsilon * (1 + more), MAX_EPSILON), delta)
        return Level(multiplier, epsilon, min(delta * (1 + more), 1 - 2.0**-53))

    def _proposed(self, margin: float) -> Level | None:
        """Return the level to claim with a margin; None where bounds give the same."""
        question, bounded = self._asked, self.bounded
        if isinstance(question, PrivacyTarget):
            level = bounded._replace(multiplier=self.point * (1 + margin))
        elif bounded.epsilon <= MIN_EPSILON or bounded.delta <= MIN_DELTA:  # no claim has less; estimates take minutes
            return None
        elif question.delta is not None:
            epsilon = self.estimate.epsilon(bounded.multiplier / (1 + margin), bounded.delta)
            level = bounded._replace(epsilon=max(epsilon, MIN_EPSILON))
        else:
            less = bounded.multiplier / (1 + margin)
            seen = self.estimate.forward(less, bounded.epsilon), self.estimate.reverse(less, bounded.epsilon)
            level = bounded._replace(delta=max(sampled.delta for sampled in seen))
        return level if level < bounded and level.delta > 0 else None

    def affordable_ones(self) -> Iterator[tuple[float, Level, tuple[ClaimEvidence, ClaimEvidence]]]:
        """Yield the margins whose plan the work allows, with level and plan, until bounds give the same level."""
        self._order, margin = 0, self._law.margin
        while margin <= _MAX_MARGIN:
            level = self._proposed(margin)
            if level is None:
                return
            growth, planned = _MARGIN_GROWTH, self._planned(level)
            if isinstance(planned, tuple):
                yield margin, level, planned
            else:
                self._order = 0  # the best order of an unaffordable plan need not be the best of an affordable one
                if planned == math.inf:
                    return
                growth = max(growth, _GROWTH_SHARE * math.sqrt(planned / self._work))
            margin = max(margin + _MARGIN_STEP, margin * growth)

    def _planned(self, level: Level) -> tuple[ClaimEvidence, ClaimEvidence] | float:
        """Return the plan; or if it takes too much work, that work, infinity where a larger margin saves none."""
        bounds = dict(zip(_DIRECTIONS, self._law.bounds(level.multiplier, level.epsilon), strict=True))
        found: dict[Direction, ClaimEvidence] = {}
        for direction in self._directions:
            planned = plan(self.estimate, direction, level, bounds[direction], self._order)
            if planned is None or planned.work > self._work:
                self._directions = direction, *(other for other in self._directions if other != direction)
                if planned is None:
                    return _UNPLANNED_WORK * self._work
                return math.inf if (direction, planned.evidence.samples) == ("pq", CHUNK) else planned.work
            found[direction] = planned.evidence
        self._order = int(found["pq"].tilt or 0)
        return found["pq"], found["qp"]

    def _noise(self, level: Level) -> tuple[float, float]:
        """Return the sigma of a level, rounded up, and its multiplier, rounded down."""
        if isinstance(self._asked, GivenNoise):
            return self._asked.sigma, level.multiplier
        sigma = within_scale("sigma", double_above(Fraction(level.multiplier) * Fraction(self._clip), "sigma"))
        return sigma, multiplier_of(sigma, clip_norm=self._clip)

    def _claim(
        self, factors: CertifiedFactors, level: Level, evidence: tuple[ClaimEvidence, ClaimEvidence], attempt: int
    ) -> NoiseClaim:
        sigma, multiplier = self._noise(level)
        mu = self._law.sensitivity / multiplier * (1 + MARGIN)
        return NoiseClaim(
            sampling=self._law.name,
            factors=prefixed(factors.digest),
            steps=self._law.steps,
            bins=self._law.bins,
            epsilon=level.epsilon,
            delta=level.delta,
            sigma=sigma,
            clip_norm=self._clip,
            pq=evidence[0],
            qp=evidence[1],
            attempt=attempt,
            unamplified_epsilon=gaussian_epsilon(level.delta, mu),
            probability=self._law.probability if isinstance(self._law, MinSepLaw) else None,
        )


def claimable(gram: BinGram, *, epsilon: float, delta: float) -> tuple[float, bool]:
    """Return the multiplier that a claim would have, without making the claim, and whether estimates see it poorly.

    Where the proved ceiling of the weights is high, this multiplier is some percent above the estimate. So of two
    strategies the one with the smaller estimate may need the larger noise.
    """
    search = ClaimSearch(BinsLaw(gram), PrivacyTarget(epsilon=epsilon, delta=delta))
    margin = next((margin for margin, _, _ in search.affordable_ones()), None)
    bounded = search.bounded.multiplier
    poorly = search.estimate.forward(search.point, epsilon).relative_error > _POOR_ERROR
    return (bounded if margin is None else min(bounded, search.point * (1 + margin))), poorly


class PlannedBet(NamedTuple):
    """Evidence with its expected cost.

    Attributes:
        evidence: a rule with its numbers.
        work: samples times bins; 0 for a bound.
    """

    evidence: ClaimEvidence
    work: float


def plan(
    estimate: StarEstimate | MinSepEstimate, direction: Direction, level: Level, bound: Bound, order: int = 0
) -> PlannedBet | None:
    """Return the plan by which a direction is shown at a level, or None where no bet would grow.

    Args:
        estimate: weights on common random numbers.
        direction: `pq` or `qp`.
        level: the level to claim.
        bound: the bound that is known without samples.
        order: m of an earlier plan; by default the order whose bet takes the least work.
    """
    if bound.log_delta <= math.log(level.delta) - _BOUND_MARGINS[-1]:
        return PlannedBet(_bounded_by(bound), 0.0)
    if direction == "qp":
        return plan_bet(estimate.reverse(level.multiplier, level.epsilon), level.delta, estimate.width)
    m = order or estimate.cheapest_order(*level)
    sampled = estimate.forward(level.multiplier, level.epsilon, m)
    return plan_bet(sampled, level.delta, estimate.cost(sampled))


def _bounded_by(bound: Bound) -> ClaimEvidence:
    return ClaimEvidence(rule=bound.rule, tilt=bound.tilt, rate=bound.rate, reach=bound.reach)


def plan_bet(sampled: Sampled, delta: float, bins: int) -> PlannedBet | None:
    """Return the bet whose wealth grows fastest on these weights, or None where none grows.

    Where the ceiling is at most delta every weight gains, and the stake is computed for a ceiling one percent above
    delta. One standard error of the mean is added as weights at the ceiling, because this very mean chose sigma.

    Args:
        sampled: weights of an estimate; weights that are kept with a chance are divided by it.
        delta: the delta to claim.
        bins: b.
    """
    ceiling = max(sampled.ceiling * (1 + 1e-6), delta * _MIN_CEILING)
    chances = np.ones_like(sampled.weights) if sampled.chances is None else sampled.chances
    more = min(sampled.relative_error, 1.0) * sampled.delta / ceiling
    kept = np.minimum(sampled.weights / np.maximum(chances, 1e-300), ceiling)
    gains = np.append(delta - kept, [delta - ceiling, delta])
    mass = np.append(chances / len(chances), [more, 1 - chances.mean() - more])
    low, high = 0.0, _STAKE_SHARE / (ceiling - delta)
    if not mass @ gains > 0:
        return None
    if mass @ (gains / (1 + high * gains)) < 0:
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if mass @ (gains / (1 + middle * gains)) > 0 else (low, middle)
    rate = float(mass @ np.log1p(high * gains))
    samples = math.ceil(_SAMPLES_FACTOR * MIN_WEALTH / rate / CHUNK) * CHUNK if rate > 0 else math.inf
    if samples > MAX_SAMPLES:
        return None
    evidence = ClaimEvidence(
        rule=sampled.rule,
        tilt=float(sampled.tilt),
        stake=high,
        samples=int(samples),
        shared=None if sampled.shared is None else float(sampled.shared),
        rate=sampled.rate,
        reach=sampled.reach,
        boost=sampled.boost,
    )
    order = 0 if sampled.chances is None else int(sampled.tilt)
    return PlannedBet(evidence, samples / _SAMPLES_FACTOR * candidate_work(order, bins, float(chances.mean())))
