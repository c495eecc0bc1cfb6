"""Claims about balls in bins as the exact checker reads them: true ones accepted, every kind of false one refused."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checker_files import parts, sealed
from command_line import CommandLine
from manifest_mutations import changed as with_value
from manifest_mutations import nodes
from specs import claimed, spec_of
from star_claims import best_order, changed, consistent, estimate, gram_of, unamplified

from factorize.accounting import calibrate_bins
from factorize.accounting.claim import prefixed
from factorize.checker.sampling import bets, calibrations, star
from factorize.checker.sampling.calibrations import check_calibration, read_claim, scale_of
from factorize.checker.strategy import read_factor_file
from factorize.encoding import json_digest
from factorize.errors import CorruptObject, TooLarge
from factorize.factors.factorization import Factorization
from factorize.numbers.gaussian import noise_multiplier_for_epsilon
from factorize.structures.toeplitz import ToeplitzMatrix

N, BINS, EPSILON, DELTA = 24, 6, 4.0, 1e-4


def result_of(column: np.ndarray) -> Factorization:
    return claimed(spec_of(len(column), "square_root"), ToeplitzMatrix(column, len(column)))


def file_of(column: np.ndarray) -> bytes:
    return sealed(*parts(result_of(column)))


COLUMN = np.cumprod([1.0, *((i - 0.5) / i for i in range(1, N))])
DATA = file_of(COLUMN)
ENTRY_DOUBLED = file_of(np.concatenate([COLUMN[:1], 2 * COLUMN[1:2], COLUMN[2:]]))


@pytest.fixture(scope="module")
def claim() -> dict[str, Any]:
    """The accountant's, by which nothing is trusted here: every claim that holds would do."""
    return calibrate_bins(result_of(COLUMN), epsilon=EPSILON, delta=DELTA, bins=BINS).claim.document()


@pytest.fixture(scope="module")
def sampled(claim: dict[str, Any]) -> dict[str, Any]:
    """The same with a bet in each direction."""
    weights = bets.addition(gram_of(DATA, BINS).high, float.fromhex(claim["sigma"]), EPSILON, 2.0)
    rate, samples = 0.05 / float(weights.bound), 200 * bets.CHUNK
    qp = {"rule": "bet", "lambda": rate.hex(), "eta": (2.0).hex(), "samples": samples, "shared": (0.0).hex()}
    return changed(claim, qp=qp)


def refusals(document: dict[str, Any], data: bytes = DATA, fresh: bool = False) -> str:
    report = check_calibration(data, document, fresh=fresh)
    assert report.supported == (not report.failed)
    return " ".join(report.failed)


def test_a_true_claim_is_accepted_with_its_seed_and_with_another(claim: dict[str, Any]) -> None:
    for fresh in (False, True):
        report = check_calibration(DATA, claim, fresh=fresh)
        assert report.supported, report.failed
        assert report.checked[0].startswith("every byte of the file belongs to a tensor or the manifest")
        assert report.calibration["accepted"] == "accepted: false with probability at most 2^-127 over the seed"
        assert report.calibration["pq"]["log_wealth"] >= 128 * math.log(2)
        assert 0 < report.calibration["pq"]["estimate"] < DELTA
        assumed = " ".join(report.not_checked)
        assert "in secret" in assumed and "ideal law" in assumed and ("SHA-256" in assumed) == (not fresh)
    again = check_calibration(DATA, {"claim": claim, "claim_digest": prefixed(json_digest(claim))})
    assert again.calibration == check_calibration(DATA, claim).calibration


def test_both_directions_may_be_bets(sampled: dict[str, Any]) -> None:
    report = check_calibration(DATA, sampled)
    assert report.supported, report.failed
    assert {report.calibration[name]["rule"] for name in ("pq", "qp")} == {"bet"}


def closed_claim(claim: dict[str, Any], rule: str) -> dict[str, Any]:
    if rule == "star_bound":
        bounds = {"epsilon": EPSILON, "delta": DELTA, "bins": BINS, "method": "deterministic"}
        return calibrate_bins(result_of(COLUMN), **bounds).claim.document()
    found = gram_of(DATA, BINS)
    sigma = 1.02 * noise_multiplier_for_epsilon(EPSILON, DELTA) * math.sqrt(found.high.diagonal().max())
    stated = unamplified(found, sigma, DELTA)
    return changed(claim, pq={"rule": rule}, qp={"rule": rule}, sigma=sigma, unamplified__epsilon_at_delta=stated)


@pytest.mark.parametrize("rule", ["star_bound", "gaussian"])
def test_closed_forms_need_no_samples(claim: dict[str, Any], rule: str) -> None:
    document = closed_claim(claim, rule)
    report = check_calibration(DATA, document)
    assert report.supported, report.failed
    assert report.calibration["accepted"] == "accepted: both directions are proved by closed forms, without samples"
    assert "random function" not in " ".join(report.not_checked)
    smaller = changed(document, sigma=float.fromhex(document["sigma"]) / 1.05)
    assert "is not proved" in refusals(smaller) or "without secrecy" in refusals(smaller)
    below = check_calibration(DATA, changed(claim, pq=document["pq"], qp=document["qp"]))
    assert any("is not proved" in text for text in below.failed)


