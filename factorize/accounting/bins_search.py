"""The search for a claim: estimate sigma, add a margin, plan the bets, and let the finished claim be tested.

Nothing here is trusted. A plan that was too bold costs samples: its claim fails, and the next one has a larger margin
and says that it is the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np

from factorize.accounting.bins_claim import MOST_ATTEMPTS, MOST_SAMPLES, BinsClaim, Direction, Evidence, double_below
from factorize.accounting.claim_test import LOG_THRESHOLD, ClaimTest, examine
from factorize.accounting.gram_matrix import BinGram
from factorize.accounting.shared.shared_call import THINNED_CHUNK
from factorize.accounting.star_bound import StarEvaluator, bins_sigma, log_gaussian, log_reverse
from factorize.accounting.star_estimate import Sampled, StarEstimate, candidate_work, usual_samples
from factorize.accounting.star_sampler import CHUNK
from factorize.errors import CertificateError
from factorize.numbers.gaussian import gaussian_epsilon
from factorize.numbers.scalars import double_above

MARGIN, _STEP, _GROWTH = 0.005, 0.0025, 1.15
"""Relative, of sigma: what a claim adds to the estimate, and what each further attempt adds at least. With less the
estimate's own error decides, and a verifier with a seed of its own may refuse a claim that passed by luck."""

_MOST_MARGIN = 0.1
WORK = 1 << 27
"""Samples times bins of one direction of a claim, at most."""

_QUICK, _QUICK_MARGIN = 1 << 26, 0.01  # work that is preferred: a margin up to 1 % is taken before more
_USUAL_MARGIN = 0.05  # and up to 5 %, where no more work than usual is allowed
_FIRST_LEAP = 3  # margins at once, doubled, while none is affordable
_MORE = 2.0  # samples of a claim over the number expected: a verifier with a seed of its own needs them too
_CAREFUL = 4  # times the samples of an estimate, where more work than usual is allowed
_ROUGH = 0.1  # relative error of an estimated delta, above which sigma is estimated by more samples
_COARSE = 2e-3  # relative, of sigma: the first look, which decides how many samples the second one takes
_CAP = 0.9  # of the largest lambda
_LEAST_CEILING = 1.01  # of delta, for the stake alone: a ceiling at or below delta would allow any stake
_ROUNDING = 2.0**-44  # between the multiplier of a bound and that of its rounded sigma


@dataclass(frozen=True, kw_only=True)
class BinsQuestion:
    """What is to be claimed of one mechanism.

    Attributes:
        factors: digest of the factorization.
        gram: of its bins.
        epsilon: of (epsilon, delta)-DP.
        delta: of (epsilon, delta)-DP.
        clip_norm: bound on one contribution.
        divisor: public, of means; 1 for sums.
    """

    factors: str
    gram: BinGram
    epsilon: float
    delta: float
    clip_norm: float = 1.0
    divisor: int = 1

    def sigma(self, multiplier: float) -> float:
        """Return sigma of a multiplier s, rounded up."""
        return double_above(Fraction(multiplier) * Fraction(self.clip_norm) / self.divisor, "sigma")

    def multiplier(self, sigma: float) -> float:
        """Return s of a sigma, rounded down."""
        return double_below(Fraction(sigma) * self.divisor / Fraction(self.clip_norm))

    def claim(self, sigma: float, *, pq: Evidence, qp: Evidence, attempt: int = 1) -> BinsClaim:
        """Return the claim at a sigma."""
        exact = Fraction(sigma) * self.divisor / Fraction(self.clip_norm) / Fraction(self.gram.sensitivity)
        return BinsClaim(
            factors=self.factors,
            gram=self.gram.digest,
            steps=self.gram.steps,
            bins=self.gram.bins,
            epsilon=self.epsilon,
            delta=self.delta,
            sigma=sigma,
            clip_norm=self.clip_norm,
            divisor=self.divisor,
            pq=pq,
            qp=qp,
            attempt=attempt,
            unamplified_epsilon=gaussian_epsilon(self.delta, double_above(1 / exact, "mu")),
        )


