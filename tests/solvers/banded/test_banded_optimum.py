"""The banded optimum against published values, a conic solver, finite differences and forged evidence."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from brute_force import min_sep_patterns
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import solved, spec_of

from factorize import solvers
from factorize.certificate import certificate as certificate_room
from factorize.certificate.certificate import Certificate, certify
from factorize.certificate.lower_bounds import band_recurrences, class_bounds, class_terms, separated_bounds
from factorize.certificate.lower_bounds.bounds import nuclear_norm_below
from factorize.certificate.lower_bounds.separated_bounds import disjoint_patterns, separated_lower_bound
from factorize.errors import Cancelled, CertificateError, InvalidSpec, SolveFailed, TooLarge, UnsupportedProblem
from factorize.mechanisms import Banded
from factorize.participation import MinSep
from factorize.solution import Outcome, Progress, Solution
from factorize.solvers import evidence as evidence_room
from factorize.solvers.banded import banded_optimum as banded
from factorize.solvers.banded.gram_descent import GramDescent, Landscape
from factorize.solvers.banded.knots import KnotLandscape, Knots
from factorize.solvers.banded.preconditioner import Preconditioner
from factorize.solvers.epochs.separated_evidence import banded_evidence
from factorize.solvers.evidence import begun, with_evidence
from factorize.solvers.problem import Problem, Reporter
from factorize.spec import Spec
from factorize.structures.banded import BandedMatrix
from factorize.structures.kernels.banded import band_cholesky
from factorize.workloads.matrix import from_array

Document = dict[str, Any]


def bandwise(workload: int | Document, bands: int, participation: int | Document | None = None, **more: Any) -> Spec:
    return spec_of(workload, {"kind": "banded", "bands": bands}, participation, **more)


def separated(n: int, bands: int, **more: Any) -> Spec:
    return bandwise(n, bands, {"kind": "min_sep", "min_sep": bands}, **more)


def quiet(_step: Progress) -> None:
    """Ignore the progress."""


def searched(spec: Spec, *, evidence: bool = True) -> tuple[Solution, Certificate]:
    """Solve, without evidence over all matrices where nobody asks for its bound: it takes most of the time."""
    assert banded.supports(spec) is None
    problem = Problem(spec)
    solution = banded.solve(problem, quiet)
    solution = with_evidence(problem, solution, Reporter(quiet)) if evidence else solution
    return solution, certify(spec, solution.strategy, solution.dual, outcome=solution.outcome)


def class_gap(certificate: Certificate) -> float:
    assert certificate.class_lower_bound is not None
    return certificate.loss.objective / certificate.class_lower_bound.objective - 1


def participations(n: int, bands: int) -> int:
    return -(-n // bands)


@pytest.mark.parametrize(("n", "bands"), [(8, 2), (64, 4)])
def test_published_optima(n: int, bands: int, reference_values: dict[str, Any]) -> None:
    _, certificate = searched(separated(n, bands, tolerance=1e-10))
    published = reference_values[f"P3-prefix-n{n}-b{bands}"]["optimal_loss"]
    assert certificate.loss.total_squared == pytest.approx(participations(n, bands) * published, rel=2e-10)
    assert certificate.converged and class_gap(certificate) < 1e-10
    assert certificate.sensitivity.kind == "exact"
    assert certificate.sensitivity.value == pytest.approx(participations(n, bands) ** 0.5, rel=1e-13)


def test_published_vector(vectors: dict[str, Any]) -> None:
    vector = vectors["F.banded.n8.p3"]
    _, certificate = searched(separated(8, 3))
    assert certificate.loss.total_squared / 3 == pytest.approx(vector["total"], abs=1e-6)


def conic_optimum(target: np.ndarray, bands: int) -> float:
    """The semidefinite program with band and diagonal constraints."""
    import cvxpy

    m, n = target.shape
    x, y = cvxpy.Variable((n, n), PSD=True), cvxpy.Variable((m, m), PSD=True)
    beyond = np.abs(np.subtract.outer(range(n), range(n))) >= bands
    constraints = [cvxpy.bmat([[x, target.T], [target, y]]) >> 0, cvxpy.diag(x) == 1]
    if beyond.any():
        constraints.append(cvxpy.multiply(beyond.astype(float), x) == 0)
    return float(cvxpy.Problem(cvxpy.Minimize(cvxpy.trace(y)), constraints).solve(solver="CLARABEL"))


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
    _, certificate = searched(spec)
    optimum = conic_optimum(Problem(spec).target, bands) * spec.objective.scale(spec.workload.m)
    assert certificate.loss.objective == pytest.approx(optimum, rel=2e-5)
    assert certificate.converged


WORKLOADS: list[Document] = [
    {"kind": "prefix"},
    {"kind": "momentum", "momentum": 0.9, "nesterov": True},
    {"kind": "weight_decay", "rate": 0.1, "mode": "coupled", "momentum": 0.5},
    {"kind": "srg", "momentum": 0.9, "decay": 0.5},
    {"kind": "mu2", "output": "x"},
]
OBJECTIVES: list[Document] = [{"kind": "mean"}, {"kind": "lambda_tau", "tau": 3}]


def landscape_of(spec: Spec) -> Landscape:
    problem = Problem(spec)
    assert isinstance(spec.mechanism, Banded)
    return Landscape(banded.recursion(problem), problem.n, spec.mechanism.bands)


def random_offsets(n: int, bands: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    column = np.tril(np.triu(rng.normal(size=(n, n)), -bands + 1)) + 4 * np.eye(n)
    column /= np.linalg.norm(column, axis=0)
    gram = column.T @ column
    return np.array([np.pad(np.diagonal(gram, -d), (0, d)) for d in range(1, bands)])


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w["kind"])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: o["kind"])
@pytest.mark.parametrize("bands", [2, 6, 11])
def test_loss_and_gradient(workload: Document, objective: Document, bands: int) -> None:
    n = 11
    spec = bandwise(workload | {"n": n}, bands, objective=objective)
    landscape, offsets = landscape_of(spec), random_offsets(n, bands)
    point = landscape(offsets)
    assert point is not None
    gram = np.eye(n)
    for d in range(1, bands):
        gram += np.diag(offsets[d - 1, : n - d], -d) + np.diag(offsets[d - 1, : n - d], d)
    target = Problem(spec).target
    assert point.loss == pytest.approx(float(np.trace(np.linalg.solve(gram, target.T @ target))), rel=1e-12)
    rng = np.random.default_rng(1)
    change = rng.normal(size=offsets.shape) * (offsets != 0)
    step = 1e-5
    after, before = landscape(offsets + step * change), landscape(offsets - step * change)
    assert after is not None and before is not None
    slope = (after.loss - before.loss) / (2 * step)
    assert slope == pytest.approx(float(np.vdot(point.gradient, change)), rel=1e-6)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w["kind"])
@pytest.mark.parametrize("n", [96, 99])
def test_knots_at_all_epochs_give_the_same_loss_and_gradient(workload: Document, n: int) -> None:
    spec = bandwise(workload | {"n": n}, 3)
    landscape, offsets = landscape_of(spec), random_offsets(n, 3)
    point = landscape(offsets)
    knots = Knots.of(n, 3, 1e-9)
    assert point is not None and len(knots.columns) == 96
    between = np.setdiff1d(np.arange(n), knots.columns)
    sparse = KnotLandscape(banded.recursion(Problem(spec)), knots)
    smooth = random_offsets(n, 3)
    smooth[:, :] = np.array([[0.4], [0.1]]) * (np.arange(n) + np.array([[1], [2]]) < n)
    for columns in (offsets, smooth)[len(between) > 0 :]:
        whole, found = landscape(columns), sparse(columns[:, knots.columns])
        assert whole is not None and found is not None
        assert found.loss == pytest.approx(whole.loss, rel=1e-12)
        np.testing.assert_allclose(sparse.strategy(found).bands, landscape.strategy(whole).bands, atol=1e-13)
        if not len(between):
            np.testing.assert_allclose(found.gradient, whole.gradient, rtol=1e-9, atol=1e-11 * whole.loss)
            for here, there in zip(found.curvature, whole.curvature, strict=True):
                np.testing.assert_allclose(here, there, rtol=1e-9, atol=1e-12 * np.abs(there).max())


@pytest.mark.parametrize("n", [160, 163])
def test_the_gradient_at_knots_that_are_far_apart(n: int) -> None:
    spec = separated(n, 4)
    knots = Knots.of(n, 4, 0.4)
    assert len(knots.starts) < 30 and (knots.starts[0], knots.starts[-1]) == (0, n - 4)
    sparse = KnotLandscape(banded.recursion(Problem(spec)), knots)
    first = banded.start(Problem(spec), landscape_of(spec), Reporter(quiet)).offsets[:, knots.columns]
    point = sparse(first)
    assert point is not None
    norms = sparse.strategy(point).column_norms_squared()
    np.testing.assert_allclose(norms, 1.0, atol=1e-14)
    change, step = np.random.default_rng(0).normal(size=first.shape) * (point.gradient != 0), 1e-7
    after, before = sparse(first + step * change), sparse(first - step * change)
    assert after is not None and before is not None
    slope = (after.loss - before.loss) / (2 * step)
    assert slope == pytest.approx(float(np.vdot(point.gradient, change)), rel=1e-4)


def test_the_search_on_knots_reaches_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of n = 10^6, at a length where the whole search has the same optimum."""
    spec = separated(1502, 4, tolerance=1e-8)
    optimum = searched(spec)[1].loss.objective
    monkeypatch.setattr(banded, "LARGEST_WHOLE", 4096)
    assert banded.knotted(1502, 4) and not banded.knotted(64, 4)
    seen: list[Progress] = []
    solution = banded.solve(Problem(spec), seen.append)
    certificate = certify(spec, solution.strategy, solution.dual, outcome=solution.outcome)
    assert certificate.loss.objective == pytest.approx(optimum, rel=1e-9)
    assert certificate.converged and class_gap(certificate) < 1e-8
    assert seen[-1].class_gap == pytest.approx(class_gap(certificate), rel=0.1)
    monkeypatch.setattr(banded, "_LEAST_STEPS", 5)
    monkeypatch.setattr(banded, "_KNOT_WORK", 0.0)
    solution, certificate = searched(spec)
    assert solution.outcome is Outcome.ITERATION_LIMIT and solution.iterations == 5
    assert not certificate.converged and optimum < certificate.loss.objective < optimum * 1.01


