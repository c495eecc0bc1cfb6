"""Audits: close to what is known, and they must find a false claim."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from factorize.errors import InvalidParameter
from factorize.privacy import Calibration, PrivacyTarget
from papers.algorithms import INDEPENDENT, FilteredNoise
from papers.training.audit import audit, clopper_pearson_upper


def gaussian(mu: float) -> Callable[[int, int], float]:
    return lambda world, seed: float(np.random.default_rng(seed).standard_normal() + mu * world)


def claim_of(mu: float) -> Calibration:
    return FilteredNoise(INDEPENDENT, PrivacyTarget(mu=mu, delta=1e-5), 1, steps=1, seed=1 << 70).calibration


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
def test_the_measure_is_close_to_a_gaussian_whose_mu_is_known(mu: float) -> None:
    report = audit(gaussian(mu), claim_of(mu), trials=4000, seed=12)
    assert 0.75 * mu < report.mu < mu
    assert not report.refutes


def test_a_claim_of_half_the_true_mu_is_refuted() -> None:
    assert audit(gaussian(1.0), claim_of(0.5), trials=2000, seed=11).refutes


def test_equal_worlds_measure_next_to_nothing() -> None:
    report = audit(gaussian(0.0), claim_of(1.0), trials=2000, seed=12)
    assert report.mu < 0.1
    assert report.epsilon_direct < 0.3


def test_the_bound_of_clopper_and_pearson() -> None:
    """Closed forms: no event in n trials gives 1 - (1 - confidence)^(1/n); n events give 1."""
    assert clopper_pearson_upper(0, 50, 0.95) == pytest.approx(1 - 0.05 ** (1 / 50), rel=1e-12)
    assert clopper_pearson_upper(50, 50, 0.95) == 1.0
    assert clopper_pearson_upper(5, 100, 0.975) == pytest.approx(0.1128349, abs=1e-7)


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"trials": 10}, "trials=10"), ({"confidence": 1.0}, "confidence"), ({"delta": 0.0}, "delta=0")],
)
def test_an_audit_that_could_say_nothing_is_refused(changes: dict[str, float], match: str) -> None:
    with pytest.raises(InvalidParameter, match=match):
        audit(gaussian(1.0), claim_of(1.0), **({"trials": 200, "seed": 0} | changes))


def test_scores_that_are_not_finite_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="not finite"):
        audit(lambda world, seed: float("nan"), claim_of(1.0), trials=200, seed=0)
