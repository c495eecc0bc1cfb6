"""Recursive gradients: DP-SRG-MEMF, Accelerated-DP-SRGD, and the two methods that it is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from specs import spec_of
from training_cases import nothing, unit_door

from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.privacy import PrivacyTarget
from factorize.solvers import solve
from factorize.spec import parse_spec
from factorize.training import fixed_order, full_batch
from papers.algorithms import (
    Ball,
    Quadratic,
    accelerated_dp_sgd,
    accelerated_dp_srgd,
    accelerated_recipe,
    dp_srg,
    everywhere,
    srg_workload,
    unaccelerated_dp_srgd,
)
from papers.training import (
    FactorizationNoise,
    PlainSums,
    PrivateSums,
    Rows,
    Sgd,
    SoftmaxRegression,
    dp_ftrl,
    method_spec,
    ones,
)

TARGET = PrivacyTarget(epsilon=2.0, delta=1e-5)
LINE = Quadratic(np.array([1.0]), np.array([1.0]))  # f = (x - 1)^2 / 2
START = np.zeros(1)


# DP-SRG-MEMF


@pytest.mark.parametrize("decay", [0.0, 0.3, 1.0, 1.5])
def test_recursive_gradients_of_equal_examples_are_the_gradients(decay: float) -> None:
    """nabla_t = c nabla_{t-1} + (g_t - c g_{t-1}) = g_t: without noise the run is that of plain SGD."""
    problem = Quadratic(np.array([1.0, 0.2]), np.array([1.0, -1.0]))
    common = (problem, np.zeros(2), full_batch(3, 6), PlainSums(divisor=3))
    optimizer = Sgd(learning_rate=0.4, momentum=0.5)
    recursive = dp_srg(*common, decay=decay, optimizer=optimizer)
    np.testing.assert_allclose(recursive.weights, dp_ftrl(*common, optimizer=optimizer).weights, rtol=1e-12)


def test_without_decay_it_is_dp_memf_to_the_bit() -> None:
    factors = solve(parse_spec(method_spec("dp_memf", ones(12), epochs=2)))
    x, y = load_digits(return_X_y=True)
    model, order = SoftmaxRegression(x / 16, y, 10), fixed_order(60, 10, epochs=2)
    results = []
    for train in (dp_ftrl, dp_srg):
        sums = PrivateSums(FactorizationNoise(factors, TARGET, model.shape, divisor=10, seed=4 << 64))
        options: dict[str, Any] = {"decay": 0.0} if train is dp_srg else {}
        run = train(model, np.zeros(model.shape), order, sums, optimizer=Sgd(learning_rate=0.3), **options)
        results.append(run.weights)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(("momentum", "decay"), [(0.9, 0.5), (0.0, 0.7), (0.9, np.exp(-2.5))])
def test_the_workload_of_the_increments_is_m_a_l(momentum: float, decay: float) -> None:
    """With zero gradients and unit noise the weights are rows of M A L: the noise is added once, not twice."""
    n, rows = 7, []
    dp_srg(
        nothing,
        np.zeros(n),
        full_batch(1, n),
        unit_door(n),
        decay=decay,
        optimizer=Sgd(learning_rate=1.0, momentum=momentum),
        observe=lambda step, weights, release: rows.append(-weights),
    )
    workload = spec_of(srg_workload(n, momentum=momentum, decay=decay)).workload
    np.testing.assert_allclose(np.array(rows), workload.row_block(0, n), atol=1e-13)


def test_the_difference_is_clipped_and_not_the_gradients() -> None:
    """Gradients of norm 10 whose difference is 0.5: the first step clips to 1, the second releases 0.5 whole."""

    def gradient(weights: np.ndarray, batch: np.ndarray) -> Rows:
        return Rows(np.full((1, 1), 10.0 if weights[0] == 0 else 10.5))

    released: list[float] = []
    dp_srg(
        gradient,
        np.zeros(1),
        full_batch(1, 2),
        PlainSums(divisor=1, clip_norm=1.0),
        decay=1.0,
        optimizer=Sgd(learning_rate=0.1),
        observe=lambda step, weights, release: released.append(float(release[0])),
    )
    assert released == [1.0, 0.5]


# Accelerated-DP-SRGD


def test_two_accelerated_steps_by_hand() -> None:
    """Beta = 2: S_0 = -1, z_1 = y_1 = x_1 = 1/2; eta_1 grad = -1 = S_1, so z_2 = 1 and y_2 = 1/2 + 1/4."""
    order, sums = full_batch(4, 2), PlainSums(divisor=4)
    assert accelerated_dp_srgd(LINE, START, order, sums, beta=2.0, project=everywhere).weights[0] == pytest.approx(0.75)
    assert accelerated_dp_sgd(LINE, START, order, sums, beta=2.0, project=everywhere).weights[0] == pytest.approx(0.75)


@pytest.mark.parametrize("factor", [1.0, 0.5, 0.25])
def test_without_noise_the_error_falls_like_the_square_of_the_steps(factor: float) -> None:
    """Potential 2 beta |z - x*|^2 and z-step 1/4 (section 4.1): f(y_T) - f* <= 2 beta |x*|^2 / eta_{0:T-1}."""
    curvature = 10.0 ** -np.arange(6.0)
    problem = Quadratic(curvature, np.ones(6))
    for steps in (10, 100):
        run = accelerated_dp_srgd(
            problem,
            np.zeros(6),
            full_batch(1, steps),
            PlainSums(divisor=1),
            beta=1.0,
            project=Ball(10.0),
            z_step_factor=factor,
        )
        assert problem.loss(run.weights) <= 2 * 6 / (steps * (steps + 1) / 2)


def test_one_noisy_running_sum_enters_both_iterates() -> None:
    """Unit noise in step 0 stays in S: z_t = -t/beta, y_2 = x_1 - 1/(2 beta), with x_1 = y_1 = z_1 = -1/beta."""
    ys: list[np.ndarray] = []
    accelerated_dp_srgd(
        nothing,
        np.zeros(2),
        full_batch(1, 2),
        unit_door(2),
        beta=4.0,
        project=everywhere,
        observe=lambda step, weights, release: ys.append(weights.copy()),
    )
    np.testing.assert_allclose(ys[0], [-0.25, 0.0])
    np.testing.assert_allclose(ys[1], [-0.25 - 1 / 8, -1 / 8])


def test_the_bound_of_claim_4_2_is_never_clipped() -> None:
    """L = M = 1, D = 2: with the recipe's beta no difference exceeds R = 4L + 8MD, so clipping changes nothing."""
    recipe = accelerated_recipe(400, lipschitz=1.0, smoothness=1.0, diameter=2.0, epsilon=1.0, delta=1e-6)
    generator = np.random.default_rng(0)
    centres = generator.uniform(-0.5, 0.5, (400, 3))

    def gradient(weights: np.ndarray, batch: np.ndarray) -> np.ndarray:
        offset = weights - centres[batch]
        return offset / np.maximum(1.0, np.linalg.norm(offset, axis=1, keepdims=True))  # Huber: 1-Lipschitz, 1-smooth

    order = fixed_order(400, recipe.batch_size)
    runs = [
        accelerated_dp_srgd(
            gradient,
            np.zeros(3),
            order,
            PlainSums(divisor=recipe.batch_size, clip_norm=clip),
            beta=recipe.beta,
            project=Ball(1.0),
        ).weights
        for clip in (recipe.clip_norm, np.inf)
    ]
    np.testing.assert_array_equal(*runs)


