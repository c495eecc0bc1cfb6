"""The best Toeplitz strategy: gradients, published values, dense searches, and exact sensitivities."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from specs import spec_of

from factorize import solvers
from factorize.certificate.certificate import Certificate, certify
from factorize.errors import Cancelled
from factorize.numbers.series import toeplitz_rows
from factorize.solution import Outcome, Progress, Solution
from factorize.solvers.formulas.closed_form import strategy_coefficients
from factorize.solvers.methods.transforms import reciprocal, square_root
from factorize.solvers.problem import Problem, Reporter
from factorize.solvers.toeplitz import toeplitz_optimum as toeplitz
from factorize.solvers.toeplitz.gradients import ToeplitzLoss
from factorize.spec import Spec
from factorize.workloads.matrix import from_array

WORKLOADS: dict[str, dict[str, Any]] = {
    "prefix": {"kind": "prefix"},
    "momentum": {"kind": "momentum", "momentum": 0.9},
    "nesterov": {"kind": "momentum", "momentum": 0.9, "nesterov": True},
    "decay": {"kind": "decay", "rate": 0.8},
    "window": {"kind": "window", "width": 5},
    "srg": {"kind": "srg", "momentum": 0.9, "decay": 0.7},
    "w": {"kind": "mu2", "output": "w"},
    "x": {"kind": "mu2", "output": "x"},
    "identity": {"kind": "identity"},
    "cosine": {"kind": "schedule", "learning_rates": {"kind": "cosine", "final": 0.0}},
}
SINGLE = {"kind": "single"}
EPOCHS = {"kind": "fixed_epochs", "epochs": 4}
APART = {"kind": "min_sep", "min_sep": 5}
MEAN = {"kind": "mean"}


def asked_of(
    workload: str | dict[str, Any], n: int, participation: Any = None, objective: Any = None, **mechanism: Any
) -> Spec:
    fields = WORKLOADS[workload] if isinstance(workload, str) else workload
    mechanism = mechanism or {"kind": "toeplitz"}
    return spec_of({**fields, "n": n}, mechanism, participation or SINGLE, objective or MEAN)


def quiet(_step: Progress) -> None:
    """Ignore the progress."""


def searched(asked: Spec) -> tuple[Solution, Certificate]:
    """Solve without dual evidence over all matrices, which is a dense solver's work and takes most of the time."""
    assert toeplitz.supports(asked) is None
    solution = toeplitz.solve(Problem(asked), quiet)
    return solution, certify(asked, solution.strategy, {}, outcome=solution.outcome)


def losses(asked: Spec) -> list[tuple[ToeplitzLoss, int]]:
    problem = Problem(asked)
    error = toeplitz.error_form(problem)
    return [(ToeplitzLoss(problem.n, error, kind.sensitivity), kind.bands) for kind in toeplitz.classes(problem)]


@given(st.lists(st.floats(-0.6, 0.6), min_size=1, max_size=90), st.integers(90, 150))
def test_reciprocal_times_the_series_is_one(tail: list[float], n: int) -> None:
    series = np.array([1.0, *np.array(tail) / len(tail)])
    unit = np.convolve(series, reciprocal(series, n))[:n]
    np.testing.assert_allclose(unit, np.eye(1, n)[0], atol=1e-12)


def test_square_root_of_the_momentum_series() -> None:
    n = 300
    momentum = spec_of({"kind": "momentum", "momentum": 0.9, "n": n}).workload.coefficients
    root = square_root(momentum)
    ones = strategy_coefficients(n, 0.0)
    np.testing.assert_allclose(root, np.convolve(ones, ones * 0.9 ** np.arange(n))[:n], rtol=1e-11)


@pytest.mark.parametrize("participation", [SINGLE, EPOCHS, APART], ids=lambda p: p["kind"])
@pytest.mark.parametrize("objective", [MEAN, {"kind": "lambda_tau", "tau": 3}], ids=lambda o: o["kind"])
@pytest.mark.parametrize("workload", ["prefix", "momentum", "cosine", "x"])
@pytest.mark.parametrize("bands", [20, 13, 3])
def test_loss_and_gradient(workload: str, objective: Any, participation: Any, bands: int) -> None:
    asked = asked_of(workload, 20, participation, objective, kind="banded_toeplitz", bands=bands)
    generator = np.random.default_rng(1)
    for loss, bands in losses(asked):
        column = strategy_coefficients(20, 0.05)[:bands]
        strategy = toeplitz_rows(np.concatenate([column, np.zeros(20 - bands)]), 0, 20)
        decoder = np.linalg.solve(strategy.T, asked.workload.dense().T).T
        weighted = asked.objective.weigh(decoder)
        error = (weighted**2).sum() * asked.objective.scale(20)
        patterns = feasible(participation, 20)
        squared = max(strategy[:, list(p)].sum(axis=1) @ strategy[:, list(p)].sum(axis=1) for p in patterns)
        if participation == APART and bands <= 5:
            squared = max((strategy[:, list(p)] ** 2).sum() for p in patterns)
        assert loss.value(column) == pytest.approx(error * squared, rel=1e-11)
        direction = generator.normal(size=bands)
        step = 1e-6
        slope = (loss(column + step * direction)[0] - loss(column - step * direction)[0]) / (2 * step)
        assert float(loss(column)[1] @ direction) == pytest.approx(slope, rel=1e-6)


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