def test_a_matrix_that_is_not_positive_definite_has_no_loss() -> None:
    """W^-1 = X M^-1 X is definite all the same, so the loss alone would not tell."""
    landscape = landscape_of(separated(8, 3))
    offsets = np.zeros((2, 8))
    offsets[0, :7] = 0.9
    assert landscape(offsets) is None


def test_the_preconditioner_is_symmetric_positive_and_near_the_inverse() -> None:
    spec = separated(40, 5)
    solution, _ = searched(spec)
    landscape = landscape_of(spec)
    whole = solution.strategy.dense()
    gram = whole.T @ whole
    offsets = np.array([np.pad(np.diagonal(gram, -d), (0, d)) for d in range(1, 5)])
    point = landscape(offsets)
    assert point is not None
    inside = np.arange(40) < 40 - np.arange(1, 5)[:, None]
    inverse = Preconditioner.at(*point.curvature, 5)
    columns = []
    for place in np.flatnonzero(inside):
        unit = np.zeros(inside.size)
        unit[place] = 1.0
        columns.append(inverse.apply(unit.reshape(inside.shape))[inside])
    approximate = np.array(columns)
    np.testing.assert_allclose(approximate, approximate.T, atol=1e-12 * np.abs(approximate).max())
    rows, cols = np.array([(j + d + 1, j) for d, j in np.argwhere(inside)]).T
    s = np.linalg.inv(gram)
    w = s @ Problem(spec).target.T @ Problem(spec).target @ s

    def between(a: np.ndarray, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        return a[np.ix_(i, j)]

    hessian = 2 * (
        between(w, rows, rows) * between(s, cols, cols)
        + between(w, cols, cols) * between(s, rows, rows)
        + between(w, rows, cols) * between(s, cols, rows)
        + between(w, cols, rows) * between(s, rows, cols)
    )
    root = np.linalg.cholesky(approximate)
    spectrum = np.linalg.eigvalsh(root.T @ hessian @ root)
    plain = np.linalg.eigvalsh(hessian)
    assert spectrum[0] > 0
    assert spectrum[-1] / spectrum[0] < 20 < 100 < plain[-1] / plain[0]


@settings(max_examples=15)
@given(st.integers(2, 24), st.integers(2, 6), st.integers(0, 10_000))
def test_random_schedules_are_certified(n: int, bands: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rates = [float(rate) for rate in np.exp(rng.normal(size=n))]
    spec = bandwise({"kind": "schedule", "n": n, "learning_rates": rates}, min(bands, n))
    _, certificate = searched(spec)
    assert certificate.converged
    assert certificate.lower_bound is not None and certificate.class_lower_bound is not None
    assert certificate.lower_bound.objective <= certificate.class_lower_bound.objective * (1 + 1e-9)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.floats(-9, -1))
def test_no_member_of_the_class_has_a_bound_above_the_optimum(seed: int, magnitude: float) -> None:
    spec = separated(12, 4, tolerance=1e-11)
    solution, certificate = searched(spec)
    optimum = certificate.loss.objective
    rng = np.random.default_rng(seed)
    assert isinstance(solution.strategy, BandedMatrix)
    moved = solution.strategy.bands * (1 + 10**magnitude * rng.normal(size=(4, 12)))
    if rng.integers(2):
        moved = moved / np.sqrt((moved**2).sum(axis=0))
    elsewhere = certify(spec, BandedMatrix(moved), {}, outcome=Outcome.CONVERGED)
    assert elsewhere.loss.objective >= optimum * (1 - 1e-11)
    if elsewhere.class_lower_bound is not None:
        assert elsewhere.class_lower_bound.objective <= optimum * (1 + 1e-11)
        far = elsewhere.loss.objective / optimum - 1
        assert far > 1e-4 or class_gap(elsewhere) < 200 * far + 1e-9
    assert elsewhere.converged == (elsewhere.class_lower_bound is not None and class_gap(elsewhere) <= 1e-11)


@pytest.mark.parametrize("bands", [2, 5])
def test_both_routes_to_the_class_bound_agree(bands: int) -> None:
    spec = separated(30, bands, tolerance=1e-8)
    solution, _ = searched(spec)
    strategy = solution.strategy
    assert isinstance(strategy, BandedMatrix)
    target = Problem(spec).target
    loss = float((strategy.right_solve(target) ** 2).sum())
    fast = class_bounds.band_gap(spec, strategy, loss)
    slow = class_terms.terms_dense(strategy.dense(), target, bands, loss)
    assert fast is not None and slow is not None
    assert fast.excess == pytest.approx(slow[0], rel=0.05)
    assert fast.magnitude == pytest.approx(slow[1], rel=1e-9)


def test_a_solver_that_lies_about_convergence_is_caught() -> None:
    spec = separated(16, 4)
    bands = np.zeros((4, 16))
    bands[0] = 1.0
    certificate = certify(spec, BandedMatrix(bands), {}, outcome=Outcome.CONVERGED)
    assert not certificate.converged


@pytest.mark.parametrize(("n", "b", "most"), [(6, 2, 2), (10, 3, 4), (11, 4, 2), (7, 7, 1)])
def test_patterns_are_disjoint_allowed_and_cover(n: int, b: int, most: int) -> None:
    patterns = [tuple(int(step) for step in row if step >= 0) for row in disjoint_patterns(n, b, most)]
    assert sorted(step for pattern in patterns for step in pattern) == list(range(n))
    assert set(patterns) <= set(min_sep_patterns(n, b, most))


def test_the_bound_over_all_matrices_is_below_the_true_optimum(vectors: dict[str, Any]) -> None:
    true = vectors["F.minsep.n6.b2.k2"]["true"]
    spec = bandwise(6, 2, {"kind": "min_sep", "min_sep": 2, "max_participations": 2})
    _, certificate = searched(spec)
    assert certificate.lower_bound is not None and certificate.relative_gap is not None
    assert certificate.lower_bound.objective * 6 <= true
    assert certificate.lower_bound.objective * 6 > 0.85 * true
    assert certificate.loss.total_squared >= true


@pytest.mark.parametrize("participation", [{"min_sep": 88}, {"min_sep": 98}, {"min_sep": 98, "max_participations": 4}])
@pytest.mark.parametrize("workload", ["prefix", "schedule"])
def test_long_bounds_by_block_resolvents(
    workload: str, participation: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {"learning_rates": {"kind": "cosine", "final": 0.3}} if workload == "schedule" else {}
    asked = {"kind": workload, "n": 704} | rates
    spec = bandwise(asked, participation["min_sep"], {"kind": "min_sep"} | participation, tolerance=1e-7)
    solution, certificate = searched(spec)
    assert certificate.converged and certificate.lower_bound is not None and certificate.relative_gap is not None
    assert certificate.lower_bound.rule == separated_bounds.SEPARATED_RING_RULE
    assert 0 < certificate.relative_gap < (0.5 if participation == {"min_sep": 88} and workload == "prefix" else 1.5)
    monkeypatch.setattr(separated_bounds, "_DIRECT_SVD", 2000)
    monkeypatch.setattr(separated_bounds, "nuclear_norm_by_squares", nuclear_norm_below)
    by_svd = separated_lower_bound(spec, solution.dual)
    assert by_svd is not None
    assert by_svd.objective * (1 - 1e-9) < certificate.lower_bound.objective < by_svd.objective * (1 + 1e-11)


def test_momentum_borrows_the_evidence_of_the_prefix_sum() -> None:
    spec = bandwise({"kind": "momentum", "n": 300, "momentum": 0.9}, 20, {"kind": "min_sep", "min_sep": 20})
    _, certificate = searched(spec)
    assert certificate.relative_gap is not None and 0 < certificate.relative_gap < 0.4


def test_too_many_epochs_have_no_evidence() -> None:
    assert not banded_evidence(separated(2048, 4), Reporter(quiet))


@settings(max_examples=15)
@given(st.integers(2, 9), st.integers(10, 30), st.integers(2, 5), st.integers(0, 10_000))
def test_both_routes_to_the_separated_norm_agree(b: int, n: int, most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rates = [float(rate) for rate in np.exp(0.3 * rng.normal(size=n))]
    participation = {"kind": "min_sep", "min_sep": b, "max_participations": most}
    spec = bandwise({"kind": "schedule", "n": n, "learning_rates": rates}, 1, participation)
    assert isinstance(spec.participation, MinSep)
    patterns = disjoint_patterns(n, b, spec.participation.spread(n).most)
    factors = rng.normal(size=(*patterns.shape, patterns.shape[1]))
    with pytest.MonkeyPatch.context() as patch:
        found = []
        for limit in (0, 1000):
            patch.setattr(separated_bounds, "_DIRECT_SVD", limit)
            bound = separated_lower_bound(spec, {"factors": factors})
            assert bound is not None
            found.append(bound.objective)
    assert found[0] == pytest.approx(found[1], rel=1e-8) and found[0] < found[1] * (1 + 1e-11)


def test_any_factors_certify_and_none_too_much() -> None:
    spec = separated(12, 4)
    _, certificate = searched(spec)
    assert certificate.lower_bound is not None
    rng = np.random.default_rng(3)
    for _ in range(20):
        bound = separated_lower_bound(spec, {"factors": rng.normal(size=(4, 3, 3))})
        assert bound is not None and bound.objective < certificate.loss.objective
        for size in (2.0**-531, 2.0**-1000, 2.0**900):  # of their squares few digits are left, or none
            again = separated_lower_bound(spec, {"factors": np.eye(3) * np.full((4, 1, 1), size)})
            assert again == separated_lower_bound(spec, {"factors": np.eye(3) * np.ones((4, 1, 1))})
    for forged in (np.zeros((4, 3, 3)), np.ones((3, 4, 4)), np.full((4, 3, 3), np.nan)):
        with pytest.raises(CertificateError):
            separated_lower_bound(spec, {"factors": forged})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (bandwise(20, 9, {"kind": "min_sep", "min_sep": 8}), "bands=9 exceeds min_sep=8"),
        (
            bandwise(20, 6, 4),
            "bands=6 exceeds n / epochs=5",
        ),
        (bandwise(5, 6), "bands=6 exceeds n=5"),
        (bandwise(5, 2, objective={"kind": "max"}), "max"),
        (
            bandwise(3, 2, objective={"kind": "weighted", "weights": [1, 0, 1]}),
            "weight of zero",
        ),
        (bandwise({"kind": "window", "n": 30, "width": 20}, 3), "at most 16 states"),
        (
            bandwise({"kind": "momentum", "n": 3, "momentum": 0.9, "learning_rates": [1, 0, 1]}, 2),
            "positive learning rates",
        ),
    ],
)
def test_what_is_refused(spec: Spec, words: str) -> None:
    with pytest.raises(UnsupportedProblem, match=words):
        solvers.solve(spec)


def test_too_many_numbers_are_refused_before_they_are_made() -> None:
    with pytest.raises(TooLarge, match="n x bands"):
        solvers.estimate(bandwise(10**7, 100))


def test_auto_means_banded_for_min_sep() -> None:
    asked = spec_of(20, participation={"kind": "min_sep", "min_sep": 5}, tolerance=1e-6)
    found = solvers.solve(asked)
    assert found.spec.mechanism.document() == {"kind": "banded", "bands": 5}
    assert found.certificate.converged


@pytest.mark.parametrize("bands", [1, 2, 6])
def test_fixed_epochs_count_their_columns(bands: int) -> None:
    spec = bandwise(24, bands, 4)
    _, certificate = searched(spec)
    assert certificate.sensitivity.value == pytest.approx(2.0, rel=1e-13)
    assert certificate.converged
    assert certificate.relative_gap is not None and certificate.relative_gap > 0


def test_all_bands_are_the_dense_optimum(reference_values: dict[str, Any]) -> None:
    _, certificate = searched(bandwise(16, 16))
    assert certificate.loss.total_squared == pytest.approx(reference_values["P1-prefix-n16"]["optimal_loss"], rel=1e-9)
    assert certificate.relative_gap is not None and certificate.relative_gap < 1e-9


def test_the_larger_band_is_never_worse() -> None:
    losses = [searched(bandwise(20, bands))[1].loss.objective for bands in (1, 2, 4, 8)]
    assert losses == sorted(losses, reverse=True)


def test_progress_states_the_gap_and_may_cancel() -> None:
    seen: list[Progress] = []
    banded.solve(Problem(separated(40, 5)), seen.append)
    gaps = [step.class_gap for step in seen if step.class_gap is not None]
    assert gaps[-1] < 1e-9 < gaps[0]

    def cancel(step: Progress) -> None:
        raise Cancelled("asked to")

    with pytest.raises(Cancelled):
        banded.solve(Problem(separated(40, 5)), cancel)


def test_one_workload_optimised_and_another_evaluated() -> None:
    asked = bandwise({"kind": "momentum", "n": 20, "momentum": 0.9}, 4, optimize_for={"kind": "prefix", "n": 20})
    solution, certificate = searched(asked)
    own, _ = searched(bandwise(20, 4))
    np.testing.assert_allclose(solution.strategy.dense(), own.strategy.dense(), atol=1e-12)
    assert certificate.class_lower_bound is None and certificate.converged


def lower_half(matrix: np.ndarray, bands: int) -> np.ndarray:
    """A[i, i - d] at [i, d]."""
    n = len(matrix)
    return np.array([[matrix[i, i - d] if i >= d else 0.0 for d in range(bands)] for i in range(n)])


@pytest.mark.parametrize(("n", "bands"), [(3, 1), (9, 9), (40, 2), (60, 4), (90, 7)])
def test_kernels_of_the_class_bound(n: int, bands: int) -> None:
    """Long enough for their windows to move."""
    rng = np.random.default_rng(n)
    c = np.tril(np.triu(0.3 * rng.normal(size=(n, n)), 1 - bands), -1) + np.diag(1 + rng.random(n))
    p, q = 1 + rng.random(n), rng.random(n)
    q[0] = 0.0
    inverse = np.diag(p) - np.diag(q[1:], -1)
    decoder = np.linalg.inv(inverse) @ np.linalg.inv(c)
    x, w = c.T @ c, np.linalg.inv(c) @ decoder.T @ decoder @ np.linalg.inv(c).T
    rows, gram, weights = lower_half(c, bands), np.zeros((n, bands)), np.zeros((n, bands))
    band_recurrences.gram(rows, gram)
    np.testing.assert_allclose(gram, lower_half(x, bands), atol=1e-14)
    band_recurrences.decoder_gram(rows, p, q, weights)
    np.testing.assert_allclose(weights, lower_half(w, bands), rtol=1e-10, atol=1e-12 * np.abs(w).max())
    change = rng.normal(size=(n, n))
    change = np.tril(np.triu(change + change.T, 1 - bands), bands - 1)
    moved = band_recurrences.moved_square(rows, lower_half(change, bands), gram, p, q)
    assert moved == pytest.approx(float((c @ change @ x @ inverse).ravel() @ (c @ change @ x @ inverse).ravel()))
    root, out = np.abs(x @ inverse), np.zeros(n)
    band_recurrences.inner_magnitude(gram, p, q, np.arange(1.0, n + 1), out)
    np.testing.assert_allclose(out, root @ root.T @ np.arange(1.0, n + 1), rtol=1e-12)


def test_cholesky_of_a_band() -> None:
    rng = np.random.default_rng(0)
    a = np.triu(np.tril(rng.normal(size=(9, 9)), 1), -2)
    gram = a @ a.T + np.eye(9)
    columns = np.array([[gram[j + d, j] if j + d < 9 else 0.0 for d in range(4)] for j in range(9)])
    assert band_cholesky(columns)
    factor = np.linalg.cholesky(gram)
    np.testing.assert_allclose(columns[:, 1][:8], np.diagonal(factor, -1), atol=1e-13)
    np.testing.assert_allclose(columns[:, 3][:6], np.diagonal(factor, -3), atol=1e-13)
    columns[:, 0] = -1.0
    assert not band_cholesky(columns)


def test_a_search_that_stops_early_keeps_a_bound() -> None:
    """Where eta alone would be above 1, a diagonal takes over, in both routes."""
    spec = separated(256, 4, tolerance=1e-9)
    optimum = searched(spec, evidence=False)[1].loss.objective
    landscape, problem = landscape_of(spec), Problem(spec)
    descent = GramDescent(problem, landscape, banded.start(problem, landscape, Reporter(quiet)), Reporter(quiet))
    first = class_bounds.band_gap(spec, descent.strategy, descent.at.loss)
    assert first is not None and first.excess > descent.at.loss
    best = optimum / (participations(256, 4) * spec.objective.scale(256))
    assert 0.5 * best < first.lower == first.tangent <= best
    for steps in range(1, 16):
        descent.steps = steps
        direction = descent._direction()
        assert descent._step(direction, float(np.vdot(descent.at.gradient, direction)) / 2)
    early = certify(spec, descent.strategy, {}, outcome=Outcome.CONVERGED)
    assert early.class_lower_bound is not None and early.class_lower_bound.objective <= optimum
    assert 1e-9 < class_gap(early) < 0.05 and not early.converged
    strategy, target = descent.strategy, problem.target
    fast = class_bounds.band_gap(spec, strategy, descent.at.loss)
    slow = class_terms.terms_dense(strategy.dense(), target, 4, descent.at.loss)
    assert fast is not None and slow is not None and fast.excess == pytest.approx(slow[0], rel=0.25)
    assert fast.magnitude == pytest.approx(slow[1], rel=1e-9)


@pytest.mark.parametrize(("n", "bands", "tolerance"), [(12, 2, 1e-16), (64, 8, 1e-15), (200, 5, 1e-15)])
def test_a_tolerance_below_rounding_ends_with_the_honest_gap(n: int, bands: int, tolerance: float) -> None:
    solution, certificate = searched(separated(n, bands, tolerance=tolerance))
    assert solution.outcome is Outcome.ROUNDING_LIMIT and solution.iterations < 200
    assert not certificate.converged and tolerance < class_gap(certificate) < 1e-12
    assert any("was not met" in warning for warning in certificate.warnings)


def test_rates_of_zero_only_are_no_workload() -> None:
    with pytest.raises(InvalidSpec, match="all zero"):
        bandwise({"kind": "schedule", "n": 4, "learning_rates": [0, 0, 0, 0]}, 2)


def test_one_step_that_moves_anything_is_enough() -> None:
    spec = bandwise({"kind": "schedule", "n": 6, "learning_rates": [0, 0, 1, 0, 0, 0]}, 2)
    _, certificate = searched(spec)
    assert certificate.loss.total_squared == pytest.approx(4.0, rel=1e-12)
    assert certificate.converged and certificate.relative_gap is not None and certificate.relative_gap < 1e-9


def test_a_matrix_without_full_column_rank_is_refused() -> None:
    workload = from_array(np.array([[1.0, 0, 0], [1, 0, 0], [1, 1, 1]]))
    spec = separated(3, 2).model_copy(update={"workload": workload})
    assert "no recursion" in (banded.supports(spec) or "")


@pytest.mark.parametrize("seed", range(4))
def test_the_tangent_bounds_the_class_from_any_member(seed: int) -> None:
    """Even far from the optimum, and for a workload that is done densely."""
    spec = bandwise({"kind": "momentum", "n": 12, "momentum": 0.9}, 4, "single", tolerance=1e-10)
    optimum = searched(spec)[1].loss.objective / spec.objective.scale(12)
    target, bands = Problem(spec).target, np.random.default_rng(seed).normal(size=(4, 12))
    bands[0] = 1 + np.abs(bands[0])
    for d in range(1, 4):
        bands[d, 12 - d :] = 0.0
    bands /= np.sqrt((bands**2).sum(axis=0))
    strategy = BandedMatrix(bands)
    loss = float((strategy.right_solve(target) ** 2).sum())
    gap = class_bounds.band_gap(spec, strategy, loss)
    assert gap is not None and 0 < gap.tangent <= optimum * (1 + 1e-10)
    inverse = np.linalg.inv(strategy.dense())
    weights = lower_half(inverse @ (target @ inverse).T @ (target @ inverse) @ inverse.T, 4)
    assert gap.magnitude == pytest.approx(2 * np.abs(weights).sum() - weights[:, 0].sum(), rel=1e-6)


@pytest.mark.parametrize("beside", [1e-3, 1e-2, 3e-2])
def test_steps_that_count_for_nothing_do_not_raise_the_bound(beside: float) -> None:
    """A column that reaches into them has norm to spare: its loss is above that of the block, which the bound is of."""
    workload = {"kind": "schedule", "n": 6, "learning_rates": [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]}
    spec = bandwise(workload, 2, tolerance=1e-9).canonical()
    member = solvers.solve(spec).strategy.dense()
    target = spec.workload.dense()

    def loss(strategy: np.ndarray) -> float:
        return float((np.linalg.solve(strategy.T, target.T) ** 2).sum())

    spoilt = member.copy()
    spoilt[4, 3] = beside
    spoilt /= np.linalg.norm(spoilt, axis=0)
    bands = np.array([np.diagonal(spoilt), [*np.diagonal(spoilt, -1), 0.0]])
    gap = class_bounds.band_gap(spec, BandedMatrix(bands), loss(spoilt))
    assert gap is not None
    assert 0.99 * loss(member) < gap.lower <= loss(member / np.linalg.norm(member, axis=0))


def test_the_class_is_not_worse_than_its_toeplitz_member_on_momentum_and_cosine() -> None:
    asked = {"kind": "momentum", "n": 200, "momentum": 0.9, "learning_rates": {"kind": "cosine", "final": 0.01}}
    losses = [
        solved(asked, participation=5, mechanism={"kind": kind, "bands": 9}, tolerance=1e-4).certificate.loss.objective
        for kind in ("banded", "banded_toeplitz")
    ]
    assert losses[0] <= losses[1]


APART = separated(256, 8)


@pytest.mark.parametrize("cores", [1, 2])
def test_evidence_that_is_searched_beside_a_solver_is_the_same(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_room, "CORES", cores)
    alone = evidence_room.evidence(APART, Reporter(quiet))
    with begun(APART, own=False) as found:
        beside = found(Reporter(quiet))
    assert beside.keys() == alone.keys() == {"factors"}
    assert (beside["factors"] == alone["factors"]).all()


def test_a_search_for_evidence_ends_with_the_solve_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_room, "CORES", 2)
    asked = threading.Event()

    def endless(_spec: Spec, report: Reporter) -> dict[str, np.ndarray]:
        while True:
            asked.set()
            report(0, None)

    monkeypatch.setattr(evidence_room, "evidence", endless)
    with pytest.raises(SolveFailed, match="no answer"), begun(APART, own=False):
        assert asked.wait(600)
        raise SolveFailed("no answer")
    with begun(APART, own=False) as found:

        def cancel(_progress: Progress) -> None:
            raise Cancelled("enough")

        with pytest.raises(Cancelled, match="enough"):
            found(Reporter(cancel))


