"""The search for a claim: estimate what is not given, add a margin, plan the bets, and have the checker test the claim.

Nothing here is trusted. A plan that was too bold costs samples: its claim fails, and the next one has a larger margin
and says that it is the next one.
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
from factorize.accounting.min_sep_law import MinSepEstimate, MinSepLaw
from factorize.accounting.star_estimate import Sampled, StarEstimate, candidate_work, usual_samples
from factorize.checker.sampling.bets import CHUNK, MIN_WEALTH
from factorize.errors import CertificateError, InvalidParameter, TooLarge
from factorize.format.manifest import CertifiedFactors
from factorize.format.quantities import LARGEST_EPSILON
from factorize.numbers.gaussian import gaussian_epsilon
from factorize.numbers.scalars import double_above, multiplier_of
from factorize.privacy import PrivacyTarget
from factorize.privacy.question import WORK, GivenNoise, Question

MOST_ATTEMPTS = 16
MOST_SAMPLES = 1 << 30
_STEP, _GROWTH = 0.0025, 1.15  # relative, of sigma: what each further attempt adds at least
_LEAP = 0.8  # of the root of how much too much work a plan takes: work falls faster than the margin's square grows

_MOST_MARGIN = 0.3
LEAST_EPSILON = 2.0**-30
"""Of a claim: where delta holds at epsilon 0 already, this is claimed."""
_MORE = 2.0  # samples of a claim over the number expected: a verifier with a seed of its own needs them too
_ROUGH = 0.05  # relative error of an estimated delta, above which sigma is estimated by more samples
_POOR = 0.1  # relative error, above which another strategy may be easier to claim
_NUMBERS = 1 << 24  # of normals then, at most
_LOOKS, _FEWEST = 16, 1024  # times that they are looked at, and samples of an estimate, at least
_COARSE = 2e-3  # relative, of sigma: the first look, which decides how many samples the second one takes
_CAP = 0.9  # of the largest lambda
_LEAST_CEILING = 1.01  # of delta, for the stake alone: a ceiling at or below delta would allow any stake
_MOST_ORDER = 2048  # of a tuple: at a smaller epsilon or delta it is longer, and candidates take minutes
_RAISES = (MARGIN, 1e-7, 1e-5)
"""Relative: what is added to bounds until the checker, whose own rounding grows with n, agrees."""


class Level(NamedTuple):
    """What may be claimed: two of the numbers are given, and the smaller the third, the better."""

    multiplier: float
    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class FoundClaim:
    """A claim that the checker has accepted.

    Attributes:
        claim: the claim.
        bounded: what bounds without samples give.
        samples: drawn in all attempts, estimates left out.
    """

    claim: NoiseClaim
    bounded: Level
    samples: int


class ClaimSearch:
    """Claims of growing margins, tested until one passes; the first is the smallest margin that the work allows.

    Args:
        law: of participation; bets are for balls in bins and for b-min-sep.
        asked: two of epsilon, delta and sigma.
        clip_norm: bound on one contribution.
        work: samples times bins of one direction, at most; 0 leaves only bounds without sampling.
        seed: of the estimates, which decide what is claimed and nothing else.
    """

    def __init__(self, law: Law, asked: Question, *, clip_norm: float = 1.0, work: int = WORK, seed: int = 0) -> None:
        self._law, self._asked, self._clip, self._work, self._seed = law, asked, clip_norm, work, seed
        self._order = 0  # m of the last plan, where others are not to be tried

    def claim(self, factors: CertifiedFactors) -> FoundClaim:
        """Return the first claim that the checker accepts; by bounds alone, if none with bets is.

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
                continue  # what no verifier would draw is no claim
            drawn += sum(report.calibration.get(direction, {}).get("samples", 0) for direction in ("pq", "qp"))
            if report.supported:
                return FoundClaim(claim=claim, bounded=self.bounded, samples=drawn)
            reason = report.failed[0]
        raise CertificateError(f"the checker refuses the bounds without sampling: {reason}; report this with the file")

    def _candidates(self) -> Iterator[tuple[int, Level, tuple[ClaimEvidence, ClaimEvidence]]]:
        """Yield attempts with bets, then what bounds say, which no sample tests: their attempt is the first."""
        some, (multiplier, epsilon, _) = False, self.bounded
        if isinstance(self._law, MinSepLaw):
            self._law.enough_at(multiplier)
            some = self._law.can_be_sampled(multiplier, epsilon)
        elif isinstance(self._law, BinsLaw):
            some = self._law.bins > 1 and self._law.best_order(multiplier, epsilon)[0] <= _MOST_ORDER
        if some and self._work > 0:
            for attempt, (_, level, evidence) in zip(range(1, MOST_ATTEMPTS + 1), self.affordable_ones(), strict=False):
                yield attempt, level, evidence
        for more in _RAISES:
            level = self._raised(more)
            pq, qp = self._law.bounds(self._noise(level)[1], level.epsilon)
            yield 1, level, (_bounded_by(pq), _bounded_by(qp))

    @cached_property
    def estimate(self) -> StarEstimate | MinSepEstimate:
        """Made where something is to be sampled."""
        samples = max(_FEWEST, self._looked // self._width)
        return self._estimate(self._seed, min(usual_samples(self._width), samples))

    @property
    def _width(self) -> int:
        """Normals of a sample, about."""
        return max(self._law.steps // 2, 1) if isinstance(self._law, MinSepLaw) else self._law.bins

    @property
    def _looked(self) -> int:
        """Normals of an estimate, at most: it costs no more than the claim may."""
        return min(_NUMBERS, self._work // _LOOKS)

    def _estimate(self, seed: int, samples: int | None = None) -> StarEstimate | MinSepEstimate:
        if isinstance(self._law, MinSepLaw):
            return MinSepEstimate(self._law, seed=seed, samples=samples)
        assert isinstance(self._law, BinsLaw)
        return StarEstimate(BinGram(self._law.gram, self._law.steps, self._law.signed), seed=seed, samples=samples)

    @cached_property
    def point(self) -> float:
        """The estimated multiplier; where the samples see little, once more with more of them."""
        assert self._asked.epsilon is not None and self._asked.delta is not None
        level = {"epsilon": self._asked.epsilon, "delta": self._asked.delta}
        near = self.estimate.sigma(**level, tolerance=_COARSE)
        if self.estimate.samples < usual_samples(self._width):
            return near
        samples = min(4 * self.estimate.samples, self._looked // self._width)
        if self.estimate.forward(near, level["epsilon"]).relative_error > _ROUGH and samples > self.estimate.samples:
            self.estimate = self._estimate(self._seed + 1, samples)
        return self.estimate.sigma(**level, near=near)

    @cached_property
    def bounded(self) -> Level:
        """What bounds without samples give."""
        question, law = self._asked, self._law
        if isinstance(question, PrivacyTarget):
            assert question.epsilon is not None and question.delta is not None
            return Level(law.sigma(question.epsilon, question.delta), question.epsilon, question.delta)
        multiplier = multiplier_of(question.sigma, clip_norm=self._clip)
        if question.delta is not None:
            return Level(multiplier, max(law.epsilon(multiplier, question.delta), LEAST_EPSILON), question.delta)
        assert question.epsilon is not None
        delta = law.delta(multiplier, question.epsilon)
        if delta >= 1:
            raise InvalidParameter(
                f"sigma={question.sigma!r} is too small for any delta below 1 at epsilon={question.epsilon!r}; use "
                "more noise, or ask at a larger epsilon",
                field="sigma",
            )
        return Level(multiplier, question.epsilon, delta)

    def _raised(self, more: float) -> Level:
        """Return what bounds without samples give, and a little more of the number that is not given."""
        multiplier, epsilon, delta = self.bounded
        if isinstance(self._asked, PrivacyTarget):
            return Level(multiplier * (1 + more), epsilon, delta)
        if self._asked.delta is not None:
            return Level(multiplier, min(epsilon * (1 + more), LARGEST_EPSILON), delta)
        return Level(multiplier, epsilon, min(delta * (1 + more), 1 - 2.0**-53))

    def _proposed(self, margin: float) -> Level | None:
        """Return what may be claimed with a margin; None where bounds say as much."""
        question, bounded = self._asked, self.bounded
        if isinstance(question, PrivacyTarget):
            level = bounded._replace(multiplier=self.point * (1 + margin))
        elif bounded.epsilon <= LEAST_EPSILON:  # none is smaller, and an estimate at so much noise takes minutes
            return None
        elif question.delta is not None:
            epsilon = self.estimate.epsilon(bounded.multiplier / (1 + margin), bounded.delta)
            level = bounded._replace(epsilon=max(epsilon, LEAST_EPSILON))
        else:
            less = bounded.multiplier / (1 + margin)
            seen = self.estimate.forward(less, bounded.epsilon), self.estimate.reverse(less, bounded.epsilon)
            level = bounded._replace(delta=max(sampled.delta for sampled in seen))
        return level if level < bounded and level.delta > 0 else None

    def affordable_ones(self) -> Iterator[tuple[float, Level, tuple[ClaimEvidence, ClaimEvidence]]]:
        """Yield the margins whose plan the work allows, until bounds say as much, with level and plan."""
        self._order, margin = 0, self._law.margin
        while margin <= _MOST_MARGIN:
            level = self._proposed(margin)
            if level is None:
                return
            growth, planned = _GROWTH, self._planned(level)
            if isinstance(planned, tuple):
                yield margin, level, planned
            else:
                self._order = 0  # the best order where nothing is affordable need not be that of what is
                if planned == math.inf:
                    return
                growth = max(growth, _LEAP * math.sqrt(planned / self._work))
            margin = max(margin + _STEP, margin * growth)

    def _planned(self, level: Level) -> tuple[ClaimEvidence, ClaimEvidence] | float:
        """Return the plan, or where it takes too much work, how much: infinity where a larger margin saves none."""
        pq_bound, qp_bound = self._law.bounds(level.multiplier, level.epsilon)
        qp = plan(self.estimate, "qp", level, qp_bound)
        if qp is None or qp.work > self._work:
            return self._work if qp is None else qp.work
        pq = plan(self.estimate, "pq", level, pq_bound, self._order)
        if pq is None:
            return self._work
        self._order = int(pq.evidence.tilt or 0)
        if pq.work > self._work:
            return math.inf if pq.evidence.samples == CHUNK else pq.work
        return pq.evidence, qp.evidence

    def _noise(self, level: Level) -> tuple[float, float]:
        """Return the sigma of a level, rounded up, and its multiplier, rounded down."""
        if isinstance(self._asked, GivenNoise):
            return self._asked.sigma, level.multiplier
        sigma = double_above(Fraction(level.multiplier) * Fraction(self._clip), "sigma")
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
    """Return the multiplier that a claim would have, nothing being claimed, and whether estimates see it poorly.

    Where the proved ceiling of the weights is high, it is some percent above the estimate: of two strategies the one
    with the smaller estimate may need the larger noise.
    """
    search = ClaimSearch(BinsLaw(gram), PrivacyTarget(epsilon=epsilon, delta=delta))
    margin = next((margin for margin, _, _ in search.affordable_ones()), None)
    bounded = search.bounded.multiplier
    poorly = search.estimate.forward(search.point, epsilon).relative_error > _POOR
    return (bounded if margin is None else min(bounded, search.point * (1 + margin))), poorly


class PlannedBet(NamedTuple):
    """Evidence with what it is expected to cost.

    Attributes:
        evidence: a rule with its numbers.
        work: samples times bins, 0 of a bound.
    """

    evidence: ClaimEvidence
    work: float


def plan(
    estimate: StarEstimate | MinSepEstimate, direction: Direction, level: Level, bound: Bound, order: int = 0
) -> PlannedBet | None:
    """Return how a direction is to be shown at a level, or None where no bet would grow.

    Args:
        estimate: weights on common random numbers.
        direction: `pq` or `qp`.
        level: what is to be claimed.
        bound: what is known without samples.
        order: m of an earlier plan; else the one whose bet takes least work.
    """
    if bound.log_delta <= math.log(level.delta) - _RAISES[-1]:
        return PlannedBet(_bounded_by(bound), 0.0)
    if direction == "qp":
        return plan_bet(estimate.reverse(level.multiplier, level.epsilon), level.delta, estimate.width)
    m = order or estimate.cheapest_order(*level)
    return plan_bet(estimate.forward(level.multiplier, level.epsilon, m), level.delta, estimate.cost(m))


def _bounded_by(bound: Bound) -> ClaimEvidence:
    return ClaimEvidence(rule=bound.rule, tilt=bound.tilt, rate=bound.rate)


def plan_bet(sampled: Sampled, delta: float, bins: int) -> PlannedBet | None:
    """Return the bet of the largest rate of growth on these weights, or None where none grows.

    Where the ceiling is at most delta every weight gains, and the stake is as if it were a hundredth above. One
    standard error of the mean is added as weights at the ceiling: this very mean chose sigma.

    Args:
        sampled: weights of an estimate; with chances, what is kept by them is divided by it.
        delta: to be claimed.
        bins: b.
    """
    ceiling = max(sampled.ceiling * (1 + 1e-6), delta * _LEAST_CEILING)
    chances = np.ones_like(sampled.weights) if sampled.chances is None else sampled.chances
    more = min(sampled.relative_error, 1.0) * sampled.delta / ceiling
    kept = np.minimum(sampled.weights / np.maximum(chances, 1e-300), ceiling)
    gains = np.append(delta - kept, [delta - ceiling, delta])
    mass = np.append(chances / len(chances), [more, 1 - chances.mean() - more])
    low, high = 0.0, _CAP / (ceiling - delta)
    if not mass @ gains > 0:
        return None
    if mass @ (gains / (1 + high * gains)) < 0:
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if mass @ (gains / (1 + middle * gains)) > 0 else (low, middle)
    rate = float(mass @ np.log1p(high * gains))
    samples = math.ceil(_MORE * MIN_WEALTH / rate / CHUNK) * CHUNK if rate > 0 else math.inf
    if samples > MOST_SAMPLES:
        return None
    evidence = ClaimEvidence(
        rule="bet",
        tilt=float(sampled.tilt),
        stake=high,
        samples=int(samples),
        shared=None if sampled.shared is None else float(sampled.shared),
        rate=sampled.rate,
    )
    order = 0 if sampled.chances is None else int(sampled.tilt)
    return PlannedBet(evidence, samples / _MORE * candidate_work(order, bins, float(chances.mean())))
