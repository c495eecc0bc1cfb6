"""The privacy profile of a noise that is given: delta as a function of epsilon, with sampling and without."""

from __future__ import annotations

from collections.abc import Sequence

from factorize.accounting.sampling_scheme import SamplingOptions
from factorize.accounting.schemes import scheme_of
from factorize.errors import InvalidParameter
from factorize.format.claims import CertifiedFactors
from factorize.numbers.gaussian import gaussian_delta
from factorize.numbers.scalars import finite_real
from factorize.privacy_question import GivenNoise

MOST_POINTS = 1000


def privacy_profile(
    factorization: CertifiedFactors, *, sigma: float, epsilons: Sequence[float], sampling: str, asked: SamplingOptions
) -> list[dict[str, float]]:
    """Return the curve as plain data: `epsilon`, `delta` and `delta_without_secrecy`, rounded up, all at once true.

    Args:
        factorization: a `factorize.Factorization`, or factors that have a file.
        sigma: standard deviation per entry of Z, for sums.
        epsilons: above 0.
        sampling: a scheme of `calibrate_sampling`.
        asked: sizes, clip norm and adjacency.

    Raises:
        InvalidParameter: no epsilons, more than 1000, one that is not above 0, or what the scheme refuses.
    """
    if not 1 <= len(epsilons) <= MOST_POINTS:
        raise InvalidParameter(f"{len(epsilons)} epsilons are no curve; give 1 to {MOST_POINTS}", field="epsilons")
    levels = sorted({finite_real("epsilons", one, remedy="give finite epsilons above 0") for one in epsilons})
    scheme = scheme_of(sampling)
    scheme.check_used(asked)
    plain = scheme.calibrate(factorization, GivenNoise(sigma=sigma, epsilon=levels[-1]), asked)
    deltas = scheme.deltas(factorization, plain.sigma_of_sums, levels, asked)
    return [
        {"epsilon": level, "delta": min(delta, known), "delta_without_secrecy": known}
        for level, delta in zip(levels, deltas, strict=True)
        for known in (gaussian_delta(level, plain.mu),)
    ]
