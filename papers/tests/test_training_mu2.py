"""DP-mu^2-FL: the recursion, the two servers, and what correlated noise does to the output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specs import spec_of
from training_cases import nothing, unit_door

from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.numbers.triangular import series_quotient
from factorize.privacy import PrivacyTarget
from factorize.structures.toeplitz import ToeplitzMatrix
from factorize.training import fixed_order
from papers.algorithms import (
    DIFFERENCED,
    Ball,
    FilteredNoise,
    LinearRegression,
    Machine,
    Quadratic,
    everywhere,
    machine_seeds,
    mu2_noise,
    mu2_recipe,
    mu2_workload,
    trusted_mu2,
    untrusted_mu2,
)
from papers.training import PlainSums, PrivateSums

LINE = Quadratic(np.array([1.0]), np.array([1.0]))  # f = (x - 1)^2 / 2
PLAIN = PlainSums(divisor=1)


def alone(gradient: Any, rounds: int, sums: Any = PLAIN) -> Machine:
    return Machine(gradient, fixed_order(rounds, 1), sums)


def square_root(n: int) -> tuple[np.ndarray, float]:
    """C^-1 and the sensitivity of C = S^(1/2)."""
    column = np.cumprod(np.concatenate([[1.0], (np.arange(1, n) - 0.5) / np.arange(1, n)]))
    inverse = ToeplitzMatrix(series_quotient(np.eye(1, n)[0], column), n).rows(0, n)
    return inverse, float(np.linalg.norm(column))


def regressions(machines: int, rounds: int) -> list[LinearRegression]:
    generator = np.random.default_rng(0)
    features = generator.uniform(-0.5, 0.5, (machines, rounds, 3))
    return [LinearRegression(x, x @ np.array([0.5, -0.5, 0.2])) for x in features]


# The recursion


def test_three_rounds_by_hand() -> None:
    """Eta = 0.1: q_1 = -1, w_2 = 0.1, x_2 = 0.2/3; q_2 = 2(x_2 - 1), w_3 = w_2 - 0.1 q_2, x_3 = (2 x_2 + 2 w_3)/4."""
    x2 = 0.2 / 3
    x3 = (x2 + 0.1 - 0.2 * (x2 - 1)) / 2
    for rounds, expected in ((1, 0.0), (2, x2), (3, x3)):
        found = untrusted_mu2([alone(LINE, rounds)], np.zeros(1), learning_rate=0.1, project=everywhere)
        assert found.weights[0] == pytest.approx(expected, rel=1e-12)
        assert found.steps == rounds


def test_increments_of_linear_losses_are_the_samples() -> None:
    """G does not depend on x, so s_t = t g - (t-1) g = g: both gradients are at the round's own sample."""
    samples = np.random.default_rng(1).standard_normal((5, 2))
    released: list[np.ndarray] = []
    untrusted_mu2(
        [alone(lambda weights, batch: samples[batch], 5)],
        np.zeros(2),
        learning_rate=0.1,
        project=everywhere,
        observe=lambda step, weights, release: released.append(release),
    )
    np.testing.assert_allclose(released, samples, rtol=1e-12)


