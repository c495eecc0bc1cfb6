"""Lower bounds within a class, proved again from C: no member of the class is below, and false claims are refused."""

from __future__ import annotations

import itertools
from contextlib import suppress
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from checker_files import parts, sealed
from scipy.optimize import minimize, minimize_scalar
from specs import claimed, solved, spec_of

from factorize.checker.arithmetic.balls import of_doubles
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.bounds import classes
from factorize.checker.check import check_factor_file
from factorize.checker.participation import allowed
from factorize.checker.report import CLASS_BOUND, Report, Status
from factorize.checker.strategy import Strategy
from factorize.checker.utility import Utility
from factorize.factors.factorization import Factorization
from factorize.structures.banded import BandedMatrix
from factorize.structures.base import Matrix
from factorize.structures.toeplitz import ToeplitzMatrix

N = 12
WORKLOADS: dict[str, dict[str, Any]] = {
    "prefix": {"kind": "prefix", "n": N},
    "momentum": {"kind": "momentum", "n": N, "momentum": 0.9},
    "rates": {"kind": "schedule", "n": N, "learning_rates": [1.0, 0.0, *[0.5] * (N - 2)]},
}
PARTICIPATIONS: list[dict[str, Any]] = [
    {"kind": "single"},
    {"kind": "min_sep", "min_sep": 4, "max_participations": 2},
    {"kind": "fixed_epochs", "epochs": 3},
]
OBJECTIVES: list[dict[str, Any]] = [
    {"kind": "mean"},
    {"kind": "lambda_tau", "tau": 5},
    {"kind": "weighted", "weights": [1.0 + i % 3 for i in range(N)]},
    {"kind": "max"},
]
BANDS = 3


def proved(report: Report) -> bool:
    return report.status(CLASS_BOUND) is Status.PROVED


def bound_of(result: Factorization) -> float:
    spec = result.spec.document()
    entry = result.manifest["matrices"]["C"]
    tensors = {
        name.removeprefix("C").removeprefix("."): array for name, array in result.tensors().items() if name[0] == "C"
    }
    strategy = Strategy(entry["structure"], tensors, result.spec.workload.n)
    return Utility(spec, strategy, {}, {}).class_bound.objective


def first_column(result: Factorization, kind: str) -> np.ndarray:
    return np.array(result.rows("C", 0, N))[: N if kind == "toeplitz" else BANDS, 0]


def member(rng: np.random.Generator, kind: str, column: np.ndarray) -> Matrix:
    """Something in the class, near an optimum or far from it."""
    near = 10.0 ** -rng.integers(0, 8)
    if kind == "banded":
        bands = column[:BANDS, None] * (1 + near * rng.standard_normal((BANDS, N)))
        for d in range(BANDS):
            bands[d, N - d :] = 0.0
        bands[0] = np.abs(bands[0]) + 0.1
        return BandedMatrix(bands / np.linalg.norm(bands, axis=0))
    moved = column * (1 + near * rng.standard_normal(len(column)))
    moved[0] = abs(moved[0]) + 0.1
    return ToeplitzMatrix(moved, N)


@pytest.mark.parametrize(
    ("kind", "place"),
    [*((k, p) for k in ("toeplitz", "banded_toeplitz") for p in (0, 2, 3)), *(("banded", p) for p in (0, 1, 2))],
)
def test_no_member_of_the_class_is_below_the_bound(kind: str, place: int) -> None:
    """Neither below that of the optimum nor below its own."""
    rng, count = np.random.default_rng(1), 0
    mechanism = {"kind": kind} if kind == "toeplitz" else {"kind": kind, "bands": BANDS}
    workloads = list(WORKLOADS)[: 3 if kind == "banded" else 2]
    for workload, participation in itertools.product(workloads, PARTICIPATIONS):
        result = solved(WORKLOADS[workload], mechanism, participation, OBJECTIVES[place], tolerance=1e-9)
        has_bound = result.certificate.class_lower_bound is not None
        try:
            bound = bound_of(result)
        except NotEnclosed:
            assert not has_bound
            continue
        count += 1
        assert proved(check_factor_file(sealed(*parts(result)))) == has_bound
        assert bound <= result.certificate.loss.objective <= bound * (1 + 1e-6)
        column = first_column(result, kind)
        for _ in range(8):
            elsewhere = claimed(result.spec, member(rng, kind, column))
            assert elsewhere.certificate.loss.objective >= bound * (1 - 1e-12)
            with suppress(NotEnclosed):
                assert bound_of(elsewhere) <= result.certificate.loss.objective * (1 + 1e-12)
    assert count >= 2


