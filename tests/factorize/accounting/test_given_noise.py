"""Noise that is given: epsilon at a delta and delta at an epsilon, under every sampling scheme."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from bin_cases import ROOT
from command_line import CommandLine
from specs import solved

from factorize.accounting import BinsLaw, bin_gram, calibrate_bins, calibrate_sampling
from factorize.accounting.claim_search import MIN_EPSILON
from factorize.accounting.loss_laws import PoissonLaw
from factorize.accounting.star_estimate import StarEstimate
from factorize.checker.sampling.calibrations import check_calibration
from factorize.client.held_factors import HeldFactors
from factorize.errors import InvalidParameter
from factorize.factors.factorization import Factorization
from factorize.format.quantities import MIN_DELTA
from factorize.privacy import PrivacyTarget, calibrate
from factorize.privacy.question import GivenNoise, question_of


@pytest.fixture(scope="module")
def base() -> Factorization:
    return solved(ROOT)


@pytest.fixture(scope="module")
def file(base: Factorization, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("noise") / "root.safetensors"
    base.save(path)
    return path


def test_epsilon_at_a_given_noise_is_claimed_and_checked_by_the_other_code(base: Factorization, file: Path) -> None:
    held = calibrate_bins(base, sigma=2.5, delta=1e-4)
    assert held.sigma_of_sums == 2.5 and held.delta == 1e-4 and held.method == "verified" and held.epsilon is not None
    gram = bin_gram(base.strategy, 16)
    point = StarEstimate(gram, seed=5).epsilon(2.5, 1e-4)
    bound = BinsLaw(gram).epsilon(2.5, 1e-4)
    assert point < held.epsilon < 1.04 * point < bound < held.epsilon_without_secrecy
    assert 2.5 < held.deterministic_sigma  # of the bounds at the epsilon that was found
    report = check_calibration(file.read_bytes(), held.document())
    assert report.supported and report.calibration["epsilon"] == held.epsilon
    smaller = {**held.document()["claim"], "epsilon": (0.97 * point).hex()}
    assert not check_calibration(file.read_bytes(), smaller).supported


def test_delta_at_a_given_noise_is_claimed_and_checked_by_the_other_code(base: Factorization, file: Path) -> None:
    held = calibrate_bins(base, sigma=2.5, epsilon=4.0, divisor=10)
    assert held.sigma_of_sums == 2.5 and held.epsilon == 4.0 and held.delta is not None and held.method == "verified"
    point = StarEstimate(bin_gram(base.strategy, 16), seed=5).forward(2.5, 4.0).delta
    assert point < held.delta < 1.5 * point
    assert check_calibration(file.read_bytes(), held.document()).supported


def test_no_delta_is_claimed_below_the_smallest_of_a_claim(base: Factorization) -> None:
    held = calibrate_bins(base, sigma=1e6, epsilon=2.0)
    assert held.claim.tested(base).supported and held.samples == 0
    assert held.delta == pytest.approx(MIN_DELTA, rel=1e-6) and held.delta >= MIN_DELTA


@pytest.mark.parametrize(("clip_norm", "epsilon"), [(1e-30, 1e4), (1e30, 1e-3)])
def test_noise_that_single_precision_does_not_hold_is_refused(
    base: Factorization, clip_norm: float, epsilon: float
) -> None:
    with pytest.raises(InvalidParameter, match="noise in float32"):
        calibrate_bins(base, epsilon=epsilon, delta=1e-9, clip_norm=clip_norm)


def test_the_three_questions_agree(base: Factorization) -> None:
    """Bounds alone: sigma of (epsilon, delta), then either back from it."""
    held = calibrate_bins(base, epsilon=4.0, delta=1e-4, method="deterministic", clip_norm=0.3, divisor=7)
    given: dict[str, Any] = {"sigma": held.sigma_of_sums, "method": "deterministic", "clip_norm": 0.3}
    assert calibrate_bins(base, delta=1e-4, **given).epsilon == pytest.approx(4.0, rel=1e-6)
    assert calibrate_bins(base, epsilon=4.0, **given).delta == pytest.approx(1e-4, rel=1e-5)
    assert calibrate_bins(base, delta=1e-4, **given).deterministic_sigma == pytest.approx(held.sigma_of_sums, rel=1e-6)


def test_so_much_noise_that_epsilon_is_nothing(base: Factorization) -> None:
    held = calibrate_bins(base, sigma=1e7, delta=1e-3)
    assert held.epsilon == pytest.approx(MIN_EPSILON, rel=1e-8) and held.method == "deterministic"


def test_a_fixed_order_has_the_exact_curve(base: Factorization) -> None:
    sensitivity = base.certificate.sensitivity
    for adjacency in ("zero_out", "replace_one"):
        there = calibrate(sensitivity, PrivacyTarget(epsilon=2.0, delta=1e-6), clip_norm=3.0, adjacency=adjacency)
        given: dict[str, Any] = {"clip_norm": 3.0, "adjacency": adjacency}
        back = calibrate(sensitivity, GivenNoise(sigma=there.sigma_of_sums, delta=1e-6), **given)
        assert back.epsilon == pytest.approx(2.0, rel=1e-9) and back.sigma_of_sums == there.sigma_of_sums
        found = calibrate_sampling(base, GivenNoise(sigma=there.sigma_of_sums, epsilon=2.0), sampling="fixed", **given)
        assert found.delta == pytest.approx(1e-6, rel=1e-8) and found.rho >= 0.999999 * there.rho


def test_poisson_sampling_answers_all_three_questions() -> None:
    plain = solved(ROOT, mechanism="identity", participation="single")
    given: dict[str, Any] = {"sampling": "poisson", "dataset_size": 640, "batch_size": 10}
    sigma = 2 * PoissonLaw(64, 1, 1.0, 1 / 64).sigma(2.0, 1e-5)
    found = calibrate_sampling(plain, GivenNoise(sigma=sigma, delta=1e-5), **given, clip_norm=2.0)
    assert found.epsilon == pytest.approx(2.0, rel=2e-3) and found.sigma_of_sums == sigma
    delta = calibrate_sampling(plain, GivenNoise(sigma=sigma, epsilon=2.0), **given, clip_norm=2.0).delta
    assert delta == pytest.approx(1e-5, rel=1e-2)


def test_factors_and_the_command_line_answer_alike(base: Factorization, file: Path, tmp_path: Path) -> None:
    factors, command = HeldFactors(base.manifest, path=file), CommandLine(tmp_path)
    bins = factors.calibrate(sigma=2.5, delta=1e-4, sampling="balls_in_bins")
    options = ("calibrate", file, "--sigma", "2.5", "--output", "json")
    shown = command(*options, "--sampling", "balls_in_bins", "--delta", "1e-4").json()
    assert shown["epsilon"] == bins.epsilon and shown["sigma_of_sums"] == 2.5
    assert shown["claim"] == bins.document()["claim"]
    plain = factors.calibrate(sigma=2.5, epsilon=4.0)
    assert command(*options, "--epsilon", "4").json()["delta"] == plain.delta
    (tmp_path / "answer.json").write_text(command(*options, "--sampling", "balls_in_bins", "--epsilon", "4").out)
    assert "accepted" in command("verify", file, "--calibration", tmp_path / "answer.json").out


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"sigma": 1.0}, "neither of epsilon and delta"),
        ({"sigma": 1.0, "epsilon": 1.0, "delta": 1e-5}, "both of epsilon and delta"),
        ({"sigma": 1.0, "mu": 1.0}, "cannot come with rho or mu"),
        ({"sigma": -1.0, "delta": 1e-5}, "sigma"),
        ({"sigma": math.inf, "delta": 1e-5}, "sigma"),
        ({"sigma": 1.0, "delta": 2.0}, "below 1"),
        ({"sigma": 1.0, "epsilon": 0.0}, "epsilon"),
    ],
)
def test_what_is_no_question_is_refused(numbers: dict[str, float], message: str) -> None:
    nothing = dict.fromkeys(("epsilon", "delta", "rho", "mu", "sigma"))
    with pytest.raises(InvalidParameter, match=message):
        question_of(**{**nothing, **numbers})


def test_noise_that_protects_nothing_is_refused(base: Factorization) -> None:
    with pytest.raises(InvalidParameter, match="use a larger sigma"):
        calibrate_bins(base, sigma=1e-3, epsilon=1.0)
    with pytest.raises(InvalidParameter, match="use a larger sigma"):
        calibrate_bins(base, sigma=1e-5, delta=1e-5)
