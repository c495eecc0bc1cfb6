"""Enclosures in doubles beside integers: whatever the sizes of entries, they hold what integers find, or say nothing."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from exact_files import fractions, parts, sealed
from hypothesis import given, settings
from hypothesis import strategies as st

from factorize import parse_spec, solvers
from factorize.errors import CertificateError
from factorize.exact import check_factor_file
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.bounds.bound import lower_bound
from factorize.exact.doubles import (
    dense_losses,
    polar_bound,
    roundings,
    triangles,
)
from factorize.exact.doubles.dense_proof import DenseProof
from factorize.exact.doubles.workload_rows import WorkloadRows
from factorize.exact.file import FactorFile, read_factor_file
from factorize.exact.losses import residual
from factorize.exact.losses.widths import WIDEST
from factorize.exact.spec import workload_numbers
from factorize.exact.strategy import Strategy

RATES = {"kind": "schedule", "n": 12, "learning_rates": [1.0, 0.3, 0.7] * 4}
WORKLOADS: list[dict[str, Any]] = [
    {"kind": "prefix", "n": 12},
    {"kind": "identity", "n": 12},
    {"kind": "decay", "n": 12, "rate": 0.7},
    {"kind": "momentum", "n": 12, "momentum": 0.9, "nesterov": True, "learning_rates": RATES["learning_rates"]},
    {"kind": "weight_decay", "n": 12, "rate": 0.1, "momentum": 0.5, "mode": "decoupled"},
    {"kind": "srg", "n": 12, "decay": 0.3, "momentum": 0.9},
    {"kind": "mu2", "n": 12, "output": "x"},
    {"kind": "window", "n": 12, "width": 5},
]
OBJECTIVES: list[dict[str, Any]] = [
    {"kind": "mean"},
    {"kind": "max"},
    {"kind": "lambda_tau", "tau": 5},
    {"kind": "lambda_tau", "tau": 40},
    {"kind": "weighted", "weights": [0.5, 0.0, 2.0] * 4},
]


def random_strategy(seed: int, n: int, spread: int, steep: float) -> np.ndarray:
    """A lower-triangular matrix whose columns are 2^spread apart, and whose entries below the diagonal are steep."""
    random = np.random.default_rng(seed)
    array = np.tril(random.standard_normal((n, n)), -1) * steep + np.diag(random.uniform(0.5, 2.0, n))
    return np.asarray(np.ldexp(array, random.integers(-spread, spread + 1, n)))


def proof_of(
    array: np.ndarray, workload: dict[str, Any], objective: dict[str, Any], user: dict[str, np.ndarray] | None = None
) -> DenseProof:
    spec = {"workload": workload, "objective": objective, "participation": {"kind": "single"}, "mechanism": {}}
    return DenseProof(spec, Strategy("dense", {"": array}, len(array)), {}, user or {})


def test_prefix_sums_are_exact() -> None:
    found = WorkloadRows({"kind": "prefix", "n": 50}, {}).row_block(0, 50)
    assert not found.errors.any() and (found.values == np.tril(np.ones((50, 50)))).all()


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda document: str(document["kind"]))
def test_losses_of_columns_with_factors_hold_those_of_integers(
    workload: dict[str, Any], objective: dict[str, Any]
) -> None:
    """Entries times factors are rounded, as enclosed ones are, and that counts: enclosures hold, and are narrow."""
    luck = np.random.default_rng(7)
    array, scale = random_strategy(7, 12, 0, 0.3), luck.uniform(0.3, 3.0, 12)
    taps = {"inverse_coefficients": np.array([1.0, -0.5, -0.3])}
    spec = {"workload": workload, "objective": objective, "participation": {"kind": "single"}, "mechanism": {}}
    numbers = workload_numbers(workload, {})
    assert numbers is not None
    for strategy in (
        Strategy("scaled", {"": array, "column_scale": scale}, 12),
        Strategy("scaled", taps | {"column_scale": scale}, 12),
        Strategy("inverse_banded_toeplitz", taps, 12),
    ):
        found, exact = (
            DenseProof(spec, strategy, {}, {}).losses(),
            residual.losses(strategy, numbers, objective, None),
        )
        for name in ("total", "largest", "last", "objective"):
            (low, high), (least, most) = getattr(found.ends, name), getattr(exact, name)
            assert low <= most and least <= high
            assert high - low <= WIDEST * high


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 2**32),
    st.integers(1, 12),
    st.sampled_from([0, 3, 40, 200, 480]),
    st.sampled_from([0.0, 0.1, 1.0, 3.0]),
    st.sampled_from(OBJECTIVES[:3]),
)
def test_losses_hold_those_of_integers(seed: int, n: int, spread: int, steep: float, objective: dict[str, Any]) -> None:
    array = random_strategy(seed, n, spread, steep)
    workload = {"kind": "prefix", "n": n}
    numbers = workload_numbers(workload, {})
    assert numbers is not None
    try:
        found = proof_of(array, workload, objective).losses()
    except NotEnclosed:
        assert spread > 0 or steep > 1
        return
    try:
        exact = residual.losses(Strategy("dense", {"": array}, n), numbers, objective, None)
    except CertificateError:
        return  # a B that substitution spoils, which nothing here rests on
    for name in ("total", "largest", "last", "objective"):
        (low, high), (least, most) = getattr(found.ends, name), getattr(exact, name)
        assert low <= most and least <= high and low <= high
        assert high - low <= WIDEST * high


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_losses_of_every_workload_and_objective(
    workload: dict[str, Any], objective: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks of five steps, so that rows refer to blocks before theirs."""
    monkeypatch.setattr(dense_losses, "blocks_of", lambda n: ((s, min(s + 5, n)) for s in range(0, n, 5)))
    array = random_strategy(5, 12, 0, 0.3)
    numbers = workload_numbers(workload, {})
    assert numbers is not None
    found = proof_of(array, workload, objective).losses()
    exact = residual.losses(Strategy("dense", {"": array}, 12), numbers, objective, None)
    for name in ("total", "largest", "last", "objective"):
        (low, high), (least, most) = getattr(found.ends, name), getattr(exact, name)
        assert low <= most and least <= high and high - low <= 1e-11 * high
    assert found.residual < 1e-12


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 9), st.integers(0, 300))
def test_a_priori_bounds_hold_for_products(seed: int, rows: int, n: int, spread: int) -> None:
    random = np.random.default_rng(seed)
    left = np.ldexp(random.standard_normal((rows, n)), random.integers(-spread, spread + 1, (rows, n)))
    right = random_strategy(seed, n, spread, 1.0)
    made = triangles.times_lower(left, right)
    off = dense_losses._rounded(np.abs(left), roundings.row_norms(right))
    for a, row, bound in zip(fractions(left), made, off, strict=True):
        true = [
            sum((x * y for x, y in zip(a, c, strict=True)), Fraction(0)) for c in zip(*fractions(right), strict=True)
        ]
        away = sum(((Fraction(float(x)) - y) ** 2 for x, y in zip(row, true, strict=True)), Fraction(0))
        assert away <= Fraction(float(bound)) ** 2


