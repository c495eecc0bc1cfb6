"""The bound over all Toeplitz matrices: attained where columns cannot overlap, and never above any member of the class."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_toeplitz_optimum import APART, EPOCHS, WORKLOADS, asked_of, quiet, searched

from factorize import parse_spec, solvers
from factorize.certificate.lower_bounds import toeplitz_bounds
from factorize.certificate.lower_bounds.class_bounds import class_lower_bound
from factorize.errors import CertificateError
from factorize.numbers.series import toeplitz_rows
from factorize.solvers.problem import Problem, Reporter
from factorize.solvers.toeplitz import toeplitz_optimum as toeplitz
from factorize.solvers.toeplitz.overlap_evidence import class_evidence
from factorize.spec import Spec
from factorize.structures.toeplitz import ToeplitzMatrix

INVARIANT = sorted(set(WORKLOADS) - {"cosine", "x"})


def feasible(participation: dict[str, Any], n: int) -> list[tuple[int, ...]]:
    """All patterns of full length, by enumeration."""
    if participation["kind"] == "single":
        return [(i,) for i in range(n)]
    if participation["kind"] == "fixed_epochs":
        b = n // participation["epochs"]
        return [tuple(range(j, n, b)) for j in range(b)]
    gap, count = participation["min_sep"], -(-n // participation["min_sep"])
    sets = [s for size in range(1, count + 1) for s in combinations(range(n), size)]
    return [s for s in sets if all(later - first >= gap for first, later in zip(s, s[1:], strict=False))]


def gap(asked: Spec, dual: dict[str, np.ndarray] | None = None) -> float:
    """Relative distance between the optimum found and the bound over its class."""
    solution, certificate = searched(asked)
    bound = class_lower_bound(asked, solution.strategy, 0.0, dual)
    assert bound is not None
    return certificate.loss.objective / bound.objective - 1


def evidence_of(asked: Spec) -> dict[str, np.ndarray]:
    problem = Problem(asked)
    return class_evidence(
        problem, toeplitz.error_form(problem), searched(asked)[0].strategy.coefficients(), Reporter(quiet)
    )


def loss_of(asked: Spec, column: np.ndarray) -> float:
    """Objective of a column by brute force: every pattern, the worst of all signs."""
    n = asked.workload.n
    strategy = toeplitz_rows(np.concatenate([column, np.zeros(n - len(column))]), 0, n)
    decoder = np.linalg.solve(strategy.T, asked.workload.dense().T).T
    squared = 0.0
    for pattern in feasible(asked.participation.document(), n):
        for signs in product((1.0, -1.0), repeat=len(pattern)):
            squared = max(squared, float(((strategy[:, list(pattern)] @ np.array(signs)) ** 2).sum()))
    return squared * asked.objective.of_row_errors((decoder**2).sum(axis=1))


@pytest.mark.parametrize("bands", [60, 11, 2, 1])
@pytest.mark.parametrize("workload", INVARIANT)
def test_optima_are_global(workload: str, bands: int) -> None:
    assert -1e-12 < gap(asked_of(workload, 60, kind="banded_toeplitz", bands=bands)) < 2e-9


@pytest.mark.parametrize("n", [1, 2, 3, 4, 200])
@pytest.mark.parametrize("objective", [{"kind": "mean"}, {"kind": "max"}], ids=lambda o: o["kind"])
def test_every_length_is_certified(n: int, objective: dict[str, Any]) -> None:
    assert -1e-12 < gap(asked_of("prefix", n, objective=objective)) < 2e-9


@pytest.mark.parametrize("participation", [EPOCHS, APART, {"kind": "min_sep", "min_sep": 6, "max_participations": 2}])
@pytest.mark.parametrize("workload", ["prefix", "window", "momentum"])
def test_columns_that_cannot_overlap_are_certified(workload: str, participation: Any) -> None:
    asked = asked_of(workload, 20, participation, kind="banded_toeplitz", bands=5)
    assert -1e-12 < gap(asked) < 2e-9


def test_weights_of_rows_count() -> None:
    weights = [float(1 + i % 5) for i in range(40)]
    assert -1e-12 < gap(asked_of("prefix", 40, objective={"kind": "weighted", "weights": weights})) < 2e-9


def test_the_certificate_states_it() -> None:
    solution, certificate = searched(asked_of("prefix", 64))
    assert certificate.class_lower_bound is not None
    assert certificate.class_lower_bound.rule == toeplitz_bounds.TOEPLITZ_RULE
    assert certificate.loss.objective / certificate.class_lower_bound.objective < 1 + 2e-9


@settings(max_examples=25)
@given(st.sampled_from(["prefix", "window", "srg"]), st.integers(5, 12), st.integers(0, 10_000), st.floats(-6, 0))
def test_no_column_has_a_bound_above_another(workload: str, n: int, seed: int, magnitude: float) -> None:
    asked = asked_of(workload, n)
    solution, certificate = searched(asked)
    rng = np.random.default_rng(seed)
    column = solution.strategy.coefficients() + 10**magnitude * rng.normal(size=n)
    column[0] = abs(column[0]) + 0.1
    bound = class_lower_bound(asked, ToeplitzMatrix(column, n), 0.0)
    if bound is not None:
        assert bound.objective <= certificate.loss.objective * (1 + 1e-12)


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_any_multipliers_certify(seed: int) -> None:
    asked = asked_of("prefix", 10)
    solution, certificate = searched(asked)
    numbers = np.random.default_rng(seed).normal(size=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toeplitz_bounds, "_multipliers", lambda *_: numbers)
        bound = class_lower_bound(asked, solution.strategy, 0.0)
    assert bound is None or bound.objective < certificate.loss.objective


@pytest.mark.parametrize(
    ("workload", "participation", "most"),
    [("prefix", EPOCHS, 0.06), ("momentum", EPOCHS, 0.02), ("prefix", APART, 0.06), ("decay", EPOCHS, 0.01)],
)
def test_overlapping_columns_have_evidence(workload: str, participation: Any, most: float) -> None:
    asked = asked_of(workload, 20, participation)
    assert class_lower_bound(asked, searched(asked)[0].strategy, 0.0, {}) is None
    assert -1e-12 < gap(asked, evidence_of(asked)) < most


@settings(max_examples=8)
@given(st.sampled_from(["prefix", "window"]), st.booleans(), st.integers(0, 10_000), st.floats(0.05, 2))
def test_the_bound_is_below_all_columns_of_any_sign(workload: str, apart: bool, seed: int, size: float) -> None:
    participation = {"kind": "min_sep", "min_sep": 3} if apart else {"kind": "fixed_epochs", "epochs": 3}
    asked = asked_of(workload, 9, participation)
    bound = class_lower_bound(asked, searched(asked)[0].strategy, 0.0, evidence_of(asked))
    assert bound is not None
    rng = np.random.default_rng(seed)
    for _ in range(3):
        column = searched(asked)[0].strategy.coefficients() + size * rng.normal(size=9) * rng.integers(0, 2, size=9)
        assert loss_of(asked, column) > bound.objective


def test_evidence_reaches_the_certificate() -> None:
    asked = asked_of("prefix", 24, EPOCHS)
    certificate = solvers.solve(asked).certificate
    assert certificate.class_lower_bound is not None and certificate.lower_bound is not None
    assert certificate.lower_bound.objective < certificate.class_lower_bound.objective < certificate.loss.objective
    assert certificate.loss.objective < 1.06 * certificate.class_lower_bound.objective


def test_random_evidence_certifies_and_never_too_much() -> None:
    asked = asked_of("prefix", 12, {"kind": "fixed_epochs", "epochs": 3})
    solution, certificate = searched(asked)
    rng = np.random.default_rng(1)
    for _ in range(20):
        column = solution.strategy.coefficients() + 0.3 * rng.normal(size=12)
        dual = {"class_column": np.abs(column) + 1e-3, "class_signs": rng.normal(size=(3, 2))}
        bound = class_lower_bound(asked, solution.strategy, 0.0, dual)
        assert bound is None or bound.objective < certificate.loss.objective


@pytest.mark.parametrize(
    ("column", "signs"),
    [
        (np.ones(11), np.eye(3)),
        (np.ones(12), np.eye(4)),
        (np.full(12, np.nan), np.eye(3)),
        (-np.ones(12), np.eye(3)),
        (np.ones(12), np.zeros((3, 3))),
        (np.ones(12), np.full((3, 3), np.inf)),
    ],
    ids=range(6),
)
def test_forged_evidence_is_refused(column: np.ndarray, signs: np.ndarray) -> None:
    asked = asked_of("prefix", 12, {"kind": "fixed_epochs", "epochs": 3})
    with pytest.raises(CertificateError):
        class_lower_bound(asked, searched(asked)[0].strategy, 0.0, {"class_column": column, "class_signs": signs})


def test_long_columns_are_certified_by_ratios() -> None:
    assert 0 < gap(asked_of("prefix", 16_384)) < 1e-6
    assert 0 < gap(asked_of("prefix", 20_000, kind="banded_toeplitz", bands=30)) < 2e-9


@pytest.mark.parametrize("bands", [4000, 2100])
@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_long_columns_of_a_workload_that_fades_are_certified(rate: float, bands: int) -> None:
    document = {
        "workload": {"kind": "decay", "n": 4000, "rate": rate},
        "mechanism": {"kind": "banded_toeplitz", "bands": bands},
    }
    assert 0 < gap(parse_spec(document).canonical()) < 2e-9


@pytest.mark.parametrize(
    "asked",
    [
        asked_of("prefix", 20, objective={"kind": "lambda_tau", "tau": 3}),
        asked_of("cosine", 20),
        asked_of("prefix", 20).model_copy(update={"optimize_for": asked_of("momentum", 20).workload}),
    ],
    ids=["lambda_tau", "schedule", "optimize_for"],
)
def test_nothing_is_claimed_elsewhere(asked: Spec) -> None:
    solution, certificate = searched(asked)
    assert certificate.class_lower_bound is None
    assert class_evidence(Problem(asked), toeplitz.error_form(Problem(asked)), np.ones(20), Reporter(quiet)) == {}
