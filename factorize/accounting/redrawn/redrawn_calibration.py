"""The calibration that counts on re-drawn bins: sigma, epsilon or delta by bounds, and a claim that states them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from factorize.accounting.bins_calibration import (
    BinsCalibration,
    OpenedFactors,
    bins_of,
    prefixed,
    refuse_other_adjacency,
)
from factorize.accounting.bins_claim import Evidence
from factorize.accounting.levels.bins_level import LEAST_EPSILON
from factorize.accounting.levels.given_noise import GivenNoise, Question, multiplier_of, question_of
from factorize.accounting.redrawn.redrawn_bound import RedrawnEvaluator, redrawn_epsilon, redrawn_sigma
from factorize.accounting.redrawn.redrawn_claim import RedrawnClaim, examine_redrawn
from factorize.accounting.redrawn.redrawn_gram import RedrawnGram, redrawn_gram
from factorize.accounting.star_bound import BinsDelta
from factorize.certificate.sensitivity import Sensitivity
from factorize.errors import CertificateError, InvalidParameter
from factorize.format.claims import CertifiedFactors, certified
from factorize.numbers.gaussian import gaussian_epsilon, mu_of, rho_of
from factorize.numbers.scalars import double_above, finite_real
from factorize.privacy import Adjacency, CertifiedSensitivity, divisor_of, within_scale

RULE = "largest products of columns"
"""The rule of the sensitivity: one step of every epoch, each charged its largest products with the others."""

_ROUNDING = 2.0**-44


@dataclass(frozen=True, kw_only=True)
class RedrawnCalibration(BinsCalibration):
    """A calibration whose epsilon counts on bins that every epoch draws anew; always by bounds, without samples.

    Attributes:
        sampling: the law of participation.
    """

    sampling: str = field(default="redrawn_bins", init=False)

    def _wanted(self, mine: CertifiedSensitivity, strategy: Callable[[], Any]) -> CertifiedSensitivity:
        """Return the sensitivity of any one step of every epoch of C."""
        return sensitivity_of_draws(redrawn_gram(strategy(), self.bins))


def calibrate_redrawn(
    factorization: CertifiedFactors,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    sigma: float | None = None,
    bins: int | None = None,
    batch_size: int | None = None,
    clip_norm: float = 1.0,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
) -> RedrawnCalibration:
    """Return the noise of any C where every epoch draws the bin of each example anew, or what a given noise is worth.

    Two of epsilon, delta and sigma are given, and the third is found.

    Args:
        factorization: a `factorize.Factorization`, or factors that have a file.
        epsilon: of (epsilon, delta)-DP; None where it is asked for.
        delta: of (epsilon, delta)-DP; None where it is asked for.
        sigma: standard deviation per entry of Z; None where it is asked for.
        bins: b; by default the steps of an epoch of the spec's participation.
        batch_size: the fixed public divisor where steps are means, never the size of a random batch; None for sums.
        clip_norm: bound on one contribution.
        adjacency: `zero_out` only.

    Raises:
        UnsupportedAdjacency: replace_one or add/remove.
        InvalidParameter: a value outside its range, bins that are not known, or a C without end.
        TooLarge: more than 4096 steps.

    Reference:
        docs/notes/amplification-proofs.md, theorem 9.
    """
    refuse_other_adjacency(adjacency)
    asked = question_of(epsilon=epsilon, delta=delta, rho=None, mu=None, sigma=sigma)
    clip = within_scale("clip_norm", finite_real("clip_norm", clip_norm, remedy="give the norm of clipping"))
    started = time.perf_counter()
    held: OpenedFactors = certified(factorization).opened()
    gram = redrawn_gram(held.strategy, bins_of(held) if bins is None else bins)
    found = _claim(asked, gram, prefixed(held.digest), clip, divisor_of(batch_size))
    ratio: dict[str, Any] = {"clip_norm": clip, "batch_size": batch_size}
    noise_multiplier = multiplier_of(found.sigma, **ratio, sensitivity=gram.sensitivity)
    return RedrawnCalibration(
        noise_multiplier=noise_multiplier,
        sigma=within_scale("sigma", found.sigma),
        sensitivity=sensitivity_of_draws(gram),
        clip_norm=clip,
        adjacency=Adjacency.ZERO_OUT,
        epsilon=found.epsilon,
        delta=found.delta,
        rho=rho_of(noise_multiplier),
        mu=mu_of(noise_multiplier),
        batch_size=batch_size,
        bins=gram.bins,
        epochs=gram.epochs,
        method="deterministic",
        claim=found,
        samples=0,
        seconds=time.perf_counter() - started,
        deterministic_sigma=found.sigma,
        epsilon_without_secrecy=found.unamplified_epsilon,
        signed=gram.steps.signed,
        absolute_cost=None,
    )


def redrawn_deltas(
    factorization: CertifiedFactors,
    *,
    sigma: float,
    epsilons: Sequence[float],
    bins: int | None = None,
    batch_size: int | None = None,
    clip_norm: float = 1.0,
) -> list[float]:
    """Return deltas that all hold at once for a noise that is given, one for each epsilon; see `calibrate_redrawn`."""
    held: OpenedFactors = certified(factorization).opened()
    noise = finite_real("sigma", sigma, remedy="give the standard deviation of Z")
    clip = finite_real("clip_norm", clip_norm, remedy="give the norm of clipping")
    multiplier = multiplier_of(noise, clip_norm=clip, batch_size=batch_size)
    star = RedrawnEvaluator(redrawn_gram(held.strategy, bins_of(held) if bins is None else bins))
    levels = [finite_real("epsilon", one, strict=False, remedy="give finite epsilons") for one in epsilons]
    return [star.delta(multiplier, level).delta for level in levels]


def sensitivity_of_draws(gram: RedrawnGram) -> Sensitivity:
    """Return the sensitivity of examples that take part in any one step of every epoch, without amplification."""
    pattern = {"kind": "redrawn_bins", "bins": gram.bins, "epochs": gram.epochs}
    return Sensitivity(gram.sensitivity, "upper_bound", RULE, pattern)


def _claim(asked: Question, gram: RedrawnGram, factors: str, clip: float, divisor: int) -> RedrawnClaim:
    """Return the claim of what is asked, after its test.

    Raises:
        InvalidParameter: there is so little noise that nothing is private.
        CertificateError: it fails.
    """
    ratio: dict[str, Any] = {"clip_norm": clip, "batch_size": divisor}
    if isinstance(asked, GivenNoise):
        noise, multiplier = asked.sigma, multiplier_of(asked.sigma, **ratio)
        epsilon, delta = asked.level(
            lambda d: max(redrawn_epsilon(gram, multiplier=multiplier, delta=d), LEAST_EPSILON),
            lambda e: RedrawnEvaluator(gram).delta(multiplier, e).delta,
        )
    else:
        assert asked.epsilon is not None and asked.delta is not None
        epsilon, delta = asked.epsilon, asked.delta
        exact = Fraction(redrawn_sigma(gram, epsilon=epsilon, delta=delta) * (1 + _ROUNDING))
        noise = double_above(exact * Fraction(clip) / divisor, "sigma")
        multiplier = multiplier_of(noise, **ratio)
    if delta >= 1:
        raise InvalidParameter(
            f"sigma={noise!r} is too small for any delta below 1 at epsilon={epsilon!r}; use more noise, or ask at a "
            "larger epsilon",
            field="sigma",
        )
    bound = RedrawnEvaluator(gram).delta(multiplier, epsilon)
    claim = RedrawnClaim(
        factors=factors,
        gram=gram.steps.digest,
        steps=gram.n,
        bins=gram.bins,
        epsilon=epsilon,
        delta=delta,
        sigma=noise,
        clip_norm=clip,
        divisor=divisor,
        pq=_removal(bound),
        qp=Evidence(rule=bound.qp_rule),
        attempt=1,
        unamplified_epsilon=gaussian_epsilon(delta, mu_of(multiplier_of(noise, **ratio, sensitivity=gram.sensitivity))),
    )
    if not all(test.accepted for test in examine_redrawn(claim, gram).values()):
        raise CertificateError("the bounds fail their own test; report this with the factors' digest")
    return claim


def _removal(bound: BinsDelta) -> Evidence:
    if bound.pq_rule == "gaussian":
        return Evidence(rule="gaussian")
    return Evidence(rule="star_bound", tilt=float(bound.order))
