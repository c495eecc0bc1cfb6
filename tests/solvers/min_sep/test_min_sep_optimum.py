"""The optimum under `min_sep`: against semidefinite programs over all patterns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checker_files import min_sep_patterns
from specs import spec_of

import factorize
from factorize.checker.check import check_factor_file
from factorize.errors import UnsupportedProblem
from factorize.solvers import choose, solve
from factorize.solvers.min_sep.cells import Cells
from factorize.solvers.min_sep.pattern_search import PatternSearch
from factorize.solvers.min_sep.patterns import count_of_patterns, maximal_patterns
from factorize.solvers.problem import Problem
from factorize.spec import Spec

SIGNED = np.tril(np.random.default_rng(3).integers(-4, 5, (6, 6)) / 4.0) + 2 * np.eye(6)


def apart(workload: Any, min_sep: int, most: int | None = None) -> Spec:
    participation = {"kind": "min_sep", "min_sep": min_sep} | ({"max_participations": most} if most else {})
    return spec_of(workload, "dense", participation)


def program(spec: Spec, *, vectors: bool, bands: int | None = None) -> float:
    """The least loss over X of so many bands, sensitive to vectors of any dimension or by absolute sums."""
    import cvxpy

    target, (separation, most, _) = Problem(spec).target, spec.participation.spread(spec.workload.n)
    n = target.shape[1]
    whole = cvxpy.Variable((2 * n, 2 * n), symmetric=True)
    x, sizes = whole[:n, :n], cvxpy.Variable((n, n))
    limits = [whole >> 0, whole[n:, :n] == target, sizes >= x, sizes >= -x]
    limits += [cvxpy.diag(x, -lag) == 0 for lag in range(bands or n, n)]
    for pattern in maximal_patterns(n, separation, most):
        for steps in pattern.tolist():
            block, shares = np.ix_(steps, steps), cvxpy.Variable(len(steps))
            limits += [cvxpy.diag(shares) - x[block] >> 0, cvxpy.sum(shares) <= 1] if vectors else []
            limits += [] if vectors else [cvxpy.sum(sizes[block]) <= 1]
    found = cvxpy.Problem(cvxpy.Minimize(cvxpy.trace(whole[n:, n:])), limits).solve(solver="CLARABEL")
    return float(found) * spec.objective.scale(spec.workload.m)


@pytest.mark.parametrize(
    "spec",
    [
        apart(7, 3, 2),
        apart({"kind": "momentum", "n": 7, "momentum": 0.9}, 2),
        apart({"kind": "matrix", "rows": SIGNED.tolist()}, 2, 3),
    ],
    ids=["prefix", "momentum", "signed"],
)
def test_agrees_with_semidefinite_programs_over_all_patterns(spec: Spec) -> None:
    """C is the best by absolute sums, and the bound the best for vectors: 2e-6 is what the reference solver reaches."""
    found = factorize.solve(spec).certificate
    assert found.loss.objective == pytest.approx(program(spec, vectors=False), rel=2e-6)
    assert found.lower_bound.objective == pytest.approx(program(spec, vectors=True), rel=2e-6)


def test_a_dozen_random_specs_agree_with_semidefinite_programs() -> None:
    rng = np.random.default_rng(5)
    for _ in range(12):
        n, separation, most = (int(rng.integers(*limits)) for limits in ((5, 9), (1, 5), (2, 5)))
        signed = np.tril(rng.choice([-1.0, 1.0], (n, n)))
        momentum = {"kind": "momentum", "n": n, "momentum": float(rng.random())}
        workloads: list[Any] = [n, momentum, {"kind": "matrix", "rows": signed.tolist()}]
        spec = apart(workloads[rng.integers(3)], separation, most)
        found = factorize.solve(spec).certificate
        assert found.loss.objective == pytest.approx(program(spec, vectors=False), rel=5e-6)
        assert found.lower_bound.objective == pytest.approx(program(spec, vectors=True), rel=5e-6)


def test_the_checker_proves_the_optimum_of_prefix_sums(tmp_path: Path) -> None:
    """12 steps, 3 apart, 3 participations: disjoint patterns had proved 9.02, and `banded` had reached 11.78."""
    found = factorize.solve("prefix", n=12, min_sep=3, max_participations=3)
    found.save(tmp_path / "optimum.safetensors")
    report = check_factor_file((tmp_path / "optimum.safetensors").read_bytes())
    assert report.supported and report.status("certificate.lower_bound") == "proved"
    assert found.certificate.loss.objective == pytest.approx(9.9040643, rel=1e-7)
    assert found.certificate.relative_gap < 1e-7


def test_a_step_that_moves_nothing_costs_nothing() -> None:
    """A learning rate of 0 leaves four steps of two patterns: those of the identity, whose optimum is known by hand."""
    rates = {"kind": "matrix", "rows": np.diag([1.0, 0.0, 1.0, 0.0]).tolist()}
    found = factorize.solve(apart(rates, 2)).certificate
    assert found.loss.objective == pytest.approx(4 / 4, rel=1e-6)


@pytest.mark.parametrize(("n", "separation", "most"), [(8, 2, 3), (9, 1, 4), (11, 3, 4), (5, 3, 2)])
def test_maximal_patterns_by_their_definition(n: int, separation: int, most: int) -> None:
    every = [frozenset(pattern) for pattern in min_sep_patterns(n, separation, most)]
    found = [frozenset(row) for some in maximal_patterns(n, separation, most) for row in some.tolist()]
    assert set(found) == {one for one in every if not any(one < other for other in every)}
    assert len(found) == len(set(found)) and count_of_patterns(n, separation, most) == len(set(every))


def test_few_participations_of_many_that_fit() -> None:
    """Steps far apart overlap: with zeros beyond 3 `min_sep` the loss was far above that of the best Toeplitz C.

    The bound over all matrices shows that the search of the worst pattern leaves nothing out.
    """
    setting: dict[str, Any] = {"n": 50, "min_sep": 2, "max_participations": 4}
    found = factorize.solve("prefix", **setting).certificate
    assert found.sensitivity.rule == "absolute sums of all patterns" and found.sensitivity.kind == "exact"
    assert found.relative_gap is not None and found.relative_gap < 1e-4
    toeplitz = factorize.solve("prefix", mechanism="toeplitz", **setting).certificate
    assert found.loss.objective < 0.95 * toeplitz.loss.objective


@pytest.mark.parametrize(
    ("workload", "separation", "most", "bands"),
    [
        (9, 2, 5, 6),
        (9, 2, 2, 9),
        ({"kind": "momentum", "n": 10, "momentum": 0.9}, 2, 3, 10),
        (10, 2, 4, 10),
        (8, 1, 5, 8),
    ],
    ids=["all", "two", "some", "searched", "searched without a distance"],
)
def test_the_search_agrees_with_a_semidefinite_program_over_all_patterns(
    workload: Any, separation: int, most: int, bands: int
) -> None:
    """Entries of X that are three times as far apart are zero; with three participations, or fewer than fit, none is."""
    spec = apart(workload, separation, most)
    target = Problem(spec).target
    search = PatternSearch(target, separation, most)
    gram = search.best(lambda *_: None).gram
    patterns = min_sep_patterns(len(gram), separation, most)
    size = max(np.abs(gram[np.ix_(pattern, pattern)]).sum() for pattern in patterns)
    found = size * np.vdot(np.linalg.solve(gram, target.T), target.T) * spec.objective.scale(spec.workload.m)
    assert (np.tril(gram, -bands) == 0).all() and search.bands == bands
    assert found == pytest.approx(program(spec, vectors=False, bands=bands), rel=1e-5)


def test_rounds_that_find_patterns_to_the_last_leave_none_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage may end while X still breaks constraints; the patterns found last count in the next one."""
    monkeypatch.setattr("factorize.solvers.min_sep.pattern_search._ROUNDS", 1)
    found = PatternSearch(np.tril(np.ones((24, 24))), 4, 6).best(lambda *_: None)
    assert len(found.patterns) == len(found.shares) > 0 and found.shares.sum() == pytest.approx(1.0)