BOUNDED: list[dict[str, Any]] = [
    {"workload": {"kind": "prefix", "n": 12}},
    {"workload": {"kind": "window", "n": 12, "width": 5}},
    {"workload": {"kind": "prefix", "n": 12}, "objective": {"kind": "lambda_tau", "tau": 4}},
    {"workload": {"kind": "prefix", "n": 12}, "objective": {"kind": "weighted", "weights": [1.0, 2.0, 0.5] * 4}},
    {"workload": {"kind": "prefix", "n": 12}, "participation": {"kind": "fixed_epochs", "epochs": 3}},
    {"workload": RATES, "participation": {"kind": "fixed_epochs", "epochs": 2}},
]


def proof_beside_integers(document: dict[str, Any]) -> tuple[FactorFile, Callable[[Any], DenseProof], Fraction]:
    """Solve for 12 steps: the file, its proof for any evidence, and the bound that integers prove by its own."""
    file = read_factor_file(sealed(*parts(solvers.solve(parse_spec(document)))))
    spec = file.manifest["spec"]
    strategy = Strategy(file.manifest["matrices"]["C"]["structure"], file.matrices["C"], 12)
    numbers = workload_numbers(spec["workload"], {})
    assert numbers is not None
    exact = lower_bound(spec, file.dual, numbers)
    assert exact is not None
    return file, lambda dual: DenseProof(spec, strategy, dual, {}), exact


def assert_near_below(found: Fraction, exact: Fraction) -> None:
    assert found <= exact * (1 + Fraction(1, 10**13))
    assert float(found) == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize("document", BOUNDED)
def test_bounds_are_those_of_integers(document: dict[str, Any]) -> None:
    file, proof, exact = proof_beside_integers(document)
    assert_near_below(proof(file.dual).lower_bound(), exact)


