"""Calibrations under samplings by name: for a whole run or its first steps, and the curve of one noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from factorize.errors import InvalidParameter, extras_named
from factorize.format.manifest import CertifiedFactors, certified
from factorize.numbers.gaussian import gaussian_delta
from factorize.numbers.scalars import finite_real, multiplier_of
from factorize.privacy import Calibration
from factorize.privacy.question import GivenNoise, Question, SamplingOptions, question_of
from factorize.samplings import sampling_of

if TYPE_CHECKING:
    from factorize.accounting.bins_calibration import BinsCalibration

MAX_POINTS = 1000
"""The most values of epsilon on one curve."""


@extras_named("a calibration that counts on sampling")
def calibrate_sampling(
    factorization: CertifiedFactors, target: Question, *, sampling: str, steps: int | None = None, **options: Any
) -> Calibration:
    """Return the noise of a factorization under a sampling.

    Args:
        factorization: a `factorize.Factorization`, or factors that have a file.
        target: (epsilon, delta), and for `fixed` any other target too; or a `GivenNoise`, whose epsilon or delta is
            found.
        sampling: `fixed`: none; `cyclic_poisson`, for a banded C; `poisson`, for C = I; `balls_in_bins`, for any C;
            `random_allocation`, for C = I.
        steps: number of the first steps of the run, if it stops there; by default all.
        **options: the fields of `SamplingOptions`.

    Raises:
        InvalidParameter: an unknown sampling, one that has no accountant here, or options that are missing or not used.
        ConditionNotMet: a C that the sampling does not cover.
        UnsupportedAdjacency: an adjacency that the sampling does not cover.
    """
    law, asked = sampling_of(sampling), SamplingOptions(**options)
    law.check_used(asked)
    if steps is not None:
        factorization, asked = law.of_first_steps(certified(factorization).opened(), steps, asked)
    return law.calibrate(factorization, target, asked)


def calibrate_bins(
    factorization: CertifiedFactors,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    sigma: float | None = None,
    sampling: str = "balls_in_bins",
    **options: Any,
) -> BinsCalibration:
    """Return `calibrate_sampling` for samplings in which each example takes one secret step of every epoch.

    Two of epsilon, delta and sigma are given; the claim is about the third.

    Args:
        factorization: a `factorize.Factorization`, or factors that have a file.
        epsilon: the epsilon of (epsilon, delta)-DP; None to have it found.
        delta: the delta of (epsilon, delta)-DP; None to have it found.
        sigma: standard deviation per entry of Z, for sums; None to have it found.
        sampling: `balls_in_bins`, for any C; `random_allocation`, for C = I.
        **options: bins, divisor, clip_norm, adjacency, method, work: see `SamplingOptions`.
    """
    question = question_of(epsilon=epsilon, delta=delta, rho=None, mu=None, sigma=sigma)
    return cast("BinsCalibration", calibrate_sampling(factorization, question, sampling=sampling, **options))


def privacy_profile(
    factorization: CertifiedFactors, *, sigma: float, epsilons: Sequence[float], sampling: str, asked: SamplingOptions
) -> list[dict[str, float]]:
    """Return the curve as plain data: `epsilon`, `delta` and `delta_without_secrecy`, rounded up, all valid together.

    Args:
        factorization: a `factorize.Factorization`, or factors that have a file.
        sigma: standard deviation per entry of Z, for sums.
        epsilons: values of epsilon, each above 0.
        sampling: one of the samplings of `calibrate_sampling`.
        asked: sizes, clip norm and adjacency.

    Raises:
        InvalidParameter: no epsilons, more than 1000, one that is not above 0, or options that the sampling refuses.
    """
    if not 1 <= len(epsilons) <= MAX_POINTS:
        raise InvalidParameter(f"epsilons has {len(epsilons)} entries; give 1 to {MAX_POINTS}", field="epsilons")
    levels = sorted({finite_real("epsilons", one, remedy="give finite epsilons above 0") for one in epsilons})
    scheme = sampling_of(sampling)
    scheme.check_used(asked)
    plain = scheme.calibrate(factorization, GivenNoise(sigma=sigma, epsilon=levels[-1]), asked)
    law, multiplier = scheme.law(factorization, asked), multiplier_of(plain.sigma_of_sums, clip_norm=asked.clip_norm)
    points = []
    for level in levels:
        known = gaussian_delta(level, plain.mu)
        delta = known if law is None else min(law.delta(multiplier, level), known)
        points.append({"epsilon": level, "delta": delta, "delta_without_secrecy": known})
    return points