def test_published_optimum(reference_values: dict[str, dict[str, Any]]) -> None:
    published = reference_values["P4-prefix-n64"]
    solution, certificate = searched(asked_of("prefix", 64))
    assert certificate.loss.total_squared == pytest.approx(published["optimal_loss"], rel=1e-9)
    assert solution.outcome is Outcome.LOCAL_OPTIMUM and certificate.converged


@pytest.mark.parametrize(("n", "bands", "total"), [(1024, 32, 25147.6814), (2048, 64, 54741.7270)])
def test_published_banded_optimum(n: int, bands: int, total: float) -> None:
    """The values that jax_privacy's optimize_banded_toeplitz reaches."""
    solution, certificate = searched(asked_of("prefix", n, kind="banded_toeplitz", bands=bands))
    assert certificate.loss.total_squared == pytest.approx(total, rel=2e-8)
    assert solution.strategy.bandwidth() == bands
    assert solution.strategy.structure == "banded_toeplitz"


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_no_dense_search_finds_a_better_column(workload: str) -> None:
    """Independent of every line above: dense matrices, numerical derivatives, several starts."""
    n = 7
    asked = asked_of(workload, n)
    a = asked.workload.dense()

    def loss(tail: np.ndarray) -> float:
        strategy = toeplitz_rows(np.concatenate([[1.0], tail]), 0, n)
        return float((np.linalg.solve(strategy.T, a.T) ** 2).sum() * (1 + tail @ tail))

    generator = np.random.default_rng(2)
    starts = [generator.normal(scale=0.5, size=n - 1) for _ in range(4)] + [0.5 ** np.arange(1.0, n)]
    best = min(minimize(loss, start, options={"gtol": 1e-7}).fun for start in starts)
    _, certificate = searched(asked)
    assert certificate.loss.total_squared <= best * (1 + 1e-9)


@pytest.mark.parametrize("workload", ["prefix", "momentum", "srg", "window", "w"])
def test_the_root_is_optimal_for_the_largest_error(workload: str) -> None:
    asked = asked_of(workload, 50, objective={"kind": "max"})
    solution, certificate = searched(asked)
    column = asked.workload.coefficients
    assert column is not None
    root = square_root(column)
    np.testing.assert_allclose(solution.strategy.coefficients(), root / root[0], atol=1e-6)
    assert certificate.loss.max_error == pytest.approx(float(root @ root), rel=1e-12)


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
@pytest.mark.parametrize("participation", [EPOCHS, APART, {"kind": "min_sep", "min_sep": 6, "max_participations": 2}])
def test_several_participations_have_an_exact_sensitivity(workload: str, participation: Any) -> None:
    asked = asked_of(workload, 20, participation)
    solution, certificate = searched(asked)
    assert certificate.sensitivity.kind == "exact"
    plain = strategy_coefficients(20, 0.0)
    for column in (plain, np.where(np.arange(20) < 5, plain, 0.0)):
        other = certify(asked, type(solution.strategy)(column, 20), {}, outcome=Outcome.CLOSED_FORM)
        assert certificate.loss.objective <= other.loss.objective * (1 + 1e-9)


@pytest.mark.parametrize("bands", [1, 3, 5, 8])
@pytest.mark.parametrize("participation", [SINGLE, EPOCHS, APART, {"kind": "fixed_epochs", "epochs": 20}])
def test_bands_are_kept_and_their_number_only_helps(participation: Any, bands: int) -> None:
    solution, certificate = searched(asked_of("momentum", 20, participation, kind="banded_toeplitz", bands=bands))
    assert solution.strategy.bandwidth() <= bands
    assert certificate.sensitivity.kind == "exact"
    _, wider = searched(asked_of("momentum", 20, participation, kind="banded_toeplitz", bands=bands + 1))
    assert wider.loss.objective <= certificate.loss.objective * (1 + 2e-9)


@pytest.mark.parametrize("participation", [SINGLE, EPOCHS], ids=lambda p: p["kind"])
@pytest.mark.parametrize("workload", ["prefix", "srg", "cosine"])
def test_the_estimated_gap_covers_what_is_left(workload: str, participation: Any) -> None:
    asked = asked_of(workload, 64, participation)
    _, reference = searched(asked.model_copy(update={"tolerance": 1e-12}))
    for tolerance in (1e-2, 1e-4, 1e-6):
        problem = Problem(asked.model_copy(update={"tolerance": tolerance}))
        error, report = toeplitz.error_form(problem), Reporter(quiet)
        found = [toeplitz.optimise(64, error, kind, tolerance, report) for kind in toeplitz.classes(problem)]
        best = min(found, key=lambda minimum: minimum.value)
        _, certificate = searched(problem.spec)
        left = certificate.loss.objective / reference.loss.objective - 1
        assert left <= best.gap + 1e-11
        assert best.gap <= tolerance


