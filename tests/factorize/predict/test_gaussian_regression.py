"""The exact loss for Gaussian inputs, against inputs that take few values and have the Gaussian's first five moments."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inverses import Noising

from factorize.predict import ask
from factorize.predict.asymptotic import limiting_sensitivity_squared

VALUES, CHANCES = (-math.sqrt(3), 0.0, math.sqrt(3)), (1 / 6, 2 / 3, 1 / 6)
"""Gauss and Hermite: moments 0 to 5 of a standard normal variable."""


def question(eigenvalues: list[float], eta: float, **changes: Any) -> dict[str, Any]:
    return {"kind": "gaussian_regression", "eigenvalues": eigenvalues, "learning_rate": eta, "rho": 0.5, **changes}


def stationary_loss(eigenvalues: list[float], eta: float, back: float, label_noise: float) -> float:
    """F when the noise of a step is w_t - back w_{t-1}, w of variance 1 / (1 - back^2), by the state (theta, last w)."""
    d = len(eigenvalues)
    roots, eye = np.sqrt(eigenvalues), np.eye(d)
    variance = 1 / (1 - back**2)
    transition = np.zeros((4 * d * d, 4 * d * d))
    for picks in itertools.product(range(3), repeat=d):
        x = roots * [VALUES[pick] for pick in picks]
        step = np.block([[eye - eta * np.outer(x, x), eta * back * eye], [np.zeros((d, d)), np.zeros((d, d))]])
        transition += math.prod(CHANCES[pick] for pick in picks) * np.kron(step, step)
    fresh = np.vstack([-eta * eye, eye])
    added = variance * fresh @ fresh.T
    added[:d, :d] += eta**2 * label_noise**2 * np.diag(eigenvalues)
    moments = np.linalg.solve(np.eye(len(transition)) - transition, added.ravel()).reshape(2 * d, 2 * d)
    return float(np.diag(moments)[:d] @ eigenvalues) / 2


@given(
    eigenvalues=st.lists(st.floats(0.05, 1.0), min_size=1, max_size=3),
    eta=st.floats(0.01, 0.3),
    back=st.just(0.0) | st.floats(0.01, 0.95),
    label_noise=st.floats(0.0, 2.0),
)
def test_the_closed_form_is_the_second_moment(
    eigenvalues: list[float], eta: float, back: float, label_noise: float
) -> None:
    noise = {"kind": "anti_pgd", "damping": 1 - back} if back else {"kind": "independent"}
    if eta * sum(eigenvalues) >= 0.5:  # 2 / (trace + 2 largest) times the trace is at least 2/3
        eta = 0.5 / sum(eigenvalues)
    answer = ask(question(eigenvalues, eta, noise=noise, label_noise=label_noise))
    assert answer.value == pytest.approx(stationary_loss(eigenvalues, eta, back, label_noise), rel=1e-8)


def test_it_lies_within_the_published_bounds() -> None:
    eigenvalues = [1 / k for k in range(1, 33)]
    for noise in ({"kind": "independent"}, {"kind": "nu"}, {"kind": "anti_pgd", "damping": 0.1}):
        asked = question(eigenvalues, 0.02, noise=noise, label_noise=0.3)
        answer, bracket = ask(asked), ask({**asked, "kind": "linear_regression"})
        assert answer.terms["inputs_averaged"] == pytest.approx(bracket.value, rel=1e-12)
        assert bracket.terms["lower_bound_this_filter"] < bracket.value < answer.value
        assert answer.value < bracket.terms["upper_bound_gaussian_inputs"]


def test_the_best_filter_is_below_the_others() -> None:
    eigenvalues = [1 / k for k in range(1, 9)]
    best = ask(question(eigenvalues, 0.2, noise={"kind": "optimal"})).value
    kinds = [{"kind": "independent"}, {"kind": "nu"}, *({"kind": "nu", "nu": nu} for nu in (0.003, 0.1, 0.9))]
    assert all(best < ask(question(eigenvalues, 0.2, noise=noise)).value for noise in kinds)


def test_small_rates_forget_the_inputs_and_large_ones_do_not_settle() -> None:
    answer = ask(question([1.0, 0.5], 1e-6))
    assert answer.value == pytest.approx(answer.terms["inputs_averaged"], rel=1e-5)
    one = 2 / 3  # x / (2 (1 - x)) = 1 for one eigenvalue 1
    near, nearer = (ask(question([1.0], one - gap)).value for gap in (1e-3, 1e-6))
    assert nearer > 500 * near


def enumerated(asked: dict[str, Any], noising: np.ndarray) -> np.ndarray:
    """The three parts of the loss after each step: a mean over all examples that could be drawn."""
    roots, eta, batch = np.sqrt(asked["eigenvalues"]), asked["learning_rate"], asked["batch_size"]
    n, d = len(noising), len(roots)
    losses = np.zeros((3, n + 1))
    one = [(math.prod(CHANCES[i] for i in picks), roots * [VALUES[i] for i in picks]) for picks in _picks(d)]
    for examples in itertools.product(one, repeat=n * batch):
        chance = math.prod(weight for weight, _ in examples)
        start = np.full(d, asked["initial"][0])
        noise = np.zeros((d, n, d))  # coordinate, row of Z, coordinate of that row
        labels = np.zeros((d, n * batch))
        for t in range(n):
            losses[:, t] += chance * _loss(asked, roots, start, noise, labels)
            inputs = np.array([x for _, x in examples[t * batch : (t + 1) * batch]])
            step = np.eye(d) - eta * inputs.T @ inputs / batch
            start, noise, labels = step @ start, np.tensordot(step, noise, 1), step @ labels
            noise -= eta * np.einsum("i,jk->jik", noising[t], np.eye(d))
            labels[:, t * batch : (t + 1) * batch] += eta * inputs.T / batch
        losses[:, n] += chance * _loss(asked, roots, start, noise, labels)
    return losses


def _picks(d: int) -> Any:
    return itertools.product(range(3), repeat=d)


def _loss(asked: dict[str, Any], roots: np.ndarray, start: np.ndarray, noise: np.ndarray, labels: np.ndarray) -> Any:
    moments = start**2, asked["sigma"] ** 2 * (noise**2).sum((1, 2)), asked["label_noise"] ** 2 * (labels**2).sum(1)
    return np.array(moments) @ roots**2 / 2


@pytest.mark.parametrize(("eigenvalues", "batch", "steps"), [([1.0, 0.3], 1, 3), ([0.8], 2, 3), ([1.0, 0.0], 1, 2)])
def test_a_run_is_the_mean_over_all_examples(eigenvalues: list[float], batch: int, steps: int) -> None:
    noising = np.tril(np.random.default_rng(steps).standard_normal((steps, steps)))
    asked = {"eigenvalues": eigenvalues, "learning_rate": 0.4, "batch_size": batch, "sigma": 0.7, "label_noise": 0.5}
    asked = {"kind": "stochastic_regression", "initial": [1.5], **asked}
    answer = ask(asked, Noising(noising))
    wanted = enumerated(asked, noising)
    assert answer.series["loss"] == pytest.approx(wanted.sum(axis=0), rel=1e-10)
    parts = [answer.terms[name] for name in ("initial", "noise", "label_noise")]
    assert parts == pytest.approx(wanted[:, -1], rel=1e-10)


def test_a_long_run_ends_at_the_stationary_loss_and_a_large_batch_at_exact_gradients() -> None:
    n, nu, eigenvalues = 1500, 0.05, [1.0, 0.3]
    taps = np.cumprod([1.0, *((1 - nu) * (t - 1.5) / t for t in range(1, n))])
    noising = Noising(np.array([np.pad(taps[t::-1], (0, n - 1 - t)) for t in range(n)]))
    limit = ask(question(eigenvalues, 0.1, noise={"kind": "nu", "nu": nu}, label_noise=0.2))
    gamma = math.sqrt(limiting_sensitivity_squared(nu))
    asked = {"eigenvalues": eigenvalues, "learning_rate": 0.1, "sigma": gamma, "label_noise": 0.2}
    run = ask({"kind": "stochastic_regression", **asked}, noising)
    assert run.value == pytest.approx(limit.value, rel=1e-9)
    large = ask({"kind": "stochastic_regression", "batch_size": 10**8, **asked}, noising)
    assert large.value == pytest.approx(large.terms["exact_gradients"], rel=1e-6)
