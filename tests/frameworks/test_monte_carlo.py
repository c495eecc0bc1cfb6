"""jax_privacy's Monte Carlo of the pair of balls in bins against ours: other code, plain samples of the privacy loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
from jax_privacy import batch_selection
from jax_privacy.experimental.monte_carlo import delta_calculation, sample_generation

from factorize.accounting import StarEstimate, bin_gram
from factorize.structures.toeplitz import ToeplitzMatrix

STEPS, BINS, SAMPLES = 32, 8, 20_000
SIGMA, EPSILON = 2.0, 1.0


@pytest.mark.parametrize("included", [True, False])
def test_both_are_inside_each_others_intervals(included: bool) -> None:
    """Five standard errors of both together; the seeds are fixed."""
    column = np.cumprod([1.0, *((2 * t - 1) / (2 * t) for t in range(1, 12))])
    strategy = batch_selection.BallsInBinsSampling(iterations=STEPS, cycle_length=BINS)
    losses, _ = sample_generation.get_privacy_loss_sample(
        strategy, SIGMA, column, seed=3, positive_sample=included, num_samples=SAMPLES
    )
    theirs = float(delta_calculation.delta_from_epsilon_and_samples(EPSILON, losses))
    spread = float(np.std(np.maximum(-np.expm1(EPSILON - losses), 0.0))) / math.sqrt(SAMPLES)
    estimate = StarEstimate(bin_gram(ToeplitzMatrix(column, STEPS), BINS), seed=4)
    ours = estimate.forward(SIGMA, EPSILON) if included else estimate.reverse(SIGMA, EPSILON)
    assert 0.01 < theirs < 0.3 and spread < 0.05 * theirs
    assert abs(ours.delta - theirs) <= 5 * math.hypot(spread, ours.relative_error * ours.delta)
