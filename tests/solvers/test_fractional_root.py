"""gamma-BIFR and DP-lambda-CGD: coefficients by hand, members of other families, and the best parameter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from specs import solved, spec_of

from factorize.errors import InvalidSpec

TWO_EPOCHS = {"kind": "fixed_epochs", "epochs": 2}
MIN_SEP = {"kind": "min_sep", "min_sep": 5}
MOMENTUM = {"kind": "momentum", "n": 24, "momentum": 0.9}


def bifr(bands: int, gamma: float | str, **more: Any) -> dict[str, Any]:
    return {"kind": "banded_inverse_fractional_root", "bands": bands, "gamma": gamma, **more}


def test_coefficients_by_hand() -> None:
    """(1 - x)^g = 1 - g x - g (1 - g) / 2 x^2 - g (1 - g) (2 - g) / 6 x^3."""
    found = solved(8, bifr(4, 0.75), TWO_EPOCHS)
    assert found.rows("C_inv", 7, 8)[0, :3:-1] == pytest.approx([1, -0.75, -0.09375, -0.0390625], rel=1e-15)
    assert not found.rows("C_inv", 7, 8)[0, :4].any()
    assert found.strategy.structure == "inverse_banded_toeplitz"


def test_two_bands_are_lambda_cgd_and_damped_differences() -> None:
    for participation in ({"kind": "single"}, TWO_EPOCHS, MIN_SEP):
        losses = {
            solved(20, mechanism, participation).certificate.loss.objective.hex()[:12]
            for mechanism in (
                bifr(2, 0.75),
                {"kind": "lambda_cgd", "correlation": 0.75},
                {"kind": "anti_pgd", "damping": 0.25},
            )
        }
        assert len(losses) == 1


@pytest.mark.parametrize("participation", [{"kind": "single"}, {"kind": "fixed_epochs", "epochs": 3}, MIN_SEP])
@pytest.mark.parametrize("gamma", [0.2, 1.0])
@pytest.mark.parametrize("bands", [2, 7])
def test_on_prefix_sums_the_sensitivity_is_exact(bands: int, gamma: float, participation: dict[str, Any]) -> None:
    """docs/notes/mechanisms.md proves that the coefficients fall; here the certificate finds that they do."""
    assert solved(30, bifr(bands, gamma), participation).certificate.sensitivity.kind == "exact"


def test_rising_coefficients_take_the_bound_of_any_matrix() -> None:
    """Momentum: c_1 = gamma (1 + mu) = 1.71 > 1. Of two columns without negative entries the plain sum is the truth."""
    found = solved(MOMENTUM, bifr(4, 0.9), TWO_EPOCHS)
    columns = found.rows("C", 0, 24)
    truth = max(float(np.linalg.norm(columns[:, j] + columns[:, j + 12])) for j in range(12))
    assert found.certificate.sensitivity.kind == "exact"
    assert found.certificate.sensitivity.value == pytest.approx(truth, rel=1e-12)


def test_the_best_correlation_of_one_participation() -> None:
    """By hand: the sum over rows t of 1 + t u^2, over 1 - (1 - u)^2, up to (1 - u)^(2n)."""
    n = 400
    rest = np.linspace(0.05, 0.09, 4001)
    kept = 1 - rest
    loss = (n + rest**2 * n * (n - 1) / 2) * (1 - kept ** (2 * n)) / (1 - kept**2) / n
    found = solved(n, {"kind": "lambda_cgd", "correlation": "tune"})
    assert found.certificate.loss.objective == pytest.approx(loss.min(), rel=1e-8)
    assert found.strategy.theta[0] == pytest.approx(kept[loss.argmin()], abs=2e-5)


def test_correlated_noise_only_costs_on_the_identity() -> None:
    found = solved({"kind": "identity", "n": 16}, {"kind": "lambda_cgd", "correlation": "tune"})
    assert found.certificate.loss.objective == pytest.approx(1.0, rel=1e-12)


def test_what_is_refused() -> None:
    for mechanism in (bifr(2, 1.5), bifr(2, -0.1), bifr(2, "best"), {"kind": "lambda_cgd", "correlation": math.inf}):
        with pytest.raises(InvalidSpec):
            spec_of(8, mechanism)