@dataclass(frozen=True, kw_only=True)
class FoundClaim:
    """A claim that has passed.

    Attributes:
        claim: the claim.
        tests: how its two directions went.
        deterministic_multiplier: s of the bounds that need no sampling.
        samples: drawn in all attempts, estimates left out.
    """

    claim: BinsClaim
    tests: dict[Direction, ClaimTest]
    deterministic_multiplier: float
    samples: int

    @property
    def sampled(self) -> bool:
        """Whether a direction rests on a bet."""
        return self.claim.pq.sampled or self.claim.qp.sampled


def find_claim(question: BinsQuestion, *, work: int = WORK, seed: int = 0) -> FoundClaim:
    """Return a claim about sigma that has passed its test, at a sigma as small as the work allows.

    Args:
        question: what is to be claimed.
        work: samples times bins of one direction, at most; 0 leaves only bounds without sampling.
        seed: of the estimates, which decide what is claimed and nothing else.

    Returns:
        After 16 claims that failed, or where no sampling is worth it, one by bounds alone.
    """
    ceiling = bins_sigma(question.gram, epsilon=question.epsilon, delta=question.delta) * (1 + _ROUNDING)
    sigma = question.sigma(ceiling)
    search = Search(question.gram, work=work, seed=seed)

    def propose(margin: float) -> Proposal | None:
        larger = search.point(question.epsilon, question.delta) * (1 + margin)
        return Proposal(question, question.sigma(larger), margin) if larger < ceiling else None

    return search.first(propose, Proposal(question, sigma, 0.0), ceiling)


def claimable(gram: BinGram, *, epsilon: float, delta: float, seed: int = 0) -> tuple[float, bool]:
    """Return the multiplier that a claim would have, nothing being claimed, and whether estimates see it poorly.

    Where the proved ceiling of the weights is high, it is some percent above the estimate: of two strategies the one
    with the smaller estimate may need the larger noise.
    """
    question = BinsQuestion(factors="", gram=gram, epsilon=epsilon, delta=delta)
    search = Search(gram, work=WORK, seed=seed)
    point = search.point(epsilon, delta)
    margin = search.least_margin(lambda margin: Proposal(question, question.sigma(point * (1 + margin)), margin))
    bounded = bins_sigma(gram, epsilon=epsilon, delta=delta)
    poorly = search.estimate.forward(point, epsilon).relative_error > _ROUGH
    return (bounded if margin is None else min(bounded, point * (1 + margin))), poorly


class Proposal(NamedTuple):
    """What might be claimed.

    Attributes:
        question: with epsilon and delta.
        sigma: at which they are claimed.
        margin: relative, of sigma, over the estimate.
    """

    question: BinsQuestion
    sigma: float
    margin: float


