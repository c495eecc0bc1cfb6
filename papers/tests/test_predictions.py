"""Predictions against hand, published vectors, brute force, and each other: a bound is never below the exact value."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specs import solved

from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.predict import Basis, Question, Relation
from papers.predictions import QUESTIONS, ask
from papers.predictions.descent import chess_rows
from papers.predictions.noise_sums import noise_sums, prefix_norms, sums_of_rows

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "tests" / "data" / "vectors.json").read_text())


class Noising:
    """A C^-1 in memory."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = matrix

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        assert name == "C_inv"
        return self.matrix[start:stop]

    def shape(self, name: str) -> tuple[int, int]:
        return self.matrix.shape


def independent(n: int) -> Noising:
    return Noising(np.eye(n))


def differences(n: int) -> Noising:
    return Noising(np.eye(n) - np.eye(n, k=-1))


def square_root(n: int) -> Any:
    return solved(n, "square_root")


EXAMPLES: dict[str, dict[str, Any]] = {
    "accelerated_rate": {
        "examples": 10000, "lipschitz": 1, "smoothness": 1, "diameter": 2, "batch_size": 100, "epsilon": 1, "dimension": 50
    },
    "accelerated_risk": {
        "lipschitz": 1, "smoothness": 1, "diameter": 2, "batch_size": 100, "beta": 2001, "sigma": 1.0, "dimension": 50
    },
    "anti_correlated_descent": {"smoothness": 2, "learning_rate": 0.1, "sigma": 1, "initial_distance": 3, "steps": 100},
    "chess_descent": {"smoothness": 1, "learning_rate": 0.02, "sigma": 1, "initial_distance": 1, "steps": 256},
    "clip_norm": {"eigenvalues": [1, 0.5], "learning_rate": 0.01, "rho": 1, "initial_distance": 1, "steps": 1000},
    "convex_descent": {"smoothness": 1, "learning_rate": 0.1, "sigma": 1, "initial_distance": 3},
    "descent_lower_bound": {"smoothness": 1, "learning_rate": 0.1, "sigma": 1, "steps": 50, "noise": "independent"},
    "dp_ftrl_rate": {"method": "dp_sgd", "eigenvalues": [1, 0.5], "steps": 1000, "rho": 1, "initial_distance": 1},
    "factorized_federated_risk": {
        "rounds": 16, "lipschitz": 1, "smoothness": 1, "diameter": 1, "dimension": 10, "mu": 1
    },
    "federated_risk": {"rounds": 16, "lipschitz": 1, "smoothness": 1, "diameter": 1, "dimension": 10, "mu": 1},
    "gaussian_regression": {"learning_rate": 0.02, "rho": 0.5, "eigenvalues": [1, 0.5]},
    "independent_descent": {"smoothness": 2, "learning_rate": 0.1, "sigma": 1, "initial_distance": 3, "steps": 100},
    "independent_gradient_risk": {
        "lipschitz": 1, "smoothness": 1, "diameter": 2, "batch_size": 100, "beta": 2001, "sigma": 1.0
    },
    "linear_regression": {"learning_rate": 0.02, "rho": 0.5, "eigenvalues": [1, 0.5]},
    "linear_regression_finite": {
        "learning_rate": 0.02, "rho": 0.5, "eigenvalues": [1, 0.5], "steps": 100, "initial_gap": 1
    },
    "mean_estimation": {"learning_rate": 0.05, "rho": 0.5},
    "nonconvex_descent": {"smoothness": 1, "learning_rate": 0.1, "sigma": 1, "initial_gap": 3},
    "quadratic": {"eigenvalues": [1, 0.1], "learning_rate": 0.1, "sigma": 1},
    "regret_proxy": {"lipschitz": 2, "learning_rate": 0.1, "sigma": 1, "initial_distance": 3, "dimension": 4},
    "sketched_descent": {
        "smoothness": [1, 4], "block_bounds": [1, 2], "sigma": 0.1, "inner": 100, "initial_distances": [1],
        "initial_gap": 2.5,
    },
    "sketched_rate": {
        "smoothness": [1, 4], "block_bounds": [1, 2], "initial_distances": [1], "examples": 1000, "epsilon": 1,
        "delta": 1e-5, "full_bound": 3,
    },
    "stochastic_regression": {"eigenvalues": [1, 0.1], "learning_rate": 0.1, "sigma": 1},
    "strongly_convex": {
        "learning_rate": 0.1, "rho": 0.5, "strong_convexity": 1, "smoothness": 4, "dimension": 2, "label_noise": 0.3
    },
}  # fmt: skip


