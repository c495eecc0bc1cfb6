"""Claims of every protocol as the exact checker reads them: one that is sound of each, and each way to spoil it."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import pytest
from manifest_mutations import MISSING, changed

from factorize.checker.sampling.calibrations import scale_of
from factorize.format import bins_claims
from factorize.format.bins_claims import read_claim
from factorize.format.quantities import ClaimRefused

BET = {"rule": "bet", "lambda": (2.0).hex(), "m": 3, "samples": 8192, "shared": (0.0).hex()}
OTHER = {"rule": "bet", "lambda": (2.0).hex(), "eta": (1.5).hex(), "samples": 8192, "shared": (0.5).hex()}


def sound(sampling: str = "balls_in_bins") -> dict[str, Any]:
    drawn = sampling == "b_min_sep"
    mechanism = {"bins": 3, "epochs": 2, "factors": "f", "n": 6} | (
        {"sampling_probability": (0.1).hex()} if drawn else {}
    )
    first = {
        "balls_in_bins": BET,
        "random_allocation": {"rule": "loss_distribution"},
        "b_min_sep": {"rule": "star_bound", "m": 3},
    }[sampling]
    return {
        "adjacency": "zero_out",
        "attempt": 1,
        "beta_log2": -128,
        "clip_norm": (0.5).hex(),
        "delta": (1e-5).hex(),
        "epsilon": (2.0).hex(),
        "mechanism": mechanism,
        "protocol": "bins-1",
        "sampling": sampling,
        "sigma": (0.75).hex(),
        "unamplified": {"epsilon_at_delta": (3.0).hex()},
        "pq": dict(first),
        "qp": {"rule": "gaussian"},
    }


def refused(document: dict[str, Any], words: str) -> None:
    with pytest.raises(ClaimRefused) as reason:
        read_claim(document)
    assert words in str(reason.value)


@pytest.mark.parametrize("sampling", bins_claims.SAMPLINGS)
def test_sound_ones(sampling: str) -> None:
    found = read_claim(sound(sampling))
    assert found == (sound(sampling), 2.0, 1e-5, 0.75, 0.5, 6, 3, 3.0)
    text = json.dumps(sound(sampling), sort_keys=True, separators=(",", ":")).encode()
    assert found.canonical == text
    for direction in ("pq", "qp"):
        digest = hashlib.sha256(f"factorize bins-1 {direction}\n".encode() + text).digest()
        words = [int.from_bytes(digest[start : start + 8], "little") for start in (0, 8)]
        assert found.key(direction) == tuple(words)


def test_text_beyond_ascii_is_escaped() -> None:
    found = read_claim(changed(sound(), "mechanism/factors", "é"))
    assert b'"factors":"\\u00e9"' in found.canonical


def test_what_json_does_not_hold() -> None:
    for path in ("pq/m", "pq/samples", "mechanism/factors"):
        for value in (math.nan, math.inf, {1, 2}):
            refused(changed(sound(), path, value), "the claim contains a value that JSON cannot express")


RIGHT: list[tuple[str, Any]] = [
    ("attempt", 16),
    ("mechanism/n", 3),
    ("mechanism/n", 1 << 53),
    ("mechanism/bins", 1),
    ("mechanism/bins", 6),
    ("epsilon", (0.0).hex()),
    ("epsilon", (1e6).hex()),
    ("unamplified/epsilon_at_delta", (0.0).hex()),
    ("unamplified/epsilon_at_delta", (1e6).hex()),
    ("delta", math.nextafter(1.0, 0.0).hex()),
    ("qp", OTHER),
    ("qp", {"rule": "closed_form"}),
    ("pq", {"rule": "gaussian"}),
    ("pq", {"rule": "star_bound", "m": 2}),
]


@pytest.mark.parametrize(("path", "value"), RIGHT)
def test_what_else_is_sound(path: str, value: Any) -> None:
    assert read_claim(changed(sound(), path, value)).document == changed(sound(), path, value)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("protocol", ["bins-1"], "is not bins-1, the only one that this release knows"),
        ("unamplified", [], "unamplified is '[]', not an object"),
        ("unamplified/more", 1, "the field 'more' of unamplified is missing or unknown"),
        ("mechanism/factors", MISSING, "the field 'factors' of mechanism is missing or unknown"),
        ("pq/rule", "loss_distribution", "pq.rule is 'loss_distribution'; balls_in_bins has"),
        ("qp/rule", "star_bound", "balls_in_bins has ['bet', 'closed_form', 'gaussian'] in this release"),
        ("qp/m", 2, "the field 'm' of qp is missing or unknown"),
        ("beta_log2", -127, "beta_log2 is -127"),
        ("attempt", 0, "attempt is 0"),
        ("attempt", 17, "attempt is 17"),
        ("adjacency", "replace_one", "adjacency"),
        ("sampling", "poisson", "sampling"),
        ("delta", (1e-5).hex().upper(), "delta is"),
        ("sigma", "inf", "sigma is"),
        ("epsilon", (-1.0).hex(), "epsilon is"),
        ("mechanism/n", (1 << 53) + 1, "n is"),
        ("mechanism/bins", 0, "bins is 0"),
        ("delta", (1.0).hex(), "delta is 1.0, outside [1e-300, 1]"),
        ("clip_norm", "0.5", "clip_norm is '0.5', but float.hex writes"),
        ("epsilon", math.nextafter(1e6, 2e6).hex(), "epsilon is 1000000.0000000001, outside [0, 1e+06]"),
        (
            "unamplified/epsilon_at_delta",
            math.nextafter(1e6, 2e6).hex(),
            "epsilon_at_delta is 1000000.0000000001, outside [0, 1e+06]",
        ),
    ],
)
def test_what_is_not(path: str, value: Any, words: str) -> None:
    refused(changed(sound(), path, value), words)


def test_the_unit_noise_is_rounded_down() -> None:
    """sigma / clip_norm as a fraction: a third over 3/5 is no double, and 0.75 / 0.5 is one."""
    for sigma, clip in ((1 / 3, 0.6), (0.7, 0.3), (0.9, 0.7), (0.1, 0.3), (0.75, 0.5)):
        found = scale_of(read_claim(changed(changed(sound(), "sigma", sigma.hex()), "clip_norm", clip.hex())))
        n, d = sigma.as_integer_ratio()
        m, e = clip.as_integer_ratio()
        true_n, true_d = n * e, d * m
        a, b = found.as_integer_ratio()
        above, c = math.nextafter(found, math.inf).as_integer_ratio()
        assert a * true_d <= true_n * b and above * true_d > true_n * c


@pytest.mark.parametrize("name", ["sigma", "clip_norm"])
def test_scales_that_calibrations_refuse(name: str) -> None:
    for value in (math.nextafter(1e-30, 0.0), math.nextafter(1e30, math.inf)):
        refused(changed(sound(), name, value.hex()), "outside [1e-30, 1e+30]")
    for value in (1e-30, 1e30):
        assert read_claim(changed(sound(), name, value.hex()))


def test_bins_are_at_most_the_steps_and_epochs_are_counted() -> None:
    refused(changed(sound(), "mechanism/bins", 7), "7 bins are more than n=6")
    for value in (1.0, 2.0, True, None, "2", 0):
        refused(changed(sound(), "mechanism/epochs", value), "epochs is")


class TestBeside:
    """A claim within a calibration that states other numbers of it, and the digest."""

    GIVEN = sound()
    DIGEST = hashlib.sha256(json.dumps(GIVEN, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    STATED: dict[str, Any] = {
        "sigma_of_sums": 0.75,
        "epsilon": 2.0,
        "delta": 1e-5,
        "bins": 3,
        "epochs": 2,
        "sampling": "balls_in_bins",
        "clip_norm": 0.5,
        "adjacency": "zero_out",
        "epsilon_without_secrecy": 3.0,
    }

    def test_all_agree(self) -> None:
        for digest in (self.DIGEST, "sha256:" + self.DIGEST):
            held = {"claim": self.GIVEN, "claim_digest": digest} | self.STATED
            assert read_claim(held) == read_claim(self.GIVEN)
        assert read_claim({"claim": self.GIVEN}) == read_claim(self.GIVEN)
        for divisor, means in ((1, 0.75), (100, 0.007500000000000001), (100, 0.5), (None, None)):
            held = {"claim": self.GIVEN, "divisor": divisor, "sigma_of_means": means}
            assert read_claim(held) == read_claim(self.GIVEN)

    @pytest.mark.parametrize("name", STATED)
    def test_one_differs(self, name: str) -> None:
        for other in (5, "words", None):
            refused({"claim": self.GIVEN, name: other}, f"the calibration states {name}")

    @pytest.mark.parametrize("means", [0.007499, 1e-9, -1.0, float("nan"), float("inf"), 1, "0.48", None])
    def test_too_small_a_sigma_of_means(self, means: object) -> None:
        refused({"claim": self.GIVEN, "divisor": 100, "sigma_of_means": means}, "sigma_of_means is ")

    def test_means_without_a_divisor(self) -> None:
        refused({"claim": self.GIVEN, "sigma_of_means": 0.48}, "but no divisor")
        refused({"claim": self.GIVEN, "sigma_of_means": 0.48, "divisor": 0}, "divisor is 0")

    def test_another_digest(self) -> None:
        for other in (self.DIGEST[1:], "sha256:" + self.DIGEST[::-1], self.DIGEST.upper(), 5, None):
            refused({"claim": self.GIVEN, "claim_digest": other}, "the claim hashes to sha256:")

    def test_what_stands_beside_a_claim_that_is_not_held(self) -> None:
        """A document with a protocol is the claim: what it holds under `claim` is a key too many."""
        refused(self.GIVEN | {"claim": self.GIVEN}, "the field 'claim' of the claim is missing or unknown")
        refused({"claim": [1]}, "the protocol 'None'")
