"""Re-drawn bins: the chain of theorem 9 against enumeration and quadrature, claims, and the checker's own bounds."""

from __future__ import annotations

import itertools
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bin_cases import ROOT
from command_line import CommandLine
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from specs import solved

from factorize.accounting import calibrate_sampling
from factorize.accounting.gram_matrix import BinGram
from factorize.accounting.laws.bounded_calibration import calibrate_redrawn
from factorize.accounting.laws.bounded_claim import RedrawnClaim, examine_bounded
from factorize.accounting.levels.given_noise import GivenNoise
from factorize.accounting.redrawn.redrawn_bound import RedrawnLaw, log_reverse
from factorize.accounting.redrawn.redrawn_gram import RedrawnGram, redrawn_gram
from factorize.errors import InvalidParameter, TooLarge, UnsupportedAdjacency
from factorize.exact.sampling import epoch_chain as exact
from factorize.exact.sampling.bins import Gram
from factorize.exact.sampling.calibrations import check_calibration
from factorize.factorization import Factorization
from factorize.numbers.gaussian import gaussian_delta
from factorize.privacy import PrivacyTarget


def patterns(n: int, bins: int) -> list[tuple[int, ...]]:
    """Every choice of one step of every epoch; a draw beyond n is no step."""
    draws = itertools.product(range(bins), repeat=-(-n // bins))
    return [tuple(e * bins + j for e, j in enumerate(draw) if e * bins + j < n) for draw in draws]


def lower(n: int, seed: int, decay: float = 1.0) -> np.ndarray:
    entries = np.random.default_rng(seed).random((n, n)) * decay ** np.abs(np.subtract.outer(range(n), range(n)))
    return np.tril(entries) + np.eye(n) / 2


def gram_of(c: np.ndarray, bins: int) -> RedrawnGram:
    return RedrawnGram(BinGram(c.T @ c * (1 + 1e-14), len(c), 1e-14, False), bins)


def kernel_of(c: np.ndarray, bins: int) -> np.ndarray:
    shifts = np.stack([c[:, list(steps)].sum(axis=1) for steps in patterns(len(c), bins)], axis=1)
    return shifts.T @ shifts


@settings(max_examples=40, deadline=None)
@given(
    bins=st.integers(1, 4),
    epochs=st.integers(1, 3),
    cut=st.integers(0, 2),
    seed=st.integers(0, 999),
    decay=st.sampled_from([0.1, 0.6, 1.0]),
    order=st.integers(2, 9),
    multiplier=st.sampled_from([0.7, 2.0, 9.0]),
)
def test_the_chain_is_above_all_tuples_and_close(
    bins: int, epochs: int, cut: int, seed: int, decay: float, order: int, multiplier: float
) -> None:
    n = bins * epochs - min(cut, bins - 1)
    c = lower(n, seed, decay)
    k = kernel_of(c, bins) / multiplier**2
    star = math.log(np.mean(np.exp((order - 1) * np.log(np.exp(order / 2 * k).mean(axis=1)))))
    gram = gram_of(c, bins)
    found = RedrawnLaw(gram).log_moment(multiplier, order)
    assert star <= found
    if epochs == 1:  # nothing but theorem 4
        assert found <= star + 1e-9 * (1 + abs(star))
    checked = exact.log_moment(exact.Epochs(gram.steps.gram / multiplier**2 * (1 + 1e-15), bins), order)
    assert star <= checked <= found + 1e-6


@pytest.mark.parametrize(("bins", "epochs"), [(2, 2), (3, 2), (2, 3), (4, 2)])
def test_what_is_taken_out_of_the_gram_matrix(bins: int, epochs: int) -> None:
    c = lower(bins * epochs - 1, 5)
    gram, k = gram_of(c, bins), kernel_of(c, bins)
    assert gram.whole == pytest.approx(k.mean(), rel=1e-11) and gram.whole >= k.mean()
    assert gram.mean_norm == pytest.approx(k.diagonal().mean(), rel=1e-11) and gram.mean_norm >= k.diagonal().mean()
    assert k.diagonal().max() <= min(gram.sensitivity**2, exact.Epochs(gram.steps.gram, bins).norm())
    assert exact.Epochs(gram.steps.gram, bins).norm() == pytest.approx(gram.sensitivity**2, rel=1e-10)


def deltas(c: np.ndarray, bins: int, multiplier: float, epsilon: float) -> tuple[float, float]:
    """Both directions for two steps, by a grid over the plane."""
    x, y = np.meshgrid(*[np.linspace(-12, 12, 1601)] * 2, indexing="ij")
    weight = norm.pdf(x) * norm.pdf(y) * (24 / 1600) ** 2
    ratio = np.zeros_like(x)
    chosen = patterns(len(c), bins)
    for steps in chosen:
        m = c[:, list(steps)].sum(axis=1) / multiplier
        ratio += np.exp(m[0] * x + m[1] * y - m @ m / 2) / len(chosen)
    t = math.exp(epsilon)
    return float((weight * np.maximum(ratio - t, 0)).sum()), float((weight * np.maximum(1 - t * ratio, 0)).sum())


@pytest.mark.parametrize("corner", [0.0, 0.4, 1.5])
@pytest.mark.parametrize("bins", [1, 2])
@pytest.mark.parametrize(("multiplier", "epsilon"), [(0.8, 1.0), (0.8, 3.0), (2.0, 0.5)])
def test_both_directions_are_above_quadrature(bins: int, corner: float, multiplier: float, epsilon: float) -> None:
    """n = 2: one epoch of two bins, or two epochs of one bin, where nothing is random and the star bound is a moment."""
    c = np.array([[1.0, 0.0], [corner, 0.7]])
    removal, addition = deltas(c, bins, multiplier, epsilon)
    bound = RedrawnLaw(gram_of(c, bins)).delta(multiplier, epsilon)
    assert removal <= math.exp(bound.log_pq) * (1 + 1e-6) and addition <= math.exp(bound.log_qp) * (1 + 1e-6)
    assert addition <= math.exp(log_reverse(gram_of(c, bins), multiplier, epsilon)) * (1 + 1e-6)
    if bins == 1:  # the sum of both columns, known: the Gaussian mechanism
        mu = float(np.linalg.norm(c.sum(axis=1))) / multiplier
        assert bound.delta == pytest.approx(gaussian_delta(epsilon, mu), rel=1e-6)


def test_independent_epochs_of_the_identity_multiply() -> None:
    """C = I: epochs are independent runs of one epoch each, whose moments multiply, and nothing is lost."""
    one, four = (gram_of(np.eye(8 * epochs), 8) for epochs in (1, 4))
    for order in (2, 5, 11):
        single = RedrawnLaw(one).log_moment(0.9, order)
        assert RedrawnLaw(four).log_moment(0.9, order) == pytest.approx(4 * single, rel=1e-9)


def test_a_larger_entry_never_helps() -> None:
    c = lower(12, 3, 0.7)
    before = RedrawnLaw(gram_of(c, 4)).log_moment(1.5, 4)
    for row, column in [(0, 0), (5, 2), (11, 11), (9, 0), (4, 3), (8, 7)]:
        more = c.copy()
        more[row, column] *= 1.3
        assert RedrawnLaw(gram_of(more, 4)).log_moment(1.5, 4) >= before


INVERSE = {**ROOT, "mechanism": {"kind": "banded_inverse_square_root", "bands": 4}}


@pytest.fixture(scope="module")
def base() -> Factorization:
    return solved(INVERSE)


@pytest.fixture(scope="module")
def file(base: Factorization, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("redrawn") / "c.safetensors"
    base.save(path)
    return path


def test_weak_correlation_takes_less_noise_than_bins_that_are_kept() -> None:
    plain, target = solved(INVERSE, mechanism="identity"), PrivacyTarget(epsilon=4.0, delta=1e-5)
    given: dict[str, Any] = {"bins": 8, "method": "deterministic"}
    held, kept = (
        calibrate_sampling(plain, target, sampling=name, **given) for name in ("redrawn_bins", "balls_in_bins")
    )
    assert held.sigma < 0.8 * kept.sigma


def test_a_calibration_is_a_claim_that_the_other_code_accepts(base: Factorization, file: Path) -> None:
    target = PrivacyTarget(epsilon=4.0, delta=1e-5)
    held = calibrate_sampling(base, target, sampling="redrawn_bins", clip_norm=0.5, batch_size=9)
    assert held.document()["sampling"] == "redrawn_bins"
    assert held.document()["method"] == "deterministic" and held.document()["epsilon_without_secrecy"] > 4
    gram = redrawn_gram(base.strategy, 16)
    assert held.sigma * 9 / 0.5 == pytest.approx(RedrawnLaw(gram).sigma(4.0, 1e-5), rel=1e-9)
    claim = RedrawnClaim.from_document(held.document()["claim"])
    assert all(test.accepted for test in examine_bounded(claim, RedrawnLaw(gram)).values())
    report = check_calibration(file.read_bytes(), held.document())
    assert report.supported, report.failed
    assert "closed forms" in report.calibration["accepted"] and "in every epoch anew" in " ".join(report.not_checked)


def test_the_three_questions_agree_and_each_is_accepted(base: Factorization, file: Path) -> None:
    there = calibrate_redrawn(base, epsilon=4.0, delta=1e-5)
    epsilon = calibrate_redrawn(base, sigma=there.sigma, delta=1e-5)
    delta = calibrate_redrawn(base, sigma=there.sigma, epsilon=4.0)
    assert epsilon.epsilon == pytest.approx(4.0, rel=1e-5) and delta.delta == pytest.approx(1e-5, rel=1e-4)
    for one in (there, epsilon, delta):
        assert check_calibration(file.read_bytes(), one.document()).supported
    found = calibrate_sampling(base, GivenNoise(sigma=there.sigma, delta=1e-5), sampling="redrawn_bins")
    assert found.epsilon == epsilon.epsilon
    gram = redrawn_gram(base.strategy, 16)
    assert RedrawnLaw(gram).epsilon(1e6, 0.1) == 0.0
    with pytest.raises(InvalidParameter, match="more noise"):
        RedrawnLaw(gram).epsilon(1e-5, 0.1)
    with pytest.raises(InvalidParameter, match="more noise"):
        calibrate_redrawn(base, sigma=1e-3, epsilon=1.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sigma": 0.99}, "is not proved"),
        ({"delta": 0.9}, "is not proved"),
        ({"epsilon": 0.98}, "is not proved"),
        ({"sampling": "balls_in_bins"}, "is not redrawn_bins"),
        ({"protocol": "star-1"}, "is not balls_in_bins"),
        ({"protocol": "redrawn-2"}, "none of those known"),
        ({"mechanism": {"bins": 8, "epochs": 8}}, "is not proved"),
        ({"mechanism": {"factors": "sha256:" + "0" * 64}}, "the claim is about"),
        ({"qp": {"rule": "bet", "eta": (1.0).hex(), "lambda": (0.5).hex(), "samples": 4096}}, "redrawn-1 has"),
        ({"pq": {"rule": "gaussian"}}, "is not proved"),
        ({"unamplified": {"epsilon_at_delta": (1.0).hex()}}, "without secrecy"),
    ],
)
def test_claims_that_are_false_or_about_something_else_are_refused(
    base: Factorization, file: Path, change: dict[str, Any], reason: str
) -> None:
    claim = calibrate_redrawn(base, epsilon=4.0, delta=1e-5).claim.document()
    for name, value in change.items():
        if isinstance(value, float):
            claim[name] = (float.fromhex(claim[name]) * value).hex()
        elif name == "mechanism":
            claim[name] = {**claim[name], **value}
        else:
            claim[name] = value
    report = check_calibration(file.read_bytes(), claim)
    assert not report.supported and reason in " ".join(report.failed), report.failed


def test_the_maker_reads_no_bet_and_no_other_epochs(base: Factorization) -> None:
    claim = calibrate_redrawn(base, epsilon=4.0, delta=1e-5).claim
    bet = {"rule": "bet", "m": 3, "lambda": (0.5).hex(), "samples": 4096}
    with pytest.raises(InvalidParameter, match="is not a rule of gaussian, star_bound"):
        RedrawnClaim.from_document({**claim.document(), "pq": bet})
    assert isinstance(claim, RedrawnClaim)
    with pytest.raises(InvalidParameter, match="16 bins in 64 steps"):
        examine_bounded(claim, RedrawnLaw.of(base.strategy, 32))


@pytest.mark.parametrize("mechanism", ["dense", "banded", "blt", "identity", "square_root", "buffered_linear"])
def test_every_structure_is_calibrated_and_checked(mechanism: str, tmp_path: Path) -> None:
    options = {"banded": {"bands": 3}, "blt": {"buffers": 2}, "buffered_linear": {"buffers": 2}}.get(mechanism, {})
    small = {"workload": {"kind": "prefix", "n": 30}, "participation": {"kind": "fixed_epochs", "epochs": 3}}
    found = solved(INVERSE, **small, mechanism={"kind": mechanism, **options})
    found.save(tmp_path / "c.safetensors")
    held = calibrate_redrawn(found, epsilon=2.0, delta=1e-4)
    report = check_calibration((tmp_path / "c.safetensors").read_bytes(), held.document())
    assert report.supported, report.failed


def test_a_last_epoch_that_is_short_and_one_bin(base: Factorization, file: Path) -> None:
    short = calibrate_redrawn(base, epsilon=4.0, delta=1e-5, bins=24)
    assert short.epochs == 3 and check_calibration(file.read_bytes(), short.document()).supported
    single = calibrate_redrawn(base, epsilon=4.0, delta=1e-5, bins=1)
    assert single.epsilon_without_secrecy == pytest.approx(4.0, rel=1e-6)  # nothing is drawn
    assert check_calibration(file.read_bytes(), single.document()).supported
    once = calibrate_redrawn(base, epsilon=4.0, delta=1e-5, bins=64)
    kept = calibrate_sampling(
        base, PrivacyTarget(epsilon=4.0, delta=1e-5), sampling="balls_in_bins", bins=64, method="deterministic"
    )
    assert once.sigma == pytest.approx(kept.sigma, rel=1e-5)  # one epoch: the same law


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bins": 0}, InvalidParameter, "not an integer from 1"),
        ({"bins": 65}, InvalidParameter, "n=64"),
        ({"adjacency": "replace_one"}, UnsupportedAdjacency, "zero_out"),
        ({"adjacency": "add_or_remove"}, UnsupportedAdjacency, "zero_out"),
        ({"batch_size": 0}, InvalidParameter, "fixed public divisor"),
        ({"sigma": 1.0}, InvalidParameter, "both of epsilon and delta"),
    ],
)
def test_what_is_not_covered_is_refused(
    base: Factorization, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        calibrate_redrawn(base, **{"epsilon": 4.0, "delta": 1e-5, **options})


def test_runs_that_are_too_long_are_refused_with_the_way_out() -> None:
    long = solved(INVERSE, workload=4200, mechanism="identity")
    with pytest.raises(TooLarge, match="use balls_in_bins"):
        redrawn_gram(long.strategy, 1050)


def test_the_command_line_calibrates_and_verifies(file: Path, tmp_path: Path) -> None:
    command = CommandLine(tmp_path)
    options = ("--sampling", "redrawn_bins", "--epsilon", "4", "--delta", "1e-5")
    text = command("calibrate", file, *options).out
    assert "without secrecy" in text and "under redrawn_bins sampling" in text
    (tmp_path / "answer.json").write_text(command("calibrate", file, *options, "--output", "json").out)
    assert json.loads((tmp_path / "answer.json").read_text())["method"] == "deterministic"
    assert "accepted" in command("verify", file, "--calibration", tmp_path / "answer.json").out


def test_the_checker_encloses_the_other_direction() -> None:
    c = lower(9, 4, 0.5)
    h = c.T @ c
    gram = Gram(h * (1 + 1e-15), h * (1 - 1e-15), h.diagonal())
    found = exact.addition(gram, 3, 2.0, 0.5)
    ours = math.exp(log_reverse(gram_of(c, 3), 2.0, 0.5))
    assert found.low <= found.high <= Decimal(ours) and float(found.low) == pytest.approx(ours, rel=1e-9)
