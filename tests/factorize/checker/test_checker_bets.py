"""The checker's sampled test: weights beside quadrature and proven bounds, bets that false claims lose."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from bin_cases import INTERVALS, PAIRS, ROUNDED, Pair
from flint import arb
from scipy.stats import kstest
from star_claims import best_order, drawn

from factorize.accounting.gram_matrix import shared_part
from factorize.accounting.payoff import log_call_ceiling, raised
from factorize.checker.sampling import bets
from factorize.errors import CertificateError, InvalidParameter

CHUNKS = 6


def within(found: np.ndarray, low: float, high: float, deviations: float = 4.5) -> bool:
    error = deviations * float(found.std()) / math.sqrt(len(found))
    return low - error <= float(found.mean()) <= high + error


@pytest.mark.parametrize("known", PAIRS)
@pytest.mark.parametrize("share", [0.0, 0.4, 0.9])
def test_weights_have_the_mean_of_quadrature_and_stay_below_their_bound(known: Pair, share: float) -> None:
    """Whatever part of the noise that bins share is integrated."""
    kernel = np.array(known.kernel, dtype=float)
    shared, order = share * shared_part(kernel), best_order(kernel, known.epsilon)
    for m in (order, order + 1) if share == 0 else (4,):
        weights = bets.removal(kernel, 1.0, known.epsilon, m, shared)
        found = drawn(weights, (1, m), CHUNKS)
        assert within(found, known.removal, known.removal) and 0 < found.min() and len(found) == CHUNKS * bets.CHUNK
        assert found.max() <= float(weights.bound) and (share > 0 or found.max() > 0.9 * float(weights.bound))
    weights = bets.addition(kernel, 1.0, known.epsilon, 4.0 if known.removal < 1e-3 else 2.0, shared)
    found = drawn(weights, (3, 4), CHUNKS)
    assert within(found, known.addition, known.addition) and 0 <= found.min() <= found.max() <= float(weights.bound)


@pytest.mark.parametrize("bins, sigma, epsilon, low, high", INTERVALS[:3])
def test_random_allocation_is_within_the_interval_of_convolution(
    bins: int, sigma: float, epsilon: float, low: float, high: float
) -> None:
    order = best_order(np.eye(bins) / sigma**2, epsilon)
    weights = bets.removal(np.eye(bins), sigma, epsilon, order)
    assert within(drawn(weights, (5, 6), 3), low / ROUNDED, high * ROUNDED)


def test_a_false_claim_loses_and_a_true_one_wins() -> None:
    known = PAIRS[0]
    weights = bets.removal(np.array(known.kernel), 1.0, known.epsilon, 2)
    for factor, wins in ((1.1, True), (0.95, False)):
        delta = factor * known.removal
        outcome = bets.bet(weights, delta, 0.05 / (float(weights.bound) - delta), (7, 8), 20)
        assert outcome.accepted == wins and (outcome.log_wealth > 0) == wins
        assert outcome.mean == pytest.approx(known.removal, rel=0.05)


def philox(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    """Salmon et al. 2011, Philox4x64-10."""
    mask, (x0, x1, x2, x3), (k0, k1) = 2**64 - 1, counter, key
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * x0, 0xCA5A826395121157 * x2
        x0, x1, x2, x3 = (right >> 64) ^ x1 ^ k0, right & mask, (left >> 64) ^ x3 ^ k1, left & mask
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
    return [x0, x1, x2, x3]


def test_words_are_those_of_the_page() -> None:
    """The first words have the counter (1, 0, chunk, lane): the published algorithm, in integers."""
    stream = bets.Stream((3, 5), 7)
    assert stream.lane(0).random_raw(4).tolist() == philox((1, 0, 7, 0), (3, 5))
    lane = stream.lane(1)
    assert lane.random_raw(4).tolist() == philox((1, 0, 7, 1), (3, 5))
    assert lane.random_raw(4).tolist() == philox((2, 0, 7, 1), (3, 5))


@pytest.mark.parametrize("compiled", [True, False])
def test_normals_are_quantiles_of_the_words(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bets, "HAS_COMPILER", compiled)
    words = np.array([(1 << 63) | 1, 1 << 63, 0, 1, 2**64 - 1, 2**30, 2**33 + 1, 2**61, 2**60], dtype=np.uint64)
    for word, found in zip(words.tolist(), bets.normals(words), strict=True):
        with mpmath.workdps(40):
            tail = (mpmath.mpf(word >> 1) + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** 64
            true = mpmath.findroot(lambda x, tail=tail: mpmath.ncdf(x) - tail, -abs(found))
            assert abs(mpmath.mpf(float(found)) - (-true if word & 1 else true)) < 1e-13
    assert kstest(bets.normals(bets.Stream((1, 2), 4).lane(0).random_raw(50_000)), "norm").pvalue > 1e-4


def test_many_picks_are_added_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = np.array(PAIRS[3].kernel)
    picks = np.random.default_rng(0).integers(0, 3, (50, 7))
    few = bets.log_chances(kernel, picks)
    sums = [3.5 * sum(kernel[picks[:, i], picks[:, j]] for j in range(7) if j != i) for i in range(7)]
    np.testing.assert_allclose(few, np.mean(sums, axis=0) - np.log(np.mean(np.exp(sums), axis=0)), rtol=1e-12)
    monkeypatch.setattr(bets, "_MAX_PICKS_IN_PAIRS", 2)
    np.testing.assert_allclose(bets.log_chances(kernel, picks), few, rtol=1e-12)


@pytest.mark.parametrize(
    ("level", "spread", "order"), [(2.0, 0.32, 11), (8.0, 0.7, 3), (0.0, 0.05, 40), (5.0, 2.0, 2), (2.0, 0.0, 11)]
)
def test_the_largest_call_is_that_of_the_accountant(level: float, spread: float, order: int) -> None:
    ours = float(bets.log_most(arb(level), spread * spread, arb(order)))
    assert ours == pytest.approx(log_call_ceiling(level, spread, order), abs=1e-8)
    y = raised(np.linspace(level - 40 * spread, level + 12, 20_001), level, spread)
    assert (bets.log_call(y, level, spread) - order * y).max() <= ours + 2.0**-31


def exact_log_call(y: float, level: float, spread: float) -> float:
    """log E (e^(y + t g - t^2 / 2) - T)_+ with 260 digits, by the formula."""
    with mpmath.workdps(260):
        y, level, spread = mpmath.mpf(y), mpmath.mpf(level), mpmath.mpf(spread)
        d = (y - level) / spread + spread / 2
        return float(mpmath.log(mpmath.exp(y) * mpmath.ncdf(d) - mpmath.exp(level) * mpmath.ncdf(d - spread)))


@pytest.mark.parametrize("spread", [2.0**-5, 0.32, 1.0, 30.0])
@pytest.mark.parametrize("level", [0.0, 2.0, 1000.0])
def test_doubles_lose_less_of_the_call_than_the_slack_is_for(spread: float, level: float) -> None:
    deepest = level - spread * (30 + spread / 2)
    ys = np.array([deepest, deepest + 5 * spread, level - spread, level - spread**2 / 2, level, level + 0.7, level + 8])
    exact = np.array([exact_log_call(float(y), level, spread) for y in ys])
    assert np.abs(bets.log_call(ys, level, spread) - exact).max() < 2.0**-31


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
        bets.removal(np.eye(2), 1e-3, 1.0, 4096)
    with pytest.raises(InvalidParameter, match="so small"):
        bets.covariance(np.eye(2), 1e-6)


def test_beyond_the_limits_there_are_no_weights() -> None:
    kernel = np.array(PAIRS[0].kernel, dtype=float)
    for epsilon, order, shared, message in (
        (2.0, 4, 5e-4, "limits"),
        (2e3, 4, 0.5, "limits"),
        (2e3, 4, 0.0, "limits"),
        (2.0, 4000, 0.01, "order"),
    ):
        with pytest.raises(InvalidParameter, match=message):
            bets.removal(kernel, 1.0, epsilon, order, shared)
    with pytest.raises(InvalidParameter, match="Cholesky"):
        bets.removal(kernel, 1.0, 2.0, 4, 3.0)


def test_a_weight_above_its_bound_ends_the_test() -> None:
    broken = bets.Weights(arb(0.5), lambda stream: np.full(bets.CHUNK, 0.6))
    with pytest.raises(CertificateError, match="proven bound"):
        bets.bet(broken, 0.1, 1.0, (1, 1), 1)
