"""The Gaussian mechanism's privacy: against vectors, an independent library and 60-digit arithmetic."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import dp_accounting
import mpmath
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st

from factorize.errors import InvalidParameter
from factorize.numbers.gaussian import (
    compose_mu,
    gaussian_delta,
    gaussian_epsilon,
    mu_of,
    noise_multiplier_for_epsilon,
    noise_multiplier_for_mu,
    noise_multiplier_for_rho,
    rho_of,
)

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "vectors.json").read_text())
EXTREME_TARGETS = [
    (1e4, 1e-5), (1e4, 1e-300), (1, 1e-300), (1e-3, 1e-300), (1, 5e-324), (50, 2.3e-308), (1e-6, 1e-5),
    (1e-300, 1e-5), (1e10, 1e-9), (1, 0.5), (1, 0.999999), (1e-9, 0.3), (1e4, 0.9), (3, 1 - 2**-50),
]  # fmt: skip


def true_delta(epsilon: float, mu: float, digits: int = 60) -> mpmath.mpf:
    """Theorem 8 of Balle and Wang as printed, in arithmetic that its cancellation does not exhaust."""
    lost = max(0, math.ceil(-2 * math.log10(mu))) + math.ceil(math.log10(1 + epsilon))
    with mpmath.workdps(digits + lost):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return _upper_tail(e / m - m / 2) - mpmath.exp(e) * _upper_tail(e / m + m / 2)


def _upper_tail(t: mpmath.mpf) -> mpmath.mpf:
    return mpmath.erfc(t / mpmath.sqrt(2)) / 2


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda power: 10.0**power)


EPSILONS, DELTAS, MUS = log_uniform(-6, 5), log_uniform(-300, -0.01), log_uniform(-7, 6)


# ---- vectors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta", "z"), VECTORS["I.gdp"]["table"])
def test_noise_multiplier_vectors(epsilon: float, delta: float, z: float) -> None:
    assert noise_multiplier_for_epsilon(epsilon, delta) == pytest.approx(z, rel=2e-12)


def test_delta_vector() -> None:
    vector = VECTORS["I.delta"]
    assert gaussian_delta(vector["eps"], vector["mu"]) == pytest.approx(vector["delta"], rel=1e-11)


def test_zcdp_vector() -> None:
    v = VECTORS["I.zcdp"]
    z = noise_multiplier_for_rho(v["rho"])
    assert gaussian_epsilon(v["delta"], mu_of(z)) == pytest.approx(v["eps_exact_gaussian"], rel=1e-11)


# ---- an independent library -------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
@pytest.mark.parametrize("epsilon", [0.1, 1, 8, 40])
def test_dp_accounting_gives_the_same_numbers(epsilon: float, delta: float) -> None:
    z = noise_multiplier_for_epsilon(epsilon, delta)
    assert z == pytest.approx(dp_accounting.get_sigma_gaussian(epsilon, delta), rel=1e-9)
    theirs = dp_accounting.get_epsilon_gaussian(z, delta)
    assert gaussian_epsilon(delta, mu_of(z)) == pytest.approx(theirs, rel=1e-9, abs=1e-9)


def test_composed_runs_agree_with_discretised_privacy_losses() -> None:
    multipliers = [2.0, 3.0, 3.0]
    losses = [
        privacy_loss_distribution.from_gaussian_mechanism(z, value_discretization_interval=1e-4) for z in multipliers
    ]
    together = losses[0].compose(losses[1]).compose(losses[2])
    mu = compose_mu(mu_of(z) for z in multipliers)
    exact = gaussian_epsilon(1e-5, mu)
    assert exact <= together.get_epsilon_for_delta(1e-5) <= exact + 1e-3  # theirs is pessimistic


# ---- never below the truth --------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta"), EXTREME_TARGETS)
def test_extreme_targets_are_met_by_a_hair(epsilon: float, delta: float) -> None:
    z = noise_multiplier_for_epsilon(epsilon, delta)
    assert true_delta(epsilon, mu_of(z)) <= delta
    if 1e-300 <= delta <= 0.9:  # nearer to the ends the doubles themselves are too coarse to be this tight
        assert true_delta(epsilon, mu_of(z * (1 - 3e-12))) > delta


@given(EPSILONS, DELTAS)
def test_the_noise_multiplier_always_suffices_and_wastes_nothing(epsilon: float, delta: float) -> None:
    z = noise_multiplier_for_epsilon(epsilon, delta)
    assert true_delta(epsilon, mu_of(z)) <= delta
    assert true_delta(epsilon, mu_of(z * (1 - 3e-12))) > delta


@given(EPSILONS, MUS)
def test_delta_is_never_below_the_true_one(epsilon: float, mu: float) -> None:
    delta, true = gaussian_delta(epsilon, mu), true_delta(epsilon, mu)
    assert 0 < delta <= 1
    assert true <= delta
    inflated = true_delta(epsilon, mu * (1 + 2e-12))
    assert delta <= inflated * (1 + mpmath.mpf(2) ** -50) + 1e-323


@given(DELTAS, MUS)
def test_epsilon_is_never_below_the_true_one_and_is_tight(delta: float, mu: float) -> None:
    epsilon = gaussian_epsilon(delta, mu)
    assert true_delta(epsilon, mu) <= delta
    smaller = epsilon - 1e-11 * (epsilon + mu)
    assert smaller <= 0 or true_delta(smaller, mu) > delta


def test_epsilon_is_zero_only_where_the_total_variation_distance_allows_it() -> None:
    distance = true_delta(0.0, 0.5)
    assert gaussian_epsilon(float(distance) * (1 + 1e-10), 0.5) == 0.0
    assert 0.0 < gaussian_epsilon(float(distance) * (1 - 1e-10), 0.5) < 1e-9


# ---- shape ------------------------------------------------------------------------------------------------


@given(log_uniform(-7, 7))
def test_mu_rho_and_noise_multiplier_are_one_number(z: float) -> None:
    assert noise_multiplier_for_mu(mu_of(z)) == pytest.approx(z, rel=1e-15)
    assert noise_multiplier_for_rho(rho_of(z)) == pytest.approx(z, rel=1e-15)
    assert Fraction(mu_of(z)) * Fraction(z) >= 1
    assert 2 * Fraction(rho_of(z)) * Fraction(z) ** 2 >= 1


# ---- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, True, "1", None])
def test_epsilon_out_of_range_is_refused(epsilon: float) -> None:
    with pytest.raises(InvalidParameter, match=r"^epsilon.*give a finite epsilon > 0") as caught:
        noise_multiplier_for_epsilon(epsilon, 1e-5)
    assert caught.value.field == "epsilon"


@pytest.mark.parametrize("delta", [0, 1, 1.0, -1e-9, 2, math.nan, math.inf, False, "0.1"])
def test_delta_out_of_range_is_refused_everywhere(delta: float) -> None:
    for refuses in (
        lambda: noise_multiplier_for_epsilon(1, delta),
        lambda: gaussian_epsilon(delta, 1),
    ):
        with pytest.raises(InvalidParameter, match=r"^delta.*give delta in \(0, 1\)"):
            refuses()


def test_a_target_that_needs_absurd_noise_is_refused_with_the_limit() -> None:
    with pytest.raises(
        InvalidParameter, match=r"epsilon=1e-09, delta=1e-20 .*above the limit 1e\+08; ask for a larger"
    ):
        noise_multiplier_for_epsilon(1e-9, 1e-20)
    with pytest.raises(InvalidParameter, match=r"epsilon=1e\+300.*below the limit 1e-08; ask for a smaller"):
        noise_multiplier_for_epsilon(1e300, 1e-5)
    with pytest.raises(InvalidParameter, match=r"rho=1e-20 needs .*above the limit 1e\+08") as caught:
        noise_multiplier_for_rho(1e-20)
    assert caught.value.field == "rho"
    with pytest.raises(InvalidParameter, match=r"mu=1000000000.0 needs .*below the limit 1e-08"):
        noise_multiplier_for_mu(1e9)


@pytest.mark.parametrize("mu", [0, -1, 0.9e-8, 1.1e8, math.nan, math.inf, "1"])
def test_mu_out_of_range_is_refused(mu: float) -> None:
    for refuses in (lambda: gaussian_delta(1, mu), lambda: gaussian_epsilon(1e-5, mu)):
        with pytest.raises(InvalidParameter, match="^mu"):
            refuses()


def test_nothing_composed_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="0 runs to compose"):
        compose_mu([])
    with pytest.raises(InvalidParameter, match="^mu=0"):
        compose_mu([1.0, 0.0])
