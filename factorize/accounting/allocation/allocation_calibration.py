"""The calibration that counts on random allocation, by bounds alone: sigma, epsilon or delta, and a claim of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from factorize.accounting.allocation.allocation_claim import AllocationClaim, examine_allocation
from factorize.accounting.allocation.allocation_law import AllocationLaw
from factorize.accounting.bins_calibration import (
    BinsCalibration,
    Method,
    OpenedFactors,
    asked_of,
    bins_of,
    calibrate_bins,
    epsilon_bins,
    prefixed,
    stated_numbers,
)
from factorize.accounting.gram_matrix import LARGEST_BINS
from factorize.accounting.levels.bins_level import LEAST_EPSILON
from factorize.accounting.levels.given_noise import GivenNoise, Question, multiplier_of
from factorize.errors import CertificateError, InvalidParameter
from factorize.format.claims import CertifiedFactors, certified
from factorize.numbers.gaussian import gaussian_epsilon, mu_of
from factorize.numbers.scalars import double_above, finite_real
from factorize.privacy import Adjacency, CertifiedSensitivity

_ROUNDING = 2.0**-44


@dataclass(frozen=True, kw_only=True)
class AllocationCalibration(BinsCalibration):
    """A calibration whose epsilon counts on one step of each example in every epoch, drawn anew, known by bounds.

    Attributes:
        sampling: the law of participation.
    """

    sampling: str = field(default="random_allocation", init=False)

    def _wanted(self, mine: CertifiedSensitivity, strategy: Callable[[], Any]) -> CertifiedSensitivity:
        """Return the sensitivity of all choices that the law allows on this C."""
        return AllocationLaw.of(strategy(), self.bins).stated()


def calibrate_allocation(
    factorization: CertifiedFactors,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    sigma: float | None = None,
    bins: int | None = None,
    divisor: int | None = None,
    clip_norm: float = 1.0,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    method: Method = "verified",
) -> BinsCalibration:
    """Return the noise where each example draws one step of every epoch anew, for C = I, or what a noise is worth.

    Two of epsilon, delta and sigma are given, and the third is found. With one epoch the batches are those of balls in
    bins, and the better of both answers is returned.

    Args:
        factorization: a `factorize.Factorization`, or factors that have a file.
        epsilon: of (epsilon, delta)-DP; None where it is asked for.
        delta: of (epsilon, delta)-DP; None where it is asked for.
        sigma: standard deviation per entry of Z, for sums; None where it is asked for.
        bins: b; by default the steps of an epoch of the spec's participation.
        divisor: the fixed public divisor where steps are means, never the size of a random batch; None for sums.
        clip_norm: bound on one contribution.
        adjacency: `zero_out` only.
        method: see `calibrate_bins`; only one epoch has claims with samples.

    Raises:
        UnsupportedAdjacency: replace_one or add/remove.
        InvalidParameter: a value outside its range, bins that are not known or do not divide n, or a C without end.
        ConditionNotMet: a C with more than one band.

    Reference:
        docs/notes/amplification-proofs.md, theorem 9.
    """
    asked, clip = asked_of(epsilon, delta, sigma, clip_norm, adjacency)
    started = time.perf_counter()
    held: OpenedFactors = certified(factorization).opened()
    law = AllocationLaw.of(held.strategy, bins_of(held) if bins is None else bins)
    claim = _claim(asked, law, prefixed(held.digest), clip)
    by_moments = AllocationCalibration(
        **stated_numbers(claim, law, divisor),
        sensitivity=law.stated(),
        method="deterministic",
        samples=0,
        seconds=time.perf_counter() - started,
        deterministic_sigma=claim.sigma,
        absolute_cost=None,
    )
    if not _is_balls_in_bins(law):
        return by_moments
    question: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "sigma": sigma, "bins": law.bins}
    kept = calibrate_bins(held, **question, divisor=divisor, clip_norm=clip_norm, method=method)
    return min(by_moments, kept, key=lambda one: (one.sigma_of_sums, one.claim.epsilon, one.claim.delta))


def allocation_deltas(
    factorization: CertifiedFactors,
    *,
    sigma: float,
    epsilons: Sequence[float],
    bins: int | None = None,
    clip_norm: float = 1.0,
) -> list[float]:
    """Return deltas for a noise that is given, one for each epsilon; all hold at once."""
    held: OpenedFactors = certified(factorization).opened()
    noise = finite_real("sigma", sigma, remedy="give the standard deviation of Z")
    clip = finite_real("clip_norm", clip_norm, remedy="give the norm of clipping")
    multiplier = multiplier_of(noise, clip_norm=clip)
    law = AllocationLaw.of(held.strategy, bins_of(held) if bins is None else bins)
    levels = [finite_real("epsilon", one, strict=False, remedy="give finite epsilons") for one in epsilons]
    deltas = [law.delta(multiplier, level).delta for level in levels]
    if not _is_balls_in_bins(law):
        return deltas
    kept = epsilon_bins(held, sigma=noise, epsilons=levels, bins=law.bins, clip_norm=clip)
    return [min(delta, other) for delta, (_, other) in zip(deltas, kept, strict=True)]


def _is_balls_in_bins(law: AllocationLaw) -> bool:
    """Whether the batches are those of balls in bins, which has more bounds, and claims."""
    return law.epochs == 1 and 2 <= law.bins <= LARGEST_BINS


def _claim(asked: Question, law: AllocationLaw, factors: str, clip: float) -> AllocationClaim:
    """Return the claim of what is asked, after its test.

    Raises:
        InvalidParameter: there is so little noise that nothing is private.
        CertificateError: it fails.
    """
    if isinstance(asked, GivenNoise):
        noise, multiplier = asked.sigma, multiplier_of(asked.sigma, clip_norm=clip)
        epsilon, delta = asked.level(
            lambda d: max(law.epsilon(multiplier, d), LEAST_EPSILON), lambda e: law.delta(multiplier, e).delta
        )
    else:
        assert asked.epsilon is not None and asked.delta is not None
        epsilon, delta = asked.epsilon, asked.delta
        exact = Fraction(law.sigma(epsilon, delta) * (1 + _ROUNDING))
        noise = double_above(exact * Fraction(clip), "sigma")
        multiplier = multiplier_of(noise, clip_norm=clip)
    if delta >= 1:
        raise InvalidParameter(
            f"sigma={noise!r} is too small for any delta below 1 at epsilon={epsilon!r}; use more noise, or ask at a "
            "larger epsilon",
            field="sigma",
        )
    (pq, _), (qp, _) = law.evidence(multiplier, epsilon)
    unamplified = multiplier_of(noise, clip_norm=clip, sensitivity=law.sensitivity)
    claim = AllocationClaim(
        factors=factors,
        gram=law.digest,
        steps=law.n,
        bins=law.bins,
        epsilon=epsilon,
        delta=delta,
        sigma=noise,
        clip_norm=clip,
        divisor=1,
        pq=pq,
        qp=qp,
        attempt=1,
        unamplified_epsilon=gaussian_epsilon(delta, mu_of(unamplified)),
    )
    if not all(test.accepted for test in examine_allocation(claim, law).values()):
        raise CertificateError("the bounds fail their own test; report this with the factors' digest")
    return claim
