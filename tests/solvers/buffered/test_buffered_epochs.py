"""Few states under fixed epochs: gradients, the certificate's own numbers, and distances to the dense optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specs import document_of, spec_of

from factorize import solvers
from factorize.errors import SolveFailed, UnsupportedProblem
from factorize.solvers.buffered.epoch_loss import EpochLoss, EpochRecurrence, bidiagonal_decoder
from factorize.spec import Spec, parse_spec


def document(n: int, epochs: int, **more: Any) -> dict[str, Any]:
    return {**document_of(n, participation=epochs, tolerance=1e-3), **more}


def buffered(n: int, epochs: int, buffers: int, **more: Any) -> Spec:
    return spec_of(document(n, epochs, **more), {"kind": "buffered_linear", "buffers": buffers})


def example(n: int = 24, epochs: int = 4, m: int = 3, seed: int = 0) -> tuple[EpochLoss, EpochRecurrence]:
    """Uneven workload with a restart, and a random recurrence."""
    rng = np.random.default_rng(seed)
    p, q = rng.uniform(0.5, 2, n), rng.uniform(0.5, 2, n)
    q[[0, n // 3]] = 0.0
    parts = 0.5 * rng.normal(size=(n, m, m)), rng.normal(size=(n, m)), rng.normal(size=(n, m))
    return EpochLoss(bidiagonal_decoder(p, q), epochs, m, 2.0), EpochRecurrence(*parts, rng.uniform(1, 2, n))


def test_every_class_reveals_at_most_one() -> None:
    loss, at = example()
    c = loss.strategy(loss.pack(at)).dense()
    gram = np.abs(c.T @ c).reshape(4, 6, 4, 6)
    np.testing.assert_allclose(np.einsum("sjtj->j", gram), 1, rtol=1e-8)
    assert np.einsum("sjtj->j", gram).max() <= 1


def gap(spec: Spec) -> float:
    certificate = solvers.solve(spec).certificate
    assert certificate.sensitivity.participation["kind"] == "fixed_epochs"
    assert 1 - 1e-8 < certificate.sensitivity.value <= 1
    assert certificate.relative_gap is not None
    return certificate.relative_gap


def test_the_distance_falls_with_the_states() -> None:
    gaps = [gap(buffered(128, 4, buffers)) for buffers in (1, 2, 4, 8)]
    assert all(0 < after < 0.8 * before for before, after in zip(gaps, gaps[1:], strict=False)), gaps
    assert gaps[2] < 0.065
    assert gaps[3] < 0.035


MORE: dict[str, dict[str, Any]] = {
    "schedule": {
        "workload": {"kind": "schedule", "n": 128, "learning_rates": {"kind": "step", "every": 40, "factor": 0.5}}
    },
    "weight decay": {"workload": {"kind": "weight_decay", "n": 128, "rate": 0.02, "mode": "decoupled"}},
    "lambda_tau": {"objective": {"kind": "lambda_tau", "tau": 16}},
    "weighted": {"objective": {"kind": "weighted", "weights": [1.0 + i % 3 for i in range(128)]}},
    "odd epochs": {"workload": {"kind": "prefix", "n": 135}, "participation": {"kind": "fixed_epochs", "epochs": 5}},
}


@pytest.mark.parametrize("name", MORE)
def test_other_workloads_and_objectives(name: str) -> None:
    assert 0 <= gap(buffered(128, 4, 6, **MORE[name])) < 0.08


def test_the_gap_is_the_distance_to_the_dense_optimum() -> None:
    optimum = solvers.solve(parse_spec({**document(128, 4), "tolerance": 1e-7})).certificate.loss.objective
    found = solvers.solve(buffered(128, 4, 4)).certificate
    assert found.loss.objective / optimum - 1 == pytest.approx(found.relative_gap, abs=1e-6)


def test_the_recurrence_makes_the_noise() -> None:
    strategy = solvers.solve(buffered(64, 4, 3)).strategy
    tensors = strategy.tensors()
    assert tensors["transition"].shape == (64, 3, 3)
    y = np.random.default_rng(3).normal(size=64)
    state, noise = np.zeros(3), np.empty(64)
    for i in range(64):
        state = tensors["transition"][i] @ state
        noise[i] = (y[i] - tensors["output"][i] @ state) / tensors["diagonal"][i]
        state = state + tensors["input"][i] * noise[i]
    np.testing.assert_allclose(noise, np.linalg.solve(strategy.dense(), y), rtol=1e-9, atol=1e-11)


REFUSED: list[tuple[int, int, int, dict[str, Any], str]] = [
    (128, 4, 25, {}, "exceeds 24"),
    (128, 4, 2, {"workload": {"kind": "window", "n": 128, "width": 3}}, "bidiagonal inverse"),
    (128, 4, 2, {"objective": {"kind": "max"}}, "objective 'max'"),
    (12, 4, 2, {}, "at least 4 steps"),
    (32, 4, 8, {}, "not below the 8 steps"),
    (20_000, 4, 8, {}, "is certified"),
]


@pytest.mark.parametrize(("n", "epochs", "buffers", "more", "words"), REFUSED)
def test_what_has_no_answer_is_refused(n: int, epochs: int, buffers: int, more: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedProblem, match=words) as refusal:
        solvers.solve(buffered(n, epochs, buffers, **more))
    assert "use " in str(refusal.value)


def test_numbers_out_of_range_are_an_error() -> None:
    rates = [1e-65] + [1.0] * 63
    workload = {"kind": "schedule", "n": 64, "learning_rates": rates}
    with pytest.raises(SolveFailed, match="use fewer buffers"):
        solvers.solve(buffered(64, 4, 2, workload=workload))


def test_a_thousand_steps_keep_their_certificate() -> None:
    """The enclosure of the entries must not grow with the steps, though the transitions rotate."""
    spec = {"workload": {"kind": "prefix", "n": 1024}, "participation": {"kind": "fixed_epochs", "epochs": 4}}
    found = solvers.solve(
        parse_spec({**spec, "mechanism": {"kind": "buffered_linear", "buffers": 4}, "tolerance": 1e-2})
    )
    assert found.certificate.relative_gap < 0.15