def example(kind: str, **changes: Any) -> dict[str, Any]:
    return {"kind": kind, **EXAMPLES[kind], **changes}


def test_every_question_has_an_example_and_its_own_answer() -> None:
    assert EXAMPLES.keys() == QUESTIONS.keys()
    for kind, question in QUESTIONS.items():
        assert question.answer is not Question.answer, kind
        prediction = ask(example(kind), square_root(16) if question.about_factorization else None)
        document = prediction.document()
        assert json.loads(json.dumps(document)) == document
        assert math.isfinite(prediction.value) and prediction.value > 0
        assert prediction.assumptions and prediction.source
        assert (prediction.basis is Basis.ORDER) == (prediction.relation is Relation.ORDER)
        assert (prediction.basis is Basis.EXACT) == (prediction.relation is Relation.EQUAL)


@pytest.mark.parametrize("kind", [kind for kind, question in QUESTIONS.items() if question.about_factorization])
def test_a_question_about_a_factorization_asks_for_it(kind: str) -> None:
    with pytest.raises(ConditionNotMet, match="give one"):
        ask(example(kind))


def test_noise_sums_of_the_square_root() -> None:
    vector = VECTORS["M.noise_sums.sqrt.T6.tau2"]
    sums = noise_sums(square_root(6), 2)
    assert (sums.within, sums.between, sums.last) == pytest.approx((vector["N1"], vector["N2"], vector["N3"]))
    assert sums.within / 2 + sums.between == pytest.approx(vector["lambda_obj"])


@pytest.mark.parametrize("name", ["pgd", "anti_pgd"])
def test_bounds_and_exact_values_on_the_published_quadratic(name: str) -> None:
    vector = VECTORS["M.bounds_quadratic"][name]
    inverse = independent(48) if name == "pgd" else differences(48)
    eigenvalues = np.linspace(0.02, 1, 10).tolist()
    common = {"smoothness": 1, "learning_rate": 0.125, "sigma": math.sqrt(0.2), "dimension": 10, "tau": 8}
    gap = sum(eigenvalues) / 2
    nonconvex = ask({"kind": "nonconvex_descent", "initial_gap": gap, **common}, inverse)
    convex = ask({"kind": "convex_descent", "initial_distance": math.sqrt(10), **common}, inverse)
    exact = ask(
        {"kind": "quadratic", "eigenvalues": eigenvalues, "learning_rate": 0.125, "sigma": math.sqrt(0.2)}, inverse
    )
    assert nonconvex.value == pytest.approx(vector["thm46"], rel=1e-9)
    assert convex.value == pytest.approx(vector["thm47"], rel=1e-9)
    assert exact.terms["average_squared_gradient"] == pytest.approx(vector["avg_grad2"], rel=1e-9)
    assert exact.terms["average_loss"] == pytest.approx(vector["avg_f"], rel=1e-9)


