"""The payoff that estimates average, its ceiling, and the part of the noise that all bins share."""

from __future__ import annotations

import numpy as np
import pytest
from bin_cases import inverse_roots

from factorize.accounting import bin_gram
from factorize.accounting.gram_matrix import shared_part
from factorize.accounting.payoff import best_tilt, log_put, log_reverse_ceiling


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
