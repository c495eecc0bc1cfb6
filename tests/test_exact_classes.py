"""Lower bounds within a class, proved again from C: no member of the class is below, and false claims are refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from exact_files import SOLVER, parts, sealed

import solvers
from factorize import parse_spec
from factorize.exact import Report, check_factor_file, classes
from factorize.exact.intervals import NotEnclosed
from factorize.exact.strategy import Strategy
from factorize.exact.workload import toeplitz_column, workload_numbers
from factorize.factorization import Factorization
from factorize.solution import Outcome, Solution
from factorize.structures.banded import BandedMatrix
from factorize.structures.matrix import Matrix
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


def solved(
    mechanism: dict[str, Any], workload: str, participation: dict[str, Any], objective: dict[str, Any], tolerance: float
) -> Factorization:
    document = {
        "workload": WORKLOADS[workload],
        "participation": participation,
        "objective": objective,
        "mechanism": mechanism,
        "tolerance": tolerance,
    }
    return solvers.solve(parse_spec(document))


def proved(report: Report) -> bool:
    return any("of the mechanism's class" in text for text in report.checked)


def bound_of(result: Factorization) -> float:
    spec = result.spec.document()
    entry = result.manifest["matrices"]["C"]
    tensors = {
        name.removeprefix("C").removeprefix("."): array for name, array in result.tensors().items() if name[0] == "C"
    }
    strategy = Strategy(entry["structure"], tensors, N)
    workload = workload_numbers(spec["workload"], {})
    return float(classes.class_bound(spec, strategy, workload, toeplitz_column(spec["workload"]), {}))


def first_column(result: Factorization, kind: str) -> np.ndarray:
    return np.array(result.rows("C", 0, N))[: N if kind == "toeplitz" else BANDS, 0]


def member(rng: np.random.Generator, kind: str, column: np.ndarray) -> Matrix:
    """Something in the class, near an optimum or far from it."""
    near = 10.0 ** -rng.integers(1, 5)
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
    rng, count = np.random.default_rng(1), 0
    mechanism = {"kind": kind} if kind == "toeplitz" else {"kind": kind, "bands": BANDS}
    workloads = list(WORKLOADS)[: 3 if kind == "banded" else 2]
    for workload, participation in itertools.product(workloads, PARTICIPATIONS):
        result = solved(mechanism, workload, participation, OBJECTIVES[place], 1e-9)
        claimed = result.certificate.class_lower_bound is not None
        try:
            bound = bound_of(result)
        except NotEnclosed:
            assert not claimed or (kind == "toeplitz" and participation["kind"] != "single")
            continue
        count += 1
        assert proved(check_factor_file(sealed(*parts(result)))) == claimed
        assert bound <= result.certificate.loss.objective <= bound * (1 + 1e-6)
        column = first_column(result, kind)
        for _ in range(8):
            other = Solution(member(rng, kind, column), Outcome.CLOSED_FORM, 0)
            loss = Factorization.from_solution(result.spec, other, solver=SOLVER).certificate.loss
            assert loss.objective >= bound * (1 - 1e-12)
    assert count >= 2


@pytest.mark.parametrize("kind", ["banded", "banded_toeplitz", "toeplitz"])
def test_a_bound_that_the_class_does_not_have(kind: str) -> None:
    """Far from its optimum C proves less than its objective, and a claim in between is no bound."""
    mechanism = {"kind": kind} if kind == "toeplitz" else {"kind": kind, "bands": BANDS}
    exact = solved(mechanism, "prefix", PARTICIPATIONS[0], OBJECTIVES[0], 1e-9)
    (name, optimum), rng = next(iter(exact.tensors().items())), np.random.default_rng(2)
    moved = optimum * (1 + 0.01 * rng.random(optimum.shape))
    assert name == ("C.bands" if kind == "banded" else "C.coefficients")
    strategy: Matrix
    if kind == "banded":
        strategy = BandedMatrix(moved / np.linalg.norm(moved, axis=0))
    else:
        strategy = ToeplitzMatrix(moved, N)
    result = Factorization.from_solution(exact.spec, Solution(strategy, Outcome.CLOSED_FORM, 0), solver=SOLVER)
    bound, attained = bound_of(result), result.certificate.loss.objective
    assert bound < attained * (1 - 1e-6)
    for claim, holds in ((bound, True), (bound * (1 + 1e-7), False), (attained, False)):
        manifest, tensors = parts(result)
        manifest["certificate"]["class_lower_bound"] = {"objective": claim, "rule": "mine"}
        manifest["certificate"]["converged"] = False
        report = check_factor_file(sealed(manifest, tensors))
        assert report.supported == holds and proved(report) == holds, (claim, report.failed)


def test_a_banded_result_converges_against_the_bound_of_its_class() -> None:
    result = solved({"kind": "banded", "bands": BANDS}, "prefix", PARTICIPATIONS[0], OBJECTIVES[0], 1e-6)
    manifest, tensors = parts(result)
    assert any("converged: the gap" in text for text in check_factor_file(sealed(manifest, tensors)).checked)
    manifest["certificate"]["class_lower_bound"]["objective"] *= 1 - 1e-5
    assert any("converged" in text for text in check_factor_file(sealed(manifest, tensors)).failed)


def test_long_toeplitz_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By series alone, as beyond whole matrices; multipliers of both signs are left unchecked there."""
    report = check_factor_file(
        sealed(*parts(solved({"kind": "toeplitz"}, "prefix", PARTICIPATIONS[0], OBJECTIVES[0], 1e-9))), whole=4
    )
    assert report.supported and proved(report)
    monkeypatch.setattr(classes, "LARGEST_WHOLE", 4)
    signed = solved({"kind": "banded_toeplitz", "bands": 4}, "prefix", PARTICIPATIONS[0], OBJECTIVES[3], 1e-9)
    report = check_factor_file(sealed(*parts(signed)), whole=4)
    assert report.supported and any("both signs" in text for text in report.not_checked)
    banded = solved({"kind": "banded", "bands": BANDS}, "prefix", PARTICIPATIONS[0], OBJECTIVES[0], 1e-6)
    report = check_factor_file(sealed(*parts(banded)), whole=4)
    assert report.supported and any("the class banded is not evaluated" in text for text in report.not_checked)
