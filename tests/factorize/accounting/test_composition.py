"""Runs under random bins composed with others: loss distributions and Renyi divergences against exact answers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import norm

from factorize import solvers
from factorize.accounting import BinsLaw, calibrate_bins
from factorize.accounting.gram_matrix import BinGram
from factorize.errors import InvalidParameter
from factorize.factors.factorization import Factorization
from factorize.numbers.gaussian import gaussian_delta, gaussian_epsilon
from factorize.samplings.loss_distributions import distribution_of, loss_distribution
from factorize.spec import parse_spec

INTERVAL = 1e-3


def gram_of(k: np.ndarray) -> BinGram:
    return BinGram(k, 2 * len(k))


@pytest.fixture(scope="module")
def base() -> Factorization:
    spec: dict[str, Any] = {"workload": {"kind": "prefix", "n": 32}, "mechanism": {"kind": "square_root"}}
    return solvers.solve(parse_spec({**spec, "participation": {"kind": "fixed_epochs", "epochs": 4}}))


def test_one_bin_is_the_gaussian_mechanism() -> None:
    """Nothing is sampled, and the curve is exact: composed with another Gaussian, norms add up as squares."""
    own = distribution_of(BinsLaw(gram_of(np.array([[1.0]]))), 2.0, INTERVAL, 600)
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        assert gaussian_delta(epsilon, 0.5) <= own.get_delta_for_epsilon(epsilon) * (1 + 1e-9)
        assert own.get_delta_for_epsilon(epsilon) == pytest.approx(gaussian_delta(epsilon, 0.5), rel=2e-2)
    both = own.compose(pld.from_gaussian_mechanism(4.0, value_discretization_interval=INTERVAL))
    exact = gaussian_epsilon(1e-6, math.hypot(0.5, 0.25))
    assert exact <= both.get_epsilon_for_delta(1e-6) <= 1.01 * exact


def composed_delta(multiplier: float, epsilon: float) -> float:
    """E (L1 L2 - T)+ of two independent runs of two bins with C = I: the second's curve at T / L1, over L1."""
    x, y = np.meshgrid(*[np.linspace(-9, 9, 901)] * 2, indexing="ij")
    weights = (norm.pdf(x) * norm.pdf(y) * (18 / 900) ** 2).ravel()
    shift = 1 / multiplier
    ratio = (np.exp(shift * x - shift**2 / 2) + np.exp(shift * y - shift**2 / 2)).ravel() / 2
    thresholds = np.exp(np.linspace(-9, 9, 2001))
    order = np.argsort(ratio)
    above = np.cumsum((weights * ratio)[order][::-1])[::-1], np.cumsum(weights[order][::-1])[::-1]
    place = np.minimum(np.searchsorted(ratio[order], thresholds), len(ratio) - 1)
    curve = above[0][place] - thresholds * above[1][place]
    return float((weights * ratio * np.interp(math.exp(epsilon) / ratio, thresholds, curve)).sum())


@pytest.mark.parametrize(("multiplier", "epsilon"), [(1.0, 1.0), (1.0, 2.5), (0.7, 3.0)])
def test_two_runs_of_two_bins_are_above_quadrature(multiplier: float, epsilon: float) -> None:
    own = distribution_of(BinsLaw(gram_of(np.eye(2))), multiplier, INTERVAL, 600)
    delta, exact = own.compose(own).get_delta_for_epsilon(epsilon), composed_delta(multiplier, epsilon)
    assert exact < delta < 6 * exact  # the star bound, twice
    unsampled = gaussian_delta(epsilon, math.sqrt(2) / multiplier)
    assert delta < unsampled


def test_one_run_keeps_its_calibration(base: Factorization) -> None:
    held = calibrate_bins(base, epsilon=4.0, delta=1e-5, divisor=9, clip_norm=0.5, method="deterministic")
    own = loss_distribution(base, sigma=held.sigma_of_sums, clip_norm=0.5, interval=INTERVAL)
    assert 4.0 * (1 - 1e-6) <= own.get_epsilon_for_delta(1e-5) <= 4.05


def test_a_run_composes_with_one_beside_it(base: Factorization) -> None:
    """A run under bins and a Gaussian query."""
    own = loss_distribution(base, sigma=4.0, interval=INTERVAL)
    other = pld.from_gaussian_mechanism(5.0, value_discretization_interval=INTERVAL)
    assert own.get_epsilon_for_delta(1e-6) < own.compose(other).get_epsilon_for_delta(1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": "poisson"}, "dp_accounting itself"),
        ({"sigma": 1e-2}, "use a larger sigma"),
        ({"sigma": -1.0}, "sigma"),
        ({"points": 1}, "at least 2"),
        ({"points": 2.5}, "points=2.5 is not an integer"),
        ({"clip_norm": 1e-300}, "clip_norm=1e-300 is outside"),
    ],
)
def test_what_has_no_distribution_is_refused(base: Factorization, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        loss_distribution(base, **{"sigma": 4.0, **options})
