"""Claims: what passes, what never does, and the calibration that carries one."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bin_cases import ROOT, inverse_roots
from specs import solved

from factorize import load
from factorize.accounting import (
    BinGram,
    BinsCalibration,
    BinsClaim,
    bin_gram,
    bins_delta,
    calibrate_bins,
    epsilon_bins,
    examine,
)
from factorize.accounting.bins_search import BinsQuestion, FoundClaim, find_claim, plan_bets
from factorize.accounting.claim_test import LOG_THRESHOLD
from factorize.accounting.levels.bins_level import find_delta
from factorize.accounting.star_bound import log_single_bin
from factorize.accounting.star_estimate import Sampled, StarEstimate
from factorize.client.factors import Factors
from factorize.encoding import canonical_json
from factorize.errors import InvalidParameter, UnsupportedAdjacency
from factorize.exact.sampling.calibrations import check_calibration
from factorize.numbers.gaussian import gaussian_epsilon, noise_multiplier_for_epsilon
from factorize.structures.dense import DenseMatrix

NAME = "sha256:" + "ab" * 32


@pytest.fixture(scope="module")
def gram() -> BinGram:
    return bin_gram(inverse_roots(6, 64), 16)


@pytest.fixture(scope="module")
def found(gram: BinGram) -> FoundClaim:
    return find_claim(BinsQuestion(factors=NAME, gram=gram, epsilon=4.0, delta=1e-4, clip_norm=0.5, divisor=3))


def test_a_claim_is_found_where_no_weight_is_above_delta(tmp_path: Path) -> None:
    """Long sums over ten epochs: the ceiling of the weights is below delta, and the bounds are 6 % above."""
    made = solved({"kind": "prefix", "n": 40}, "square_root", 10)
    held = calibrate_bins(made, epsilon=1.0, delta=1e-6)
    assert held.method == "verified" and held.sigma_of_sums < 0.96 * held.deterministic_sigma
    made.save(path := tmp_path / "c.safetensors")
    assert check_calibration(path.read_bytes(), held.document()).supported


def test_a_claim_is_found_close_to_the_estimate_and_passes(gram: BinGram, found: FoundClaim) -> None:
    claim = found.claim
    assert claim.pq.rule == "shared_bet" and found.tests["pq"].accepted and found.tests["qp"].accepted
    assert found.tests["pq"].log_value >= 128 * math.log(2)
    point = StarEstimate(gram, seed=9).sigma(4.0, 1e-4)
    assert point * 1.0005 < claim.multiplier < point * 1.025 < found.deterministic_multiplier
    assert claim.multiplier == pytest.approx(claim.sigma * 3 / 0.5, rel=1e-15)
    assert math.exp(log_single_bin(gram, claim.multiplier, 4.0)) < 1e-4


def test_the_test_repeats_and_takes_a_seed_of_the_verifier(gram: BinGram, found: FoundClaim) -> None:
    again = examine(found.claim, gram)
    assert again == found.tests
    own = examine(found.claim, gram, secret=b"of my own")
    assert own["pq"].accepted and own["pq"].log_value != again["pq"].log_value


def test_the_seed_is_the_digest_of_the_document(found: FoundClaim) -> None:
    claim = found.claim
    text = json.dumps(claim.document(), sort_keys=True, separators=(",", ":"))
    seed = hashlib.sha256(b"factorize bins-1 pq\n" + text.encode()).digest()
    assert claim.key("pq") == (int.from_bytes(seed[:8], "little"), int.from_bytes(seed[8:16], "little"))
    assert claim.key("pq") != claim.key("qp") != claim.key("qp", secret=b"x")
    assert BinsClaim.from_document(json.loads(text)) == claim
    assert json.loads(text)["pq"]["samples"] % 4096 == 0


MUTATIONS: dict[str, Callable[[BinsClaim], BinsClaim]] = {
    "sigma 2 % smaller": lambda claim: replace(claim, sigma=claim.sigma * 0.98),
    "delta halved": lambda claim: replace(claim, delta=claim.delta * 0.5),
    "epsilon smaller": lambda claim: replace(claim, epsilon=claim.epsilon * 0.95),
    "sums called means": lambda claim: replace(claim, divisor=2),
    "a larger clip norm": lambda claim: replace(claim, clip_norm=0.6),
    "the bound without sampling": lambda claim: replace(claim, pq=replace(claim.pq, rule="star_bound")),
    "the Gaussian": lambda claim: replace(claim, pq=replace(claim.pq, rule="gaussian")),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_false_claims_fail(gram: BinGram, found: FoundClaim, name: str) -> None:
    verdict = examine(MUTATIONS[name](found.claim), gram)
    assert not verdict["pq"].accepted


def test_many_false_claims_stay_far_from_passing(gram: BinGram, found: FoundClaim) -> None:
    """Sigma 2 % below the estimate: 88.7 is needed, and luck of e^-20 would already be news."""
    point = StarEstimate(gram).sigma(4.0, 1e-4) * 0.98
    base = replace(found.claim, sigma=point * 0.5 / 3, pq=replace(found.claim.pq, samples=4096))
    claims = [replace(base, attempt=i, delta=base.delta * (1 - 1e-6 * j)) for i in range(1, 17) for j in range(10)]
    values = [examine(claim, gram)["pq"].log_value for claim in claims]
    assert max(values) < 20 and not any(value >= LOG_THRESHOLD for value in values)


def test_another_c_fails(gram: BinGram, found: FoundClaim) -> None:
    larger = inverse_roots(6, 64).dense().copy()
    larger[20, 19] += 1.5
    assert not examine(found.claim, bin_gram(DenseMatrix(larger), 16))["pq"].accepted
    with pytest.raises(InvalidParameter, match="16 bins in 64 steps and C has 8"):
        examine(found.claim, bin_gram(inverse_roots(6, 64), 8))


def test_a_bet_of_more_than_it_has_is_refused(gram: BinGram, found: FoundClaim) -> None:
    stake = found.claim.pq.stake
    assert stake is not None
    for pq in (replace(found.claim.pq, stake=stake * 100), replace(found.claim.pq, tilt=60.0)):
        verdict = examine(replace(found.claim, pq=pq), gram)["pq"]
        assert (
            not verdict.accepted
            and re.search("not below 1|ceiling of e|too large", verdict.reason)
            and verdict.samples == 0
        )


def test_an_estimate_of_zero_is_no_evidence() -> None:
    """Sigma 60 times too small: a naive mean can be 0 with error 0. The ceiling is in the test, so it is refused."""
    gram = bin_gram(inverse_roots(6, 64), 16)
    question = BinsQuestion(factors=NAME, gram=gram, epsilon=4.0, delta=1e-4)
    claim = find_claim(question).claim
    assert not examine(replace(claim, sigma=claim.sigma / 60), gram)["pq"].accepted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocol": "star-0"}, "protocol"),
        ({"adjacency": "replace_one"}, "adjacency"),
        ({"beta_log2": -1}, "beta_log2"),
        ({"delta": "0x1.8p+0"}, "delta"),
        ({"delta": 0.5}, "delta"),
        ({"sigma": "nan"}, "sigma"),
        ({"attempt": 17}, "attempt"),
        ({"divisor": 0}, "divisor"),
        ({"extra": 1}, "extra"),
        ({"mechanism": {}}, "mechanism"),
        ({"mechanism": {"bins": 16, "epochs": 4, "n": 64, "gram": NAME, "factors": "c"}}, "factors"),
        ({"unamplified": None}, "unamplified"),
        ({"pq": {"rule": "trust"}}, "pq"),
        ({"pq": {"rule": "closed_form"}}, "pq"),
        ({"pq": {"rule": "bet", "m": 1, "lambda": "0x1p+0", "samples": 4096}}, "m "),
        ({"pq": {"rule": "bet", "m": 3, "lambda": "0x1p+0", "samples": 4097}}, "samples"),
        ({"qp": []}, "qp"),
        ({"sigma": "0x1p+0"}, "canonical"),
    ],
)
def test_malformed_claims_are_refused(found: FoundClaim, change: dict[str, Any], message: str) -> None:
    document = copy.deepcopy(found.claim.document()) | change
    with pytest.raises(InvalidParameter, match=message):
        BinsClaim.from_document(document)


def test_without_work_the_bounds_make_the_claim(gram: BinGram) -> None:
    found = find_claim(BinsQuestion(factors=NAME, gram=gram, epsilon=4.0, delta=1e-4), work=0)
    assert (found.claim.pq.rule, found.claim.qp.rule, found.samples) == ("star_bound", "closed_form", 0)
    assert found.claim.multiplier == pytest.approx(found.deterministic_multiplier, rel=1e-12)
    assert bins_delta(gram, multiplier=found.claim.multiplier, epsilon=4.0).delta <= 1e-4


def test_one_bin_is_answered_by_the_gaussian_mechanism() -> None:
    gram = bin_gram(inverse_roots(6, 64), 1)
    found = find_claim(BinsQuestion(factors=NAME, gram=gram, epsilon=2.0, delta=1e-6))
    assert (found.claim.pq.rule, found.claim.qp.rule) == ("gaussian", "gaussian")
    assert found.claim.multiplier == pytest.approx(noise_multiplier_for_epsilon(2.0, 1e-6) * gram.sensitivity, rel=1e-6)


def test_calibration_says_what_it_counts_on() -> None:
    base = solved(ROOT)
    held = calibrate_bins(base, epsilon=4.0, delta=1e-4, divisor=10, clip_norm=2.0)
    assert isinstance(held, BinsCalibration) and (held.bins, held.epochs, held.sampling) == (16, 4, "balls_in_bins")
    plain = noise_multiplier_for_epsilon(4.0, 1e-4) * base.certificate.sensitivity.value * 2.0
    assert held.sigma_of_sums < held.deterministic_sigma < plain
    assert held.sensitivity == base.certificate.sensitivity and held.absolute_cost == pytest.approx(1.0, abs=1e-9)
    assert held.noise_multiplier == pytest.approx(held.sigma_of_sums / 2 / held.sensitivity.value, rel=1e-10)
    assert held.epsilon_without_secrecy == pytest.approx(gaussian_epsilon(1e-4, held.mu), rel=1e-6) and (
        held.epsilon_without_secrecy > 4.0
    )
    document = json.loads(canonical_json(held.document()))
    assert document["claim"]["mechanism"]["factors"] == f"sha256:{base.digest.removeprefix('sha256:')}"
    assert document["sigma_of_means"] == pytest.approx(held.sigma_of_sums / 10) and document["method"] == "verified"
    assert examine(BinsClaim.from_document(document["claim"]), bin_gram(base.strategy, 16))["pq"].accepted
    held.check_belongs(base.certificate.sensitivity, lambda: base.strategy)


def test_calibration_of_a_file_is_that_of_the_factorization(tmp_path: Path) -> None:
    base = solved(ROOT)
    base.save(tmp_path / "c.safetensors")
    one = calibrate_bins(base, epsilon=4.0, delta=1e-4, method="deterministic")
    other = calibrate_bins(load(tmp_path / "c.safetensors"), epsilon=4.0, delta=1e-4, method="deterministic")
    light = calibrate_bins(
        Factors(base.manifest, path=tmp_path / "c.safetensors"), epsilon=4, delta=1e-4, method="deterministic"
    )
    assert one.claim == other.claim == light.claim and one.method == "deterministic" and one.samples == 0


def test_a_signed_strategy_says_what_its_absolute_value_costs() -> None:
    rng = np.random.default_rng(2)
    c = np.tril(0.2 * rng.normal(size=(16, 16))) + np.eye(16)
    base = solved(16, "dense", 4, tolerance=1e-3)
    plain = calibrate_bins(base, epsilon=4.0, delta=1e-4, method="deterministic")
    assert plain.absolute_cost is not None and plain.absolute_cost >= 1.0
    gram = bin_gram(DenseMatrix(c), 4)
    assert gram.signed and gram.sensitivity > math.sqrt(max((c.reshape(16, 4, 4).sum(axis=1) ** 2).sum(axis=0)))


def test_a_short_last_epoch_is_calibrated_for_bins_that_are_given() -> None:
    base = solved(ROOT, n=50, participation={"kind": "min_sep", "min_sep": 16})
    with pytest.raises(InvalidParameter, match="give bins"):
        calibrate_bins(base, epsilon=4.0, delta=1e-4)
    held = calibrate_bins(base, epsilon=4.0, delta=1e-4, bins=16, method="deterministic")
    assert held.epochs == 4 and held.sensitivity.participation == {"kind": "balls_in_bins", "bins": 16, "epochs": 4}
    held.check_belongs(base.certificate.sensitivity, lambda: base.strategy)


def test_one_epoch_has_as_many_bins_as_steps() -> None:
    base = solved(ROOT, participation="single", mechanism="identity")
    held = calibrate_bins(base, epsilon=4.0, delta=1e-4, method="deterministic")
    assert (held.bins, held.epochs) == (64, 1) and held.sigma_of_sums < noise_multiplier_for_epsilon(4.0, 1e-4)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"adjacency": "replace_one"}, UnsupportedAdjacency, "zero_out"),
        ({"adjacency": "add_or_remove_one"}, UnsupportedAdjacency, "removing a record"),
        ({"epsilon": 0.0}, InvalidParameter, "epsilon"),
        ({"delta": 1.0}, InvalidParameter, "delta"),
        ({"clip_norm": -1.0}, InvalidParameter, "clip_norm"),
        ({"divisor": 0}, InvalidParameter, "divisor"),
        ({"bins": 65}, InvalidParameter, "n=64"),
        ({"method": "guess"}, InvalidParameter, "verified or deterministic"),
    ],
)
def test_what_is_not_covered_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        calibrate_bins(solved(ROOT), **{"epsilon": 4.0, "delta": 1e-4, **options})


def test_the_profile_holds_at_the_calibrated_point() -> None:
    base = solved(ROOT)
    held = calibrate_bins(base, epsilon=4.0, delta=1e-4, method="deterministic")
    profile = epsilon_bins(base, sigma=held.sigma_of_sums, epsilons=[0.0, 2.0, 4.0, 8.0])
    deltas = [delta for _, delta in profile]
    assert deltas == sorted(deltas, reverse=True) and deltas[2] <= 1e-4 <= deltas[1]


def test_a_delta_is_claimed_at_a_sigma_that_is_given(gram: BinGram) -> None:
    question = BinsQuestion(factors=NAME, gram=gram, epsilon=3.0, delta=0.5, clip_norm=0.7, divisor=3)
    found = find_delta(question, 0.4)
    assert found.claim.sigma == 0.4 and found.claim.pq.rule == "shared_bet" and found.tests["pq"].accepted
    bound = bins_delta(gram, multiplier=found.claim.multiplier, epsilon=3.0).delta
    point = StarEstimate(gram, seed=3).forward(found.claim.multiplier, 3.0).delta
    assert 1.01 * point < found.claim.delta < 1.5 * point < bound
    assert find_delta(question, 0.4, work=0).claim.delta == bound


def test_a_verified_profile_lies_below_the_bounds() -> None:
    base = solved(ROOT)
    bounds = epsilon_bins(base, sigma=3.0, epsilons=[2.0, 4.0])
    verified = epsilon_bins(base, sigma=3.0, epsilons=[2.0, 4.0], method="verified")
    assert all(claimed < bound for (_, claimed), (_, bound) in zip(verified, bounds, strict=True))


def test_plans_survive_estimates_that_are_far_from_sure(gram: BinGram) -> None:
    """A few large weights: the mean plus its error passes the ceiling of a single one."""
    weights = np.zeros(4096)
    weights[:4] = 1e-3
    (bet,) = plan_bets(Sampled(weights, ceiling=1e-3, tilt=3.0), 1e-5, 16)
    assert bet.evidence.stake is not None and 0 < bet.evidence.stake * (1e-3 - 1e-5) < 1
    assert not list(plan_bets(Sampled(weights, ceiling=1e-3, tilt=3.0), 1e-6, 16))


def test_the_hardest_case_is_claimed_below_the_bounds() -> None:
    """C = I at (2, 1e-10): one bin in 256 does all the harm, and most samples see nothing."""
    gram = BinGram(8 * np.eye(256), 2048, 1e-13, False)
    point = StarEstimate(gram).sigma(2.0, 1e-10)
    assert 0.97 * 0.8872 * math.sqrt(8) < point < 1.01 * 0.8872 * math.sqrt(8)
    found = find_claim(BinsQuestion(factors=NAME, gram=gram, epsilon=2.0, delta=1e-10))
    assert found.claim.pq.rule == "thinned_bet" and found.claim.multiplier < 0.82 * found.deterministic_multiplier