class Search:
    """Claims of growing margins, tested until one passes; the first is the smallest margin that the work allows.

    Args:
        gram: of the bins.
        work: samples times bins of one direction, at most.
        seed: of the estimates.
    """

    def __init__(self, gram: BinGram, *, work: int, seed: int) -> None:
        self._gram, self._work, self._seed = gram, work, seed
        self._order = 0  # m of the last plan, where others are not to be tried
        self._points: dict[tuple[float, float], float] = {}

    @cached_property
    def estimate(self) -> StarEstimate:
        """Made where something is to be sampled."""
        more = _CAREFUL if self._work > WORK else 1
        return StarEstimate(self._gram, seed=self._seed, samples=more * usual_samples(self._gram.bins))

    def point(self, epsilon: float, delta: float) -> float:
        """Return the estimated multiplier; where the samples see little, once more with more of them."""
        if (epsilon, delta) not in self._points:
            self._points[epsilon, delta] = self._point(epsilon, delta)
        return self._points[epsilon, delta]

    def _point(self, epsilon: float, delta: float) -> float:
        found = self.estimate.sigma(epsilon, delta, tolerance=_COARSE)
        if self._work > WORK or self.estimate.forward(found, epsilon).relative_error <= _ROUGH:
            return self.estimate.sigma(epsilon, delta, near=found)
        more = 2 * self.estimate.samples
        self.estimate = StarEstimate(self._gram, seed=self._seed + 1, samples=more)
        return self.estimate.sigma(epsilon, delta, near=found)

    def first(self, propose: Callable[[float], Proposal | None], bounded: Proposal, deterministic: float) -> FoundClaim:
        """Return the first proposal that passes; the bounded one, which needs no samples, if none does.

        Args:
            propose: from a margin to what may be claimed with it; None where bounds say as much.
            bounded: needs no samples.
            deterministic: multiplier of bounds.

        Raises:
            CertificateError: the bounded one fails.
        """
        attempt, drawn = 1, 0
        for proposal, planned in self._affordable_ones(propose) if self._work and self._gram.bins > 1 else ():
            claim = proposal.question.claim(proposal.sigma, pq=planned[0], qp=planned[1], attempt=attempt)
            tests = examine(claim, self._gram)
            drawn += sum(test.samples for test in tests.values())
            if all(test.accepted for test in tests.values()):
                return FoundClaim(claim=claim, tests=tests, deterministic_multiplier=deterministic, samples=drawn)
            attempt += 1
            if attempt > MOST_ATTEMPTS:
                break
        claim = self._by_bounds(bounded)
        tests = examine(claim, self._gram)
        if not all(test.accepted for test in tests.values()):
            raise CertificateError(
                "the bound without sampling fails its own test; report this with the factors' digest"
            )
        return FoundClaim(claim=claim, tests=tests, deterministic_multiplier=deterministic, samples=drawn)

    def least_margin(self, propose: Callable[[float], Proposal | None]) -> float | None:
        """Return the smallest margin whose claim the work allows; see `first`."""
        return next((proposal.margin for proposal, _ in self._affordable_ones(propose)), None)

    def _affordable_ones(
        self, propose: Callable[[float], Proposal | None]
    ) -> Iterator[tuple[Proposal, tuple[Evidence, Evidence]]]:
        """Yield proposals with their plans: by leaps to a margin that is affordable, halves back, then one by one."""
        ladder = tuple(margins())
        known: dict[int, tuple[Proposal, tuple[Evidence, Evidence]] | None] = {}
        end = len(ladder)  # from here on bounds say as much

        def at(place: int) -> tuple[Proposal, tuple[Evidence, Evidence]] | None:
            nonlocal end
            if place not in known:
                proposal = propose(ladder[place]) if place < end else None
                if proposal is None:
                    end = min(end, place)
                planned = None if proposal is None else self._planned(proposal)
                known[place] = None if proposal is None or planned is None else (proposal, planned)
            return known[place]

        low, high, leap = -1, 0, _FIRST_LEAP  # nothing up to low is affordable
        self._order = 0
        while high < end and at(high) is None:
            self._order = 0  # the best order where nothing is affordable need not be that of what is
            low, high, leap = high, min(high + leap, max(end - 1, high + 1)), 2 * leap
        high = min(high, end)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if at(middle) is not None else (middle, high)
        for place in range(high, len(ladder)):
            if place >= end:
                return
            found = at(place)
            if found is not None:
                yield found

    def _planned(self, proposal: Proposal) -> tuple[Evidence, Evidence] | None:
        question, multiplier = proposal.question, proposal.question.multiplier(proposal.sigma)
        quick = proposal.margin <= (_USUAL_MARGIN if self._work == WORK else _QUICK_MARGIN)
        work = min(self._work, _QUICK) if quick else self._work
        pq = plan(self.estimate, "pq", multiplier, question, self._order)
        self._order = int(pq.evidence.tilt or 0) if pq is not None else self._order
        if pq is None or pq.work > work:
            return None
        qp = plan(self.estimate, "qp", multiplier, question)
        return None if qp is None or qp.work > work else (pq.evidence, qp.evidence)

    def _by_bounds(self, proposal: Proposal) -> BinsClaim:
        question = proposal.question
        bound = StarEvaluator(self._gram).delta(question.multiplier(proposal.sigma), question.epsilon)
        pq = Evidence(rule=bound.pq_rule, tilt=float(bound.order) if bound.pq_rule == "star_bound" else None)
        return question.claim(proposal.sigma, pq=pq, qp=Evidence(rule=bound.qp_rule))


