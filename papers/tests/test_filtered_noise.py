"""Noise of filters in place of matrices: its sensitivity against fractions and numbers by hand, and what is refused."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from factorize.errors import CertificateError, InvalidParameter
from factorize.privacy import PrivacyTarget
from papers.algorithms import DIFFERENCED, INDEPENDENT, FilteredNoise
from papers.algorithms.differences import combined
from papers.algorithms.filtered_noise import filtered_sensitivity
from papers.training import Rows

TARGET = PrivacyTarget(epsilon=2.0, delta=1e-5)
SINGLE = {"kind": "single"}


@pytest.mark.parametrize("inverse", [(1.0, -0.9), (1.0, -1.9, 0.9025), (1.0, 0.3, -0.7, 0.1), (1.0, -1.0), (1.0, 2.0)])
def test_the_sensitivity_of_a_filter_covers_what_rounding_its_inverse_loses(inverse: tuple[float, ...]) -> None:
    """The noise is that of the exact inverse; in doubles its column is off, by -4e-16 for some filters."""
    for steps in (1, 7, 40):
        column = [Fraction(1)]
        for t in range(1, steps):
            column.append(-sum(Fraction(w) * column[t - d] for d, w in enumerate(inverse[: t + 1]) if d))
        stated = filtered_sensitivity(inverse, steps, SINGLE)
        exact = sum(c * c for c in column)
        assert 0 <= Fraction(stated.value) ** 2 / exact - 1 < 1e-11
        assert stated.kind == ("exact" if set(inverse) <= {1.0, -1.0, 2.0} or steps == 1 else "upper_bound")


def test_a_filter_whose_inverse_is_lost_to_rounding_is_refused() -> None:
    with pytest.raises(CertificateError, match="rounding loses the inverse"):
        filtered_sensitivity((1.0, -3.3, 2.1), 200, SINGLE)


def test_a_difference_of_one_row_and_several_is_refused() -> None:
    """Every example's contribution would hold the whole batch's gradient, and clipping would bound nobody's share."""
    with pytest.raises(InvalidParameter, match="2 contributions for a batch, then 1"):
        combined(Rows(np.ones((2, 3))), 1.0, Rows(np.ones((1, 3))), 0.5)


def test_the_sensitivities_of_the_two_filters() -> None:
    """C = I: sqrt(participations). C = S: its first column has n ones; two epochs of two steps add to (1, 1, 2, 2)."""
    epochs = {"kind": "fixed_epochs", "epochs": 2}
    assert filtered_sensitivity(INDEPENDENT, 9, SINGLE).value == 1.0
    assert filtered_sensitivity(INDEPENDENT, 8, epochs).value == pytest.approx(2**0.5, rel=1e-12)
    assert filtered_sensitivity(DIFFERENCED, 9, SINGLE).value == pytest.approx(3.0, rel=1e-12)
    found = filtered_sensitivity(DIFFERENCED, 4, epochs)
    assert found.value == pytest.approx(10**0.5, rel=1e-12)
    assert found.kind == "exact"


def test_differenced_noise_adds_up_to_independent_rows() -> None:
    noise = FilteredNoise(DIFFERENCED, TARGET, 20_000, steps=4, seed=3 << 64)
    sums = np.cumsum([noise.next() for _ in range(4)], axis=0) / noise.calibration.sigma_of_sums
    assert np.abs(np.cov(sums) - np.eye(4)).max() < 0.08
    with pytest.raises(InvalidParameter, match="past n=4"):
        noise.next()


def test_noise_repeats_with_its_seed_only() -> None:
    def drawn(seed: int) -> np.ndarray:
        return FilteredNoise(INDEPENDENT, TARGET, (2, 3), steps=1, seed=seed << 64).next()

    np.testing.assert_array_equal(drawn(5), drawn(5))
    assert not np.array_equal(drawn(5), drawn(6))
    assert drawn(5).shape == (2, 3)


def test_a_filter_that_is_not_scaled_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="begin with 1"):
        FilteredNoise((2.0, -1.0), TARGET, 1, steps=2, seed=1 << 70)