@pytest.mark.parametrize("workload", ["prefix", "momentum", {"kind": "window", "width": 700}])
def test_the_coarse_start_leads_to_the_same_optimum(monkeypatch: pytest.MonkeyPatch, workload: Any) -> None:
    asked = asked_of(workload, 5000)
    _, certificate = searched(asked)
    monkeypatch.setattr(toeplitz, "_COARSE", 10_000)
    _, direct = searched(asked)
    assert certificate.loss.objective == pytest.approx(direct.loss.objective, rel=2e-9)


def test_loss_lies_between_the_dense_optimum_and_the_best_nu(reference_values: dict[str, dict[str, Any]]) -> None:
    asked = asked_of("prefix", 64)
    certificate = solvers.solve(asked).certificate
    dense = reference_values["P1-prefix-n64"]["optimal_loss"]
    published = reference_values["P4-prefix-n64"]
    assert certificate.lower_bound is not None and certificate.relative_gap is not None
    assert certificate.lower_bound.objective * 64 == pytest.approx(dense, rel=1e-6)
    assert certificate.relative_gap == pytest.approx(published["optimal_loss"] / dense - 1, abs=1e-6)
    assert certificate.loss.total_squared < published["best_nu_loss"]


def test_another_workload_may_be_optimised_for() -> None:
    asked = asked_of("momentum", 40).model_copy(update={"optimize_for": asked_of("prefix", 40).workload})
    solution, certificate = searched(asked)
    prefix, _ = searched(asked_of("prefix", 40))
    np.testing.assert_allclose(solution.strategy.coefficients(), prefix.strategy.coefficients(), rtol=1e-12)
    assert certificate.loss.objective > searched(asked_of("momentum", 40))[1].loss.objective


def test_normalised_columns_are_kept_if_they_help() -> None:
    plain = searched(asked_of("prefix", 64))[1].loss.objective
    for choice in ("columns", "auto"):
        _, certificate = searched(asked_of("prefix", 64, kind="toeplitz", normalization=choice))
        assert certificate.loss.objective < 0.97 * plain
        assert certificate.sensitivity.value == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (asked_of("prefix", 8, kind="banded_toeplitz", bands=9), "bands=9 exceeds n=8"),
        (asked_of("cosine", 8, objective={"kind": "max"}), "not Toeplitz"),
        (asked_of("cosine", 5000), "n=5000 exceeds 4096"),
    ],
)
def test_what_is_refused(asked: Spec, words: str) -> None:
    assert words in (toeplitz.supports(asked) or "")


def test_progress_states_the_class_gap_and_may_cancel() -> None:
    seen: list[Progress] = []
    toeplitz.solve(Problem(asked_of("prefix", 30)), seen.append)
    gaps = [step.class_gap for step in seen if step.class_gap is not None]
    assert len(gaps) > 3 and gaps[-1] < 1e-9 < gaps[0]

    def cancel(step: Progress) -> None:
        raise Cancelled("asked to")

    with pytest.raises(Cancelled):
        toeplitz.solve(Problem(asked_of("prefix", 30)), cancel)


def test_a_large_problem_takes_no_dense_array() -> None:
    """n = 131072: the value of the frontier table, which stopped at a looser gradient."""
    _, certificate = searched(asked_of("prefix", 131_072))
    assert certificate.loss.total_squared == pytest.approx(2774197.10, rel=1e-8)


@pytest.mark.parametrize("participation", [SINGLE, EPOCHS, APART], ids=lambda p: p["kind"])
def test_a_tolerance_below_rounding_is_not_met(participation: Any) -> None:
    asked = asked_of("prefix", 20, participation).model_copy(update={"tolerance": 1e-16})
    solution, certificate = searched(asked)
    assert solution.outcome is Outcome.ROUNDING_LIMIT and not certificate.converged
    assert any("was not met" in warning for warning in certificate.warnings)


def test_a_workload_without_full_column_rank_has_an_optimum() -> None:
    """Rank 2 of 4: compared with a search over dense matrices."""
    array = np.array([[1.0, 0, 0, 0], [2.0, 0, 0, 0], [1.0, 1.0, 0, 0], [1.0, 1.0, 0, 0]])
    asked = asked_of("prefix", 4).model_copy(update={"workload": from_array(array)})
    _, certificate = searched(asked)

    def loss(tail: np.ndarray) -> float:
        strategy = toeplitz_rows(np.concatenate([[1.0], tail]), 0, 4)
        return float((np.linalg.solve(strategy.T, array.T) ** 2).sum() * (1 + tail @ tail))

    best = min(minimize(loss, start, options={"gtol": 1e-8}).fun for start in (np.zeros(3), 0.5 ** np.arange(1.0, 4)))
    assert certificate.loss.total_squared == pytest.approx(best, rel=1e-8)
    assert certificate.class_lower_bound is None
