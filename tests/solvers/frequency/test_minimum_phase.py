"""Spectral factorisation against closed forms, and its refusal where the grid does not resolve the spectrum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorize.errors import SolveFailed
from factorize.predict.asymptotic import distance_squared, quadratic_power
from factorize.solvers.formulas.closed_form import noising_coefficients, strategy_coefficients
from factorize.solvers.frequency.minimum_phase import minimum_phase


@pytest.mark.parametrize("nu", [0.5, 0.1, 1e-2, 1e-3])
def test_nu_toeplitz_is_recovered(nu: float) -> None:
    n = 4000
    found = minimum_phase(lambda w: -0.5 * np.log(distance_squared(nu, w)), n)
    np.testing.assert_allclose(found.coefficients, strategy_coefficients(n, nu), atol=1e-13)
    inverse = minimum_phase(lambda w: 0.5 * np.log(distance_squared(nu, w)), n)
    np.testing.assert_allclose(inverse.coefficients, noising_coefficients(n, nu), atol=1e-13)


@given(
    st.lists(st.floats(-0.95, 0.95), min_size=1, max_size=4),
    st.lists(st.floats(-0.95, 0.95), min_size=0, max_size=3),
    st.floats(0.1, 10.0),
)
def test_rational_spectra(poles: list[float], zeros: list[float], scale: float) -> None:
    """A product of (1 - z x) over one of (1 - p x): its own minimum-phase factor, found from its modulus alone."""
    n = 60

    def log_power(w: np.ndarray) -> np.ndarray:
        x = np.exp(-1j * w)
        terms = [np.log(np.abs(1 - z * x) ** 2) for z in zeros] + [-np.log(np.abs(1 - p * x) ** 2) for p in poles]
        return np.log(scale**2) + sum(terms)

    series = np.eye(1, n)[0] * scale
    for z in zeros:
        series = series - z * np.concatenate([[0.0], series[:-1]])
    for p in poles:
        for t in range(1, n):
            series[t] += p * series[t - 1]
    found = minimum_phase(log_power, n)
    np.testing.assert_allclose(found.coefficients, series, atol=1e-11 * np.abs(series).max())


def test_published_filter(vectors: dict[str, Any]) -> None:
    published = vectors["G.linreg.spectrum_1_over_k"]
    power = quadratic_power([1 / k for k in range(1, 9)], published["eta"])
    found = minimum_phase(lambda w: -0.5 * np.log(power(w)), 6)
    np.testing.assert_allclose(found.coefficients / found.coefficients[0], published["opt_beta"], atol=1e-8)


def test_a_spectrum_with_a_pole_on_the_circle_is_refused() -> None:
    with pytest.raises(SolveFailed, match="not resolved by 16384 frequencies"):
        minimum_phase(lambda w: -np.log(np.maximum(np.sin(w / 2), 1e-300)), 10, finest=2**14)
