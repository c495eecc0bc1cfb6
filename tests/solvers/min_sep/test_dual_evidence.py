"""Evidence under `min_sep`: against the conic program and formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specs import spec_of

from factorize.checker.bounds.evidence import evidence_of
from factorize.checker.utility import lower_bound
from factorize.errors import CertificateError
from factorize.factors.solution import Progress
from factorize.solvers.epochs.blocks import _raised
from factorize.solvers.min_sep import dual_evidence
from factorize.solvers.min_sep.dual_evidence import banded_evidence
from factorize.solvers.min_sep.patterns import maximal_patterns
from factorize.solvers.problem import Problem, Reporter
from factorize.spec import Spec

Document = dict[str, Any]


def apart(workload: int | Document, min_sep: int, most: int | None = None, **more: Any) -> Spec:
    participation = {"kind": "min_sep", "min_sep": min_sep} | ({"max_participations": most} if most else {})
    return spec_of(workload, "identity", participation, **more)


def quiet(_step: Progress) -> None:
    """Ignore the progress."""


def bound_of(spec: Spec) -> float:
    found = lower_bound(spec.document(), banded_evidence(spec, Reporter(quiet)), {})
    assert found is not None
    return found.objective


def patterns_of(spec: Spec) -> list[list[int]]:
    separation, most, _ = spec.participation.spread(spec.workload.n)
    return [steps for some in maximal_patterns(spec.workload.n, separation, most) for steps in some.tolist()]


def conic_optimum(spec: Spec) -> float:
    """The least loss of a matrix that is feasible for all patterns: X_p <= Diag(l), sum l <= 1."""
    import cvxpy

    target = Problem(spec).target
    m, n = target.shape
    x, y = cvxpy.Variable((n, n), PSD=True), cvxpy.Variable((m, m), PSD=True)
    constraints = [cvxpy.bmat([[x, target.T], [target, y]]) >> 0]
    for steps in patterns_of(spec):
        shares = cvxpy.Variable(len(steps))
        block = cvxpy.bmat([[x[i, j] for j in steps] for i in steps])
        constraints += [cvxpy.diag(shares) - (block + block.T) / 2 >> 0, cvxpy.sum(shares) <= 1]
    found = cvxpy.Problem(cvxpy.Minimize(cvxpy.trace(y)), constraints).solve(solver="CLARABEL")
    return float(found) * spec.objective.scale(spec.workload.m)


@pytest.mark.parametrize(
    "spec",
    [
        apart(8, 1, 3),
        apart({"kind": "window", "n": 10, "width": 4}, 3, objective={"kind": "lambda_tau", "tau": 2}),
        apart({"kind": "schedule", "n": 9, "learning_rates": [1, 0.5, 2, 1, 0, 1, 0.1, 1, 3]}, 2, 4),
        apart({"kind": "schedule", "n": 8, "learning_rates": [1, 1, 0.5, 0.5, 2, 1, 1, 0]}, 1, 7),
        apart({"kind": "weight_decay", "n": 8, "rate": 0.3, "mode": "coupled", "momentum": 0.5}, 3),
    ],
    ids=lambda spec: f"{spec.workload.kind}-{spec.participation.min_sep}-{spec.participation.max_participations}",
)
def test_agrees_with_the_conic_program(spec: Spec) -> None:
    optimum = conic_optimum(spec)
    assert optimum * (1 - 3e-4) < bound_of(spec) < optimum * (1 + 2e-5)


@pytest.mark.parametrize("ring", [True, False])
@pytest.mark.parametrize("workload", [20, {"kind": "weight_decay", "n": 24, "rate": 0.2, "mode": "decoupled"}])
def test_who_may_take_part_in_every_step_has_a_diagonal_optimum(
    workload: int | Document, ring: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X is diagonal with trace 1, so the loss is sum M_ii / x_i, which is least at (sum sqrt(M_ii))^2."""
    monkeypatch.setattr(dual_evidence, "MAX_N_DENSE", 0 if ring else 512)
    spec = apart(workload, 1)
    optimum = np.linalg.norm(Problem(spec).target, axis=0).sum() ** 2 * spec.objective.scale(spec.workload.m)
    assert optimum * (1 - 3e-4) < bound_of(spec) < optimum * (1 + 1e-12)


def test_a_pattern_whose_weight_underflows_leaves_a_bound():
    """Patterns of the first steps hardly count here: where their weights went to 0, nothing was left to factor."""
    decay: Document = {"kind": "weight_decay", "n": 12, "rate": 0.1, "mode": "decoupled"}
    spec = apart(decay, 3, 2, objective={"kind": "weighted", "weights": [0.0, 1.0, 2.0] * 4})
    assert 0.9 * conic_optimum(spec) < bound_of(spec) <= conic_optimum(spec) * (1 + 1e-6)
    dual = np.array([[[0.0, 0.0], [0.0, 0.0]], [[1.0, 0.5], [0.5, 1.0]]])
    raised = _raised(dual, 1e-14)
    assert raised[0] == pytest.approx(1e-14 * np.eye(2), abs=1e-26) and raised[1] == pytest.approx(dual[1])


def test_cells_prove_more_than_disjoint_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 steps, 8 apart, from 16 cells 2 apart: the best C that is known has 50.823 (docs/notes/method.md)."""
    monkeypatch.setattr(dual_evidence, "MAX_N_DENSE", 8)
    monkeypatch.setattr(dual_evidence, "MAX_N_CELLS", 0)
    disjoint = bound_of(apart(64, 8))
    monkeypatch.setattr(dual_evidence, "MAX_N_CELLS", 64)
    monkeypatch.setattr(dual_evidence, "_CELLS", 16)
    assert 1.005 * disjoint < bound_of(apart(64, 8)) < 50.823


def test_merged_patterns_prove_what_they_prove_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A triangle in the place of all columns; no pattern has the last step."""
    spec, draws = apart(12, 3, 3), np.random.default_rng(4)
    patterns = np.array([[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, -1], [0, 3, 6], [2, 5, 8], [4, 7, 10], [1, 4, 7]] * 2)
    factors = draws.normal(size=(8, 3, 3)) + 2 * np.eye(3)

    def bound(factors: np.ndarray) -> float:
        return lower_bound(spec.document(), {"factors": factors, "patterns": patterns.astype(np.float64)}, {}).objective

    apart_from_each_other = bound(np.concatenate([factors, factors]))
    assert bound(factors) == apart_from_each_other
    monkeypatch.setattr("factorize.checker.bounds.nuclear_norms._COLUMNS_AT_ONCE", 1)
    assert bound(factors) == pytest.approx(apart_from_each_other, rel=1e-6)


def test_a_small_file_whose_patterns_share_large_blocks_is_refused() -> None:
    """28 MB of patterns with one block of 900 x 900 would be 26 GB of them."""
    rows = np.broadcast_to(np.arange(900.0), (4000, 900))
    dual = {"factors": np.eye(900)[None], "patterns": rows}
    with pytest.raises(CertificateError, match="4000 rows that share blocks of 810000 entries.*list fewer patterns"):
        evidence_of({"kind": "min_sep", "min_sep": 1}, dual, 900)