@given(
    eigenvalues=st.lists(st.floats(0.01, 1), min_size=1, max_size=4),
    product=st.floats(0.01, 0.125),
    sigma=st.floats(0, 3),
    seed=st.integers(0, 1000),
)
def test_no_bound_is_below_the_exact_value(eigenvalues: list[float], product: float, sigma: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    n = 24
    strategy = np.tril(generator.uniform(-0.5, 1, (n, n)), -1) + np.diag(generator.uniform(0.5, 2, n))
    largest = max(eigenvalues)
    step = {"learning_rate": product / largest, "sigma": sigma}
    common = {**step, "smoothness": largest, "dimension": len(eigenvalues)}
    distance = math.sqrt(len(eigenvalues))
    propositions = (
        ("independent_descent", independent(n)),
        ("anti_correlated_descent", differences(n)),
    )
    for kind, inverse in propositions:
        exact = ask({"kind": "quadratic", "eigenvalues": eigenvalues, **step}, inverse)
        bound = ask({"kind": kind, "initial_distance": distance, "steps": n, **common})
        assert exact.terms["average_loss"] <= bound.value * (1 + 1e-12)
    inverse = Noising(np.linalg.inv(strategy))
    exact = ask({"kind": "quadratic", "eigenvalues": eigenvalues, **step}, inverse)
    convex = ask({"kind": "convex_descent", "initial_distance": distance, **common}, inverse)
    nonconvex = ask({"kind": "nonconvex_descent", "initial_gap": sum(eigenvalues) / 2, **common}, inverse)
    assert exact.terms["average_loss"] <= convex.value * (1 + 1e-12)
    assert exact.terms["average_squared_gradient"] <= nonconvex.value * (1 + 1e-12)


@pytest.mark.parametrize("noise", ["independent", "anti_correlated"])
@pytest.mark.parametrize("steps", [1, 2, 40])
def test_the_closed_forms_of_appendix_e_are_the_recursion(noise: str, steps: int) -> None:
    question = {"smoothness": 2.0, "learning_rate": 0.3, "sigma": 0.7, "initial_distance": 1.5}
    inverse = independent(steps) if noise == "independent" else differences(steps)
    closed = ask({"kind": "descent_lower_bound", "noise": noise, "steps": steps, **question})
    exact = ask(
        {"kind": "quadratic", "eigenvalues": [2.0], "learning_rate": 0.3, "sigma": 0.7, "initial": [1.5]}, inverse
    )
    assert closed.value == pytest.approx(exact.value, rel=1e-12)
    if "paper_lower_bound_of_noise" in closed.terms:
        assert closed.terms["paper_lower_bound_of_noise"] <= closed.terms["noise"]


def test_the_virtual_sequence_is_the_recursion_of_e3() -> None:
    steps, gamma, L = 30, 0.2, 1.5
    virtual, noise = np.zeros(steps), np.zeros(steps)  # coefficients on z_1..z_n
    for t in range(steps):
        real = virtual - gamma * noise
        virtual = virtual - gamma * L * real
        noise[t] = 1.0
    closed = ask(
        {
            "kind": "descent_lower_bound",
            "noise": "virtual",
            "steps": steps,
            "smoothness": L,
            "learning_rate": gamma,
            "sigma": 2,
        }
    )
    assert closed.value == pytest.approx(L / 2 * 4 * float(virtual @ virtual), rel=1e-12)
    assert closed.terms["paper_lower_bound_of_noise"] <= closed.value


def test_chess_has_the_norm_of_prefix_sums_and_diverges() -> None:
    n = 64
    chess = np.array(list(chess_rows(n)))
    assert float((chess**2).sum()) == pytest.approx(n * (n + 2) / 2)
    assert float((np.tri(n) ** 2).sum()) == n * (n + 1) / 2
    short, long = (ask(example("chess_descent", steps=steps)).terms["noise"] for steps in (256, 512))
    assert long == pytest.approx(2 * short)
    noising = Noising(np.linalg.solve(np.tri(512), np.array(list(chess_rows(512)))))
    path = ask({"kind": "quadratic", "eigenvalues": [1.0], "learning_rate": 0.02, "sigma": 1.0}, noising).series["loss"]
    assert path[-1] > 1.8 * path[len(path) // 2]
    settled = ask({"kind": "quadratic", "eigenvalues": [1.0], "learning_rate": 0.02, "sigma": 1.0}, independent(512))
    assert settled.value < path[-1]


def test_sums_of_rows_by_hand() -> None:
    sums = sums_of_rows(iter(np.tri(3)), 2)  # b_1 = e1; b_2 - b_0 = e1 + e2; b_3 - b_2 = e3
    assert (sums.within, sums.between, sums.last) == (2.0, 2.0, 2.0)


def test_the_finite_time_bound_falls_to_the_stationary_one() -> None:
    short, long = (ask(example("linear_regression_finite", steps=steps)) for steps in (10, 10**6))
    assert short.value > long.value
    assert long.value == pytest.approx(long.terms["stationary_upper_bound"], rel=1e-6)


def test_the_two_rates_differ_by_dimension_against_condition() -> None:
    eigenvalues = [1.0] + [0.01] * 99
    slow, fast = (
        ask(example("dp_ftrl_rate", method=method, eigenvalues=eigenvalues, steps=10**6))
        for method in ("dp_sgd", "nu_dp_ftrl")
    )
    ratio = fast.terms["distance"] / slow.terms["distance"]
    assert ratio == pytest.approx(100 * 1.99 / (100 * 10**6), rel=1e-12)


def test_federated_noise_and_factor_agree_with_the_published_run() -> None:
    vector = VECTORS["L.bound"]
    asked = {
        "kind": "federated_risk", "rounds": vector["T"], "lipschitz": vector["G"], "smoothness": vector["Lsmooth"] / 1.0,
        "diameter": vector["D"], "dimension": 7850, "mu": vector["rho"],
    }  # fmt: skip
    answer = ask(asked)
    assert answer.terms["increment_bound"] == pytest.approx(vector["S"])
    assert answer.terms["sigma"] == pytest.approx(vector["sigma_untrusted"], rel=1e-9)
    factorization = square_root(64)
    correlated = ask({**asked, "kind": "factorized_federated_risk", "rounds": 64}, factorization)
    assert correlated.terms["gbar"] == pytest.approx(VECTORS["L.gamma_bar"]["sqrt"]["64"], rel=1e-5)
    assert correlated.terms["release_variance_ratio"] == pytest.approx(VECTORS["L.sqrt.T64"]["q_ratio"], rel=1e-9)
    trusted = ask({**asked, "machines": 100, "trusted": True})
    untrusted = ask({**asked, "machines": 100})
    assert untrusted.terms["privacy"] == pytest.approx(10 * trusted.terms["privacy"])


def test_what_is_not_known_of_a_federated_run_is_its_worst_case() -> None:
    """4D [(G + 2LD)/T + 2S sqrt(d)/(mu T) + (G + 2LD)/sqrt(T)] with G = L = D = 1: S = 3."""
    asked = example("federated_risk")
    answer = ask(asked)
    root = math.sqrt(10)
    assert answer.terms["optimisation"] == pytest.approx(4 * 3 / 16)
    assert answer.terms["privacy"] == pytest.approx(4 * 6 * root / 16)
    assert answer.terms["sampling"] == pytest.approx(4 * 3 / 4)
    assert [line.split()[-3] for line in answer.assumptions if "worst case" in line] == ["sigma", "sigma_L", "G*"]
    known = {"gradient_noise": 0.5, "smoothness_noise": 0.25, "optimal_gradient": 0.0}
    better = ask({**asked, **known})
    assert better.terms["optimisation"] == pytest.approx(4 * 2 / 16)
    assert better.terms["sampling"] == pytest.approx(4 * 1 / 4)
    assert not any("worst case" in line for line in better.assumptions)
    for field, value in (("gradient_noise", 1.5), ("smoothness_noise", 1.5), ("optimal_gradient", 1.5)):
        with pytest.raises(ConditionNotMet, match=r"1\.5 is above 1\.0") as caught:
            ask({**asked, field: value})
        assert caught.value.field == f"/{field}"


def test_accelerated_risk_by_brute_force_and_its_monotony() -> None:
    inverse = square_root(20)
    asked = example("accelerated_risk", sigma=0.3)
    answer = ask(asked, inverse)
    L, D, B, beta, d, Q = 1.0, 2.0, 100, 2001.0, 50, 2 * (4 + 16)
    b = math.sqrt(d) * 0.3 * prefix_norms(inverse) / beta
    total = 0.0
    for t in range(20):
        eta, weight = t + 1, (t + 1) * (t + 2) / 2
        walk = Q * math.sqrt(t + 1) / (math.sqrt(B) * eta)
        total += weight * (
            2 * walk * (L + Q * (t + 1) / (math.sqrt(B) * eta)) / beta
            + (3 * walk + L) * b[t] / eta
            + Q * D * math.sqrt(t + 1) / (math.sqrt(B) * weight)
            + 3 * beta * b[t] * D / weight
            + beta * b[t] ** 2 / eta**2
        )
    last = 20 * 21 / 2
    assert answer.value == pytest.approx(total / last + beta * D**2 / last, rel=1e-12)
    assert ask({**asked, "sigma": 0.6}, inverse).value > answer.value


def test_the_risk_of_fresh_gradients_has_the_noise_of_each_step_and_every_term_weighed() -> None:
    """C = I, 64 steps, beta D^2 = 4 beta: b_t = eta_t sigma sqrt(d) / beta, and E_4 of theorem 4.7 in place of a slip."""
    n, sigma, d, L, D, B, beta = 64, 0.3, 5, 1.0, 2.0, 100, 2001.0
    asked = example("independent_gradient_risk", sigma=sigma, dimension=d)
    last, step = n * (n + 1) / 2, sigma * math.sqrt(d) / beta
    weights = [(t + 1) * (t + 2) / 2 for t in range(n)]
    sampling = 8 * L**2 / (math.sqrt(B) * beta) * sum(weights) / last
    linear = 5 * L * step * sum(weights) / last
    distance = 3 * beta * D * step * sum(t + 1 for t in range(n)) / last  # = 3 D sigma sqrt(d)
    squared = beta * step**2 * sum(weights) / last
    answer = ask(asked, independent(n))
    assert answer.terms == pytest.approx(
        {
            "sampling": sampling,
            "noise_linear": linear,
            "noise_distance": distance,
            "noise_squared": squared,
            "initial": beta * D**2 / last,
        },
        rel=1e-12,
    )
    assert distance == pytest.approx(3 * D * sigma * math.sqrt(d))
    assert answer.value == pytest.approx(sum(answer.terms.values()), rel=1e-12)
    halved = ask(asked, Noising(0.5 * np.eye(n)))  # linear in the rows of C^-1, not in those of B
    assert halved.terms["noise_distance"] == pytest.approx(distance / 2)
    assert "clipped to L" in " ".join(answer.assumptions)


def test_sketched_bounds_are_ordered_and_importance_gains_where_smoothness_differs() -> None:
    answer = ask(example("sketched_descent"))
    assert answer.value <= answer.terms["paper_lemma"] <= answer.terms["paper_theorem"]
    # by hand: N1 = sigma^2 (1/1 + 4/4), N2 = half of it, R^2 = 2 (1 + 4)
    assert answer.terms["N1"] == pytest.approx(0.02)
    assert answer.terms["N2"] == pytest.approx(0.01)
    assert answer.terms["R2"] == pytest.approx(10.0)
    assert answer.value == pytest.approx(10 / 200 + 0.015)
    weighted = ask(example("sketched_descent", sampling="importance"))
    assert weighted.terms["R2"] == pytest.approx(2 * 5)  # sum M_j / p_j = d sum M for uniform, (sum M) d for importance
    strong = ask(example("sketched_descent", strong_convexity=1.0, inner=18, outer=3))
    assert strong.value == pytest.approx(2.5 / 8 + 0.04)
    with pytest.raises(InvalidParameter, match="inner=17 is below"):
        ask(example("sketched_descent", strong_convexity=1.0, inner=17))
    with pytest.raises(InvalidParameter, match="outer=1"):
        ask(example("sketched_descent", outer=2))


def test_the_rate_of_the_table_is_the_minimum_of_its_bound() -> None:
    vector = VECTORS["K.recipe"]
    # one coordinate with M = 1: Sigma = L_U and R = the distance
    asked = {
        "kind": "sketched_rate", "smoothness": [1.0], "block_bounds": [vector["Sigma"]], "initial_distances": [vector["R"]],
        "examples": vector["n"], "epsilon": vector["eps"], "delta": vector["delta"], "full_bound": vector["Sigma"],
    }  # fmt: skip
    answer = ask(asked)
    assert answer.value * math.sqrt(12) * 2 == pytest.approx(vector["bound_opt"] * 1.0, rel=1e-9)
    assert answer.terms["gain_over_dp_sgd"] == pytest.approx(1.0)
    strong = ask({**asked, "strong_convexity": 0.5})
    assert strong.value == pytest.approx(answer.value**2 / vector["R"] ** 2 / 0.5)


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"kind": "convex_descent", "learning_rate": 1.0}, "/learning_rate"),
        ({"kind": "nonconvex_descent", "learning_rate": 0.3}, "/learning_rate"),
        ({"kind": "independent_descent", "learning_rate": 0.3}, "/learning_rate"),
        ({"kind": "quadratic", "learning_rate": 2.1}, "/learning_rate"),
        ({"kind": "quadratic", "initial": [1.0, 2.0, 3.0]}, "/initial"),
        ({"kind": "linear_regression", "learning_rate": 0.3}, "/learning_rate"),
        ({"kind": "gaussian_regression", "learning_rate": 1.0}, "/learning_rate"),
        ({"kind": "gaussian_regression", "learning_rate": 0.63}, "/learning_rate"),
        ({"kind": "stochastic_regression", "learning_rate": 0.7}, "/learning_rate"),
        ({"kind": "mean_estimation", "learning_rate": 1.0}, "/learning_rate"),
        ({"kind": "accelerated_risk", "beta": 0.5}, "/beta"),
        ({"kind": "sketched_descent", "block_sizes": [1, 2]}, "/block_sizes"),
        ({"kind": "sketched_descent", "block_bounds": [1.0]}, "/block_bounds"),
    ],
)
def test_hypotheses_that_fail_are_named(change: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidParameter) as raised:
        ask(example(**change), differences(16))
    assert raised.value.field == pointer


