"""Calibrations over HTTP: the answer of the command line, from a process of its own."""

from __future__ import annotations

from typing import Any

import pytest
from servers import LiveService

from factorize.accounting import BinsClaim
from factorize.numbers.gaussian import gaussian_delta, noise_multiplier_for_epsilon

SPEC = {
    "workload": {"kind": "prefix", "n": 32},
    "mechanism": {"kind": "square_root"},
    "participation": {"kind": "fixed_epochs", "epochs": 4},
}
TARGET = {"epsilon": 4.0, "delta": 1e-4}


@pytest.fixture(scope="module")
def digest(live_service: LiveService) -> str:
    found = live_service.send("POST", "/v1/factorizations", SPEC, {"Prefer": "wait=30"})
    assert found.status == 200, found.body
    return found.json()["digest"]


def test_a_stored_factorization_is_calibrated(live_service: LiveService, digest: str) -> None:
    path = f"/v1/factorizations/{digest}/calibrations"
    fixed = live_service.send("POST", path, TARGET).json()
    assert fixed["sigma"] == pytest.approx(noise_multiplier_for_epsilon(4.0, 1e-4) * fixed["sensitivity"], rel=1e-9)
    answer = live_service.send("POST", path, {**TARGET, "sampling": "balls_in_bins", "batch_size": 5}).json()
    claim = BinsClaim.from_document(answer["claim"])
    assert claim.factors == f"sha256:{digest}" and claim.bins == 8 and answer["sigma_for"] == "means"
    assert answer["sigma"] < answer["deterministic_sigma"] < fixed["sigma"] / 5


def test_what_a_given_noise_is_worth_is_answered(live_service: LiveService, digest: str) -> None:
    path = f"/v1/factorizations/{digest}/calibrations"
    given = {"sigma": 3.0, "delta": 1e-4}
    fixed = live_service.send("POST", path, given).json()
    bins = live_service.send("POST", path, {**given, "sampling": "balls_in_bins"}).json()
    claim = BinsClaim.from_document(bins["claim"])
    assert bins["sigma"] == claim.sigma == 3.0 and bins["epsilon"] == claim.epsilon < fixed["epsilon"]
    delta = live_service.send("POST", path, {"sigma": 3.0, "epsilon": 2.0}).json()["delta"]
    assert delta == gaussian_delta(2.0, fixed["mu"])


@pytest.mark.parametrize(
    ("body", "slug", "words"),
    [
        ({}, "invalid-spec", "exactly one"),
        ({"sigma": 1.0}, "invalid-spec", "exactly one of epsilon and delta"),
        ({"sigma": 1.0, "delta": 0.1, "mu": 1.0}, "invalid-spec", "exactly one of epsilon and delta"),
        ({"sigma": 1e-40, "delta": 0.1}, "invalid-parameter", "sigma"),
        ({**TARGET, "colour": 1}, "invalid-spec", "colour"),
        ({**TARGET, "bins": 0, "sampling": "balls_in_bins"}, "invalid-spec", "bins"),
        ("[]", "invalid-spec", "JSON object"),
        ({**TARGET, "sampling": "shuffle"}, "invalid-parameter", "gives away"),
        ({**TARGET, "sampling": "balls_in_bins", "adjacency": "replace_one"}, "invalid-parameter", "zero_out"),
        ({**TARGET, "sampling": "balls_in_bins", "bins": 33}, "invalid-parameter", "n=32"),
        ({"mu": 1.0, "sampling": "balls_in_bins"}, "invalid-parameter", "no Gaussian"),
    ],
)
def test_bad_requests_are_problems(live_service: LiveService, digest: str, body: Any, slug: str, words: str) -> None:
    problem = live_service.send("POST", f"/v1/factorizations/{digest}/calibrations", body).problem(422, slug)
    assert words in str(problem)


def test_an_unknown_name_is_not_found(live_service: LiveService) -> None:
    live_service.send("POST", f"/v1/factorizations/{'0' * 64}/calibrations", TARGET).problem(404, "not-found")
    live_service.send("POST", "/v1/factorizations/colour/calibrations", TARGET).problem(404, "not-found")
