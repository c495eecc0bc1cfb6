"""Formulas of K23 and C24 against hand computation, exact losses and each other."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.privacy import PrivacyTarget
from papers.algorithms import Lengths, NiceSketch, dp_skgd, sketch_calibration
from papers.predictions import ask

LONG_RUN: dict[str, Any] = {"learning_rate": 0.1, "rho": 0.5, "label_noise": 0.3, "clip_norm": 2.0}
FILTERS: tuple[dict[str, Any], ...] = ({"kind": "independent"}, {"kind": "nu"}, {"kind": "anti_pgd", "damping": 0.3})


class Noising:
    """A C^-1 in memory."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = matrix

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return rows of C^-1."""
        return self.matrix[start:stop]

    def shape(self, name: str) -> tuple[int, int]:
        """Return (n, n)."""
        return self.matrix.shape


def test_the_regret_proxy_by_hand() -> None:
    """N = 3, C = I: |B|_F^2 = 6; 9 / (0.1 * 3) + 0.1 * 4 + 0.1 * 2 * 2 * 1.5 * sqrt(6 / 3)."""
    question = {"kind": "regret_proxy", "lipschitz": 2, "learning_rate": 0.1, "sigma": 1.5, "initial_distance": 3}
    answer = ask({**question, "dimension": 4}, Noising(np.eye(3)))
    assert answer.terms["frobenius_norm"] == pytest.approx(math.sqrt(6))
    assert answer.value == pytest.approx(30 + 0.4 + 0.6 * math.sqrt(2))


@pytest.mark.parametrize("noise", FILTERS, ids=lambda noise: str(noise["kind"]))
def test_the_strongly_convex_bound_is_exact_for_one_eigenvalue(noise: dict[str, Any]) -> None:
    bound = {"kind": "strongly_convex", "strong_convexity": 1, "smoothness": 1, "dimension": 1, "noise": noise}
    exact = {"kind": "linear_regression", "eigenvalues": [1.0], "fourth_moment": 1, "noise": noise}
    assert ask({**bound, **LONG_RUN}).value == pytest.approx(ask({**exact, **LONG_RUN}).value, rel=1e-5)


@pytest.mark.parametrize("noise", FILTERS, ids=lambda noise: str(noise["kind"]))
@pytest.mark.parametrize("eigenvalue", [0.25, 0.6, 1.0])
def test_the_strongly_convex_bound_covers_quadratics_between_its_constants(
    noise: dict[str, Any], eigenvalue: float
) -> None:
    """E delta^2 of a quadratic with any l in [mu, L], which is 2 F / l; nu is that of mu for both."""
    noise = {**noise, "nu": 0.025} if noise["kind"] == "nu" else noise
    bound = {"kind": "strongly_convex", "strong_convexity": 0.25, "smoothness": 1, "dimension": 1, "noise": noise}
    private = {**LONG_RUN, "label_noise": 0.0}
    exact = {"kind": "linear_regression", "eigenvalues": [eigenvalue], "fourth_moment": 1, "noise": noise}
    squared = 2 * ask({**exact, **private}).value / eigenvalue
    limit = ask({**bound, **private}).value
    assert 0.5 * squared <= limit
    assert limit <= 40 * squared


def test_the_strongly_convex_bound_covers_a_run_that_is_no_quadratic() -> None:
    """f(x) = x^2/4 + 0.75 log cosh x: mu = 0.5, L = 1.25; 400 chains of DP-SGD, averaged after their transient."""
    eta, generator = 0.2, np.random.default_rng(3)
    x, losses = np.zeros(400), []
    for step in range(600):
        x = x - eta * (x / 2 + 0.75 * np.tanh(x) + generator.standard_normal(400))
        losses += [np.mean(x**2 / 4 + 0.75 * np.log(np.cosh(x)))] if step > 200 else []
    constants = {"strong_convexity": 0.5, "smoothness": 1.25, "dimension": 1, "rho": 0.5, "learning_rate": eta}
    bound = ask({"kind": "strongly_convex", **constants}).value
    assert np.mean(losses) < bound < 10 * np.mean(losses)


def test_too_large_steps_are_refused() -> None:
    with pytest.raises(ConditionNotMet, match="at most 0.4") as refused:
        ask({"kind": "strongly_convex", "strong_convexity": 1, "smoothness": 4, "dimension": 1, "rho": 1,
             "learning_rate": 0.5})  # fmt: skip
    assert refused.value.field == "/learning_rate"


@pytest.mark.parametrize("noise", FILTERS, ids=lambda noise: str(noise["kind"]))
def test_eigendirections_add_up_to_the_loss(noise: dict[str, Any]) -> None:
    """And each is the one-dimensional problem with the same filter."""
    question = {"kind": "linear_regression", "eigenvalues": [1.0, 0.3], "fourth_moment": 1, **LONG_RUN}
    answer = ask({**question, "noise": noise})
    assert sum(answer.series["privacy"]) == pytest.approx(answer.terms["privacy"], rel=1e-9)
    assert sum(answer.series["sampling"]) == pytest.approx(answer.terms["sampling"], rel=1e-9)
    same = {**noise, "nu": 0.03} if noise["kind"] == "nu" else noise
    alone = ask({**question, "eigenvalues": [1.0], "noise": same})
    assert answer.series["privacy"][0] == pytest.approx(alone.terms["privacy"], rel=1e-9)


def test_an_eigendirection_is_its_own_recursion() -> None:
    """anti-PGD noise: x_{t+1} = (1 - eta l) x_t - eta (w_t - keep w_{t-1}), summed term by term."""
    noise = {"kind": "anti_pgd", "damping": 0.3}
    asked = {"kind": "linear_regression", "eigenvalues": [1.0, 0.3], "fourth_moment": 1, "learning_rate": 0.1}
    found = ask({**asked, "rho": 0.5, "noise": noise}).series["privacy"][1]
    keep, stay, gamma_squared = 0.7, 1 - 0.03, 1 / (1 - 0.7**2)
    powers = stay ** np.arange(4000)
    response = 0.1 * (powers - keep * np.concatenate([[0], powers[:-1]]))
    assert found == pytest.approx(0.3 / 2 * gamma_squared * float(response @ response), rel=1e-9)


def test_the_clip_norm_by_hand() -> None:
    """H = diag(1, 0.5): R^2 = 1.5; sigma = 0: G = 1.5 |theta_0| log^2.5(T / p)."""
    question = {"kind": "clip_norm", "eigenvalues": [1, 0.5], "learning_rate": 0.01, "rho": 1, "steps": 1000}
    answer = ask({**question, "initial_distance": 2})
    log = math.log(1e5)
    assert answer.value == pytest.approx(3 * log**2.5)
    noisy = ask({**question, "initial_distance": 0.0, "label_noise": 3.0})
    assert noisy.value == pytest.approx(1.5 * 3 / math.sqrt(1.5) * log**2.5)
    assert answer.terms["largest_learning_rate"] < 1 / (1.5 * log)
    with pytest.raises(ConditionNotMet, match="at most 0.005"):
        ask({**question, "initial_distance": 1, "nu": 0.1})


def test_the_bound_at_a_finite_step_covers_its_run() -> None:
    """400 runs of noisy SGD on Gaussian inputs, H = diag(1, 0.5), from a gap of 1; the transient by hand: 2 / e."""
    eta, steps, H, luck = 0.02, 100, np.array([1.0, 0.5]), np.random.default_rng(5)
    theta = np.tile([1.0, math.sqrt(2.0)], (400, 1))
    for _ in range(steps):
        x = luck.standard_normal((400, 2)) * np.sqrt(H)
        theta = theta - eta * (x * (x * theta).sum(axis=1)[:, None] + luck.standard_normal((400, 2)))
    asked = {"kind": "linear_regression_finite", "eigenvalues": [1.0, 0.5], "learning_rate": eta, "rho": 0.5}
    answer = ask({**asked, "steps": steps, "initial_gap": 1.0})
    assert answer.terms["transient"] == pytest.approx(2 / math.e, rel=1e-12)
    upper = answer.terms["stationary_upper_bound"]
    assert answer.value == pytest.approx((math.sqrt(2 / math.e) + math.sqrt(upper)) ** 2, rel=1e-12)
    mean = float(np.mean((H * theta**2).sum(axis=1) / 2))
    assert mean < answer.value < 20 * mean


def test_the_rate_of_the_accelerated_recipe_by_hand() -> None:
    """M D^2 B^2/n^2 + (L + M D) D/sqrt(n) + (L + M D/sqrt(B)) D sqrt(d)/(epsilon n)."""
    asked = {"examples": 10_000, "lipschitz": 1, "smoothness": 3, "diameter": 2, "batch_size": 100, "dimension": 50}
    answer = ask({"kind": "accelerated_rate", **asked, "epsilon": 0.5})
    by_hand = {"acceleration": 1.2e-3, "sampling": 0.14, "privacy": 1.6 * 2 * math.sqrt(50) / 5000}
    assert answer.terms == pytest.approx(by_hand)
    assert answer.value == pytest.approx(sum(by_hand.values()))


def test_the_rates_of_dp_ftrl_by_hand() -> None:
    """H = diag(1, 0.5): trace 1.5, effective dimension 1.5, condition number 2; T = 1000, rho = 2."""
    asked = {"kind": "dp_ftrl_rate", "eigenvalues": [1, 0.5], "steps": 1000, "rho": 2, "label_noise": 0.4}
    slow, fast = (ask({**asked, "initial_distance": 3, "method": one}) for one in ("dp_sgd", "nu_dp_ftrl"))
    assert slow.value == pytest.approx(3 * (2 * 13.5 / 2000 + 2 * 0.16 / 2000 + 0.16 / 1000))
    assert fast.value == pytest.approx(3 * (3 * 13.5 / 2e6 + 3 * 0.16 / 2e6 + 0.16 / 1000))


SKETCH: dict[str, Any] = {
    "kind": "sketched_descent", "smoothness": [1.0, 2.0, 0.5, 1.0], "block_bounds": [0.5, 1.0, 2.0, 1.5], "sigma": 0.1,
    "inner": 20, "initial_distances": [1.0], "initial_gap": 2.25,
}  # fmt: skip


def test_nice_sampling_by_enumeration() -> None:
    """Both noise constants are expectations over the six pairs of four coordinates."""
    smoothness, bounds = np.array(SKETCH["smoothness"]), np.array(SKETCH["block_bounds"])
    pairs = [np.array(pair) for pair in itertools.combinations(range(4), 2)]
    each = [float((bounds[pair] ** 2).sum() * (1 / smoothness[pair]).sum()) for pair in pairs]
    answer = ask({**SKETCH, "sampling": "nice", "size": 2})
    assert answer.terms["N2"] == pytest.approx(0.01 * np.mean(each))
    assert answer.terms["N1"] == pytest.approx(0.01 * np.mean(each) * 2)
    assert answer.terms["R2"] == pytest.approx(2 * smoothness.sum())
    one = ask({**SKETCH, "sampling": "nice", "size": 1})
    assert one.value == pytest.approx(ask(SKETCH).value, rel=1e-12)  # one coordinate at random
    for changes in ({"sampling": "nice"}, {"size": 2}, {"sampling": "nice", "size": 5}):
        with pytest.raises(InvalidParameter, match="nice sampling needs 1 to 4"):
            ask({**SKETCH, **changes})


def test_the_bound_of_nice_sampling_covers_its_runs() -> None:
    """A quadratic with exact smoothness: the mean of 200 runs is below the bound, and within twenty."""
    smoothness, bounds = np.array(SKETCH["smoothness"]), [3.0] * 4
    lengths = Lengths(20)
    noise = sketch_calibration(lengths, PrivacyTarget(epsilon=1.0, delta=1e-5), examples=500)
    gaps = []
    for seed in range(200):
        run = dp_skgd(
            lambda w, drawn: np.tile((smoothness * (w - 1))[drawn], (500, 1)),
            np.zeros(4),
            NiceSketch(bounds, 2),
            smoothness,
            lengths,
            noise,
            seed=seed,
            sampling_seed=seed,
        )
        gaps.append(float((smoothness * (run.weights - 1) ** 2).sum() / 2))
    asked = {**SKETCH, "block_bounds": bounds, "sigma": noise.sigma_of_means, "sampling": "nice", "size": 2}
    assert np.mean(gaps) < ask(asked).value < 20 * np.mean(gaps)


def test_the_row_of_coordinate_descent_by_hand() -> None:
    """Two blocks of two: sqrt(log 1/delta)/(n eps) sqrt(sum L_j^2/M_j d sum M_j r_j^2)."""
    question = {
        "kind": "sketched_rate", "smoothness": [1, 2, 0.5, 1], "block_sizes": [2, 2], "block_bounds": [3, 4],
        "initial_distances": [2], "examples": 100, "epsilon": 1, "delta": 1e-5, "full_bound": 5,
    }  # fmt: skip
    assert "dp_cd" not in ask(question).terms
    answer = ask({**question, "coordinate_bounds": [1, 2, 3, 1]})
    noise, weighted = 1 + 2 + 18 + 1, 4 * 4.5
    assert answer.terms["dp_cd"] == pytest.approx(math.sqrt(math.log(1e5)) / 100 * math.sqrt(noise * 4 * weighted))
    singles = {**question, "block_sizes": None, "block_bounds": [1, 2, 3, 1]}
    alone = ask(singles)
    assert alone.terms["dp_cd"] == pytest.approx(alone.value)  # uniform single coordinates are DP-CD
    convex = ask({**singles, "strong_convexity": 0.5}).terms["dp_cd"]
    assert convex == pytest.approx(math.log(1e5) / 1e4 * noise * 4 * 2 / 0.5)
    with pytest.raises(InvalidParameter, match="2 entries for 4 coordinates"):
        ask({**question, "coordinate_bounds": [1, 2]})