def true_delta(claim: dict[str, Any]) -> float:
    return estimate(gram_of(DATA, BINS), float.fromhex(claim["sigma"]), EPSILON, 40)


HUGE_TILT = {"rule": "bet", "eta": (1e6).hex(), "lambda": (1.0).hex(), "samples": 8192, "shared": (0.0).hex()}
FALSE: dict[str, Any] = {
    "delta 5 % too small": lambda c: changed(c, delta=0.95 * true_delta(c)),
    "delta 5 % too small and nothing else": lambda c: consistent(changed(c, delta=0.95 * true_delta(c)), DATA),
    "sigma 2 % smaller and nothing else": lambda c: consistent(
        changed(c, sigma=float.fromhex(c["sigma"]) * 0.98), DATA
    ),
    "delta half": lambda c: changed(c, delta=DELTA / 2),
    "sigma 2 % smaller": lambda c: changed(c, sigma=float.fromhex(c["sigma"]) * 0.98),
    "sigma a tenth": lambda c: changed(c, sigma=float.fromhex(c["sigma"]) / 10),
    "epsilon smaller": lambda c: changed(c, epsilon=EPSILON * 0.95),
    "clip norm 2 % larger": lambda c: changed(c, clip_norm=1.02),
    "m + 5": lambda c: changed(c, pq__m=c["pq"]["m"] + 5),
    "m of the claim of a silly order": lambda c: changed(c, pq__m=4096),
    "lambda a hundredfold": lambda c: changed(c, pq__lambda=100 * float.fromhex(c["pq"]["lambda"])),
    "lambda a hundredth": lambda c: changed(c, pq__lambda=float.fromhex(c["pq"]["lambda"]) / 100),
    "a larger shared part": lambda c: changed(c, pq__shared=1.5 * float.fromhex(c["pq"]["shared"]) + 1.0),
    "too small a shared part": lambda c: changed(c, pq__shared=1e-6),
    "twice the bins": lambda c: changed(c, mechanism__bins=2 * BINS),
    "half the bins and twice the epochs": lambda c: changed(
        c, mechanism__bins=BINS // 2, mechanism__epochs=2 * N // BINS
    ),
    "fewer epochs": lambda c: changed(c, mechanism__epochs=1),
    "another n": lambda c: changed(c, mechanism__n=N - 1),
    "star bound that is too weak": lambda c: changed(c, pq={"rule": "star_bound", "m": c["pq"]["m"]}),
    "gaussian without amplification": lambda c: changed(c, qp={"rule": "gaussian"}),
    "sigma beyond doubles": lambda c: changed(c, sigma=1e300, clip_norm=1e-300),
    "tiny sigma": lambda c: changed(c, sigma=1e-9),
    "scales that no job has": lambda c: changed(c, sigma=float.fromhex(c["sigma"]) * 2.0**-120, clip_norm=2.0**-120),
    "a million bins": lambda c: changed(c, mechanism__bins=10**6, mechanism__epochs=1),
    "no secrecy, and epsilon understated": lambda c: changed(c, unamplified__epsilon_at_delta=EPSILON),
    "samples of no whole chunk": lambda c: changed(c, pq__samples=c["pq"]["samples"] + 1),
    "huge eta": lambda c: changed(c, qp=HUGE_TILT),
}


@pytest.mark.parametrize("name", FALSE)
def test_false_claims_are_refused(claim: dict[str, Any], name: str) -> None:
    assert refusals(FALSE[name](claim))


def test_strategies_and_noise_whose_squares_are_below_the_normal_numbers(claim: dict[str, Any]) -> None:
    """C and sigma a power of two smaller, and true as before: refused, as no certificate states such a sensitivity."""
    manifest, tensors = parts(result_of(COLUMN))
    tensors["C.coefficients"] = np.ldexp(tensors["C.coefficients"], -340)
    data = sealed(manifest, tensors)
    own = json.loads(json.dumps(claim))
    own["mechanism"]["factors"] = "sha256:" + manifest["digest"]
    own |= {"sigma": (2.0**-99).hex(), "clip_norm": (2.0**99).hex()}
    assert "sensitivity below 1e-60" in refusals(own, data)


@pytest.mark.parametrize("power", [-525, -520, -512, -100, 0, 100])
def test_covariances_are_never_below_the_gram_matrix_over_sigma_squared(power: int) -> None:
    """In fractions, for squares of sigma that have all their places, few of them, or none."""
    rng = np.random.default_rng(power + 600)
    for _ in range(20):
        sigma, sums = float(np.ldexp(1 + rng.random(), power)), np.ldexp(rng.random((3, 3)), power)
        near = sums.T @ sums
        exact = [Fraction(entry) / Fraction(sigma) ** 2 for entry in near.ravel().tolist()]
        for kernel in (star.scale_gram(near, sigma), bets.covariance(near, sigma).kernel):
            assert all(Fraction(k) >= least for k, least in zip(kernel.ravel().tolist(), exact, strict=True))


