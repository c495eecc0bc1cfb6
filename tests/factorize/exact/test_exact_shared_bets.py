"""The checker's bets with a shared part: weights beside quadrature, the accountant's sums, and forged claims that are refused."""

from __future__ import annotations

import json
import math
from decimal import localcontext
from typing import Any

import numpy as np
import pytest
from star_claims import changed, consistent, drawn
from test_exact_calibrations import ENTRY_DOUBLED, file_of
from test_exact_star import KNOWN, Known

from factorize.accounting import BinsClaim, bin_gram
from factorize.accounting.bins_search import BinsQuestion, find_claim
from factorize.accounting.claim_test import examine
from factorize.accounting.gram_matrix import bin_covariance, shared_part
from factorize.accounting.shared.shared_call import log_call, log_call_ceiling
from factorize.accounting.star_sampler import SharedReverseTest
from factorize.errors import InvalidParameter
from factorize.exact.arithmetic.enclosures import context, decimal
from factorize.exact.file import read_factor_file
from factorize.exact.sampling.calibrations import check_calibration
from factorize.exact.sampling.shared_bets import log_call as log_call_of
from factorize.exact.sampling.shared_bets import log_most, shared_addition, shared_removal
from factorize.structures.toeplitz import ToeplitzMatrix

N, BINS = 48, 12
COLUMN = np.cumprod([1.0, *((i - 0.5) / i for i in range(1, N))])
DATA = file_of(COLUMN)


@pytest.mark.parametrize("known", KNOWN)
def test_weights_have_the_mean_of_quadrature_and_stay_below_their_bound(known: Known) -> None:
    kernel = np.array(known.kernel, dtype=float)
    shared = 0.9 * shared_part(kernel)
    for weights, true in (
        (shared_removal(kernel, 1.0, known.epsilon, 4, shared), known.removal),
        (shared_addition(kernel, 1.0, known.epsilon, 3.0, shared), known.addition),
    ):
        found = drawn(weights, (1, 4), 8)
        assert abs(float(found.mean()) - true) < 4.5 * float(found.std()) / math.sqrt(len(found))
        assert 0 <= found.min() and found.max() <= float(weights.bound)


def test_the_other_direction_is_that_of_the_accountant() -> None:
    kernel = np.array(KNOWN[3].kernel, dtype=float)
    shared = 0.9 * shared_part(kernel)
    theirs = SharedReverseTest(bin_covariance(kernel, 1.0, shared), shared, 2.0, 3.0)
    ours = shared_addition(kernel, 1.0, 2.0, 3.0, shared)
    np.testing.assert_allclose(drawn(ours, (1, 4), 1), theirs.weights((1, 4), 0), rtol=1e-9)
    assert float(ours.bound) == pytest.approx(theirs.ceiling, rel=1e-9)


@pytest.mark.parametrize(("level", "spread", "order"), [(2.0, 0.32, 11), (8.0, 0.7, 3), (0.0, 0.05, 40), (5.0, 2.0, 2)])
def test_the_largest_call_is_that_of_the_accountant(level: float, spread: float, order: int) -> None:
    with localcontext(context()):
        ours = float(log_most(decimal(level), spread * spread, order))
    assert ours == pytest.approx(log_call_ceiling(level, spread, order), abs=1e-9)


@pytest.mark.parametrize("spread", [2.0**-5, 0.32, 2.0, 30.0])
def test_the_call_is_that_of_the_accountant(spread: float) -> None:
    """Two formulas for Mills' ratio, in doubles."""
    y = np.linspace(2.0 - spread * (30 + spread / 2), 8.0, 200)
    assert np.abs(log_call_of(y, 2.0, spread) - log_call(y, 2.0, spread)).max() < 2.0**-31


def test_beyond_the_limits_there_are_no_weights() -> None:
    kernel = np.array(KNOWN[0].kernel, dtype=float)
    for epsilon, order, shared, message in (
        (2.0, 4, 5e-4, "limits"),
        (2e3, 4, 0.5, "limits"),
        (2.0, 4000, 0.01, "order"),
    ):
        with pytest.raises(InvalidParameter, match=message):
            shared_removal(kernel, 1.0, epsilon, order, shared)
    with pytest.raises(InvalidParameter, match="Cholesky"):
        shared_removal(kernel, 1.0, 2.0, 4, 3.0)


@pytest.fixture(scope="module")
def claim() -> dict[str, Any]:
    """A claim that the accountant found."""
    manifest = read_factor_file(DATA).manifest
    gram = bin_gram(ToeplitzMatrix(COLUMN, N), BINS)
    name = "sha256:" + str(manifest["digest"]).removeprefix("sha256:")
    found = find_claim(BinsQuestion(factors=name, gram=gram, epsilon=2.0, delta=1e-10))
    assert found.claim.pq.rule == "shared_bet"
    document: dict[str, Any] = json.loads(found.claim.canonical)
    return document


def test_a_claim_of_the_accountant_is_accepted_with_the_same_sums(claim: dict[str, Any]) -> None:
    report = check_calibration(DATA, claim)
    assert report.supported, report.failed
    theirs = examine(BinsClaim.from_document(claim), bin_gram(ToeplitzMatrix(COLUMN, N), BINS))["pq"]
    ours = report.calibration["pq"]
    assert ours["rule"] == "shared_bet" and theirs.samples == ours["samples"]
    assert theirs.log_value == pytest.approx(ours["log_wealth"], rel=1e-7)
    assert check_calibration(DATA, claim, fresh=True).supported


def test_forged_claims_are_refused(claim: dict[str, Any]) -> None:
    sigma, delta, epsilon = (float.fromhex(claim[name]) for name in ("sigma", "delta", "epsilon"))
    pq = claim["pq"]
    rate, shared = float.fromhex(pq["lambda"]), float.fromhex(pq["shared"])
    forged = {
        "less noise": consistent(changed(claim, sigma=0.97 * sigma), DATA),
        "less delta": consistent(changed(claim, delta=0.6 * delta), DATA),
        "less epsilon": changed(claim, epsilon=0.97 * epsilon),
        "a larger stake": changed(claim, pq__lambda=100 * rate),
        "a larger order": changed(claim, pq__m=pq["m"] + 20),
        "a larger shared part": changed(claim, pq__shared=1.2 * shared),
        "a huge shared part": changed(claim, pq__shared=1e6 * shared),
        "no shared part to speak of": changed(claim, pq__shared=1e-9),
        "another protocol": changed(claim, protocol="allocation-1"),
        "a protocol to come": changed(claim, protocol="bins-2"),
        "the order in the other direction": changed(claim, qp=pq),
        "samples of half a chunk": changed(claim, pq__samples=2048),
    }
    for name, document in forged.items():
        assert not check_calibration(DATA, document).supported, name
    assert not check_calibration(ENTRY_DOUBLED, claim).supported