def test_the_checker_proves_more_steps_and_a_bound_near_them(tmp_path: Path) -> None:
    """64 steps, 8 apart: `banded` with min_sep bands reaches 54.9."""
    found = factorize.solve(apart(64, 8))
    found.save(tmp_path / "optimum.safetensors")
    report = check_factor_file((tmp_path / "optimum.safetensors").read_bytes())
    assert report.supported and report.status("certificate.lower_bound") == "proved"
    assert found.certificate.sensitivity.kind == "exact" and found.strategy.bandwidth() == 24
    assert found.certificate.loss.objective == pytest.approx(50.82295, rel=1e-5)
    assert found.certificate.relative_gap < 2e-4


@pytest.mark.parametrize(("n", "separation", "fewer"), [(12, 4, 2), (13, 5, 3), (11, 5, 2), (9, 3, 3)])
def test_patterns_of_cells_are_patterns_of_steps(n: int, separation: int, fewer: int) -> None:
    """All of them, by a list of those that are allowed; and each step has a cell whose columns are added up."""
    cells = Cells(n, separation, fewer)
    allowed = set(min_sep_patterns(n, separation, 3))
    few = [
        np.pad(row, (0, 3 - len(row)), constant_values=cells.count) for row in min_sep_patterns(cells.count, fewer, 3)
    ]
    found = cells.patterns(np.array(few))
    assert {tuple(row[row < n].tolist()) for row in found} <= allowed | {()}
    assert np.unique(found[found < n]).tolist() == list(range(n)) and len(found) % len(few) == 0
    assert cells.sums(np.ones((1, n))).sum() == n


