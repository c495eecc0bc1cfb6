"""Noise that varies over the rounds: its sensitivity, its law, and the privacy of theorem 5.1."""

from __future__ import annotations

import math

import numpy as np
import pytest

from factorize.errors import InvalidParameter
from factorize.privacy import PrivacyTarget, calibrate
from factorize.training import DIFFERENCED, FilteredNoise, PrivateSums, fixed_order
from papers.algorithms import Machine, everywhere, untrusted_mu2
from papers.algorithms.varying_noise import VaryingNoise, scaled_sensitivity

TARGET = PrivacyTarget(mu=2.0)


def test_the_sensitivity_is_that_of_the_first_round() -> None:
    scales = (1.0, 2.0, 0.5)
    strategy = np.diag(1 / np.array(scales)) @ np.tri(3)
    found = scaled_sensitivity(scales)
    assert found.value == pytest.approx(np.linalg.norm(strategy, axis=0).max(), rel=1e-15)
    assert found.value == pytest.approx(math.sqrt(1 + 0.25 + 4))
    assert scaled_sensitivity((3.0,) * 9).value == pytest.approx(1.0)
    for wrong in ((), (1.0, 0.0), (1.0, math.inf)):
        with pytest.raises(InvalidParameter, match="positive and finite"):
            scaled_sensitivity(wrong)


def test_the_noise_is_the_theorem_s() -> None:
    """R24, theorem 5.1: mu^2 = sum over rounds of (2 S)^2 / sigma_t^2, for replaced samples."""
    scales = np.array([1.0, 2.0, 4.0, 4.0])
    noise = VaryingNoise(scales, TARGET, 1, clip_norm=1.5, divisor=1, seed=1)
    sigmas = noise.calibration.sigma_of_sums * scales
    assert ((2 * 1.5) ** 2 / sigmas**2).sum() == pytest.approx(2.0**2, rel=1e-9)


def test_running_sums_have_fresh_noise_of_their_own_scale() -> None:
    scales = np.array([1.0, 3.0, 0.5])
    noise = VaryingNoise(scales, TARGET, 20_000, divisor=1, seed=2)
    sums = np.cumsum([noise.next() for _ in scales], axis=0) / noise.calibration.sigma_of_sums
    covariance = sums @ sums.T / sums.shape[1]
    np.testing.assert_allclose(covariance, np.diag(scales**2), atol=0.1)
    with pytest.raises(InvalidParameter, match="past n=3"):
        noise.next()


def test_equal_scales_are_the_printed_algorithm() -> None:
    same = VaryingNoise((1.0,) * 6, TARGET, 2, divisor=1, seed=3).calibration
    printed = FilteredNoise(DIFFERENCED, TARGET, 2, steps=6, divisor=1, adjacency="replace_one", seed=3).calibration
    assert same.sigma_of_sums == pytest.approx(printed.sigma_of_sums, rel=1e-12)
    assert calibrate(scaled_sensitivity((1.0,)), TARGET, divisor=1).sigma_of_sums == pytest.approx(0.5)


def test_mu2_trains_with_it() -> None:
    noise = VaryingNoise(np.linspace(1, 2, 8), TARGET, 2, divisor=1, seed=4)
    machine = Machine(lambda weights, batch: np.ones((len(batch), 2)), fixed_order(8, 1), PrivateSums(noise))
    run = untrusted_mu2([machine], np.zeros(2), learning_rate=0.01, project=everywhere)
    assert np.isfinite(run.weights).all() and run.calibration is noise.calibration
