"""The checker's thinned bets: weights beside quadrature, the accountant's sums, and forged claims that are refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from star_claims import changed, consistent, drawn
from test_exact_calibrations import file_of
from test_exact_star import KNOWN, Known
from thinned_claims import thinned_claim

from factorize.accounting import BinsClaim, bin_gram
from factorize.accounting.bins_search import BinsQuestion
from factorize.accounting.claim_test import examine
from factorize.accounting.gram_matrix import bin_covariance, shared_part
from factorize.accounting.shared.thinned_test import ThinnedTest
from factorize.exact.file import read_factor_file
from factorize.exact.sampling import bets
from factorize.exact.sampling.calibrations import check_calibration
from factorize.exact.sampling.shared_bets import shared_removal
from factorize.exact.sampling.thinned_bets import CANDIDATES, thinned_removal
from factorize.structures.toeplitz import ToeplitzMatrix

N, BINS = 96, 24
COLUMN = 0.5 ** np.arange(float(N))
DATA = file_of(COLUMN)
DOUBLED = file_of(np.where(np.arange(N) == 0, 1.1, COLUMN))


@pytest.mark.parametrize("known", KNOWN)
def test_weights_have_the_mean_of_quadrature_and_stay_below_their_bound(known: Known) -> None:
    kernel = np.array(known.kernel, dtype=float)
    shared = 0.9 * shared_part(kernel)
    weights = thinned_removal(kernel, 1.0, known.epsilon, 4, shared)
    found = drawn(weights, (1, 4), 4)
    assert abs(float(found.mean()) - known.removal) < 4.5 * float(found.std()) / math.sqrt(len(found))
    assert 0 < found.min() and found.max() <= float(weights.bound)
    assert weights.bound == shared_removal(kernel, 1.0, known.epsilon, 4, shared).bound
    assert weights.chunk == CANDIDATES == len(weights.draw(bets.Stream((1, 4), 0)))


def test_weights_are_those_of_the_accountant_one_by_one() -> None:
    gram = bin_gram(ToeplitzMatrix(COLUMN, N), BINS).gram
    shared = shared_part(gram) / 4
    theirs = ThinnedTest(bin_covariance(gram, 2.0, shared), shared, 2.0, 9)
    ours = thinned_removal(gram, 2.0, 2.0, 9, shared)
    np.testing.assert_allclose(
        drawn(ours, (7, 4), 2), np.concatenate([theirs.weights((7, 4), i) for i in (0, 1)]), 1e-9
    )
    assert float(ours.bound) == pytest.approx(theirs.ceiling, rel=1e-9)


@pytest.fixture(scope="module")
def claim() -> dict[str, Any]:
    """A claim of the accountant's."""
    manifest = read_factor_file(DATA).manifest
    gram = bin_gram(ToeplitzMatrix(COLUMN, N), BINS)
    name = "sha256:" + str(manifest["digest"]).removeprefix("sha256:")
    made = thinned_claim(BinsQuestion(factors=name, gram=gram, epsilon=2.0, delta=1e-8), margin=0.08)
    document: dict[str, Any] = json.loads(made.canonical)
    assert document["pq"]["rule"] == "thinned_bet"
    return document


def test_a_claim_of_the_accountant_is_accepted_with_the_same_sums(claim: dict[str, Any]) -> None:
    report = check_calibration(DATA, claim)
    assert report.supported, report.failed
    theirs = examine(BinsClaim.from_document(claim), bin_gram(ToeplitzMatrix(COLUMN, N), BINS))["pq"]
    ours = report.calibration["pq"]
    assert ours["rule"] == "thinned_bet" and theirs.samples == ours["samples"]
    assert theirs.log_value == pytest.approx(ours["log_wealth"], rel=1e-7)
    assert check_calibration(DATA, claim, fresh=True).supported


def test_forged_claims_are_refused(claim: dict[str, Any]) -> None:
    sigma, delta, epsilon = (float.fromhex(claim[name]) for name in ("sigma", "delta", "epsilon"))
    pq = claim["pq"]
    rate, shared = float.fromhex(pq["lambda"]), float.fromhex(pq["shared"])
    forged = {
        "less noise": consistent(changed(claim, sigma=0.9 * sigma), DATA),
        "less delta": consistent(changed(claim, delta=0.1 * delta), DATA),
        "less epsilon": changed(claim, epsilon=0.9 * epsilon),
        "a larger stake": changed(claim, pq__lambda=100 * rate),
        "a larger order": changed(claim, pq__m=pq["m"] + 20),
        "a larger shared part": changed(claim, pq__shared=1.2 * shared),
        "no shared part to speak of": changed(claim, pq__shared=1e-9),
        "no shared part": changed(claim, pq={name: value for name, value in pq.items() if name != "shared"}),
        "another protocol": changed(claim, protocol="allocation-1"),
        "a protocol to come": changed(claim, protocol="bins-2"),
        "the order in the other direction": changed(claim, qp=pq),
        "thinned in the other direction": changed(
            claim, qp={**{name: value for name, value in pq.items() if name != "m"}, "eta": (3.0).hex()}
        ),
        "samples of a quarter of a chunk": changed(claim, pq__samples=4096),
        "samples of no whole chunk": changed(claim, pq__samples=pq["samples"] + 4096),
    }
    for name, document in forged.items():
        assert not check_calibration(DATA, document).supported, name
    assert not check_calibration(DOUBLED, claim).supported
