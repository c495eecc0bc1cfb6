"""Estimates of the star sampler against quadrature, intervals and published sigmas; and the payoff that they average."""

from __future__ import annotations

import math

import numpy as np
import pytest
from bin_cases import INTERVALS, PAIRS, Pair, inverse_roots, of_matrix

from factorize.accounting import BinGram, BinsLaw, bin_gram
from factorize.accounting.gram_matrix import shared_part
from factorize.accounting.payoff import best_tilt, log_put, log_reverse_ceiling
from factorize.accounting.star_estimate import StarEstimate, log_single_bin
from factorize.structures.toeplitz import BltMatrix


@pytest.mark.parametrize("pair", PAIRS)
def test_estimates_are_the_quadrature(pair: Pair) -> None:
    estimate = StarEstimate(of_matrix(pair.kernel), samples=1 << 16)
    found = estimate.forward(1.0, pair.epsilon), estimate.reverse(1.0, pair.epsilon)
    for sampled, true in zip(found, (pair.removal, pair.addition), strict=True):
        assert sampled.delta == pytest.approx(true, rel=4 * sampled.relative_error)
        assert sampled.relative_error < 0.01
        assert 0 <= sampled.weights.min() and sampled.weights.max() <= sampled.ceiling * (1 + 1e-9)


@pytest.mark.parametrize(("bins", "sigma", "epsilon", "low", "high"), INTERVALS[:4])
def test_the_identity_falls_into_its_deterministic_interval(
    bins: int, sigma: float, epsilon: float, low: float, high: float
) -> None:
    found = StarEstimate(BinGram(np.eye(bins), bins)).forward(sigma, epsilon)
    room = 4 * found.relative_error * found.delta
    assert low - room <= found.delta <= high + room


@pytest.mark.parametrize(("taps", "epsilon", "delta", "sigma"), [(32, 8.0, 1e-5, 1.7207), (32, 2.0, 1e-6, 4.196)])
def test_sigma_is_the_published_one(taps: int, epsilon: float, delta: float, sigma: float) -> None:
    gram = bin_gram(inverse_roots(taps, 2048), 256)
    estimate = StarEstimate(gram, seed=5)
    found = estimate.sigma(epsilon, delta)
    assert found == pytest.approx(sigma, rel=6e-3)
    assert math.exp(log_single_bin(gram, found, epsilon)) < delta
    assert found < BinsLaw(gram).sigma(epsilon, delta)
    assert estimate.epsilon(found, delta) == pytest.approx(epsilon, rel=5e-3)


def test_sigma_of_two_buffers_is_the_published_one() -> None:
    blt = BltMatrix(np.array([0.74489, 0.991695]), np.array([0.29538, 0.12265]), 2048)
    assert StarEstimate(bin_gram(blt, 256)).sigma(8.0, 1e-5) == pytest.approx(1.87735, rel=6e-3)


def test_the_tilt_of_the_other_direction_has_the_lowest_ceiling() -> None:
    kbar, kappa, level, spread = 0.6, 0.001, 2.0, 0.3
    best = best_tilt(kbar, kappa, level, spread)
    around = [log_reverse_ceiling(kbar, kappa, level, best * by, spread) for by in (0.99, 1.0, 1.01)]
    assert around[1] <= min(around) + 1e-6
    u = np.linspace(-3, 8, 2001)
    values = log_put(u - level, level, spread) + best * (u - level) + best * kbar / 2 + best**2 * kappa / 2
    assert values.max() <= around[1] + 1e-9


def test_the_shared_part_is_the_largest_that_leaves_a_covariance() -> None:
    gram = bin_gram(inverse_roots(6, 64), 16).gram
    shared = shared_part(gram)
    assert 0 < np.linalg.eigvalsh(gram - shared).min() < 1e-2 * gram.max()
    assert np.linalg.eigvalsh(gram - 1.01 * shared).min() < 0
    assert shared_part(np.ones((3, 3))) == pytest.approx(1.0, rel=2e-3)