@pytest.mark.parametrize(
    "document",
    [
        {"workload": RATES, "participation": {"kind": "min_sep", "min_sep": 5}},  # patterns of 3 and of 2 steps
        {"workload": {"kind": "prefix", "n": 12}, "participation": {"kind": "min_sep", "min_sep": 4}},
        {"workload": {"kind": "prefix", "n": 12}, "participation": {"kind": "fixed_epochs", "epochs": 3}},
    ],
)
def test_bounds_by_singular_vectors_are_those_of_integers(document: dict[str, Any]) -> None:
    """Without help from C, which is the best of few bands here and far from the optimum over all matrices."""
    bands = {"kind": "banded", "bands": 4} if document["participation"]["kind"] == "min_sep" else {"kind": "dense"}
    file, proof, exact = proof_beside_integers({**document, "mechanism": bands})
    for power in (0, -900, 900):  # squares of numbers as small or as large leave the range of doubles
        dual = {"factors": np.ldexp(file.dual["factors"], power)}
        assert_near_below(proof(dual).lower_bound_by_vectors(), exact)
    luck = np.random.default_rng(4)
    for _ in range(5):  # any evidence proves something, and nothing false
        below = proof({"factors": luck.standard_normal(file.dual["factors"].shape)}).lower_bound_by_vectors()
        assert 0 < below <= file.manifest["certificate"]["loss"]["objective"]


@pytest.mark.parametrize("document", [BOUNDED[4]])
def test_a_bad_guess_weakens_a_bound(document: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Any P gives a bound: never above the nuclear norm."""
    file = read_factor_file(sealed(*parts(solvers.solve(parse_spec(document)))))
    spec = file.manifest["spec"]
    proof = DenseProof(spec, Strategy("dense", file.matrices["C"], 12), file.dual, {})
    good = float(proof.lower_bound())
    honest = polar_bound.polar_guess
    for seed in range(20):
        noise = np.random.default_rng(seed).standard_normal((12, 12)) * 10.0 ** -(seed % 5 + 1)
        monkeypatch.setattr(
            "factorize.exact.doubles.dense_proof.polar_guess", lambda *given, e=noise: honest(*given) + e
        )
        try:
            assert float(proof.lower_bound()) <= good * (1 + 1e-9)
        except NotEnclosed as reason:
            assert "orthonormal" in str(reason)


def test_evidence_that_is_none() -> None:
    file = read_factor_file(sealed(*parts(solvers.solve(parse_spec(BOUNDED[4])))))
    spec, strategy = file.manifest["spec"], Strategy("dense", file.matrices["C"], 12)
    zero = {"factors": np.zeros_like(file.dual["factors"])}
    with pytest.raises(CertificateError, match="all zero"):
        DenseProof(spec, strategy, zero, {}).lower_bound()
    for other in ({}, {"weights": np.ones(12)}):
        with pytest.raises(NotEnclosed, match="not evaluated"):
            DenseProof(spec, strategy, other, {}).lower_bound()
    singular = {"factors": file.dual["factors"].copy()}
    singular["factors"][1] = 0.0
    with pytest.raises(NotEnclosed, match="singular"):
        DenseProof(spec, strategy, singular, {}).lower_bound()
    with pytest.raises(NotEnclosed, match="all zero"):
        DenseProof(spec, strategy, zero, {}).lower_bound_by_vectors()
    with pytest.raises(CertificateError, match="shape"):
        DenseProof(spec, strategy, {"factors": np.ones((1, 2, 2))}, {}).lower_bound()


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize(
    "document", [*BOUNDED, {"workload": {"kind": "prefix", "n": 12}, "mechanism": {"kind": "blt", "buffers": 2}}]
)
def test_both_ways_prove_and_refute_alike(document: dict[str, Any], integers: bool) -> None:
    result = solvers.solve(parse_spec(document))
    report = check_factor_file(sealed(*parts(result)), integers=integers)
    assert report.supported, report.failed
    for name, change in (("loss", 1 - 1e-8), ("lower_bound", 1 + 1e-6), ("sensitivity", 1 - 2.0**-52)):
        manifest, tensors = parts(result)
        claims = manifest["certificate"]
        if name == "loss":
            claims["loss"]["rmse"] *= change
        elif name == "lower_bound":
            claims["lower_bound"]["objective"] *= change
        else:
            value = claims["sensitivity"]["value"] * change
            claims["sensitivity"] |= {"value": value, "hex": value.hex()}
        failed = check_factor_file(sealed(manifest, tensors), integers=integers).failed
        assert failed, (name, document)
