"""The thinned test: candidates that a coin drops before any noise is drawn, its claims, and what is refused."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from bin_cases import PAIRS, of_matrix
from thinned_claims import thinned_claim

from factorize.accounting import bin_gram, examine
from factorize.accounting.bins_claim import BinsClaim
from factorize.accounting.bins_search import BinsQuestion, find_claim
from factorize.accounting.gram_matrix import bin_covariance, shared_part
from factorize.accounting.shared.thinned_test import ThinnedTest
from factorize.accounting.star_estimate import StarEstimate
from factorize.accounting.star_sampler import SharedTest, drawn_star
from factorize.errors import InvalidParameter
from factorize.structures.toeplitz import ToeplitzMatrix

KEY = (0x0123456789ABCDEF, 0xFEDCBA9876543210)
WEAK = bin_gram(ToeplitzMatrix(0.5 ** np.arange(256.0), 256), 64)
"""Noise with little in common, where most tuples are dropped."""


@pytest.mark.parametrize(("rows", "epsilon", "pq", "qp", "closed"), PAIRS)
@pytest.mark.parametrize("order", [2, 4])
def test_weights_have_the_mean_of_quadrature_and_keep_the_ceiling_of_the_shared_test(
    rows: list[list[float]], epsilon: float, pq: float, qp: float, closed: float, order: int
) -> None:
    gram = of_matrix(rows).gram
    shared = 0.9 * shared_part(gram)
    rest = bin_covariance(gram, 1.0, shared)
    test, plain = ThinnedTest(rest, shared, epsilon, order), SharedTest(rest, shared, epsilon, order)
    weights = np.concatenate([test.weights(KEY, chunk) for chunk in range(4)])
    assert abs(float(weights.mean()) - pq) < 4.5 * float(weights.std()) / math.sqrt(len(weights))
    assert 0 < weights.min() and weights.max() <= test.ceiling == plain.ceiling


def test_candidates_are_kept_as_often_as_their_ratio_says() -> None:
    shared = shared_part(WEAK.gram) / 4
    test = ThinnedTest(bin_covariance(WEAK.gram, 2.0, shared), shared, 2.0, 10)
    kept = np.mean([len(test.kept(KEY, chunk)[1]) for chunk in range(4)]) / test.chunk
    ratios = np.exp(np.concatenate([drawn_star(test.covariance, test.tables, KEY, chunk)[1] for chunk in range(8)]))
    spread = math.sqrt(ratios.mean() / (4 * test.chunk) + ratios.var() / len(ratios))
    assert 0 < ratios.max() <= 1 + 1e-12 and ratios.mean() < 0.5
    assert abs(float(kept) - float(ratios.mean())) < 4.5 * spread


@pytest.fixture(scope="module")
def claim() -> BinsClaim:
    question = BinsQuestion(factors="sha256:" + "cd" * 32, gram=WEAK, epsilon=2.0, delta=1e-10)
    return thinned_claim(question, order=10)


def test_a_claim_passes_by_its_own_seed_and_by_another(claim: BinsClaim) -> None:
    assert claim.pq.rule == "thinned_bet" and claim.pq.sampled
    assert claim.pq.samples is not None and claim.pq.samples % 16384 == 0
    tests = examine(claim, WEAK)
    assert all(test.accepted for test in tests.values())
    assert all(test.accepted for test in examine(claim, WEAK, secret=b"my own").values())
    assert tests["pq"].samples % 16384 == 0
    text = json.dumps(claim.document(), sort_keys=True, separators=(",", ":"))
    seed = hashlib.sha256(b"factorize bins-1 pq\n" + text.encode()).digest()
    assert claim.key("pq") == (int.from_bytes(seed[:8], "little"), int.from_bytes(seed[8:16], "little"))
    assert BinsClaim.from_document(json.loads(text)) == claim


def test_false_claims_stay_far_from_passing(claim: BinsClaim) -> None:
    point = StarEstimate(WEAK, seed=9).sigma(2.0, 1e-10)
    for false in (replace(claim, sigma=0.98 * point), replace(claim, delta=claim.delta / 8)):
        assert examine(false, WEAK)["pq"].log_value < 20


def test_a_changed_bet_is_refused(claim: BinsClaim) -> None:
    pq, shared, stake = claim.pq, claim.pq.shared, claim.pq.stake
    assert shared is not None and stake is not None and pq.tilt is not None
    for other in (
        replace(pq, shared=1.5 * shared),
        replace(pq, shared=1e-6),
        replace(pq, stake=3 * stake),
        replace(pq, tilt=pq.tilt + 4),
        replace(pq, samples=16384),
    ):
        assert not examine(replace(claim, pq=other), WEAK)["pq"].accepted
    assert not examine(replace(claim, epsilon=1.9), WEAK)["pq"].accepted


def test_documents_of_other_protocols_are_no_claims(claim: BinsClaim) -> None:
    document = claim.document()
    for change in (
        {"protocol": "bins-2"},
        {"qp": document["pq"]},
        {"pq": {**document["pq"], "samples": document["pq"]["samples"] + 4096}},
        {"pq": {name: value for name, value in document["pq"].items() if name != "shared"}},
    ):
        with pytest.raises(InvalidParameter):
            BinsClaim.from_document({**document, **change})


def test_the_search_thins_where_that_is_cheaper() -> None:
    question = BinsQuestion(factors="sha256:" + "cd" * 32, gram=WEAK, epsilon=2.0, delta=1e-8)
    found = find_claim(question)
    point = StarEstimate(WEAK, seed=9, samples=1 << 15).sigma(2.0, 1e-8)
    assert found.claim.pq.rule == "thinned_bet" and found.tests["pq"].accepted
    assert found.claim.multiplier < 1.02 * point < 0.85 * found.deterministic_multiplier
