"""Predictions against hand, published vectors, brute force, and each other: a bound is never below the exact value."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inverses import Noising, differences, independent
from specs import solved

from factorize.errors import ConditionNotMet, InvalidParameter, InvalidSpec, TooLarge
from factorize.predict import QUESTIONS, Basis, Question, Relation, ask

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "vectors.json").read_text())


def square_root(n: int) -> Any:
    return solved(n, "square_root")


EXAMPLES: dict[str, dict[str, Any]] = {
    "gaussian_regression": {"learning_rate": 0.02, "rho": 0.5, "eigenvalues": [1, 0.5]},
    "linear_regression": {"learning_rate": 0.02, "rho": 0.5, "eigenvalues": [1, 0.5]},
    "mean_estimation": {"learning_rate": 0.05, "rho": 0.5},
    "quadratic": {"eigenvalues": [1, 0.1], "learning_rate": 0.1, "sigma": 1},
    "stochastic_regression": {"eigenvalues": [1, 0.1], "learning_rate": 0.1, "sigma": 1},
}


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
        assert (prediction.basis is Basis.EXACT) == (prediction.relation is Relation.EQUAL)


@pytest.mark.parametrize("kind", [kind for kind, question in QUESTIONS.items() if question.about_factorization])
def test_a_question_about_a_factorization_asks_for_it(kind: str) -> None:
    with pytest.raises(ConditionNotMet, match="give one"):
        ask(example(kind))


def test_a_sensitivity_is_read_from_a_certificate_or_refused() -> None:
    asked = example("quadratic", sigma_at="sensitivity_1")
    with pytest.raises(ConditionNotMet, match="have no certificate"):
        ask(asked, independent(16))
    found = square_root(8)
    scaled = example("quadratic", sigma=found.certificate.sensitivity.value)
    assert ask(asked, found).value == ask(scaled, found).value


def test_a_quadratic_is_what_the_iterates_do() -> None:
    generator = np.random.default_rng(3)
    n, momentum, gamma, sigma = 12, 0.6, 0.2, 0.4
    noising = np.tril(generator.normal(size=(n, n)))
    eigenvalues = [1.0, 0.3]
    answer = ask(
        {"kind": "quadratic", "eigenvalues": eigenvalues, "learning_rate": gamma, "momentum": momentum, "sigma": sigma,
         "initial": [1.0, -2.0]},
        Noising(noising),
    )  # fmt: skip
    loss = np.zeros(n + 1)
    for eigenvalue, start in zip(eigenvalues, (1.0, -2.0), strict=True):
        for column in [*np.eye(n), None]:  # one entry of Z at a time, then none
            x, v = (start, 0.0) if column is None else (0.0, 0.0)
            path = [x]
            for t in range(n):
                v = momentum * v + eigenvalue * x + (0.0 if column is None else float(noising[t] @ column))
                x -= gamma * v
                path.append(x)
            loss += eigenvalue / 2 * np.array(path) ** 2 * (1.0 if column is None else sigma**2)
    assert answer.series["loss"] == pytest.approx(loss.tolist(), rel=1e-12)


def test_linear_regression_agrees_with_the_published_spectrum() -> None:
    vector = VECTORS["G.linreg.spectrum_1_over_k"]
    eta = vector["eta"]
    eigenvalues = [1 / k for k in range(1, vector["d"] + 1)]
    asked = {"kind": "linear_regression", "learning_rate": eta, "rho": 0.5, "eigenvalues": eigenvalues}
    for noise, name in (
        ({"kind": "independent"}, "product_sgd"),
        ({"kind": "nu"}, "product_nu_eta_mu"),
        ({"kind": "optimal"}, "product_opt"),
    ):
        answer = ask({**asked, "noise": noise, "fourth_moment": 10.0})
        assert answer.terms["privacy"] == pytest.approx(eta**2 / 2 * vector[name], rel=1e-8)
        assert answer.terms["lower_bound_all_filters"] <= answer.value * (1 + 1e-12)
        assert answer.value <= answer.terms["upper_bound_gaussian_inputs"]
    damped = [
        ask({**asked, "fourth_moment": 10.0, "noise": {"kind": "anti_pgd", "damping": d}}).terms["privacy"]
        for d in (0.999999, 0.05)
    ]
    assert damped[0] == pytest.approx(eta**2 / 2 * vector["product_sgd"], rel=1e-5)
    assert damped[1] < damped[0]


def test_an_eigendirection_is_its_own_recursion() -> None:
    """anti-PGD noise: x_{t+1} = (1 - eta l) x_t - eta (w_t - keep w_{t-1}), summed term by term."""
    asked = {"kind": "linear_regression", "eigenvalues": [1.0, 0.3], "fourth_moment": 1, "learning_rate": 0.1}
    answer = ask({**asked, "rho": 0.5, "noise": {"kind": "anti_pgd", "damping": 0.3}})
    keep, powers = 0.7, (1 - 0.03) ** np.arange(4000)
    response = 0.1 * (powers - keep * np.concatenate([[0], powers[:-1]]))
    assert answer.series["privacy"][1] == pytest.approx(0.3 / 2 / (1 - keep**2) * float(response @ response), rel=1e-9)
    assert sum(answer.series["privacy"]) == pytest.approx(answer.terms["privacy"], rel=1e-9)


def test_mean_estimation_agrees_with_the_published_factors() -> None:
    vector = VECTORS["G.toeplitz_mean_estimation"]
    answer = ask({"kind": "mean_estimation", "learning_rate": vector["eta"], "rho": 0.5})
    assert answer.value == pytest.approx(vector["opt_factor"], rel=1e-10)
    assert answer.terms["dp_sgd"] == pytest.approx(vector["dpsgd_factor"], rel=1e-12)
    noisy = ask({"kind": "mean_estimation", "learning_rate": 0.05, "rho": 0.5, "label_noise": 2.0})
    assert noisy.terms["sampling"] == pytest.approx(0.05 * 4 / 1.95)


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"kind": "chess"}, ""),
        ({}, ""),
        ({"kind": "quadratic", "learning_rate": 0.1, "sigma": 1}, "/eigenvalues"),
        (example("quadratic", sigma="1"), "/sigma"),
        (example("quadratic", colour=1), "/colour"),
        (example("linear_regression", noise={"kind": "nu", "nu": 2.0}), "/noise/nu"),
    ],
)
def test_what_is_no_question_is_refused(document: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidSpec) as raised:
        ask(document)
    assert raised.value.violations[0].pointer == pointer


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"kind": "quadratic", "learning_rate": 2.1}, "/learning_rate"),
        ({"kind": "quadratic", "initial": [1.0, 2.0, 3.0]}, "/initial"),
        ({"kind": "linear_regression", "learning_rate": 0.3}, "/learning_rate"),
        ({"kind": "gaussian_regression", "learning_rate": 1.0}, "/learning_rate"),
        ({"kind": "gaussian_regression", "learning_rate": 0.63}, "/learning_rate"),
        ({"kind": "stochastic_regression", "learning_rate": 0.7}, "/learning_rate"),
        ({"kind": "mean_estimation", "learning_rate": 1.0}, "/learning_rate"),
        ({"kind": "linear_regression", "clip_norm": 1e308}, None),  # leaves double precision
    ],
)
def test_hypotheses_that_fail_are_named(change: dict[str, Any], pointer: str | None) -> None:
    with pytest.raises(InvalidParameter) as raised:
        ask(example(**change), differences(16))
    assert pointer is None or raised.value.field == pointer


@pytest.mark.parametrize("steps", [16_385, 10**13], ids=["one too many", "beyond any memory"])
@pytest.mark.parametrize("kind", ["quadratic", "stochastic_regression"])
def test_too_many_rows_are_refused_before_anything_is_computed(kind: str, steps: int) -> None:
    class Long:
        def shape(self, name: str) -> tuple[int, int]:
            return steps, steps

        def rows(self, name: str, start: int, stop: int) -> np.ndarray:
            raise AssertionError("no row is needed to know that there are too many")

    with pytest.raises(TooLarge, match="16384"):
        ask(example(kind), Long())


def test_every_kind_is_on_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "choose.md").read_text()
    assert all(f"`{kind}`" in page for kind in QUESTIONS)