ODD = (None, True, 0, -1, 10**14, 1.5, "", [], {}, "nan", "0x1p-1074", "0x0.0p+0", (1e308).hex(), (5e-324).hex())


def test_odd_values_in_any_place_are_refused_in_words(claim: dict[str, Any]) -> None:
    for path, before in nodes(claim):
        for value in ODD if path else ():
            if before == value and path[-1] == "shared":  # 0, as it was
                continue
            try:
                said = refusals(with_value(claim, path, value))
            except TooLarge as error:
                said = str(error)
            assert said, (path, value)


def test_a_claim_is_of_one_file(claim: dict[str, Any]) -> None:
    assert "the claim is about" in refusals(claim, ENTRY_DOUBLED)
    own = json.loads(json.dumps(claim))
    own["mechanism"]["factors"] = prefixed(read_factor_file(ENTRY_DOUBLED).manifest["digest"])
    for fresh in (False, True):
        assert "delta" in refusals(own, ENTRY_DOUBLED, fresh)  # an entry of C doubled, and the claim that of before


def test_a_bound_below_delta_needs_no_bet(claim: dict[str, Any]) -> None:
    found, sigma = gram_of(DATA, BINS), 3 * float.fromhex(claim["sigma"])
    stated, order = unamplified(found, sigma, DELTA), best_order(star.scale_gram(found.high, sigma), EPSILON)
    closed = changed(claim, qp={"rule": "closed_form"}, pq__m=order, pq__shared=0.0)
    document = changed(closed, sigma=sigma, unamplified__epsilon_at_delta=stated)
    report = check_calibration(DATA, document)
    assert report.supported and "no bet is needed" in " ".join(report.checked)


def test_a_clip_norm_scales_the_noise(claim: dict[str, Any]) -> None:
    scaled = changed(claim, sigma=float.fromhex(claim["sigma"]) / 2, clip_norm=0.5)
    assert scale_of(read_claim(scaled)) == scale_of(read_claim(claim))
    assert not refusals(scaled) or "not accepted" in refusals(scaled)  # another digest, another seed, the same law
    report = check_calibration(DATA, scaled, fresh=True)
    assert not report.failed
    assert report.calibration["sigma_of_sums"] == float.fromhex(claim["sigma"]) / 2


def test_damage_and_size_are_errors_of_their_own(claim: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    broken = bytearray(DATA)
    broken[-3] ^= 1
    with pytest.raises(CorruptObject):
        check_calibration(bytes(broken), claim)
    monkeypatch.setattr(calibrations, "MAX_NORMALS", 1000)
    with pytest.raises(TooLarge, match="normals or pairs of picks, the limit"):
        check_calibration(DATA, claim)


def test_the_command_says_what_was_accepted_and_exits_with_4_where_not(claim: dict[str, Any], tmp_path: Path) -> None:
    factorize = CommandLine(tmp_path)
    factors, good, bad = tmp_path / "c.safetensors", tmp_path / "claim.json", tmp_path / "lie.json"
    factors.write_bytes(DATA)
    good.write_text(json.dumps({"claim": claim, "claim_digest": prefixed(json_digest(claim))}))
    bad.write_text(json.dumps(changed(claim, delta=DELTA / 2)))
    done = factorize("verify", factors, "--calibration", good)
    assert done.code == 0, done
    assert "accepted: false with probability at most 2^-127 over the seed" in done.out
    assert "SHA-256 acts as a random function" in done.out and "in secret" in done.out
    done = factorize("verify", factors, "--calibration", good, "--seed", "fresh", "--output", "json")
    assert done.code == 0 and done.json()["verified"] and done.json()["calibration"]["seed"] == "fresh"
    done = factorize("verify", factors, "--calibration", bad)
    assert done.code == 4 and "REFUSED" in done.out
    bad.write_text("[]")
    assert "not a JSON object" in factorize("verify", factors, "--calibration", bad).error(2)
    assert "--calibration" in factorize("verify", factors, "--seed", "fresh").error(2)
    factors.write_bytes(DATA[:-1])
    factorize("verify", factors, "--calibration", good).error(4)


def test_a_file_whose_squares_underflow_is_refused_and_a_clip_norm_that_makes_up_for_it(claim: dict[str, Any]) -> None:
    """C = diag(1.5e-161) with a clip norm of 3.67e161: squares below the normal doubles made delta look small."""
    tiny, clip_norm = 1.5e-161, 3.67e161
    manifest, tensors = parts(result_of(np.eye(N)[0]))
    tensors = {name: array * tiny if name.startswith("C.") else array for name, array in tensors.items()}
    manifest["certificate"]["sensitivity"] |= {"value": tiny, "hex": tiny.hex()}
    data = sealed(manifest, tensors)
    mechanism = claim["mechanism"] | {"factors": manifest["digest"]}
    with pytest.raises(CorruptObject, match=r"outside \[1e-60, 1\.8e308\)"):
        check_calibration(data, changed(claim, mechanism=mechanism))
    assert "outside [1e-30, 1e+30]" in refusals(changed(claim, clip_norm=clip_norm))
