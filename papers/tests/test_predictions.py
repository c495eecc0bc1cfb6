"""Predictions against hand, published vectors, brute force, and each other: a bound is never below the exact value."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inverses import Noising, differences, independent
from specs import solved

from factorize import predict
from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.predict import Basis, Question, Relation
from papers.predictions import QUESTIONS, ask
from papers.predictions.noise_sums import noise_sums, prefix_norms

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "tests" / "data" / "vectors.json").read_text())


def square_root(n: int) -> Any:
    return solved(n, "square_root")


EXAMPLES: dict[str, dict[str, Any]] = {
    "accelerated_risk": {
        "lipschitz": 1, "smoothness": 1, "diameter": 2, "batch_size": 100, "beta": 2001, "sigma": 1.0, "dimension": 50
    },
    "anti_correlated_descent": {"smoothness": 2, "learning_rate": 0.1, "sigma": 1, "initial_distance": 3, "steps": 100},
    "convex_descent": {"smoothness": 1, "learning_rate": 0.1, "sigma": 1, "initial_distance": 3},
    "descent_lower_bound": {"smoothness": 1, "learning_rate": 0.1, "sigma": 1, "steps": 50, "noise": "independent"},
    "factorized_federated_risk": {
        "rounds": 16, "lipschitz": 1, "smoothness": 1, "diameter": 1, "dimension": 10, "mu": 1
    },
    "federated_risk": {"rounds": 16, "lipschitz": 1, "smoothness": 1, "diameter": 1, "dimension": 10, "mu": 1},
    "independent_descent": {"smoothness": 2, "learning_rate": 0.1, "sigma": 1, "initial_distance": 3, "steps": 100},
    "independent_gradient_risk": {
        "lipschitz": 1, "smoothness": 1, "diameter": 2, "batch_size": 100, "beta": 2001, "sigma": 1.0
    },
    "linear_regression_finite": {
        "learning_rate": 0.02, "rho": 0.5, "eigenvalues": [1, 0.5], "steps": 100, "initial_gap": 1
    },
    "nonconvex_descent": {"smoothness": 1, "learning_rate": 0.1, "sigma": 1, "initial_gap": 3},
    "sketched_descent": {
        "smoothness": [1, 4], "block_bounds": [1, 2], "sigma": 0.1, "inner": 100, "initial_distances": [1],
        "initial_gap": 2.5,
    },
    "strongly_convex": {
        "learning_rate": 0.1, "rho": 0.5, "strong_convexity": 1, "smoothness": 4, "dimension": 2, "label_noise": 0.3
    },
}  # fmt: skip


def example(kind: str, **changes: Any) -> dict[str, Any]:
    return {"kind": kind, **EXAMPLES[kind], **changes}


def test_every_question_has_an_example_and_its_own_answer() -> None:
    assert EXAMPLES.keys() == QUESTIONS.keys() - predict.QUESTIONS.keys()
    for kind in EXAMPLES:
        question = QUESTIONS[kind]
        assert question.answer is not Question.answer, kind
        prediction = ask(example(kind), square_root(16) if question.about_factorization else None)
        document = prediction.document()
        assert json.loads(json.dumps(document)) == document
        assert math.isfinite(prediction.value) and prediction.value > 0
        assert prediction.assumptions and prediction.source
        assert (prediction.basis is Basis.EXACT) == (prediction.relation is Relation.EQUAL)


@pytest.mark.parametrize("kind", [kind for kind in EXAMPLES if QUESTIONS[kind].about_factorization])
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


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"kind": "convex_descent", "learning_rate": 1.0}, "/learning_rate"),
        ({"kind": "nonconvex_descent", "learning_rate": 0.3}, "/learning_rate"),
        ({"kind": "independent_descent", "learning_rate": 0.3}, "/learning_rate"),
        ({"kind": "strongly_convex", "learning_rate": 0.5}, "/learning_rate"),
        ({"kind": "accelerated_risk", "beta": 0.5}, "/beta"),
        ({"kind": "sketched_descent", "block_sizes": [1, 2]}, "/block_sizes"),
        ({"kind": "sketched_descent", "block_bounds": [1.0]}, "/block_bounds"),
        ({"kind": "nonconvex_descent", "learning_rate": 0.2, "sigma": 1e308}, None),  # leaves double precision
        ({"kind": "convex_descent", "smoothness": 5e-324, "sigma": 1e-6}, None),
    ],
)
def test_hypotheses_that_fail_are_named(change: dict[str, Any], pointer: str | None) -> None:
    with pytest.raises(InvalidParameter) as raised:
        ask(example(**change), differences(16))
    assert pointer is None or raised.value.field == pointer


def test_every_kind_is_on_the_page() -> None:
    page = (Path(__file__).parents[1] / "pages" / "predictions.md").read_text()
    assert all(f"`{kind}`" in page for kind in EXAMPLES)
    assert all(f"`{basis.value}`" in page for basis in Basis)


LONG_RUN: dict[str, Any] = {"learning_rate": 0.1, "rho": 0.5, "label_noise": 0.3, "clip_norm": 2.0}
FILTERS: tuple[dict[str, Any], ...] = ({"kind": "independent"}, {"kind": "nu"}, {"kind": "anti_pgd", "damping": 0.3})


@pytest.mark.parametrize("noise", FILTERS, ids=lambda noise: str(noise["kind"]))
def test_the_strongly_convex_bound_is_exact_for_one_eigenvalue(noise: dict[str, Any]) -> None:
    bound = {"kind": "strongly_convex", "strong_convexity": 1, "smoothness": 1, "dimension": 1, "noise": noise}
    exact = {"kind": "linear_regression", "eigenvalues": [1.0], "fourth_moment": 1, "noise": noise}
    assert ask({**bound, **LONG_RUN}).value == pytest.approx(ask({**exact, **LONG_RUN}).value, rel=1e-5)


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
