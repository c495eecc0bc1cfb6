"""DP-FTRL, and what all training algorithms share: clipping, orders, noise, the door through which sums leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specs import solved, spec_of
from training_cases import nothing, unit_door

from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.privacy import PrivacyTarget
from factorize.solvers import solve
from factorize.spec import parse_spec
from factorize.training import Order, fixed_order, full_batch
from papers.algorithms import INDEPENDENT, Ball, FilteredNoise, LinearRegression, Quadratic
from papers.algorithms.differences import combined
from papers.training import (
    FactorizationNoise,
    OuterProducts,
    PlainSums,
    PrivateSums,
    Rows,
    Run,
    Sgd,
    SoftmaxRegression,
    clipped_sum,
    dp_ftrl,
    method_spec,
    ones,
)

TARGET = PrivacyTarget(epsilon=2.0, delta=1e-5)
SINGLE = {"kind": "single"}


def independent(steps: int, shape: int, **options: Any) -> PrivateSums:
    return PrivateSums(FilteredNoise(INDEPENDENT, TARGET, shape, steps=steps, seed=7 << 64, **options))


def descended(order: Order, sums: Any, size: int = 1, **options: Any) -> Run:
    """Descent from 0 on a quadratic whose optimum is 1."""
    settings: dict[str, Any] = {"optimizer": Sgd(learning_rate=0.1), **options}
    return dp_ftrl(Quadratic(np.ones(size), np.ones(size)), np.zeros(size), order, sums, **settings)


# Clipping


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 10))
def test_every_contribution_is_within_the_clip_norm(seed: int, clip_norm: float) -> None:
    rows = np.random.default_rng(seed).standard_normal((5, 3)) * 10.0 ** np.arange(-2, 3)[:, None]
    for row in rows:
        clipped = clipped_sum(Rows(row[None]), clip_norm)
        assert np.linalg.norm(clipped) <= clip_norm * (1 + 1e-12)
        np.testing.assert_allclose(clipped, row * min(1, clip_norm / np.linalg.norm(row)), rtol=1e-12)


def test_the_sum_is_over_clipped_rows_by_hand() -> None:
    """(3, 4) has norm 5 and is scaled to 1; (0.3, 0.4) stays."""
    np.testing.assert_allclose(clipped_sum(Rows(np.array([[3.0, 4.0], [0.3, 0.4]])), 1.0), [0.9, 1.2])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e200])
def test_what_is_not_finite_counts_as_zero_and_is_not_told(value: float) -> None:
    rows = np.array([[1.0, 0.0], [value, 1.0]])
    np.testing.assert_array_equal(clipped_sum(Rows(rows), 2.0), [1.0, 0.0])
    outer = OuterProducts(np.array([[1.0], [value]]), np.array([[1.0, 0.0], [1.0, 1e200]]))
    np.testing.assert_array_equal(clipped_sum(outer, 2.0), [[1.0, 0.0]])


def test_outer_products_are_the_rows_that_they_stand_for() -> None:
    generator = np.random.default_rng(1)
    x, r, s = generator.standard_normal((3, 6, 4))
    one, two = OuterProducts(x, r), OuterProducts(x, s)
    np.testing.assert_allclose(one.norms(), Rows(one.dense()).norms(), rtol=1e-12)
    both, plain = combined(one, 2.0, two, 0.5), combined(Rows(one.dense()), 2.0, Rows(two.dense()), 0.5)
    assert isinstance(both, OuterProducts)
    np.testing.assert_allclose(clipped_sum(both, 1.0), clipped_sum(plain, 1.0), rtol=1e-12)
    other = OuterProducts(x + 1, s)
    np.testing.assert_allclose(combined(one, 1.0, other, 1.0).dense(), one.dense() - other.dense(), rtol=1e-12)


@pytest.mark.parametrize("model", ["softmax", "linear"])
def test_gradients_are_the_derivatives_of_the_losses(model: str) -> None:
    generator = np.random.default_rng(2)
    x = generator.standard_normal((4, 3))
    softmax = SoftmaxRegression(x, np.array([0, 1, 1, 2]), 3)
    linear = LinearRegression(x, generator.standard_normal(4))
    function: Any = softmax if model == "softmax" else linear
    weights = generator.standard_normal(softmax.shape if model == "softmax" else 3)
    gradient = function(weights, np.arange(4))
    mean = clipped_sum(Rows(gradient) if model == "linear" else gradient, np.inf) / 4
    for index in np.ndindex(weights.shape):
        step = np.zeros_like(weights)
        step[index] = 1e-6
        slope = (function.loss(weights + step) - function.loss(weights - step)) / 2e-6
        assert mean[index] == pytest.approx(slope, abs=1e-8)


# Orders


def test_an_order_longer_than_the_factorization_is_refused() -> None:
    with pytest.raises(InvalidParticipation, match="solve for n=4"):
        descended(fixed_order(4, 1), independent(3, 1))


# The door


class Bare:
    def next(self) -> np.ndarray:
        return np.zeros(2)


def test_noise_without_a_calibration_or_with_a_foreign_one_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="no guarantee"):
        PrivateSums(Bare())
    mine, other = (FilteredNoise(INDEPENDENT, TARGET, 2, steps=1, clip_norm=c, seed=1 << 70) for c in (1.0, 2.0))
    with pytest.raises(InvalidParameter, match="without the Calibration"):
        PrivateSums(mine, other.calibration)
    assert PrivateSums(Bare(), other.calibration).clip_norm == 2.0


def test_noise_is_good_for_one_run() -> None:
    sums = independent(4, 1, divisor=1)
    descended(fixed_order(2, 1), sums)
    with pytest.raises(InvalidParameter, match="2 steps of this noise have been used already"):
        descended(fixed_order(2, 1), sums)


def test_noise_of_another_shape_is_refused() -> None:
    with pytest.raises(InvalidParameter, match=r"shape \(3,\)"):
        independent(1, 3).release(Rows(np.zeros((1, 2))))


def test_no_digit_of_a_sum_is_beyond_the_noise() -> None:
    class Single:
        def next(self) -> np.ndarray:
            return np.array([0.3, -2.0], dtype=np.float32)

    released = PrivateSums(Single(), independent(1, 2).calibration).release_clipped(np.full(2, 0.1 + 2.0**-45))
    assert released.dtype == np.float64
    np.testing.assert_array_equal(released, released.astype(np.float32))
    np.testing.assert_allclose(released, [0.4, -1.9], rtol=1e-7)


def test_a_mean_is_divided_by_the_fixed_divisor_and_not_by_the_batch() -> None:
    sums = PlainSums(divisor=10, clip_norm=1.0)
    np.testing.assert_allclose(sums.release(Rows(np.array([[0.5, 0.0], [0.5, 0.0]]))), [0.1, 0.0])


@pytest.mark.parametrize("shape", [(2, 3), (3,), (4, 2), (3, 2, 2)])
def test_gradients_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    def gradient(weights: np.ndarray, batch: np.ndarray) -> np.ndarray:
        return np.zeros(shape)

    with pytest.raises(InvalidParameter, match="return one"):
        dp_ftrl(gradient, np.zeros((2, 2)), full_batch(2, 1), PlainSums(), optimizer=Sgd(learning_rate=1.0))


def test_the_gradient_of_a_whole_batch_is_one_contribution() -> None:
    """Norm 5 is clipped to 1, however many examples it is made of."""
    run = dp_ftrl(
        lambda weights, batch: np.array([3.0, 4.0]),
        np.zeros(2),
        full_batch(7, 1),
        PlainSums(clip_norm=1.0),
        optimizer=Sgd(learning_rate=1.0),
    )
    np.testing.assert_allclose(run.weights, [-0.6, -0.8])


# Optimizers


SCHEDULE = [1.0, 0.9, 0.7, 0.7, 0.4, 0.1]


@pytest.mark.parametrize(
    "optimizer",
    [
        Sgd(learning_rate=0.1),
        Sgd(learning_rate=0.1, schedule=SCHEDULE),
        Sgd(learning_rate=0.1, momentum=0.9),
        Sgd(learning_rate=0.1, momentum=0.9, schedule=SCHEDULE),
        Sgd(learning_rate=0.1, momentum=0.8, nesterov=True, schedule=SCHEDULE),
        Sgd(learning_rate=0.2, momentum=0.5, weight_decay=0.3),
        Sgd(learning_rate=0.2, weight_decay=0.3, decay_mode="coupled", schedule=SCHEDULE),
    ],
)
def test_every_optimizer_is_the_workload_that_it_names(optimizer: Sgd) -> None:
    """With zero gradients and unit noise, minus the weights are rows of A times the scale of the rates."""
    n, rows = 6, []
    dp_ftrl(
        nothing,
        np.zeros(n),
        full_batch(1, n),
        unit_door(n),
        optimizer=optimizer,
        observe=lambda step, weights, release: rows.append(-weights),
    )
    workload = spec_of(optimizer.workload(n)).workload
    scale = 1.0 if optimizer.weight_decay else optimizer.learning_rate
    np.testing.assert_allclose(np.array(rows), scale * workload.row_block(0, n), atol=1e-14)


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": 0.0},
        {"learning_rate": 1.0, "momentum": 1.0},
        {"learning_rate": 1.0, "decay_mode": "both"},
        {"learning_rate": 1.0, "nesterov": True, "weight_decay": 0.1},
    ],
)
def test_an_optimizer_that_is_no_workload_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        Sgd(**options)


def test_a_schedule_that_is_too_short_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="2 rates, none for step 2"):
        descended(full_batch(1, 3), PlainSums(), optimizer=Sgd(learning_rate=1.0, schedule=[1.0, 0.5]))


# DP-FTRL


def test_a_quadratic_without_noise_contracts_as_in_closed_form() -> None:
    """x_T - x* = (1 - eta l)^T (x_0 - x*)."""
    curvature, optimum = np.array([1.0, 0.5, 0.1]), np.array([1.0, -2.0, 3.0])
    run = dp_ftrl(
        Quadratic(curvature, optimum),
        np.zeros(3),
        full_batch(4, 9),
        PlainSums(divisor=4),
        optimizer=Sgd(learning_rate=0.3),
    )
    np.testing.assert_allclose(run.weights, optimum * (1 - (1 - 0.3 * curvature) ** 9), rtol=1e-12)
    assert run.calibration is None


def test_noise_on_a_quadratic_is_the_exact_recursion() -> None:
    """r_{t+1} = (1 - eta l) r_t - eta (C^-1)[t] gives the coefficients of x_T on Z.

    The clip norm is out of reach: gradients are below 4 and the noise on them adds some units to 100.
    """
    n, eta, curvature, seed = 8, 0.2, 0.7, 1 << 64
    target = PrivacyTarget(epsilon=1000.0, delta=1e-5)
    factors = solve(parse_spec(method_spec("dp_mf_plus", ones(n), tau=4)))
    inverse = factors.rows("C_inv", 0, n)

    def noise(shape: int) -> FactorizationNoise:
        return FactorizationNoise(factors, target, shape, divisor=1, clip_norm=100.0, seed=seed)

    def final(start: float) -> float:
        optimizer = Sgd(learning_rate=eta)
        quadratic = Quadratic(np.array([curvature]), np.zeros(1))
        run = dp_ftrl(quadratic, np.array([start]), fixed_order(n, 1), PrivateSums(noise(1)), optimizer=optimizer)
        return float(run.weights[0])

    def normals(shape: int) -> np.ndarray:
        source = noise(shape)
        return np.linalg.solve(inverse, np.array([source.next() for _ in range(n)]))

    row = np.zeros(n)
    for t in range(n):
        row = (1 - eta * curvature) * row - eta * inverse[t]
    assert final(0.0) == pytest.approx(float(row @ normals(1)[:, 0]), rel=1e-4, abs=1e-4)
    assert final(5.0) - final(0.0) == pytest.approx(5.0 * (1 - eta * curvature) ** n, rel=1e-4)
    # The mean of 160,000 squares has a standard deviation of 0.35 %.
    assert np.mean(normals(20_000) ** 2) == pytest.approx(noise(1).calibration.sigma_of_sums ** 2, rel=0.03)


def test_a_run_repeats_with_its_seed_and_reports_its_guarantee() -> None:
    def run(seed: int) -> Any:
        sums = PrivateSums(FilteredNoise(INDEPENDENT, TARGET, 2, steps=3, divisor=2, seed=seed << 64))
        return descended(fixed_order(6, 2), sums, 2, project=Ball(3.0))

    np.testing.assert_array_equal(run(1).weights, run(1).weights)
    assert not np.array_equal(run(1).weights, run(2).weights)
    assert run(1).steps == 3
    assert run(1).calibration.epsilon == 2.0
    assert np.linalg.norm(run(1).weights) <= 3.0 * (1 + 1e-12)


# Methods


METHODS: dict[str, dict[str, Any]] = {
    "dp_sgd": {},
    "dp_mf": {},
    "dp_mf_plus": {"tau": 4},
    "dp_memf": {"epochs": 3},
    "nu_dp_ftrl": {"nu": 0.1},
    "tree": {},
    "anti_pgd": {},
}


@pytest.mark.parametrize("method", METHODS)
def test_the_noise_of_every_method_has_the_covariance_of_its_noising_matrix(method: Any) -> None:
    """Made from minimal state where C has structure: 20,000 coordinates at sensitivity s show s^2 (C^T C)^-1."""
    factors = solve(parse_spec(method_spec(method, ones(12), **METHODS[method])))
    noise = FactorizationNoise(factors, TARGET, 20_000, seed=2 << 64)
    rows = np.array([noise.next() for _ in range(12)]) / noise.calibration.sigma_of_sums
    inverse = factors.rows("C_inv", 0, 12)
    expected = inverse @ inverse.T
    assert np.abs(np.cov(rows) - expected).max() < 0.08 * expected.max()
    with pytest.raises(InvalidParameter, match="past n=12"):
        noise.next()


def test_a_banded_strategy_trains_in_any_order_that_keeps_the_distance() -> None:
    """min_sep 3: examples 0..3 in batches of one, twice, four steps apart; three batches of one are too close."""
    participation = {"kind": "min_sep", "min_sep": 4}
    factors = solved(ones(8), {"kind": "banded", "bands": 4}, participation)
    one, other = (PrivateSums(FactorizationNoise(factors, TARGET, 2, divisor=1, seed=1 << 70)) for _ in range(2))
    assert descended(fixed_order(4, 1, epochs=2), one, 2).steps == 8
    with pytest.raises(InvalidParticipation, match="3 apart, below min_sep=4"):
        descended(fixed_order(3, 1, epochs=2), other, 2)


def test_a_method_with_the_wrong_parameters_is_refused() -> None:
    wrong: list[tuple[Any, dict[str, Any]]] = [
        ("dp_mf_plus", {}),
        ("dp_mf", {"tau": 3}),
        ("dp_mf", {"nu": 0.1}),
        ("dp_adam", {}),
    ]
    for method, options in wrong:
        with pytest.raises(InvalidParameter):
            method_spec(method, ones(4), **options)
