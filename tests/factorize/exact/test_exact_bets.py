"""The checker's sampled test: weights beside quadrature and proven bounds, bets that false claims lose."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from star_claims import drawn
from test_exact_star import KNOWN, RANDOM_ALLOCATION, ROUNDED, Known

from factorize.errors import CertificateError, InvalidParameter
from factorize.exact.sampling import bets, star
from factorize.exact.sampling.quantiles import normals

CHUNKS = 10


def within(found: np.ndarray, low: float, high: float, deviations: float = 4.5) -> bool:
    error = deviations * float(found.std()) / math.sqrt(len(found))
    return low - error <= float(found.mean()) <= high + error


@pytest.mark.parametrize("known", KNOWN)
def test_weights_have_the_mean_of_quadrature_and_stay_below_their_bound(known: Known) -> None:
    covariance = bets.covariance(np.array(known.kernel), 1.0)
    order = star.best_order(covariance.kernel, known.epsilon)
    for m in (order, order + 1):
        weights = bets.removal(covariance, known.epsilon, m)
        found = drawn(weights, (1, m), CHUNKS)
        assert within(found, known.removal, known.removal) and 0 <= found.min()
        assert 0.9 * float(weights.bound) < found.max() <= float(weights.bound)
    weights = bets.addition(covariance, known.epsilon, 4.0 if known.removal < 1e-3 else 2.0)
    found = drawn(weights, (3, 4), CHUNKS)
    assert within(found, known.addition, known.addition) and 0 <= found.min() <= found.max() <= float(weights.bound)


@pytest.mark.parametrize("bins, sigma, epsilon, low, high", RANDOM_ALLOCATION[:3])
def test_random_allocation_is_within_the_interval_of_convolution(
    bins: int, sigma: float, epsilon: float, low: float, high: float
) -> None:
    covariance = bets.covariance(np.eye(bins), sigma)
    weights = bets.removal(covariance, epsilon, star.best_order(covariance.kernel, epsilon))
    assert within(drawn(weights, (5, 6), 5), low / ROUNDED, high * ROUNDED)


def test_a_false_claim_loses_and_a_true_one_wins() -> None:
    known = KNOWN[0]
    weights = bets.removal(bets.covariance(np.array(known.kernel), 1.0), known.epsilon, 2)
    for factor, wins in ((1.1, True), (0.95, False)):
        delta = factor * known.removal
        outcome = bets.bet(weights, delta, 0.05 / (float(weights.bound) - delta), (7, 8), 20)
        assert outcome.accepted == wins and (outcome.log_wealth > 0) == wins
        assert outcome.mean == pytest.approx(known.removal, rel=0.05)


def test_wealth_is_the_same_whatever_is_said_of_chunks() -> None:
    known = KNOWN[1]
    weights = bets.removal(bets.covariance(np.array(known.kernel), 1.0), known.epsilon, 6)
    one, two = (bets.bet(weights, known.removal * 1.02, 100.0, (9, 9), chunks) for chunks in (1, 2))
    again = bets.bet(weights, known.removal * 1.02, 100.0, (9, 9), 2)
    assert again == two and one.samples * 2 == two.samples


def test_words_are_those_of_the_page() -> None:
    first, second, other = (bets.Stream((3, 5), chunk).words(8, lane) for chunk, lane in ((0, 0), (1, 0), (1, 1)))
    for found, counter in ((second, [0, 0, 1, 0]), (other, [0, 0, 1, 1])):
        whole = np.random.Philox(key=np.array([3, 5], dtype=np.uint64), counter=counter).random_raw(8)
        assert (found == whole).all() and (first != found).any()
    word = np.array([(1 << 63) | 1, 1 << 63], dtype=np.uint64)
    np.testing.assert_allclose(normals(word), [0.6744897501960817, -0.6744897501960817], rtol=1e-14)


def test_many_picks_are_counted_as_few_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = np.array(KNOWN[3].kernel)
    picks = np.random.default_rng(0).integers(0, 3, (50, 7))
    looked_up = bets._exponents(kernel, picks)
    monkeypatch.setattr(bets, "_GATHERED", 2)
    np.testing.assert_allclose(bets._exponents(kernel, picks), looked_up, rtol=1e-13)


def test_covariance_is_at_least_what_is_asked_for_also_where_it_is_singular() -> None:
    for least in (np.ones((40, 40)), np.eye(3) * 1e-3, np.zeros((2, 2)) + 1e-12, np.array([[1, 1.1], [1.1, 1]])):
        found = bets.covariance(least, 2.0) if least[0, -1] <= least[0, 0] else None
        if found is None:  # no covariance at all: larger entries off the diagonal
            with pytest.raises(InvalidParameter, match="Cholesky"):
                bets.covariance(least, 2.0)
        else:
            assert (found.kernel >= least / 4).all()
            np.testing.assert_allclose(found.factor @ found.factor.T, found.kernel, rtol=1e-12)


def test_a_slack_that_swallows_weights_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="doubles lose"):
        bets.removal(bets.covariance(np.eye(2), 1e-3), 1.0, 4096)
    with pytest.raises(InvalidParameter, match="so small"):
        bets.covariance(np.eye(2), 1e-6)


def test_a_weight_above_its_bound_ends_the_test() -> None:
    broken = bets.Weights(Decimal("0.5"), lambda words: np.full(bets.CHUNK, 0.6), 8)
    with pytest.raises(CertificateError, match="proven bound"):
        bets.bet(broken, 0.1, 1.0, (1, 1), 1)