def test_the_recipe_of_theorem_4_10(vectors: dict[str, Any]) -> None:
    expected = vectors["J.recipe.n10000.B100.d50"]
    recipe = accelerated_recipe(
        10_000, lipschitz=1.0, smoothness=1.0, diameter=2.0, batch_size=100, epsilon=1.0, delta=1e-6
    )
    assert recipe.steps == expected["T"]
    assert recipe.beta == pytest.approx(expected["beta"], rel=1e-12)
    assert recipe.paper_sigma == pytest.approx(expected["sigma_printed"], rel=1e-12)
    assert recipe.clip_norm / (recipe.batch_size * recipe.beta) == pytest.approx(expected["Cinc"], rel=1e-12)


def test_batches_for_which_claim_4_2_fails_are_refused() -> None:
    """N = 10^4, B = 1000: beta = 1 + 16 < 2 M T = 20."""
    with pytest.raises(ConditionNotMet, match="batch_size <= sqrt"):
        accelerated_recipe(
            10_000, lipschitz=1e-9, smoothness=1.0, diameter=1.0, batch_size=1000, epsilon=1.0, delta=1e-6
        )
    for wrong in ({"lipschitz": 0.0}, {"batch_size": 101}):
        options: dict[str, Any] = {"lipschitz": 1.0, "smoothness": 1.0, "diameter": 1.0, "batch_size": 10} | wrong
        with pytest.raises(InvalidParameter):
            accelerated_recipe(100, epsilon=1.0, delta=1e-6, **options)


# The unaccelerated variant


def test_noise_of_the_unaccelerated_variant_is_divided_by_the_weight() -> None:
    """Unit noise in step 0 moves x by 1 + 1/2 + 1/3 times the rate."""
    run = unaccelerated_dp_srgd(
        nothing, np.zeros(3), full_batch(1, 3), unit_door(3), learning_rate=1.0, project=everywhere
    )
    np.testing.assert_allclose(-run.weights, [1 + 1 / 2 + 1 / 3, 1 / 2 + 1 / 3, 1 / 3], rtol=1e-12)


def test_what_cannot_be_run_is_refused() -> None:
    plain, optimizer = PlainSums(divisor=1), Sgd(learning_rate=0.1)
    refused: tuple[tuple[Any, PlainSums, str], ...] = (
        ([0.1, 0.2], plain, "2 decays for 3"),
        (-0.5, plain, "not finite"),
        (0.5, PlainSums(), "stated for means"),
    )
    for decay, sums, match in refused:
        with pytest.raises(InvalidParameter, match=match):
            dp_srg(LINE, START, full_batch(1, 3), sums, decay=decay, optimizer=optimizer)
    for beta in (0.0, np.inf):
        with pytest.raises(InvalidParameter, match="above 0"):
            accelerated_dp_srgd(LINE, START, full_batch(1, 2), plain, beta=beta, project=everywhere)
