"""The star sampler against quadrature, the Gaussian mechanism, deterministic intervals and published sigmas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from bin_cases import PAIRS, inverse_roots, of_matrix
from scipy.special import ndtri
from scipy.stats import kstest

from factorize.accounting import BinGram, bin_gram, bins_sigma
from factorize.accounting.gram_matrix import bin_covariance
from factorize.accounting.star_bound import log_single_bin
from factorize.accounting.star_estimate import StarEstimate
from factorize.accounting.star_sampler import (
    CHUNK,
    ForwardTest,
    ReverseTest,
    StarTables,
    chunk_words,
    normals_of,
)
from factorize.errors import CertificateError, InvalidParameter
from factorize.numbers.gaussian import gaussian_delta
from factorize.structures.blt import BltMatrix

KEY = (0x0123456789ABCDEF, 0xFEDCBA9876543210)


def test_normals_are_quantiles_of_the_words() -> None:
    words = chunk_words(KEY, 3, 20_000)
    tails = ((words >> np.uint64(1)).astype(float) + 0.5) * 2.0**-64
    expected = np.where(words & np.uint64(1), -ndtri(tails), ndtri(tails))
    np.testing.assert_allclose(normals_of(words), expected, rtol=1e-13, atol=1e-15)
    extremes = np.array([0, 1, 2**64 - 1, 2**64 - 2, 2**30, 2**33 + 1], dtype=np.uint64)
    tails = ((extremes >> np.uint64(1)).astype(float) + 0.5) * 2.0**-64
    np.testing.assert_allclose(np.abs(normals_of(extremes)), np.abs(ndtri(tails)), rtol=1e-12, atol=1e-15)
    assert kstest(normals_of(chunk_words(KEY, 4, 50_000)), "norm").pvalue > 1e-4


def test_streams_are_philox_counters_as_the_protocol_says() -> None:
    whole = np.random.Philox(key=np.array(KEY, dtype=np.uint64), counter=[0, 0, 7, 0]).random_raw(12)
    assert (chunk_words(KEY, 7, 12) == whole).all() and (chunk_words(KEY, 8, 12) != whole).all()
    # The first words of Philox4x64-10 at counter (1, 0, 7, 0): the published algorithm, in integers.
    assert whole[:4].tolist() == philox((1, 0, 7, 0), KEY)


def philox(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    """Salmon et al. 2011, Philox4x64-10."""
    mask, (x0, x1, x2, x3), (k0, k1) = 2**64 - 1, counter, key
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * x0, 0xCA5A826395121157 * x2
        x0, x1, x2, x3 = (right >> 64) ^ x1 ^ k0, right & mask, (left >> 64) ^ x3 ^ k1, left & mask
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
    return [x0, x1, x2, x3]


@pytest.mark.parametrize(("rows", "epsilon", "pq", "qp", "closed"), PAIRS)
def test_estimates_are_the_quadrature(
    rows: list[list[float]], epsilon: float, pq: float, qp: float, closed: float
) -> None:
    estimate = StarEstimate(of_matrix(rows), samples=1 << 16)
    for sampled, true in ((estimate.forward(1.0, epsilon), pq), (estimate.reverse(1.0, epsilon), qp)):
        assert sampled.delta == pytest.approx(true, rel=4 * sampled.relative_error)
        assert sampled.relative_error < 0.01
        assert 0 <= sampled.weights.min() and sampled.weights.max() <= sampled.ceiling * (1 + 1e-9)


@pytest.mark.parametrize(("rows", "epsilon", "pq", "qp", "closed"), PAIRS)
def test_protocol_weights_have_the_same_mean_and_keep_their_ceiling(
    rows: list[list[float]], epsilon: float, pq: float, qp: float, closed: float
) -> None:
    covariance = bin_covariance(of_matrix(rows).gram, 1.0)
    for test, true in ((ForwardTest(covariance, epsilon, 4), pq), (ReverseTest(covariance, epsilon, 3.0), qp)):
        weights = np.concatenate([test.weights(KEY, chunk) for chunk in range(12)])
        spread = float(weights.std() / math.sqrt(len(weights)))
        assert abs(float(weights.mean()) - true) < 4.5 * spread
        assert 0 <= weights.min() and weights.max() <= test.ceiling


@pytest.mark.parametrize(("epsilon", "mu"), [(1.0, 0.5), (8.0, 2.0), (2.0, 0.25)])
def test_one_bin_is_the_gaussian_mechanism(epsilon: float, mu: float) -> None:
    gram = BinGram(np.array([[mu * mu]]), 1, 1e-13, False)
    estimate = StarEstimate(gram, samples=1 << 16)
    true = gaussian_delta(epsilon, mu)
    for sampled in (estimate.forward(1.0, epsilon), estimate.reverse(1.0, epsilon)):
        assert sampled.delta == pytest.approx(true, rel=max(4 * sampled.relative_error, 1e-3))


# C = I and one epoch (random allocation): deterministic two-sided intervals (bins, sigma, epsilon, low, high).
INTERVALS = [
    (10, 0.8, 1.0, 1.79630e-2, 1.79832e-2),
    (100, 0.6, 2.0, 3.81642e-4, 3.82814e-4),
    (256, 0.3912, 8.0, 1.06590e-5, 1.06630e-5),
    (256, 0.6969, 2.0, 1.0419e-6, 1.0470e-6),
]


@pytest.mark.parametrize(("bins", "sigma", "epsilon", "low", "high"), INTERVALS)
def test_the_identity_falls_into_its_deterministic_interval(
    bins: int, sigma: float, epsilon: float, low: float, high: float
) -> None:
    found = StarEstimate(BinGram(np.eye(bins), bins, 1e-13, False)).forward(sigma, epsilon)
    room = 4 * found.relative_error * found.delta
    assert low - room <= found.delta <= high + room


@pytest.mark.parametrize(("taps", "epsilon", "delta", "sigma"), [(32, 8.0, 1e-5, 1.7207), (32, 2.0, 1e-6, 4.196)])
def test_sigma_is_the_published_one(taps: int, epsilon: float, delta: float, sigma: float) -> None:
    gram = bin_gram(inverse_roots(taps, 2048), 256)
    estimate = StarEstimate(gram, seed=5)
    found = estimate.sigma(epsilon, delta)
    assert found == pytest.approx(sigma, rel=6e-3)
    assert math.exp(log_single_bin(gram, found, epsilon)) < delta
    assert found < bins_sigma(gram, epsilon=epsilon, delta=delta)
    assert estimate.epsilon(found, delta) == pytest.approx(epsilon, rel=5e-3)


def test_sigma_of_two_buffers_is_the_published_one() -> None:
    blt = BltMatrix(np.array([0.74489, 0.991695]), np.array([0.29538, 0.12265]), 2048)
    assert StarEstimate(bin_gram(blt, 256)).sigma(8.0, 1e-5) == pytest.approx(1.87735, rel=6e-3)


def test_the_sampled_covariance_is_never_below_what_was_asked_for() -> None:
    """A Gram matrix of rank one has no Cholesky factor of its own: the inflation gives it one, upwards."""
    for gram in (np.full((30, 30), 2.0), of_matrix(PAIRS[3][0]).gram, np.eye(5)):
        covariance = bin_covariance(gram, 1.7)
        assert (covariance.matrix >= gram / 1.7**2).all()
        np.testing.assert_allclose(covariance.matrix, gram / 1.7**2, rtol=1e-9, atol=1e-11)
    with pytest.raises(CertificateError, match="positive semidefinite"):
        bin_covariance(np.array([[1.0, 2.0], [2.0, 1.0]]), 1.0)


def test_tuples_have_the_star_law() -> None:
    matrix = np.array(PAIRS[3][0])
    tables, samples = StarTables(matrix, 3), 200_000
    words = chunk_words(KEY, 0, 3 * samples).reshape(samples, 3)
    tuples, log_ratio = tables.draw(words, matrix)
    grid = np.stack(np.meshgrid(*[range(3)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    law = np.exp(1.5 * (matrix[grid[:, 0], grid[:, 1]] + matrix[grid[:, 0], grid[:, 2]]))
    counts = np.bincount(tuples @ [9, 3, 1], minlength=27)
    expected = law / law.sum() * samples
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()
    sums = [1.5 * sum(matrix[tuples[:, i], tuples[:, j]] for j in range(3) if j != i) for i in range(3)]
    np.testing.assert_allclose(log_ratio, np.mean(sums, axis=0) - np.log(np.mean(np.exp(sums), axis=0)), atol=1e-12)


def test_hopeless_orders_are_refused_before_a_sample_is_drawn() -> None:
    covariance = bin_covariance(np.eye(4), 0.05)
    with pytest.raises(InvalidParameter, match="ceiling of e"):
        ForwardTest(covariance, 1.0, 20)
    with pytest.raises(InvalidParameter, match="2\\^-10"):
        bin_covariance(np.eye(4) * 1e6, 0.05).slack(4000)


def test_a_chunk_repeats_its_bits() -> None:
    test = ForwardTest(bin_covariance(of_matrix(PAIRS[0][0]).gram, 1.0), 2.0, 3)
    assert (test.weights(KEY, 1) == test.weights(KEY, 1)).all() and len(test.weights(KEY, 1)) == CHUNK
    assert (test.weights(KEY, 1) != test.weights(KEY, 2)).any()
