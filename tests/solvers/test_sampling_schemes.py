"""Sampling schemes by name, in Python and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bin_cases import ROOT
from command_line import CommandLine
from specs import solved

from factorize.accounting import calibrate_bins, calibrate_sampling
from factorize.accounting.amplification import calibrate_amplified
from factorize.checker.sampling.calibrations import check_calibration
from factorize.client.held_factors import HeldFactors
from factorize.errors import ConditionNotMet, InvalidParameter, UnsupportedAdjacency
from factorize.factors.factorization import Factorization
from factorize.privacy import PrivacyTarget, calibrate

TARGET = PrivacyTarget(epsilon=4.0, delta=1e-4)


@pytest.fixture(scope="module")
def base() -> Factorization:
    return solved(ROOT)


@pytest.fixture(scope="module")
def file(base: Factorization, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schemes") / "root.safetensors"
    base.save(path)
    return path


def test_each_scheme_is_answered_by_its_accountant(base: Factorization) -> None:
    fixed = calibrate_sampling(base, TARGET, sampling="fixed", clip_norm=2.0)
    assert fixed == calibrate(base.certificate.sensitivity, TARGET, clip_norm=2.0)
    bins = calibrate_sampling(base, TARGET, sampling="balls_in_bins", clip_norm=2.0, method="deterministic")
    assert (
        bins.sigma_of_sums
        == calibrate_bins(base, epsilon=4.0, delta=1e-4, clip_norm=2.0, method="deterministic").sigma_of_sums
    )
    assert bins.sigma_of_sums < fixed.sigma_of_sums
    plain = solved(ROOT, mechanism="identity", participation="single")
    given = {"dataset_size": 640, "batch_size": 10}
    poisson = calibrate_sampling(plain, TARGET, sampling="poisson", **given)
    assert poisson == calibrate_amplified(plain, epsilon=4.0, delta=1e-4, **given)
    assert poisson == calibrate_sampling(plain, TARGET, sampling="cyclic_poisson", **given)


def test_factors_calibrate_under_sampling(base: Factorization, file: Path) -> None:
    factors = HeldFactors(base.manifest, path=file)
    held = factors.calibrate(epsilon=4.0, delta=1e-4, divisor=10, sampling="balls_in_bins")
    assert held.sensitivity.value == factors.sensitivity.value and held.document()["bins"] == 16
    assert factors.noise(held, 3, seed=1 << 64, auditor="not_looked_at").next().shape == (3,)
    assert factors.calibrate(TARGET) == calibrate(factors.sensitivity, TARGET)
    with pytest.raises(InvalidParameter, match="two targets; give one"):
        factors.calibrate(TARGET, epsilon=1.0)
    with pytest.raises(InvalidParameter, match="dataset_size=100 applies to Poisson sampling only, not to fixed"):
        factors.calibrate(TARGET, dataset_size=100)
    with pytest.raises(InvalidParameter, match=r"batch_size=10 applies to Poisson sampling only.*as divisor"):
        factors.calibrate(TARGET, batch_size=10)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sampling": "random_allocation"}, ConditionNotMet, "C = I.*use balls_in_bins"),
        ({"sampling": "shuffle"}, InvalidParameter, "gives away the last bin"),
        ({"sampling": "poisson_per_epoch"}, InvalidParameter, "no accountant.*use balls_in_bins"),
        ({"sampling": "b_min_sep"}, InvalidParameter, "b_min_sep needs dataset_size and batch_size"),
        ({"sampling": "guess"}, InvalidParameter, "use one of fixed"),
        ({"sampling": "fixed", "bins": 4}, InvalidParameter, "balls_in_bins and random_allocation only"),
        ({"sampling": "fixed", "batch_size": 10}, InvalidParameter, "batch_size=10.*applies to Poisson.*divisor"),
        (
            {"sampling": "balls_in_bins", "batch_size": 10},
            InvalidParameter,
            "batch_size=10.*applies to Poisson.*divisor",
        ),
        ({"sampling": "poisson", "dataset_size": 640, "batch_size": 10}, ConditionNotMet, "poisson needs C = I"),
        ({"sampling": "cyclic_poisson"}, InvalidParameter, "dataset_size and batch_size"),
        ({"sampling": "cyclic_poisson", "dataset_size": 640, "batch_size": 10}, ConditionNotMet, "bands"),
        ({"sampling": "balls_in_bins", "adjacency": "replace_one"}, UnsupportedAdjacency, "zero_out"),
    ],
)
def test_what_a_scheme_does_not_cover_is_refused(
    base: Factorization, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        calibrate_sampling(base, TARGET, **options)


def test_amplified_runs_have_no_rho_or_mu_to_ask_for(base: Factorization) -> None:
    for target in (PrivacyTarget(rho=1.0), PrivacyTarget(mu=1.0, delta=1e-5)):
        with pytest.raises(InvalidParameter, match="needs epsilon and delta"):
            calibrate_sampling(base, target, sampling="balls_in_bins")


def test_the_command_line_answers_the_contract(base: Factorization, file: Path, tmp_path: Path) -> None:
    command = CommandLine(tmp_path)
    options = ("--epsilon", "4", "--delta", "1e-4", "--sampling", "balls_in_bins")
    answer = command("calibrate", file, *options, "--output", "json").json()
    assert answer["sampling"] == "balls_in_bins" and answer["sigma_of_sums"].hex() == answer["claim"]["sigma"]
    assert answer["sigma_of_sums"] < answer["deterministic_sigma"] and answer["epsilon_without_secrecy"] > 4
    assert {"samples", "seconds", "bins", "epochs", "claim_digest"} <= answer.keys()
    assert check_calibration(file.read_bytes(), answer).supported
    text = command("calibrate", file, *options, "--deterministic", "--divisor", "8").out
    assert "without secrecy" in text and "under balls_in_bins sampling" in text and "deterministic" in text
    assert "0 samples" in text and "for such sums over the divisor 8, and never for sums" in text
    plain = command("calibrate", file, "--mu", "1", "--output", "json").json()
    assert plain["sampling"] == "fixed" and plain["sigma_of_means"] is None
    assert "replace_one" in command("calibrate", file, *options, "--adjacency", "replace_one").error(2)
    assert "is not supported" in command("calibrate", file, *options[:-1], "shuffle").error(2)