@pytest.mark.parametrize("kind", ["banded", "banded_toeplitz", "toeplitz"])
def test_a_bound_that_the_class_does_not_have(kind: str) -> None:
    """Far from its optimum C proves less than its objective, and a claim in between is no bound."""
    mechanism = {"kind": kind} if kind == "toeplitz" else {"kind": kind, "bands": BANDS}
    exact = solved(WORKLOADS["prefix"], mechanism, PARTICIPATIONS[0], OBJECTIVES[0], tolerance=1e-9)
    (name, optimum), rng = next(iter(exact.tensors().items())), np.random.default_rng(2)
    moved = optimum * (1 + 0.01 * rng.random(optimum.shape))
    assert name == ("C.bands" if kind == "banded" else "C.coefficients")
    strategy: Matrix
    if kind == "banded":
        strategy = BandedMatrix(moved / np.linalg.norm(moved, axis=0))
    else:
        strategy = ToeplitzMatrix(moved, N)
    result = claimed(exact.spec, strategy)
    bound, attained = bound_of(result), result.certificate.loss.objective
    assert bound < attained * (1 - 1e-6)
    for claim, holds, general in (
        (bound, True, None),
        (bound * (1 + 1e-7), False, None),
        (attained, False, None),
        (attained, False, {"objective": attained, "rule": "mine"}),  # a false one over all C supports none of a class
    ):
        manifest, tensors = parts(result)
        manifest["certificate"]["lower_bound"] = general
        manifest["certificate"]["class_lower_bound"] = {"objective": claim, "rule": "mine"}
        manifest["certificate"]["converged"] = False
        report = check_factor_file(sealed(manifest, tensors))
        assert report.supported == holds and proved(report) == holds, (claim, report.failed)


@pytest.mark.parametrize(
    ("workload", "objective"),
    [
        ({"kind": "prefix"}, {"kind": "mean"}),
        ({"kind": "prefix"}, {"kind": "lambda_tau", "tau": 7}),
        ({"kind": "momentum", "momentum": 0.9}, {"kind": "mean"}),
        (
            {"kind": "schedule", "learning_rates": [1.0, 0.0, *[0.5] * 298]},
            {"kind": "weighted", "weights": [2.0] * 300},
        ),
    ],
    ids=["prefix", "restarts", "momentum", "rates"],
)
@pytest.mark.parametrize("bands", [2, 150])
def test_a_strategy_near_the_best_of_its_band_proves_nearly_as_much(
    workload: dict[str, Any], objective: dict[str, Any], bands: int
) -> None:
    best = solved({**workload, "n": 300}, {"kind": "banded", "bands": bands}, None, objective)
    optimum, diagonals = best.certificate.loss.objective, best.tensors()["C.bands"]
    assert optimum * (1 - 1e-9) <= bound_of(best) <= optimum
    moved = diagonals + 1e-5 * np.random.default_rng(3).standard_normal(diagonals.shape) * (diagonals != 0)
    near = claimed(best.spec, BandedMatrix(moved / np.linalg.norm(moved, axis=0)))
    assert optimum * (1 - 1e-3) <= bound_of(near) <= optimum


def test_columns_of_one_pattern_share_the_sensitivity_unevenly() -> None:
    """Prefix sums of 4 steps in 2 epochs, C diagonal: the least sum a_j / x_j with x_0 + x_2 = x_1 + x_3 = 1.

    For equal x it is 2 (4 + 3 + 2 + 1) / 4, else ((2 + sqrt 2)^2 + (sqrt 3 + 1)^2) / 4, which is 4 % less.
    """
    epochs, least = {"kind": "fixed_epochs", "epochs": 2}, ((2 + 2**0.5) ** 2 + (3**0.5 + 1) ** 2) / 4
    best = solved({"kind": "prefix", "n": 4}, {"kind": "banded", "bands": 1}, epochs, OBJECTIVES[0], tolerance=1e-9)
    assert best.certificate.class_lower_bound is not None and best.certificate.converged
    assert best.certificate.loss.objective == pytest.approx(least, rel=1e-9)
    assert best.certificate.class_lower_bound.objective == pytest.approx(least, rel=1e-9)
    assert proved(check_factor_file(sealed(*parts(best))))

    equal = claimed(best.spec, BandedMatrix(np.ones((1, 4))))
    bound = equal.certificate.class_lower_bound
    assert bound is not None and bound.objective == pytest.approx(5.0, abs=1e-8)
    report = check_factor_file(sealed(*parts(equal)))
    (why,) = (entry["why"] for entry in report.claims if entry["claim"] == CLASS_BOUND)
    assert "over matrices with these bands and columns of equal norm" in why

    apart = {"kind": "min_sep", "min_sep": 2, "max_participations": 2}
    uneven = claimed(
        spec_of({"kind": "prefix", "n": 4}, {"kind": "banded", "bands": 1}, apart),
        BandedMatrix(np.sqrt([[1.2, 1.1, 0.8, 0.9]])),
    )
    assert uneven.certificate.class_lower_bound is None and not uneven.certificate.converged


