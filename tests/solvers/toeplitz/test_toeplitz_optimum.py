"""The best Toeplitz strategy: published values, dense searches, exact sensitivities, and the bound over its class.

Where columns cannot overlap the bound over all Toeplitz matrices is attained, and never above any member of the class.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from specs import spec_of

from factorize import solvers
from factorize.factors.certificate import Certificate, certify
from factorize.factors.factorization import Factorization
from factorize.factors.solution import Outcome
from factorize.numbers.triangular import toeplitz_rows
from factorize.solvers.formulas.closed_form import strategy_coefficients
from factorize.solvers.methods.transforms import square_root
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
    "cosine": {"kind": "schedule", "learning_rates": {"kind": "cosine_to_last", "final": 0.0}},
}
INVARIANT = sorted(set(WORKLOADS) - {"cosine", "x"})
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


def searched(asked: Spec) -> tuple[Factorization, Certificate]:
    """Solve without dual evidence over all matrices, which is a dense solver's work and takes most of the time."""
    found = solvers.solve(asked, evidence=False)
    return found, found.certificate


def test_published_optimum(reference_values: dict[str, dict[str, Any]]) -> None:
    published = reference_values["P4-prefix-n64"]
    found, certificate = searched(asked_of("prefix", 64))
    assert certificate.loss.total_squared == pytest.approx(published["optimal_loss"], rel=1e-9)
    assert found.manifest["solver"]["outcome"] == "local_optimum" and certificate.converged


@pytest.mark.parametrize(("n", "bands", "total"), [(1024, 32, 25147.6814), (2048, 64, 54741.7270)])
def test_published_banded_optimum(n: int, bands: int, total: float) -> None:
    """The values that jax_privacy's optimize_banded_toeplitz reaches."""
    found, certificate = searched(asked_of("prefix", n, kind="banded_toeplitz", bands=bands))
    assert certificate.loss.total_squared == pytest.approx(total, rel=2e-8)
    assert found.strategy.bandwidth() == bands
    assert found.strategy.structure == "banded_toeplitz"


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
    found, certificate = searched(asked)
    column = asked.workload.coefficients
    assert column is not None
    root = square_root(column)
    np.testing.assert_allclose(found.strategy.coefficients(), root / root[0], atol=1e-6)
    assert certificate.loss.max_error == pytest.approx(float(root @ root), rel=1e-12)


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
@pytest.mark.parametrize("participation", [EPOCHS, APART, {"kind": "min_sep", "min_sep": 6, "max_participations": 2}])
def test_several_participations_have_an_exact_sensitivity(workload: str, participation: Any) -> None:
    asked = asked_of(workload, 20, participation)
    found, certificate = searched(asked)
    assert certificate.sensitivity.kind == "exact"
    plain = strategy_coefficients(20, 0.0)
    for column in (plain, np.where(np.arange(20) < 5, plain, 0.0)):
        other = certify(asked, type(found.strategy)(column, 20), {}, outcome=Outcome.CLOSED_FORM)
        assert certificate.loss.objective <= other.loss.objective * (1 + 1e-9)


def test_loss_lies_between_the_dense_optimum_and_the_best_nu(reference_values: dict[str, dict[str, Any]]) -> None:
    asked = asked_of("prefix", 64)
    certificate = solvers.solve(asked).certificate
    dense = reference_values["P1-prefix-n64"]["optimal_loss"]
    published = reference_values["P4-prefix-n64"]
    assert certificate.lower_bound is not None and certificate.relative_gap is not None
    assert certificate.lower_bound.objective * 64 == pytest.approx(dense, rel=1e-6)
    assert certificate.relative_gap == pytest.approx(published["optimal_loss"] / dense - 1, abs=1e-6)
    assert certificate.loss.total_squared < published["best_nu_loss"]


def test_a_large_problem_takes_no_dense_array() -> None:
    """n = 131072: the value of the frontier table, which stopped at a looser gradient."""
    _, certificate = searched(asked_of("prefix", 131_072))
    assert certificate.loss.total_squared == pytest.approx(2774197.10, rel=1e-8)


@pytest.mark.parametrize("participation", [SINGLE, EPOCHS, APART], ids=lambda p: p["kind"])
def test_a_tolerance_below_rounding_is_not_met(participation: Any) -> None:
    asked = asked_of("prefix", 20, participation).model_copy(update={"tolerance": 1e-16})
    found, certificate = searched(asked)
    assert found.manifest["solver"]["outcome"] == "rounding_limit" and not certificate.converged
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


def gap(asked: Spec) -> float:
    """Relative distance between the optimum found and the bound over its class."""
    certificate = searched(asked)[1]
    assert certificate.class_lower_bound is not None
    return certificate.loss.objective / certificate.class_lower_bound.objective - 1


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


def test_long_columns_are_certified_by_ratios() -> None:
    assert 0 < gap(asked_of("prefix", 16_384)) < 1e-6


@pytest.mark.parametrize(("n", "bands"), [(8, 8), (300, 6), (4000, 4000), (4000, 2100)])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_a_workload_that_fades_is_certified(rate: float, n: int, bands: int) -> None:
    """The entries of the singular vector fall by many places, so that a rounding relative to the largest hides some."""
    assert 0 <= gap(asked_of({"kind": "decay", "rate": rate}, n, kind="banded_toeplitz", bands=bands)) < 2e-9


@pytest.mark.parametrize(
    "asked",
    [
        asked_of("prefix", 20, objective={"kind": "lambda_tau", "tau": 3}),
        asked_of("cosine", 20),
        asked_of("prefix", 20).model_copy(update={"optimize_for": asked_of("momentum", 20).workload}),
        asked_of("prefix", 20, EPOCHS),
        asked_of("prefix", 20, APART, kind="banded_toeplitz", bands=6),
    ],
    ids=["lambda_tau", "schedule", "optimize_for", "overlap", "overlapping bands"],
)
def test_nothing_is_claimed_elsewhere(asked: Spec) -> None:
    _, certificate = searched(asked)
    assert certificate.class_lower_bound is None