def test_cells_lead_to_the_same_optimum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """48 steps, 5 apart, from 29 and 17 cells 3 and 2 apart; the search without cells is the other road."""
    alone = solve(apart(48, 5)).certificate
    for name, value in {"MAX_DUAL_STEPS": 30, "_MIN_CELLS": 20, "_LAST_TEMPERATURES": ((48, 1e-4),)}.items():
        monkeypatch.setattr(f"factorize.solvers.min_sep.pattern_search.{name}", value)
    found = solve(apart(48, 5))
    found.save(tmp_path / "optimum.safetensors")
    report = check_factor_file((tmp_path / "optimum.safetensors").read_bytes())
    assert report.supported and report.status("certificate.lower_bound") == "proved"
    assert found.certificate.loss.objective == pytest.approx(alone.loss.objective, rel=1e-3)
    assert 0.98 < found.certificate.lower_bound.objective / alone.lower_bound.objective < 1 + 1e-6


def test_more_steps_are_refused_by_name_and_banded_by_auto() -> None:
    with pytest.raises(
        UnsupportedProblem, match="up to 512 steps with 129 participations, but n=1025; use banded with bands=8"
    ):
        choose(apart(1025, 8))
    assert choose(spec_of(256, "auto", {"kind": "min_sep", "min_sep": 8})).mechanism.kind == "banded"
    with pytest.raises(UnsupportedProblem, match="up to 256 steps with 6 participations of many that fit, .*toeplitz"):
        choose(apart(300, 4, 6))
    few = {"kind": "min_sep", "min_sep": 4, "max_participations": 6}
    assert choose(spec_of(300, "auto", few)).mechanism.kind == "toeplitz"
    restarts = {"kind": "lambda_tau", "tau": 40}  # steps that are further apart hardly matter
    assert choose(spec_of(300, "auto", few, restarts)).mechanism.kind == "banded"
    assert choose(spec_of(300, "dense", few, restarts)).mechanism.kind == "dense"
