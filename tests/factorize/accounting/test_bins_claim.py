"""Claims: how near the estimate they are, what never passes the checker, and the calibration that carries one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bin_cases import ROOT, inverse_roots
from handmade import Handmade
from specs import solved

from factorize.accounting import BinsCalibration, BinsLaw, bin_gram, calibrate_bins
from factorize.accounting.claim import NoiseClaim
from factorize.accounting.claim_search import ClaimSearch
from factorize.accounting.star_estimate import StarEstimate, log_single_bin
from factorize.checker.sampling.calibrations import CalibrationReport, check_calibration, check_claim
from factorize.checker.strategy import Strategy
from factorize.client.held_factors import HeldFactors
from factorize.encoding import canonical_json
from factorize.errors import CertificateError, InvalidParameter
from factorize.factors.factor_file import load
from factorize.numbers.gaussian import gaussian_epsilon, noise_multiplier_for_epsilon
from factorize.privacy import PrivacyTarget
from factorize.structures.base import Matrix
from factorize.structures.toeplitz import ToeplitzMatrix

NAME = "ab" * 32


def factors_of(strategy: Matrix) -> Handmade:
    return Handmade(strategy, digest=NAME)


def searched(strategy: Matrix, bins: int, epsilon: float, delta: float, **options: Any) -> Any:
    target = PrivacyTarget(epsilon=epsilon, delta=delta)
    return ClaimSearch(BinsLaw(bin_gram(strategy, bins)), target, **options).claim(factors_of(strategy))


ROOTS, WEAK = inverse_roots(6, 64), ToeplitzMatrix(0.5 ** np.arange(256.0), 256)
"""WEAK: noise with little in common, where most tuples are dropped."""
CASES: dict[str, tuple[Matrix, int, float, float]] = {
    "usual": (ROOTS, 16, 4.0, 1e-4),
    "a small delta": (inverse_roots(12, 96), 12, 2.0, 1e-10),
    "weak": (ToeplitzMatrix(0.5 ** np.arange(96.0), 96), 24, 2.0, 1e-8),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Matrix, Any]:
    strategy, bins, epsilon, delta = CASES[request.param]
    return strategy, searched(strategy, bins, epsilon, delta, clip_norm=0.5)


def checked(claim: NoiseClaim, strategy: Matrix) -> CalibrationReport:
    return claim.tested(factors_of(strategy))


def test_a_claim_is_close_to_the_estimate_and_passes_with_any_seed(case: tuple[Matrix, Any]) -> None:
    strategy, found = case
    claim, gram = found.claim, bin_gram(strategy, found.claim.bins)
    assert claim.sampled and claim.pq.rule == "bet"
    point = StarEstimate(gram, seed=9, samples=1 << 15).sigma(claim.epsilon, claim.delta)
    assert point * 1.0005 < claim.sigma / 0.5 < point * 1.02 < found.bounded.multiplier
    assert math.exp(log_single_bin(gram, claim.sigma / 0.5, claim.epsilon)) < claim.delta
    own = Strategy(strategy.structure, strategy.tensors(), strategy.n)
    assert check_claim(NAME, lambda: own, claim.document(), fresh=True).supported
    again = checked(claim, strategy)
    assert again.supported and again.calibration == checked(claim, strategy).calibration


def test_many_false_claims_stay_far_from_passing() -> None:
    """Sigma 2 % below the estimate: 88.7 is needed, and luck of e^-20 would already be news."""
    found = searched(ROOTS, 16, 4.0, 1e-4)
    point = StarEstimate(bin_gram(ROOTS, 16)).sigma(4.0, 1e-4) * 0.98
    base = replace(found.claim, sigma=point, pq=replace(found.claim.pq, samples=8192))
    for attempt in range(1, 17):
        report = checked(replace(base, attempt=attempt, delta=base.delta * (1 - 1e-6 * attempt)), ROOTS)
        assert not report.supported and report.calibration["pq"]["log_wealth"] < 20


def test_without_work_the_bounds_make_the_claim() -> None:
    found = searched(ROOTS, 16, 4.0, 1e-4, work=0)
    assert (found.claim.pq.rule, found.claim.qp.rule, found.samples) == ("star_bound", "closed_form", 0)
    assert found.claim.sigma == pytest.approx(found.bounded.multiplier, rel=1e-8)
    assert BinsLaw(bin_gram(ROOTS, 16)).delta(found.claim.sigma, 4.0) <= 1e-4


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-3, 1e-9), (1e-300, 1e-5), (1.0, 1e-300)])
def test_where_tuples_are_long_the_bounds_make_the_claim(epsilon: float, delta: float) -> None:
    """At a small epsilon or delta, where an estimate takes minutes and its samples more than a verifier draws."""
    found = searched(ROOTS, 16, epsilon, delta)
    assert not found.claim.sampled and found.claim.sigma == pytest.approx(found.bounded.multiplier, rel=1e-7)


def test_samples_that_no_verifier_draws_are_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorize.checker.sampling.calibrations.MAX_NORMALS", 1)
    assert searched(ROOTS, 16, 4.0, 1e-4).samples == 0


def test_one_bin_is_answered_by_the_gaussian_mechanism() -> None:
    found = searched(ROOTS, 1, 2.0, 1e-6)
    assert found.claim.pq.rule == "gaussian" and found.claim.qp.rule in ("gaussian", "closed_form")  # one number
    plain = noise_multiplier_for_epsilon(2.0, 1e-6) * bin_gram(ROOTS, 1).sensitivity
    assert found.claim.sigma == pytest.approx(plain, rel=1e-6)


def test_bounds_that_the_checker_refuses_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BinsLaw, "sigma", lambda self, epsilon, delta: 0.5)
    with pytest.raises(CertificateError, match="the checker rejects"):
        searched(ROOTS, 16, 4.0, 1e-4, work=0)


def test_calibration_says_what_it_counts_on(tmp_path: Path) -> None:
    base = solved(ROOT)
    held = calibrate_bins(base, epsilon=4.0, delta=1e-4, divisor=10, clip_norm=2.0)
    assert isinstance(held, BinsCalibration) and (held.bins, held.epochs, held.sampling) == (16, 4, "balls_in_bins")
    plain = noise_multiplier_for_epsilon(4.0, 1e-4) * base.certificate.sensitivity.value * 2.0
    assert held.sigma_of_sums < held.deterministic_sigma < plain
    assert held.sensitivity == base.certificate.sensitivity and held.absolute_cost == pytest.approx(1.0, abs=1e-8)
    assert held.noise_multiplier == pytest.approx(held.sigma_of_sums / 2 / held.sensitivity.value, rel=1e-8)
    assert held.epsilon_without_secrecy == pytest.approx(gaussian_epsilon(1e-4, held.mu), rel=1e-6) and (
        held.epsilon_without_secrecy > 4.0
    )
    document = json.loads(canonical_json(held.document()))
    assert document["claim"]["mechanism"]["factors"] == f"sha256:{base.digest.removeprefix('sha256:')}"
    assert document["sigma_of_means"] == pytest.approx(held.sigma_of_sums / 10) and document["method"] == "verified"
    base.save(path := tmp_path / "c.safetensors")
    assert check_calibration(path.read_bytes(), document).supported
    held.check_belongs(base.certificate.sensitivity, lambda: base.strategy)


def test_a_claim_is_found_where_no_weight_is_above_delta(tmp_path: Path) -> None:
    """Long sums over ten epochs: the ceiling of the weights is below delta, and the bounds are 6 % above."""
    made = solved({"kind": "prefix", "n": 40}, "square_root", 10)
    held = calibrate_bins(made, epsilon=1.0, delta=1e-6)
    assert held.method == "verified" and held.sigma_of_sums < 0.96 * held.deterministic_sigma
    made.save(path := tmp_path / "c.safetensors")
    assert check_calibration(path.read_bytes(), held.document()).supported


def test_calibration_of_a_file_is_that_of_the_factorization(tmp_path: Path) -> None:
    base = solved(ROOT)
    base.save(tmp_path / "c.safetensors")
    one = calibrate_bins(base, epsilon=4.0, delta=1e-4, method="deterministic")
    other = calibrate_bins(load(tmp_path / "c.safetensors"), epsilon=4.0, delta=1e-4, method="deterministic")
    light = calibrate_bins(
        HeldFactors(base.manifest, path=tmp_path / "c.safetensors"), epsilon=4, delta=1e-4, method="deterministic"
    )
    assert one.claim == other.claim == light.claim and one.method == "deterministic" and one.samples == 0


def test_a_short_last_epoch_is_calibrated_for_bins_that_are_given() -> None:
    base = solved(ROOT, n=50, participation={"kind": "min_sep", "min_sep": 16})
    with pytest.raises(InvalidParameter, match="give bins"):
        calibrate_bins(base, epsilon=4.0, delta=1e-4)
    held = calibrate_bins(base, epsilon=4.0, delta=1e-4, bins=16, method="deterministic")
    assert held.epochs == 4 and held.sensitivity.participation == {"kind": "balls_in_bins", "bins": 16, "epochs": 4}
    held.check_belongs(base.certificate.sensitivity, lambda: base.strategy)
    for change in ({"epsilon": 3.0}, {"delta": 1e-5}, {"sigma_of_sums": held.sigma_of_sums / 2}, {"clip_norm": 2.0}):
        with pytest.raises(InvalidParameter, match="calibrate again"):
            replace(held, **change)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": 65}, "n=64"),
        ({"method": "guess"}, "method='guess' is not one of verified, deterministic"),
        ({"sampling": "guess"}, "use one of fixed.*balls_in_bins"),
    ],
)
def test_what_is_no_option_of_bins_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        calibrate_bins(solved(ROOT), **{"epsilon": 4.0, "delta": 1e-4, **options})
