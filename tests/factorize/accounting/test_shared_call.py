"""The call that integrates the shared part of the noise, its ceiling, and the weights that are made of it."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from bin_cases import PAIRS, inverse_roots, of_matrix

from factorize.accounting import bin_gram, examine
from factorize.accounting.bins_claim import BinsClaim
from factorize.accounting.bins_search import BinsQuestion, FoundClaim, find_claim
from factorize.accounting.gram_matrix import BinGram, bin_covariance, shared_part
from factorize.accounting.shared.shared_call import best_shared_tilt, log_call, log_call_ceiling, log_put, raised
from factorize.accounting.star_estimate import StarEstimate
from factorize.accounting.star_sampler import SharedReverseTest, SharedTest, log_shared_reverse_ceiling
from factorize.errors import InvalidParameter
from factorize.numbers.gaussian import gaussian_delta

KEY = (0x0123456789ABCDEF, 0xFEDCBA9876543210)


def exact_log_call(y: float, level: float, spread: float) -> mpmath.mpf:
    """log E (e^(y + t g - t^2 / 2) - T)_+ with 260 digits, by the formula."""
    with mpmath.workdps(260):
        y, level, spread = mpmath.mpf(y), mpmath.mpf(level), mpmath.mpf(spread)
        d = (y - level) / spread + spread / 2
        return mpmath.log(mpmath.exp(y) * mpmath.ncdf(d) - mpmath.exp(level) * mpmath.ncdf(d - spread))


def test_the_call_is_the_mean_over_the_shared_part() -> None:
    """By quadrature, for one case; the others rest on the formula."""
    y, level, spread = 0.3, 1.0, 0.4

    def paid(g: mpmath.mpf) -> mpmath.mpf:
        return (mpmath.exp(y + spread * g - spread**2 / 2) - mpmath.exp(level)) * mpmath.npdf(g)

    least = (level - y) / spread + spread / 2
    assert float(mpmath.quad(paid, [least, least + 4, least + 12])) == pytest.approx(
        math.exp(float(log_call(np.array([y]), level, spread)[0])), rel=1e-12
    )


@pytest.mark.parametrize("spread", [2.0**-5, 0.32, 1.0, 30.0])
@pytest.mark.parametrize("level", [0.0, 2.0, 1000.0])
def test_doubles_lose_less_than_the_slack_is_for(spread: float, level: float) -> None:
    deepest = level - spread * (30 + spread / 2)
    ys = [deepest, deepest + 5 * spread, level - spread, level - spread**2 / 2, level, level + 0.7, level + 8]
    for y, found in zip(ys, log_call(np.array(ys), level, spread), strict=True):
        assert abs(found - float(exact_log_call(y, level, spread))) < 2.0**-31


@pytest.mark.parametrize(("level", "spread", "order"), [(2.0, 0.32, 11), (8.0, 0.7, 3), (0.0, 0.05, 40), (5.0, 2.0, 2)])
def test_the_ceiling_is_above_every_value_and_attained(level: float, spread: float, order: int) -> None:
    ceiling = log_call_ceiling(level, spread, order)
    y = raised(np.linspace(level - 40 * spread, level + 12, 40_001), level, spread)
    values = log_call(y, level, spread) - order * y
    assert -1e-9 < ceiling - values.max() < 1e-5
    slopes = np.diff(values[y > y[0]])
    assert (np.diff(slopes) < 1e-9).all()  # concave: log call is a convolution of log-concave functions


def test_beyond_its_limits_there_is_no_call() -> None:
    for level, spread, order in ((2.0, 0.03, 5), (2.0, 31.0, 5), (1001.0, 0.3, 5), (2.0, 0.3, 4000)):
        with pytest.raises(InvalidParameter, match="shared part"):
            log_call_ceiling(level, spread, order)


@pytest.mark.parametrize(("rows", "epsilon", "pq", "qp", "closed"), PAIRS)
@pytest.mark.parametrize("share", [1.0, 0.4])
def test_weights_have_the_mean_of_quadrature_and_keep_their_ceiling(
    rows: list[list[float]], epsilon: float, pq: float, qp: float, closed: float, share: float
) -> None:
    """Whatever share of the common part is integrated."""
    gram = of_matrix(rows).gram
    shared = share * shared_part(gram)
    rest = bin_covariance(gram, 1.0, shared)
    both = (SharedTest(rest, shared, epsilon, 4), pq), (SharedReverseTest(rest, shared, epsilon, 3.0), qp)
    for test, true in both:
        weights = np.concatenate([test.weights(KEY, chunk) for chunk in range(8)])
        assert abs(float(weights.mean()) - true) < 4.5 * float(weights.std()) / math.sqrt(len(weights))
        assert 0 <= weights.min() and weights.max() <= test.ceiling


def test_the_tilt_of_the_other_direction_has_the_lowest_ceiling() -> None:
    kbar, kappa, level, spread = 0.6, 0.001, 2.0, 0.3
    best = best_shared_tilt(kbar, kappa, level, spread)
    around = [log_shared_reverse_ceiling(kbar, kappa, level, best * by, spread) for by in (0.99, 1.0, 1.01)]
    assert around[1] <= min(around) + 1e-9
    u = np.linspace(-3, 8, 2001)
    values = log_put(u - level, level, spread) + best * (u - level) + best * kbar / 2 + best**2 * kappa / 2
    assert values.max() <= around[1] + 1e-9


def test_the_shared_part_is_the_largest_that_leaves_a_covariance() -> None:
    gram = bin_gram(inverse_roots(6, 64), 16).gram
    shared = shared_part(gram)
    assert 0 < np.linalg.eigvalsh(gram - shared).min() < 1e-2 * gram.max()
    assert np.linalg.eigvalsh(gram - 1.01 * shared).min() < 0
    assert shared_part(np.ones((3, 3))) == pytest.approx(1.0, rel=2e-3)
    rest, tests = bin_covariance(gram, 2.0, shared / 4), gram / 4 - shared / 4
    assert (rest.matrix >= tests).all()


HARD = bin_gram(inverse_roots(12, 96), 12)


@pytest.fixture(scope="module")
def found() -> FoundClaim:
    return find_claim(BinsQuestion(factors="sha256:" + "cd" * 32, gram=HARD, epsilon=2.0, delta=1e-10))


def test_a_claim_at_a_small_delta_is_near_its_estimate(found: FoundClaim) -> None:
    claim = found.claim
    assert claim.pq.rule == "shared_bet" and claim.pq.shared is not None
    point = StarEstimate(HARD, seed=9).sigma(2.0, 1e-10)
    assert point * 1.001 < claim.multiplier < point * 1.02 < found.deterministic_multiplier
    assert BinsClaim.from_document(claim.document()) == claim
    assert all(test.accepted for test in examine(claim, HARD, secret=b"my own").values())


def test_another_shared_part_is_another_claim(found: FoundClaim) -> None:
    """One that is too large leaves no covariance."""
    claim, shared = found.claim, found.claim.pq.shared
    assert shared is not None
    for factor in (1.5, 1e3):
        false = replace(claim, pq=replace(claim.pq, shared=factor * shared))
        assert not examine(false, HARD)["pq"].accepted
    assert not examine(replace(claim, pq=replace(claim.pq, shared=1e-6)), HARD)["pq"].accepted
    document = claim.document()
    for change in ({"protocol": "allocation-1"}, {"pq": {**document["pq"], "shared": (0.0).hex()}}):
        with pytest.raises(InvalidParameter):
            BinsClaim.from_document({**document, **change})


def test_false_claims_of_the_second_protocol_stay_far_from_passing(found: FoundClaim) -> None:
    claim = found.claim
    for false in (replace(claim, sigma=0.97 * claim.sigma), replace(claim, delta=0.5 * claim.delta)):
        assert examine(false, HARD)["pq"].log_value < 20


def test_one_common_value_is_the_gaussian_mechanism() -> None:
    """K constant: nothing is left to draw, and every weight is delta but for rounding."""
    estimate = StarEstimate(BinGram(np.full((3, 3), 0.25), 3, 1e-13, False))
    assert estimate.forward(1.0, 2.0).delta == pytest.approx(gaussian_delta(2.0, 0.5), rel=1e-2)
