"""Sampling schemes by name: which accountant answers for each, and what each has to be told."""

from __future__ import annotations

from typing import Any

from factorize.accounting.amplification import calibrate_amplified
from factorize.accounting.bins_calibration import Method, calibrate_bins, with_strategy
from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.privacy import Adjacency, Calibration, PrivacyTarget, calibrate

SAMPLINGS = ("fixed", "cyclic_poisson", "balls_in_bins", "poisson")

_UNCOVERED = {
    "random_allocation": "it is balls_in_bins with one epoch; use balls_in_bins",
    "shuffle": "equal-size shuffling gives away the last bin, and is not amplified here; use balls_in_bins, or fixed",
    "redrawn_bins": "bins that are drawn anew in each epoch have no accountant here; use balls_in_bins",
    "b_min_sep": "its pair is known and its evaluator is not here; use balls_in_bins, or cyclic_poisson for a banded C",
}


def calibrate_sampling(
    factorization: Any,
    target: PrivacyTarget,
    *,
    sampling: str,
    clip_norm: float = 1.0,
    batch_size: int | None = None,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    dataset_size: int | None = None,
    bins: int | None = None,
    method: Method = "verified",
) -> Calibration:
    """Return the noise of a factorization under a sampling scheme.

    Args:
        factorization: a `factorize.Factorization`, or factors that have a file.
        target: (epsilon, delta), and for `fixed` any other target too.
        sampling: `fixed`: none; `cyclic_poisson`, for a banded C; `poisson`, for C = I; `balls_in_bins`, for any C.
        clip_norm: bound on one contribution.
        batch_size: the fixed public divisor of means; the expected batch of the Poisson schemes.
        adjacency: `zero_out`, and for `fixed` also `replace_one`.
        dataset_size: N, public, of the Poisson schemes.
        bins: of `balls_in_bins`; by default the steps of an epoch.
        method: of `balls_in_bins`.

    Raises:
        InvalidParameter: an unknown scheme, one that has no accountant here, or what it needs is missing or not used.
        ConditionNotMet: a C that the scheme does not cover.
        UnsupportedAdjacency: an adjacency that the scheme does not cover.
        UnsupportedProblem: dp_accounting is needed and not installed.
    """
    if sampling not in SAMPLINGS:
        reason = _UNCOVERED.get(str(sampling), f"known are {', '.join(SAMPLINGS)}")
        raise InvalidParameter(f"sampling={str(sampling)[:20]!r} is not covered: {reason}", field="sampling")
    _refuse_unused(sampling, dataset_size, bins)
    if sampling == "fixed":
        sensitivity = factorization.certificate.sensitivity
        return calibrate(sensitivity, target, clip_norm=clip_norm, batch_size=batch_size, adjacency=adjacency)
    if target.epsilon is None or target.delta is None:
        raise InvalidParameter(
            f"rho and mu describe the noise without {sampling}, and an amplified run is no Gaussian mechanism; give "
            "epsilon and delta",
            field="epsilon",
        )
    given: dict[str, Any] = {"epsilon": target.epsilon, "delta": target.delta}
    given |= {"clip_norm": clip_norm, "adjacency": adjacency}
    if sampling == "balls_in_bins":
        return calibrate_bins(factorization, **given, bins=bins, batch_size=batch_size, method=method)
    held = with_strategy(factorization)
    if dataset_size is None or batch_size is None:
        raise InvalidParameter(f"{sampling} needs dataset_size and batch_size: give both", field="dataset_size")
    if sampling == "poisson" and (bands := held.strategy.finite().bandwidth()) > 1:
        raise ConditionNotMet(
            f"this C has {bands} bands, and Poisson sampling of every step is for C = I alone; use "
            "cyclic_poisson for a banded C, balls_in_bins for any",
            field="sampling",
        )
    return calibrate_amplified(held, **given, dataset_size=dataset_size, batch_size=batch_size)


def _refuse_unused(sampling: str, dataset_size: int | None, bins: int | None) -> None:
    if bins is not None and sampling != "balls_in_bins":
        raise InvalidParameter(f"bins={bins} is for balls_in_bins, not for {sampling}; leave it out", field="bins")
    if dataset_size is not None and sampling == "fixed":
        raise InvalidParameter(
            f"dataset_size={dataset_size} is of no use without sampling; leave it out, or name a sampling",
            field="dataset_size",
        )
