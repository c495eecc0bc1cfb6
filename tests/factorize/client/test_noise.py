"""Correlated noise has the covariance that the guarantee needs, and a job cannot draw it wrongly.

The covariance test: whiten the noise of n steps and d coordinates with C / sigma, which must give independent standard
normals. With S the n x n second-moment matrix of the whitened noise, d/2 ||S - I||_F^2 is asymptotically chi-squared
with n(n+1)/2 degrees of freedom. A right generator exceeds the limit with probability 1e-6; seeds are fixed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hostile_server import HostileService, make
from scipy import stats

from factorize.certificate.sensitivity import Sensitivity
from factorize.client import Factors, NoiseGenerator
from factorize.client.noise_source import ComputedRows
from factorize.client.recurrences.base import NoiseCost
from factorize.errors import InvalidParameter
from factorize.privacy import PrivacyTarget, calibrate

N, D = 24, 40_000
CONFIDENCE = 1e-6
UNCALIBRATED = Sensitivity(1.0, "exact", "r", {"kind": "single"})


@pytest.fixture(scope="module")
def factorization():
    return make(N, dense=True)


@pytest.fixture(scope="module")
def calibration(factorization):
    return calibrate(factorization.certificate.sensitivity, PrivacyTarget(epsilon=2.0, delta=1e-6), clip_norm=0.7)


@pytest.fixture(scope="module")
def rows(factorization):
    return ComputedRows(N, factorization.digest, lambda: factorization.rows("C_inv", 0, N).__getitem__, NoiseCost(N, N))


def statistic(drawn: np.ndarray, factorization, sigma: float) -> float:
    """Distance of whitened noise, shape (n, d), from independent standard normals, in units of the limit."""
    n, d = drawn.shape
    white = factorization.rows("C", 0, n) @ drawn.astype(np.float64) / sigma
    distance = d / 2 * np.linalg.norm(white @ white.T / d - np.eye(n)) ** 2
    return distance / stats.chi2.isf(CONFIDENCE, n * (n + 1) / 2)


def draw(rows, calibration, *, shape=D, seed=7, **options) -> np.ndarray:
    return np.array(list(NoiseGenerator(rows, calibration, shape, seed=seed, **options)))


class TestDistribution:
    def test_each_whitened_row_is_normal(self, rows, calibration, factorization):
        white = factorization.rows("C", 0, N) @ draw(rows, calibration).astype(np.float64) / calibration.sigma_of_sums
        assert min(stats.kstest(row, "norm").pvalue for row in white) > CONFIDENCE

    def test_the_noise_is_for_sums_whatever_the_divisor(self, factorization, rows):
        sensitivity = factorization.certificate.sensitivity
        means = calibrate(sensitivity, PrivacyTarget(rho=0.1), divisor=50)
        drawn = draw(rows, means)
        expected = math.sqrt(1 / 0.2) * sensitivity.value
        assert statistic(drawn, factorization, expected) < 1
        generator = NoiseGenerator(rows, means, D, seed=7)
        added = np.array([generator.add_to_mean(np.zeros(D)) for _ in range(N)])
        assert statistic(added, factorization, expected / 50) < 1
        np.testing.assert_allclose(added, drawn / 50, rtol=1e-6)


class TestAddition:
    def test_a_sum_gets_the_noise_of_its_step(self, rows, calibration):
        one, other = (NoiseGenerator(rows, calibration, (2, 3), seed=7) for _ in range(2))
        for dtype in (np.float32, np.float64):
            total = np.arange(6, dtype=dtype).reshape(2, 3)
            noisy = one.add_to_sum(total)
            assert noisy.dtype == np.float32 and (total == np.arange(6).reshape(2, 3)).all()
            np.testing.assert_array_equal(noisy, (total + other.next()).astype(np.float32))

    def test_without_a_divisor_nothing_is_added_to_means(self, rows, calibration):
        generator = NoiseGenerator(rows, calibration, 3, seed=7)
        with pytest.raises(InvalidParameter, match=r"for sums, and this calibration has no divisor.*divisor="):
            generator.add_to_mean(np.zeros(3))
        assert generator.step == 0

    def test_a_sum_that_is_called_a_mean_is_refused(self, factorization, rows):
        """600 clipped contributions that have nothing in common still add up to 24 clip norms."""
        means = calibrate(factorization.certificate.sensitivity, PrivacyTarget(mu=1.0), divisor=600)
        generator, rng = NoiseGenerator(rows, means, 1000, seed=7), np.random.default_rng(1)
        each = rng.standard_normal((600, 1000))
        total = (each / np.linalg.norm(each, axis=1, keepdims=True)).sum(axis=0)
        with pytest.raises(InvalidParameter, match=r"norm 2\d\.\d+ of the mean is above 1\.6.*it is a sum.*add_to_sum"):
            generator.add_to_mean(total)
        assert generator.step == 0
        assert np.linalg.norm(generator.add_to_mean(total / 600) - total / 600) > 0

    @pytest.mark.parametrize("wrong", [np.zeros(4), np.zeros((1, 3)), np.zeros(3, np.float16), np.zeros(3, int), 0.0])
    def test_another_shape_or_fewer_digits_are_refused(self, factorization, rows, wrong):
        means = calibrate(factorization.certificate.sensitivity, PrivacyTarget(mu=1.0), divisor=2)
        generator = NoiseGenerator(rows, means, 3, seed=7)
        for add in (generator.add_to_sum, generator.add_to_mean):
            with pytest.raises(InvalidParameter, match="clip and add up in float32"):
                add(wrong)
        assert generator.step == 0


class TestRefusals:
    def test_more_than_n_steps(self, rows, calibration):
        generator = NoiseGenerator(rows, calibration, 3, seed=1)
        generator.skip(N - 1)
        generator.next()
        with pytest.raises(InvalidParameter, match=f"step {N + 1} is past n={N}"):
            generator.next()
        with pytest.raises(InvalidParameter, match="past n"):
            generator.skip()
        assert generator.step == N

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            *(({"calibration": bare}, "pass the Calibration") for bare in (1.0, None, np.float64(2.0), UNCALIBRATED)),
            *(({"seed": seed}, "seed") for seed in (-1, 1.0, True, None, "1")),
            *(({"shape": shape}, "side below 1") for shape in (0, (3, 0), (-1,))),
            *(({"shard": shard}, "not a part of the 3 entries") for shard in ((0, 0), (3, 2), (-1, 2), (0, 4))),
            ({"threads": 0}, "threads"),
            ({"threads": 1.5}, "threads"),
            ({"precision": "half"}, "precision"),
            ({"generator": "r"}, "generator"),
        ],
    )
    def test_what_makes_no_generator(self, rows, calibration, given, says):
        with pytest.raises(InvalidParameter, match=says):
            NoiseGenerator(**{"source": rows, "calibration": calibration, "shape": 3, "seed": 1, **given})

    def test_going_back(self, rows, calibration):
        with pytest.raises(InvalidParameter, match="same noise twice"):
            NoiseGenerator(rows, calibration, 3, seed=1).skip(-1)

    @pytest.mark.parametrize(
        "change", [{"seed": 8}, {"shape": 4}, {"sigma": 0.5}, {"rows": "other"}, {"steps": N - 1}, {"step": N + 1}]
    )
    def test_checkpoint_of_another_run(self, rows, calibration, factorization, change):
        generator = NoiseGenerator(rows, calibration, 3, seed=7)
        other = calibrate(factorization.certificate.sensitivity, PrivacyTarget(mu=2.0))
        state = NoiseGenerator(
            replace(rows, digest="other") if "rows" in change else rows,
            other if "sigma" in change else calibration,
            change.get("shape", 3),
            seed=change.get("seed", 7),
        ).state_dict()
        state |= {key: value for key, value in change.items() if key in ("steps", "step")}
        with pytest.raises(InvalidParameter, match="checkpoint"):
            generator.load_state_dict(state)

    def test_checkpoint_is_plain_data(self, rows, calibration):
        state = NoiseGenerator(rows, calibration, 3, seed=7).state_dict()
        assert all(isinstance(value, (int, str, list)) for value in state.values())
        assert "seed" not in state


class TestStreamed:
    @pytest.fixture
    def server(self, tmp_path, factorization):
        with HostileService(tmp_path, factorization) as service:
            yield service

    def test_streamed_rows_are_no_source_of_noise(self, server, factorization, calibration):
        """No proof is about the rows that a service sends; noise comes from the certified C."""
        factors = Factors.connect(factorization.digest, url=server.url)
        with pytest.raises(InvalidParameter, match=r"Rows is no source of noise.*factors\.noise"):
            NoiseGenerator(factors.rows(), calibration, 50, seed=7)
