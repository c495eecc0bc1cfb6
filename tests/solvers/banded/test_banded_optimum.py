"""The banded optimum against published values, a conic solver, finite differences and forged evidence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import solved, spec_of

from factorize import solvers
from factorize.factors.certificate import Certificate, certify
from factorize.factors.solution import Outcome, Progress
from factorize.solvers.banded import banded_optimum as banded
from factorize.solvers.problem import Problem
from factorize.spec import Spec
from factorize.structures.banded import BandedMatrix
from factorize.workloads.matrix import from_array

Document = dict[str, Any]


def bandwise(workload: int | Document, bands: int, participation: int | Document | None = None, **more: Any) -> Spec:
    return spec_of(workload, {"kind": "banded", "bands": bands}, participation, **more)


def separated(n: int, bands: int, **more: Any) -> Spec:
    return bandwise(n, bands, {"kind": "min_sep", "min_sep": bands}, **more)


def quiet(_step: Progress) -> None:
    """Ignore the progress."""


def searched(spec: Spec, *, evidence: bool = True) -> Certificate:
    """Solve, without evidence over all matrices where nobody asks for its bound: it takes most of the time."""
    return solvers.solve(spec, evidence=evidence).certificate


def class_gap(certificate: Certificate) -> float:
    assert certificate.class_lower_bound is not None
    return certificate.loss.objective / certificate.class_lower_bound.objective - 1


def participations(n: int, bands: int) -> int:
    return -(-n // bands)


@pytest.mark.parametrize(("n", "bands"), [(8, 2), (64, 4)])
def test_published_optima(n: int, bands: int, reference_values: dict[str, Any]) -> None:
    """They are of columns of equal norm, the optimum of one participation; blocks that share it unevenly do better."""
    published = reference_values[f"P3-prefix-n{n}-b{bands}"]["optimal_loss"]
    certificate = searched(bandwise(n, bands, tolerance=1e-10))
    assert certificate.loss.total_squared == pytest.approx(published, rel=2e-10)
    assert certificate.converged and class_gap(certificate) < 1e-10
    uneven = searched(separated(n, bands, tolerance=1e-10))
    assert 0.9 < uneven.loss.total_squared / (participations(n, bands) * published) < 0.95
    assert uneven.converged and class_gap(uneven) < 1e-10
    assert uneven.sensitivity.kind == "exact"
    assert uneven.sensitivity.value == pytest.approx(participations(n, bands) ** 0.5, rel=1e-13)


def test_published_vector(vectors: dict[str, Any]) -> None:
    vector = vectors["F.banded.n8.p3"]
    certificate = searched(bandwise(8, 3))
    assert certificate.loss.total_squared == pytest.approx(vector["total"], abs=1e-6)


def conic_optimum(target: np.ndarray, bands: int, block: int | None = None) -> float:
    """The semidefinite program with band and diagonal constraints; the diagonal of a block of steps is the same."""
    import cvxpy

    m, n = target.shape
    x, y = cvxpy.Variable((n, n), PSD=True), cvxpy.Variable((m, m), PSD=True)
    beyond = np.abs(np.subtract.outer(range(n), range(n))) >= bands
    shares = cvxpy.Variable(-(-n // block)) if block else np.ones(1)
    constraints = [cvxpy.bmat([[x, target.T], [target, y]]) >> 0, cvxpy.sum(shares) == 1]
    constraints += [x[i, i] == shares[i // (block or n)] for i in range(n)]
    if beyond.any():
        constraints.append(cvxpy.multiply(beyond.astype(float), x) == 0)
    return float(cvxpy.Problem(cvxpy.Minimize(cvxpy.trace(y)), constraints).solve(solver="CLARABEL"))


@pytest.mark.parametrize(("n", "min_sep", "bands"), [(9, 3, 3), (10, 4, 2), (5, 2, 1)])
def test_blocks_share_the_sensitivity_as_the_conic_program_does(n: int, min_sep: int, bands: int) -> None:
    workload = {"kind": "momentum", "n": n, "momentum": 0.5}
    spec = bandwise(workload, bands, {"kind": "min_sep", "min_sep": min_sep})
    certificate = searched(spec)
    optimum = conic_optimum(Problem(spec).target, bands, min_sep) * spec.objective.scale(n)
    assert certificate.loss.objective == pytest.approx(optimum, rel=2e-6)
    assert certificate.converged and class_gap(certificate) < 1e-6


@pytest.mark.parametrize(
    ("workload", "objective", "bands"),
    [
        ({"kind": "prefix", "n": 9}, {"kind": "mean"}, 3),
        ({"kind": "momentum", "n": 8, "momentum": 0.8}, {"kind": "mean"}, 4),
        ({"kind": "schedule", "n": 8, "learning_rates": [1, 0.5, 2, 1, 0, 1, 0.1, 1]}, {"kind": "mean"}, 3),
        ({"kind": "prefix", "n": 8}, {"kind": "lambda_tau", "tau": 3}, 2),
        ({"kind": "decay", "n": 7, "rate": 0.7}, {"kind": "weighted", "weights": [1, 2, 3, 4, 3, 2, 1]}, 7),
        ({"kind": "mu2", "n": 7, "output": "x"}, {"kind": "mean"}, 3),
    ],
    ids=str,
)
def test_agrees_with_the_conic_program(workload: Document, objective: Document, bands: int) -> None:
    spec = bandwise(workload, bands, objective=objective)
    certificate = searched(spec)
    optimum = conic_optimum(Problem(spec).target, bands) * spec.objective.scale(spec.workload.m)
    assert certificate.loss.objective == pytest.approx(optimum, rel=2e-5)
    assert certificate.converged


@settings(max_examples=8)
@given(st.integers(2, 24), st.integers(2, 6), st.integers(0, 10_000))
def test_random_schedules_are_certified(n: int, bands: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rates = [float(rate) for rate in 10 ** rng.uniform(-4, 0, size=n)]
    spec = bandwise({"kind": "schedule", "n": n, "learning_rates": rates}, min(bands, n))
    certificate = searched(spec)
    assert certificate.converged
    assert certificate.lower_bound is not None and certificate.class_lower_bound is not None
    assert certificate.lower_bound.objective <= certificate.class_lower_bound.objective * (1 + 1e-9)


def test_a_descent_that_ended_early_goes_on() -> None:
    """Rates over eight decades: what the last steps saw of the loss says that nothing is left, and 2e-5 of it is."""
    rates = [float(10 ** (4 * np.sin(5 * i))) for i in range(12)]
    workload = {"kind": "momentum", "n": 12, "momentum": 0.99, "learning_rates": rates}
    certificate = searched(bandwise(workload, 4, {"kind": "min_sep", "min_sep": 4}), evidence=False)
    assert certificate.loss.objective < 160_881_000  # 160,880,000 but for rounding, which decides the last steps


def test_the_bound_over_all_matrices_is_below_the_true_optimum(vectors: dict[str, Any]) -> None:
    true = vectors["F.minsep.n6.b2.k2"]["true"]
    spec = bandwise(6, 2, {"kind": "min_sep", "min_sep": 2, "max_participations": 2})
    certificate = searched(spec)
    assert certificate.lower_bound is not None and certificate.relative_gap is not None
    assert certificate.lower_bound.objective * 6 == pytest.approx(true, rel=1e-6)
    assert certificate.loss.total_squared >= true


def test_all_bands_are_the_dense_optimum(reference_values: dict[str, Any]) -> None:
    certificate = searched(bandwise(16, 16))
    assert certificate.loss.total_squared == pytest.approx(reference_values["P1-prefix-n16"]["optimal_loss"], rel=1e-9)
    assert certificate.relative_gap is not None and certificate.relative_gap < 1e-9


def test_progress_states_the_gap() -> None:
    seen: list[Progress] = []
    banded.solve(Problem(separated(40, 5)), seen.append)
    gaps = [step.class_gap for step in seen if step.class_gap is not None]
    assert gaps[-1] < 1e-9 < gaps[0]


def test_what_is_too_large_to_search_is_the_toeplitz_start(monkeypatch: pytest.MonkeyPatch) -> None:
    solution = banded.solve(Problem(separated(66_000, 64)), quiet)
    assert solution.outcome is Outcome.NOT_SEARCHED
    assert isinstance(solution.strategy, BandedMatrix)
    norms = (solution.strategy.bands**2).sum(axis=0)
    assert np.ptp(norms[:64]) < 1e-14 and norms[0] == pytest.approx(1) and norms[-1] < norms[-65] < 0.1
    small = Problem(separated(512, 4))
    monkeypatch.setattr(banded, "MAX_ENTRIES_SEARCHED", 0)
    start = certify(small.spec, banded.solve(small, quiet).strategy, {}, outcome=Outcome.NOT_SEARCHED)
    monkeypatch.undo()
    best = searched(small.spec, evidence=False)
    assert best.loss.objective < start.loss.objective < 1.02 * best.loss.objective


def test_a_matrix_without_full_column_rank_is_refused() -> None:
    workload = from_array(np.array([[1.0, 0, 0], [1, 0, 0], [1, 1, 1]]))
    spec = separated(3, 2).model_copy(update={"workload": workload})
    assert "needs a workload that is a recursion" in (banded.supports(spec) or "")


def test_the_class_is_not_worse_than_its_toeplitz_member_on_momentum_and_cosine() -> None:
    asked = {"kind": "momentum", "n": 200, "momentum": 0.9, "learning_rates": {"kind": "cosine_to_last", "final": 0.01}}
    losses = [
        solved(asked, participation=5, mechanism={"kind": kind, "bands": 9}, tolerance=1e-4).certificate.loss.objective
        for kind in ("banded", "banded_toeplitz")
    ]
    assert losses[0] <= losses[1]