@pytest.mark.parametrize("bands", [3])
def test_banded_epochs_reach_what_a_plain_descent_finds(bands: int) -> None:
    """All entries and shares by a quasi-Newton method that knows nothing of the class but its definition."""
    n, epochs = 12, 3
    found = solved(
        {"kind": "momentum", "n": n, "momentum": 0.5},
        {"kind": "banded", "bands": bands},
        {"kind": "fixed_epochs", "epochs": epochs},
        OBJECTIVES[0],
    )
    target, below = found.spec.workload.dense(), [(j + d, j) for d in range(bands) for j in range(n - d)]

    def loss(entries: np.ndarray) -> float:
        strategy = np.zeros((n, n))
        strategy[tuple(zip(*below, strict=True))] = entries
        shares = (strategy**2).sum(axis=0).reshape(epochs, -1).sum(axis=0)
        strategy /= np.sqrt(np.tile(shares, epochs))
        return float((np.linalg.solve(strategy.T, target.T) ** 2).sum()) / n

    start = found.strategy.dense()[tuple(zip(*below, strict=True))] * np.random.default_rng(0).uniform(
        0.9, 1.1, len(below)
    )
    best = minimize(loss, start, method="BFGS", options={"gtol": 1e-7}).fun
    assert best == pytest.approx(found.certificate.loss.objective, rel=1e-5)
    assert best >= found.certificate.class_lower_bound.objective * (1 - 1e-9)


def test_classes_that_are_not_reached_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multipliers of both signs beyond whole matrices, bands beyond them, and Toeplitz columns that overlap."""
    monkeypatch.setattr(classes, "MAX_N_COMPUTED", 4)
    monkeypatch.setattr("factorize.checker.utility.MAX_N_IN_BAND", 4)
    apart, overlapping = PARTICIPATIONS[0], {"kind": "fixed_epochs", "epochs": 3}
    for mechanism, participation, objective in (
        ({"kind": "banded_toeplitz", "bands": 4}, apart, OBJECTIVES[3]),
        ({"kind": "banded", "bands": BANDS}, apart, OBJECTIVES[0]),
        ({"kind": "toeplitz"}, overlapping, OBJECTIVES[0]),
    ):
        result = solved(WORKLOADS["prefix"], mechanism, participation, objective, tolerance=1e-6)
        manifest, tensors = parts(result)
        manifest["certificate"]["class_lower_bound"] = {"objective": result.certificate.loss.objective, "rule": "mine"}
        report = check_factor_file(sealed(manifest, tensors))
        assert any(text.startswith("the class_lower_bound") for text in report.not_checked), mechanism


class TestByHand:
    """Three steps, two diagonals, one user at steps 0 and 2 or at 1: columns (a, b, 0) and (0, 0, a).

    The squared sensitivity is 2 a^2 + b^2: the first coefficient counts twice, the second once.
    """

    SPEC: dict[str, Any] = {
        "participation": {"kind": "min_sep", "min_sep": 2, "max_participations": 2},
        "objective": {"kind": "mean"},
        "mechanism": {"kind": "banded_toeplitz", "bands": 2},
    }

    @staticmethod
    def bound(column: Any, workload: Any, **changes: Any) -> Fraction:
        numbers, spec = of_doubles(np.array(workload, dtype=np.float64)), TestByHand.SPEC | changes
        form = allowed(spec["participation"], len(column))
        return classes.toeplitz_bound(spec, np.array(column, dtype=np.float64), numbers, form)

    @pytest.mark.parametrize("workload", [(1.0, 1.0, 1.0), (1.0, 0.5, 0.25), (1.0, -0.5, 0.25)])
    def test_the_bound_is_the_least_objective(self, workload: tuple[float, ...]) -> None:
        """(2 + c^2) (3 d_0^2 + 2 d_1^2 + d_2^2) / 3 for a = 1, b = c and d = (1, c, 0)^-1 times the workload's column."""

        def objective(c: float) -> float:
            d0 = workload[0]
            d1 = workload[1] - c * d0
            d2 = workload[2] - c * d1
            return (2 + c * c) * (3 * d0 * d0 + 2 * d1 * d1 + d2 * d2) / 3

        best = minimize_scalar(objective, (-1.0, 1.0), tol=1e-12).x
        found = float(self.bound([1.0, best, 0.0], workload))
        assert objective(best) * (1 - 1e-8) <= found <= objective(best) * (1 + 1e-12)

    def test_what_the_class_does_not_reach(self) -> None:
        asked = [1.0, 0.5, 0.0], [1.0, 1.0, 1.0]
        restarts, last = {"kind": "lambda_tau", "tau": 2}, {"kind": "weighted", "weights": [1.0, 1.0, 0.0]}
        for column, changes, reason in (
            ([1.0, 0.5, 0.25], {}, "more diagonals"),
            (asked[0], {"objective": restarts}, "objective lambda_tau"),
            (asked[0], {"objective": last}, "last rows have no weight"),
            ([1.0, 1e200, 0.0], {}, "grows too much"),
            ([1.0, 0.5, 0.0], {"mechanism": {"kind": "banded_toeplitz", "bands": 3}}, "can overlap"),
        ):
            with np.errstate(all="ignore"), pytest.raises(NotEnclosed, match=reason):
                self.bound(column, asked[1], **changes)