def test_the_sensitivity_is_found_while_the_evidence_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_room, "CORES", 2)
    kept, search, keep = threading.Event(), evidence_room.evidence, evidence_room.keep_sensitivity

    def waits(spec: Spec, report: Reporter) -> dict[str, np.ndarray]:
        assert kept.wait(600)
        return search(spec, report)

    def keeps(matrix: BandedMatrix, participation: MinSep) -> None:
        keep(matrix, participation)
        kept.set()

    monkeypatch.setattr(evidence_room, "evidence", waits)
    monkeypatch.setattr(evidence_room, "keep_sensitivity", keeps)
    problem = Problem(APART)
    with begun(APART, own=False) as found:
        solution = with_evidence(problem, banded.solve(problem, quiet), Reporter(quiet), found)
    _, expected = searched(APART)
    assert certify(APART, solution.strategy, solution.dual, outcome=solution.outcome) == expected


def test_a_bound_beside_the_losses_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    solution, beside = searched(APART)
    monkeypatch.setattr(certificate_room, "_BOUND_BESIDE", 1 << 20)
    assert certify(APART, solution.strategy, solution.dual, outcome=solution.outcome) == beside


def test_evidence_is_priced_by_the_method_that_finds_it() -> None:
    """The recurrences of rings, up to 64 epochs or where n is large; decompositions; nothing where both are too dear."""
    momentum = bandwise({"kind": "momentum", "n": 256, "momentum": 0.9}, 16, {"kind": "min_sep", "min_sep": 16})
    assert evidence_room.work(separated(256, 4)) == 1500 * 256 * 65**2
    assert evidence_room.work(separated(257, 16)) == 1500 * 257 * 18**2
    assert evidence_room.work(separated(256, 3)) == evidence_room.work(momentum) == 300 * 256**3
    assert evidence_room.work(separated(2048, 32)) > 0 == evidence_room.work(separated(2048, 31))