def test_noise_reaches_the_output_by_the_workload_of_x() -> None:
    """With zero gradients, minus the iterates over eta are the rows of V S^2; x_T is row T-2."""
    n, rows = 6, []
    run = untrusted_mu2(
        [alone(nothing, n, unit_door(n))],
        np.zeros(n),
        learning_rate=0.5,
        project=everywhere,
        observe=lambda step, weights, release: rows.append(-weights / 0.5),
    )
    workload = spec_of(mu2_workload(n, "x")).workload.row_block(0, n)
    np.testing.assert_allclose(np.array(rows), workload, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(-run.weights / 0.5, workload[n - 2], rtol=1e-12, atol=1e-14)


def test_without_noise_both_servers_agree_and_reach_the_solution() -> None:
    rounds, machines = 400, regressions(3, 400)
    orders = fixed_order(rounds, 1)
    untrusted = untrusted_mu2(
        [Machine(m, orders, PLAIN) for m in machines], np.zeros(3), learning_rate=0.005, project=Ball(2.0)
    )
    trusted = trusted_mu2(
        [Machine(m, orders) for m in machines],
        np.zeros(3),
        PlainSums(divisor=3),
        learning_rate=0.005,
        project=Ball(2.0),
    )
    np.testing.assert_allclose(untrusted.weights, trusted.weights, rtol=1e-9)
    assert machines[0].loss(untrusted.weights) < 0.01 * machines[0].loss(np.zeros(3))


# Servers and seeds


def test_machines_that_share_their_noise_are_refused() -> None:
    made = FilteredNoise(DIFFERENCED, PrivacyTarget(mu=1.0), 1, steps=4, divisor=1, seed=1 << 70)
    door = PrivateSums(made)
    with pytest.raises(InvalidParameter, match="share their noise"):
        untrusted_mu2([alone(LINE, 4, door), alone(LINE, 4, door)], np.zeros(1), learning_rate=0.1, project=everywhere)
    one, other = (
        PrivateSums(FilteredNoise(DIFFERENCED, PrivacyTarget(mu=1.0), 1, steps=4, divisor=1, seed=1 << 70))
        for _ in range(2)
    )
    for twin in (PrivateSums(made), other):
        with pytest.raises(InvalidParameter, match="share their noise"):
            machines = [alone(LINE, 4, one if twin is other else door), alone(LINE, 4, twin)]
            untrusted_mu2(machines, np.zeros(1), learning_rate=0.1, project=everywhere)
    assert len(set(machine_seeds(5 << 64, 100)) | set(machine_seeds(6 << 64, 100))) == 200


def test_the_noise_of_a_trusted_server_is_that_of_the_mean() -> None:
    """Independent noise, rho = 8: sigma = 2 S sqrt(T) / rho untrusted, 1/M of it trusted (theorems 5.1 and 6.1)."""
    common: dict[str, Any] = {"steps": 6000, "clip_norm": 118.1, "adjacency": "replace_one", "seed": 1 << 70}
    target = PrivacyTarget(mu=8.0)
    machine = FilteredNoise(DIFFERENCED, target, 1, divisor=1, **common)
    server = FilteredNoise(DIFFERENCED, target, 1, divisor=10, **common)
    assert machine.calibration.sigma_of_sums == pytest.approx(2286.9966659354795, rel=1e-9)
    assert server.calibration.sigma_of_means == pytest.approx(228.69966659354795, rel=1e-9)


def test_what_cannot_be_run_is_refused() -> None:
    options: dict[str, Any] = {"learning_rate": 0.1, "project": everywhere}
    with pytest.raises(InvalidParameter, match="equally many"):
        untrusted_mu2([alone(LINE, 2), alone(LINE, 3)], np.zeros(1), **options)
    with pytest.raises(InvalidParameter, match="at least one machine"):
        untrusted_mu2([], np.zeros(1), **options)
    with pytest.raises(InvalidParameter, match="divisor=2"):
        trusted_mu2([alone(LINE, 2, None), alone(LINE, 2, None)], np.zeros(1), PLAIN, **options)
    with pytest.raises(InvalidParameter, match="untrusted"):
        trusted_mu2([alone(LINE, 2)], np.zeros(1), PLAIN, **options)
    with pytest.raises(InvalidParameter, match="untrusted"):
        untrusted_mu2([alone(LINE, 2, None)], np.zeros(1), **options)
    made = FilteredNoise(DIFFERENCED, PrivacyTarget(mu=1.0), 1, steps=4, divisor=1, seed=1 << 70)
    twice = Machine(LINE, fixed_order(2, 1, epochs=2), PrivateSums(made))
    with pytest.raises(InvalidParticipation, match="2 steps"):
        untrusted_mu2([twice], np.zeros(1), **options)


# Recipes and the noise of the outputs


def test_the_recipe_of_theorems_5_2_and_6_2(vectors: dict[str, Any]) -> None:
    known = vectors["L.bound"]
    common: dict[str, Any] = {
        "lipschitz": known["G"],
        "smoothness": known["Lsmooth"],
        "diameter": known["D"],
        "dimension": 7850,
        "mu": known["rho"],
    }
    one, ten = (mu2_recipe(6000, machines=m, trusted=False, **common) for m in (1, 10))
    assert one.clip_norm == pytest.approx(known["S"], rel=1e-12)
    assert one.learning_rate == pytest.approx(8 * 0.1 / (2 * 118.1 * 6000 * 7850**0.5), rel=1e-12)
    assert ten.learning_rate == pytest.approx(one.learning_rate * 10**0.5, rel=1e-12)
    trusted = mu2_recipe(6000, machines=10, trusted=True, **common)
    assert trusted.learning_rate == pytest.approx(
        min(one.learning_rate * 10, 1 / (4 * known["Lsmooth"] * 6000)), rel=1e-12
    )
    assert trusted.factorized_learning_rate == 1 / (4 * known["Lsmooth"] * 6000)
    with pytest.raises(InvalidParameter):
        mu2_recipe(0, machines=1, trusted=True, **common)


@pytest.mark.parametrize("rounds", [64, 600])
def test_the_three_numbers_of_the_square_root(rounds: int, vectors: dict[str, Any]) -> None:
    """Each release is far better; the flat output is worse; with curvature 1 the output is better."""
    known, feedback = vectors[f"L.sqrt.T{rounds}"], vectors["L.feedback"][f"T{rounds}"]
    independent = mu2_noise(np.eye(rounds) - np.eye(rounds, k=-1), rounds**0.5)
    correlated = mu2_noise(*square_root(rounds))
    assert correlated.release == pytest.approx(known["q_mean"], rel=1e-9)
    assert independent.release / correlated.release == pytest.approx(known["q_ratio"], rel=1e-9)
    assert independent.flat == pytest.approx(known["xT_indep"], rel=1e-9)
    assert correlated.flat == pytest.approx(known["xT_corr"], rel=1e-9)
    assert independent.curved / correlated.curved == pytest.approx(feedback["1"], abs=1e-4)
    assert correlated.release_root == pytest.approx(vectors["L.gamma_bar"]["sqrt"][str(rounds)], abs=1e-6)
    slow_independent = mu2_noise(np.eye(rounds) - np.eye(rounds, k=-1), rounds**0.5, curvature=0.1)
    slow_correlated = mu2_noise(*square_root(rounds), curvature=0.1)
    assert slow_independent.curved / slow_correlated.curved == pytest.approx(feedback["0.1"], abs=1e-4)