def margins() -> Iterator[float]:
    """Yield what a claim's sigma is above the estimate's, growing."""
    margin = MARGIN
    while margin <= _MOST_MARGIN:
        yield margin
        margin = max(margin + _STEP, margin * _GROWTH)


class PlannedBet(NamedTuple):
    """Evidence with what it is expected to cost.

    Attributes:
        evidence: a rule with its numbers.
        work: samples times bins, 0 of a bound.
    """

    evidence: Evidence
    work: float


def plan(
    estimate: StarEstimate, direction: Direction, multiplier: float, question: BinsQuestion, order: int = 0
) -> PlannedBet | None:
    """Return how a direction is to be shown at this multiplier, or None where no bet would grow.

    Args:
        estimate: weights on common random numbers.
        direction: `pq` or `qp`.
        multiplier: s.
        question: what is to be claimed.
        order: m of an earlier plan; else those around the lowest ceiling are tried.
    """
    log_delta, epsilon = math.log(question.delta), question.epsilon
    slightly = 1e-9  # between bounds here and in the test, whose multiplier is rounded
    if log_gaussian(question.gram.sensitivity, multiplier, epsilon) <= log_delta - slightly:
        return PlannedBet(Evidence(rule="gaussian"), 0.0)
    if direction == "qp":
        if log_reverse(question.gram, multiplier, epsilon) <= log_delta - slightly:
            return PlannedBet(Evidence(rule="closed_form"), 0.0)
        candidates = [estimate.reverse(multiplier, epsilon)]
    else:
        lowest, star = estimate.star.best_order(multiplier, epsilon)
        if star <= log_delta - slightly:
            return PlannedBet(Evidence(rule="star_bound", tilt=float(lowest)), 0.0)
        candidates = [estimate.forward(multiplier, epsilon, m) for m in estimate.orders(multiplier, epsilon, order)]
    bins = question.gram.bins
    bets = [bet for sampled in candidates for bet in plan_bets(sampled, question.delta, bins)]
    return min(bets, key=lambda bet: bet.work, default=None)


def plan_bets(sampled: Sampled, delta: float, bins: int) -> Iterator[PlannedBet]:
    """Yield bets that would grow on these weights: on the weights themselves, and thinned where they have chances.

    Args:
        sampled: weights of an estimate.
        delta: to be claimed.
        bins: b.
    """
    shared = sampled.shared or None
    whole = _stake(sampled, np.ones_like(sampled.weights), delta, CHUNK)
    if whole is not None:
        rule = "bet" if shared is None else "shared_bet"
        evidence = Evidence(rule=rule, tilt=sampled.tilt, stake=whole[0], samples=whole[1], shared=shared)
        yield PlannedBet(evidence, whole[1] / _MORE * bins)
    if sampled.chances is None:
        return
    thinned = _stake(sampled, sampled.chances, delta, THINNED_CHUNK)
    if thinned is not None:
        evidence = Evidence(rule="thinned_bet", tilt=sampled.tilt, stake=thinned[0], samples=thinned[1], shared=shared)
        each = candidate_work(int(sampled.tilt), bins, float(sampled.chances.mean()))
        yield PlannedBet(evidence, thinned[1] / _MORE * each)


def _stake(sampled: Sampled, chances: np.ndarray, delta: float, chunk: int) -> tuple[float, int] | None:
    """Return the stake of the largest rate of growth, and how many samples it takes; None where it does not grow.

    Where the ceiling is at most delta every weight gains, and the stake is as if it were a hundredth above. One
    standard error of the mean is added as weights at the ceiling: this very mean chose sigma.

    Args:
        sampled: weights.
        chances: of each weight to be kept; what is kept is divided by it.
        delta: to be claimed.
        chunk: of which the samples are a multiple.
    """
    ceiling = max(sampled.ceiling * (1 + 1e-6), delta * _LEAST_CEILING)
    if not ceiling < math.inf:
        return None
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
    if rate <= 0:
        return None
    samples = math.ceil(_MORE * LOG_THRESHOLD / rate / chunk) * chunk
    return None if samples > MOST_SAMPLES else (high, samples)
