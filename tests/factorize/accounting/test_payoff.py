"""The payoff that estimates average, its ceiling, and the part of the noise that all bins share."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from bin_cases import inverse_roots

from factorize.accounting import bin_gram
from factorize.accounting.gram_matrix import BinGram, shared_part
from factorize.accounting.payoff import best_tilt, log_call, log_call_ceiling, log_put, log_reverse_ceiling, raised
from factorize.accounting.star_estimate import StarEstimate
from factorize.numbers.gaussian import gaussian_delta


def test_the_call_is_the_mean_over_the_shared_part() -> None:
    """By quadrature, for one case; the others rest on the formula."""
    y, level, spread = 0.3, 1.0, 0.4

    def paid(g: mpmath.mpf) -> mpmath.mpf:
        return (mpmath.exp(y + spread * g - spread**2 / 2) - mpmath.exp(level)) * mpmath.npdf(g)

    least = (level - y) / spread + spread / 2
    assert float(mpmath.quad(paid, [least, least + 4, least + 12])) == pytest.approx(
        math.exp(float(log_call(np.array([y]), level, spread)[0])), rel=1e-12
    )


@pytest.mark.parametrize(("level", "spread", "order"), [(2.0, 0.32, 11), (8.0, 0.7, 3), (0.0, 0.05, 40), (5.0, 2.0, 2)])
def test_the_ceiling_is_above_every_value_and_attained(level: float, spread: float, order: int) -> None:
    ceiling = log_call_ceiling(level, spread, order)
    y = raised(np.linspace(level - 40 * spread, level + 12, 40_001), level, spread)
    values = log_call(y, level, spread) - order * y
    assert -1e-9 < ceiling - values.max() < 1e-5
    slopes = np.diff(values[y > y[0]])
    assert (np.diff(slopes) < 1e-9).all()  # concave: log call is a convolution of log-concave functions


def test_without_a_shared_part_it_is_the_difference_itself() -> None:
    y = np.array([1.0, 2.0, 2.5, 9.0])
    assert np.exp(log_call(y, 2.0, 0.0)) == pytest.approx(np.maximum(np.exp(y) - math.exp(2.0), 0.0), rel=1e-12)
    for order in (2, 5, 5.5):
        values = log_call(np.linspace(2.0001, 9.0, 100_001), 2.0, 0.0) - order * np.linspace(2.0001, 9.0, 100_001)
        assert log_call_ceiling(2.0, 0.0, order) == pytest.approx(float(values.max()), abs=1e-7)


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


def test_one_common_value_is_the_gaussian_mechanism() -> None:
    """K constant: nothing is left to draw, and every weight is delta but for rounding."""
    estimate = StarEstimate(BinGram(np.full((3, 3), 0.25), 3))
    assert estimate.forward(1.0, 2.0).delta == pytest.approx(gaussian_delta(2.0, 0.5), rel=1e-2)
