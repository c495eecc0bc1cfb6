"""The optimum for the largest variance: published values, a conic solver, bounds from any weights, and both routes."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from specs import solved

from factorize.factors.factorization import Factorization
from factorize.solvers.single import max_error

MAX = {"kind": "max"}


def worst_row(found: Factorization) -> float:
    """The objective by explicit inversion."""
    strategy = found.strategy.dense()
    decoder = found.spec.workload.dense() @ np.linalg.inv(strategy)
    return float((decoder**2).sum(axis=1).max() * (strategy**2).sum(axis=0).max())


@pytest.mark.parametrize("n", [2, 4, 8])
def test_published_factorization_norms(vectors: dict[str, Any], n: int) -> None:
    published = vectors["D.gamma2_prefix"]
    found = solved(n, "dense", objective=MAX, tolerance=1e-12)
    assert found.certificate.loss.objective == pytest.approx(published[f"n{n}_sq"], rel=published["tolerance"])
    assert found.certificate.loss.objective == pytest.approx(worst_row(found), rel=1e-12)
    assert found.certificate.converged


def test_closed_form_at_two() -> None:
    found = solved(2, "dense", objective=MAX, tolerance=1e-13)
    assert found.certificate.loss.objective == pytest.approx(4 / 3, rel=1e-13)
    np.testing.assert_allclose(found.dual["weights"], [2 / 3, 1 / 3], rtol=1e-6)
    np.testing.assert_allclose(found.dual["row_weights"], [1 / 3, 2 / 3], rtol=1e-6)


def test_the_square_root_is_worse_but_the_best_toeplitz(vectors: dict[str, Any]) -> None:
    found = solved(8, "square_root", objective=MAX)
    assert found.certificate.loss.objective == pytest.approx(vectors["D.gamma2_prefix"]["sqrt_n8_sq"], rel=1e-12)
    assert found.certificate.lower_bound is not None
    best = solved(8, "dense", objective=MAX).certificate.loss.objective
    assert found.certificate.lower_bound.objective == pytest.approx(best, rel=1e-6)
    assert found.certificate.lower_bound.objective <= best


def conic(target: np.ndarray) -> float:
    """Minimise t over [[X, A^T], [A, Y]] positive semidefinite, diag X <= 1, diag Y <= t."""
    m, n = target.shape
    block = cp.Variable((m + n, m + n), PSD=True)
    t = cp.Variable()
    limits = [cp.diag(block)[:n] <= 1, cp.diag(block)[n:] <= t, block[n:, :n] == target]
    return float(cp.Problem(cp.Minimize(t), limits).solve(solver=cp.CLARABEL))


@pytest.mark.parametrize(
    "workload",
    [
        {"kind": "prefix", "n": 5},
        {"kind": "momentum", "n": 6, "momentum": 0.9},
        {"kind": "schedule", "n": 6, "learning_rates": [0.1, 0.5, 1.0, 1.0, 0.0, 0.25]},
        {"kind": "weight_decay", "n": 6, "rate": 0.05, "mode": "decoupled"},
        {"kind": "matrix", "rows": [[1.0, 0.0, 0.0], [-2.0, 0.5, 0.0], [0.3, 0.3, 0.01]]},
        {"kind": "matrix", "rows": [[1.0, 2.0, -1.0, 0.5], [0.0, 0.0, 0.0, 0.0], [3.0, 1.0, 1.0, 1.0]]},
        {"kind": "matrix", "rows": [[1.0, 2.0], [2.0, 1.0], [0.1, 0.1], [1.0, -1.0]]},
    ],
    ids=["prefix", "momentum", "warm-up", "weight decay", "graded", "wide", "tall"],
)
@pytest.mark.parametrize("smallest", [1, 128])
def test_agrees_with_a_conic_solver(workload: dict[str, Any], smallest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By either route: first-order recursions are taken in O(n) from 128 steps on."""
    monkeypatch.setattr(max_error, "_MIN_N_STRUCTURED", smallest)
    found = solved(workload, "dense", objective=MAX)
    assert found.certificate.converged, found.certificate.warnings
    assert found.certificate.loss.objective == pytest.approx(conic(found.spec.workload.dense()), rel=2e-6)