def test_every_kind_is_on_the_page() -> None:
    page = (Path(__file__).parents[1] / "pages" / "predictions.md").read_text()
    assert all(f"`{kind}`" in page for kind in QUESTIONS)
    assert all(f"`{basis.value}`" in page for basis in Basis)


@pytest.mark.parametrize(
    "question",
    [
        {"kind": "nonconvex_descent", "smoothness": 0.01, "learning_rate": 0.5, "sigma": 1e308, "initial_gap": 1},
        {"kind": "convex_descent", "smoothness": 5e-324, "learning_rate": 0.5, "sigma": 1e-6, "initial_distance": 3.0},
        {
            "kind": "chess_descent",
            "smoothness": 0.5,
            "learning_rate": 0.1,
            "sigma": 0.5,
            "initial_distance": 1e308,
            "steps": 2,
        },
        {"kind": "linear_regression", "learning_rate": 0.01, "clip_norm": 1e308, "rho": 0.01, "eigenvalues": [0.1]},
    ],
)
def test_numbers_that_leave_double_precision_are_refused(question: dict[str, Any]) -> None:
    """Each was a fault of the service: OverflowError, ZeroDivisionError, or an infinity that JSON has no word for."""
    found = solved(8, "square_root")
    with pytest.raises((InvalidParameter, ConditionNotMet)):
        ask(question, found)
