"""Amplification where it is proved, and nowhere else."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from handmade import handmade
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import solved

from factorize.accounting.amplification import calibrate_amplified
from factorize.accounting.loss_laws import PoissonLaw, sampling_probability
from factorize.checker.sampling.losses import CELLS, losses_of_samples
from factorize.client import load
from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.factors.factor_file import load as open_whole
from factorize.numbers.gaussian import noise_multiplier_for_epsilon
from factorize.privacy import Calibration, PrivacyTarget, calibrate, check_own
from factorize.structures.banded import BandedMatrix


def separated(mechanism: dict[str, Any], n: int = 64) -> Any:
    return solved(n, mechanism, {"kind": "min_sep", "min_sep": mechanism.get("bands", 8)})


def law(probability: float, steps: int) -> PoissonLaw:
    """Steps that sample from all examples, on C = I."""
    return PoissonLaw(steps, 1, 1.0, probability)


@pytest.mark.parametrize(
    ("epsilon", "delta", "probability", "compositions"),
    [(4.0, 1e-4, 1 / 24, 24), (0.1, 1e-6, 0.02, 500), (2.0, 1e-10, 0.05, 200), (0.5, 1e-5, 1.0, 10)],
)
def test_no_multiplier_much_smaller_keeps_the_target(
    epsilon: float, delta: float, probability: float, compositions: int
) -> None:
    """The search begins on a coarse grid and ends on the fine one, where delta jumps by what 3e-4 of noise gain."""
    found = law(probability, compositions).sigma(epsilon, delta)
    kept, broken = (law(probability, compositions).epsilon(times * found, delta) for times in (1.0, 1 - 6e-4))
    assert kept <= epsilon * (1 + 5e-5) < broken  # each multiplier has a grid of its own


@pytest.mark.parametrize(
    ("probability", "multiplier", "steps", "epsilon"),
    [
        (0.01, 1.0, 1000, 2.0),
        (0.1, 2.0, 100, 2.0),
        (0.5, 5.0, 64, 2.0),
        (1.0, 4.0, 16, 1.0),
        (1e-3, 0.7, 500, 1.0),
        (29 / 60000, 1.0787, 2048, 0.1),
    ],
)
def test_delta_is_above_that_of_dp_accounting_and_near_it(
    probability: float, multiplier: float, steps: int, epsilon: float
) -> None:
    """Its optimistic estimate is below the truth, its pessimistic one above."""
    found = law(probability, steps).delta(multiplier, epsilon)
    theirs = [
        privacy_loss_distribution.from_gaussian_mechanism(
            multiplier, sampling_prob=probability, value_discretization_interval=2e-4, pessimistic_estimate=above
        )
        .self_compose(steps)
        .get_delta_for_epsilon(epsilon)
        for above in (False, True)
    ]
    assert theirs[0] <= found <= 1.03 * theirs[1]


@given(probability=st.floats(1e-4, 1.0), multiplier=st.floats(0.3, 30.0), epsilon=st.floats(0.0, 5.0))
@settings(max_examples=15, deadline=None)
def test_one_step_has_the_closed_form(probability: float, multiplier: float, epsilon: float) -> None:
    """E (1 - q + q X - T)_+ is q times that of X at (T - 1 + q) / q, and the other direction likewise."""
    losses = losses_of_samples(Fraction(1), multiplier, probability, 1)
    over, under = ((math.exp(sign * epsilon) - 1 + probability) / probability for sign in (1, -1))
    mu = mpmath.mpf(1) / multiplier

    def call(strike: float) -> float:
        """E (X - strike)_+ for X = exp(mu Z - mu^2 / 2)."""
        if strike <= 0:
            return 1.0 - strike
        level = mpmath.log(strike) / mu
        return float(mpmath.ncdf(mu / 2 - level) - strike * mpmath.ncdf(-mu / 2 - level))

    cell = min(math.sqrt(math.log1p(probability**2 * math.expm1(multiplier**-2))), 0.25) / CELLS
    removal = probability * call(over)
    addition = math.exp(epsilon) * probability * (call(under) - (1 - under))
    for found, exact in ((losses.removal(epsilon), removal), (losses.addition(epsilon), addition)):
        assert exact * (1 - 1e-9) <= float(found) + 1e-15 and float(found) <= exact + cell


def test_laws_that_are_multiplied_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = losses_of_samples(Fraction(1), 1.0, 0.25, 12)
    monkeypatch.setattr("factorize.checker.sampling.losses.MAX_DOT_CELLS", 100)
    parts = losses_of_samples(Fraction(1), 1.0, 0.25, 12)
    for epsilon in (0.5, 2.0):
        assert float(parts.removal(epsilon)) == pytest.approx(float(whole.removal(epsilon)), rel=1e-11)
        assert float(parts.addition(epsilon)) == pytest.approx(float(whole.addition(epsilon)), rel=1e-11)


def test_banded_noise_is_for_fewer_steps_at_a_larger_probability() -> None:
    factorization = separated({"kind": "banded", "bands": 8})
    found = calibrate_amplified(factorization, epsilon=1.0, delta=1e-6, dataset_size=8000, batch_size=10, clip_norm=2.0)
    assert isinstance(found, Calibration)
    assert (found.groups, found.compositions, found.sampling_probability) == (8, 8, 0.01)
    z = law(0.01, 8).sigma(1.0, 1e-6)
    norms = np.sqrt(factorization.strategy.column_norms_squared())
    assert found.sigma_of_sums == pytest.approx(z * 2.0 * norms.max(), rel=1e-12)
    assert found.sigma_of_sums >= z * 2.0 * norms.max()
    # without the sampling the same noise is that of sens(C) for 8 participations
    assert found.noise_multiplier * 2.0 * found.sensitivity.value == pytest.approx(found.sigma_of_sums)
    document = found.document()
    assert document["sampling"] == "cyclic_poisson" and document["epsilon"] == 1.0
    assert document["mu"] == pytest.approx(1 / found.noise_multiplier)


def test_the_batch_size_of_the_sampling_is_no_divisor() -> None:
    """At 500 of 60,000 the noise came out 500 times too small for the sums that it was added to."""
    identity = solved(50, "identity")
    asked: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "dataset_size": 5000, "batch_size": 100}
    sums, means = calibrate_amplified(identity, **asked), calibrate_amplified(identity, **asked, divisor=50)
    assert sums.sigma_of_sums == means.sigma_of_sums and (sums.divisor, sums.sigma_of_means) == (None, None)
    assert means.sigma_of_means == pytest.approx(means.sigma_of_sums / 50, rel=1e-15)
    noise, total = identity.noise(sums, 3, seed=1 << 64, auditor="not_looked_at"), np.array([3.0, 4.0, 0.0])
    beside = identity.noise(sums, 3, seed=1 << 64, auditor="not_looked_at")
    with pytest.raises(InvalidParameter, match="has no divisor"):
        noise.add_to_mean(total / 100)
    assert noise.step == 0  # nothing was released, and no noise is lost
    np.testing.assert_array_equal(noise.add_to_sum(total), (total + beside.next()).astype(np.float32))


@pytest.mark.parametrize("mechanism", [{"kind": "banded", "bands": 4}, {"kind": "banded_toeplitz", "bands": 4}])
def test_a_training_job_draws_the_noise_that_was_calibrated_with_sampling(mechanism, tmp_path: Path) -> None:
    separated(mechanism, 16).save(tmp_path / "c.safetensors")
    factors, asked = load(tmp_path / "c.safetensors"), {"delta": 1e-6, "dataset_size": 160, "batch_size": 10}
    found = calibrate_amplified(open_whole(tmp_path / "c.safetensors"), epsilon=1.0, **asked)
    assert factors.noise(found, 100, seed=1 << 64, auditor="not_looked_at").calibration is found
    other = calibrate_amplified(separated({"kind": "banded", "bands": 3}, 16), epsilon=1.0, **asked)
    with pytest.raises(InvalidParameter, match="at most 3 bands, but this C has 4; calibrate this one"):
        factors.noise(other, 100, seed=1 << 64, auditor="not_looked_at")
    twice = solved(16, "identity")
    scaled = calibrate_amplified(twice, epsilon=1.0, **asked)
    with pytest.raises(InvalidParameter, match="at most 1 bands, but this C has 4"):
        factors.noise(scaled, 100, seed=1 << 64, auditor="not_looked_at")
    with pytest.raises(InvalidParameter, match="sensitivity of value"):
        factors.noise(
            replace(found, sensitivity=replace(found.sensitivity, value=0.5)),
            100,
            seed=1 << 64,
            auditor="not_looked_at",
        )


def test_equal_sensitivities_do_not_hide_a_larger_column() -> None:
    """diag(5, 5) and diag(7, 1) have the sensitivity sqrt(50), and a sampled step of the second shows 7 in place of 5."""
    even, uneven = (BandedMatrix(np.array([diagonal])) for diagonal in ([5.0, 5.0], [7.0, 1.0]))
    asked = {"epsilon": 1.0, "delta": 1e-6, "dataset_size": 8, "batch_size": 1}
    found, other = (calibrate_amplified(handmade(c), **asked) for c in (even, uneven))
    assert found.sensitivity == other.sensitivity and other.sigma_of_sums == pytest.approx(1.4 * found.sigma_of_sums)
    found.check_belongs(found.sensitivity, lambda: even)
    with pytest.raises(InvalidParameter, match="columns of norm 5 at most, but this C has one of 7;"):
        found.check_belongs(found.sensitivity, lambda: uneven)
    for change in ({"epsilon": 0.9}, {"delta": 1e-7}, {"sampling_probability": 0.5}):
        with pytest.raises(InvalidParameter, match="calibrate again"):
            replace(found, **change).check_belongs(found.sensitivity, lambda: even)


@pytest.mark.parametrize("changed", [None, "value", "kind", "rule", "participation"])
def test_equal_sensitivities_are_equal_whoever_states_them(changed: str | None, tmp_path: Path) -> None:
    result = separated({"kind": "banded", "bands": 4}, 16)
    result.save(tmp_path / "c.safetensors")
    factors, stated = load(tmp_path / "c.safetensors"), result.certificate.sensitivity
    others = {"value": 9.5, "kind": "upper_bound", "rule": "another", "participation": {"kind": "single"}}
    if changed:
        stated = replace(stated, **{changed: others[changed]})
    scale = calibrate(stated, PrivacyTarget(mu=1.0))
    for noise in (factors.noise, lambda c, shape, seed: (check_own(c, result), c)[1]):
        if changed is None:
            assert noise(scale, 10, seed=1 << 64) is not None
        else:
            mine, other = getattr(factors.sensitivity, changed), others[changed]
            with pytest.raises(InvalidParameter) as caught:
                noise(scale, 10, seed=1 << 64)
            assert f"of {changed} {other!r}" in str(caught.value) and f"has {mine!r}" in str(caught.value)


def test_the_smallest_group_decides_the_probability() -> None:
    assert sampling_probability(3, 10, 2) == 2 / 3
    with pytest.raises(ConditionNotMet, match="has 3 of the 10 examples"):
        sampling_probability(3, 10, 4)
    with pytest.raises(InvalidParameter, match="dataset_size"):
        sampling_probability(3, 0, 4)


def test_nothing_else_is_amplified() -> None:
    dense = solved(16)
    asked = {"epsilon": 1.0, "delta": 1e-6, "dataset_size": 1600, "batch_size": 10}
    with pytest.raises(ConditionNotMet, match="banded"):
        calibrate_amplified(dense, **asked)
    toeplitz = solved(16, "square_root")
    with pytest.raises(ConditionNotMet, match="16 bands"):
        calibrate_amplified(toeplitz, **asked)


@pytest.mark.parametrize("probability", [1e-3, 0.01, 0.999, 1.0])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.05), (0.5, 1e-6), (20.0, 1e-12), (50.0, 1e-6)])
def test_one_step_needs_less_noise_than_without_sampling(probability: float, epsilon: float, delta: float) -> None:
    law = PoissonLaw(1, 1, 1.0, probability)
    sigma = law.sigma(epsilon, delta)
    assert law.delta(sigma, epsilon) <= delta
    known = noise_multiplier_for_epsilon(epsilon, delta) * (1 + law.tolerance)
    assert sigma <= max(known, 0.1001)  # no law is known for less


@pytest.mark.parametrize(("probability", "steps"), [(0.0, 3), (1.5, 3), (0.5, 0)])
def test_what_is_no_sampling_has_no_law(probability: float, steps: int) -> None:
    with pytest.raises(InvalidParameter, match="must be in"):
        law(probability, steps)


def test_where_the_grid_resolves_no_delta_so_small_the_gaussian_mechanism_bounds_it() -> None:
    found = law(0.1, 10).sigma(1.0, 1e-30)
    assert found == pytest.approx(math.sqrt(10) * noise_multiplier_for_epsilon(1.0, 1e-30), rel=2e-4)
    assert law(0.1, 10).epsilon(found, 1e-30) <= 1.0 + 1e-6


@pytest.mark.parametrize(("probability", "steps", "epsilon", "delta"), [(0.01, 40, 1.0, 1e-9), (0.3, 9, 2.0, 1e-6)])
def test_the_estimate_in_doubles_is_within_the_tolerance_of_what_is_proved(
    probability: float, steps: int, epsilon: float, delta: float
) -> None:
    own = law(probability, steps)
    estimated = own.estimated_sigma(epsilon, delta)
    assert own.delta(estimated * (1 + own.tolerance), epsilon) <= delta
    assert own.delta(estimated * (1 - 2 * own.tolerance), epsilon) > delta
