"""Enclosures in doubles beside integers: whatever the sizes of entries, they hold what integers find, or say nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from exact_files import fractions, parts, sealed
from hypothesis import given, settings
from hypothesis import strategies as st

from factorize import parse_spec, solvers
from factorize.errors import CertificateError
from factorize.exact import check_factor_file
from factorize.exact.arithmetic import pairs
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.bounds.bound import lower_bound
from factorize.exact.doubles import (
    dense_losses,
    dense_proof,
    polar_bound,
    roundings,
    triangles,
    vector_bound,
    workload_rows,
)
from factorize.exact.doubles.dense_proof import DenseProof
from factorize.exact.doubles.workload_rows import Near, WorkloadRows
from factorize.exact.file import FactorFile, read_factor_file
from factorize.exact.losses import residual
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


@pytest.mark.parametrize("document", WORKLOADS, ids=lambda document: str(document["kind"]))
def test_workloads_by_rows_and_by_columns(document: dict[str, Any]) -> None:
    exact = workload_numbers(document, {})
    assert exact is not None
    rows = WorkloadRows(document, {})
    true = [[exact.fraction(int(entry)) for entry in row] for row in exact.values]
    width = exact.fraction(exact.radius)
    for start, stop in ((0, 12), (3, 7)):
        within(rows.row_block(start, stop), true[start:stop], width)
    chosen = [7, 0, 3]
    within(rows.column_block(np.array(chosen)), [[row[j] for j in chosen] for row in true], width)
    matrix, states = np.tril(np.random.default_rng(3).standard_normal((12, 12))), dict[int, np.ndarray]()
    applied = np.concatenate([rows.applied(matrix, a, b, states) for a, b in ((0, 5), (5, 12))])
    assert np.allclose(applied, np.array(true, dtype=float) @ matrix, rtol=1e-12, atol=1e-12)


def test_columns_of_a_program_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a length; beyond it each time for those that are asked for. Plain sums are not run at all."""
    runs: list[int] = []
    run = workload_rows._run
    monkeypatch.setattr(workload_rows, "_run", lambda *given: runs.append(1) or run(*given))
    monkeypatch.setattr(workload_rows, "_LONGEST_KEPT", 12)
    for document, times in ((RATES, 1), ({"kind": "prefix", "n": 12}, 0), ({"kind": "decay", "n": 12, "rate": 0.5}, 1)):
        runs.clear()
        rows = WorkloadRows(document, {})
        first = rows.column_block(np.array([3, 1]))
        assert (first.values == rows.column_block(np.array([5, 1, 3])).values[:, [2, 1]]).all()
        assert len(runs) == times
    monkeypatch.setattr(workload_rows, "_LONGEST_KEPT", 11)
    runs.clear()
    rows = WorkloadRows(RATES, {})
    again = rows.column_block(np.array([3, 1])), rows.column_block(np.array([3, 1]))
    assert len(runs) == 2 and (again[0].values == first.values).all() == (again[1].values == first.values).all()


def within(near: Near, true: list[list[Fraction]], width: Fraction) -> None:
    errors = np.broadcast_to(near.errors, near.values.shape)
    for values, off, row in zip(near.values, errors, true, strict=True):
        for value, error, entry in zip(values, off, row, strict=True):
            assert abs(Fraction(float(value)) - entry) <= Fraction(float(error)) + width
            assert error <= 1e-13 * max(1.0, abs(value))


def test_prefix_sums_are_exact() -> None:
    found = WorkloadRows({"kind": "prefix", "n": 50}, {}).row_block(0, 50)
    assert not found.errors.any() and (found.values == np.tril(np.ones((50, 50)))).all()


def test_the_numbers_of_users_matrices() -> None:
    document = {"kind": "matrix", "shape": [2, 3], "sha256": "x"}
    array = np.array([[1.0, 0, 2], [0, 3, 0]])
    assert (WorkloadRows(document, {"x": array}).column_block(np.array([2])).values == [[2.0], [0.0]]).all()
    for wrong in ({}, {"x": array.T}):
        with pytest.raises(NotEnclosed, match="not known here"):
            WorkloadRows(document, wrong)


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
            assert high - low <= dense_losses.WIDEST * high


def test_how_often_entries_of_c_were_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once where columns have factors, and else never."""
    asked: list[int] = []
    honest = dense_proof.enclosed_losses
    monkeypatch.setattr(dense_proof, "enclosed_losses", lambda *given: asked.append(given[4]) or honest(*given))
    spec = {"workload": {"kind": "prefix", "n": 3}, "objective": {"kind": "mean"}, "participation": {"kind": "single"}}
    for structure, parts_of in (("dense", {}), ("scaled", {"column_scale": np.ones(3)})):
        strategy = Strategy(structure, {"": np.tri(3) + np.eye(3), **parts_of}, 3)
        DenseProof({**spec, "mechanism": {}}, strategy, {}, {}).losses()
    assert asked == [0, 1]


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
        assert high - low <= dense_losses.WIDEST * high


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


@given(st.lists(st.floats(-1e200, 1e200), min_size=1, max_size=8))
def test_norms_are_not_below_the_true_ones(numbers: list[float]) -> None:
    true = sum(Fraction(x) ** 2 for x in numbers)
    with np.errstate(over="ignore"):
        found = [
            float(roundings.row_norms(np.array([numbers]))[0]),
            float(roundings.column_norms(np.array([numbers]).T)[0]),
            roundings.norm_of(np.abs(np.array(numbers))) if max(map(abs, numbers)) < 1e150 else np.inf,
        ]
    assert all(np.isinf(norm) or Fraction(norm) ** 2 >= true for norm in found)


def test_the_norm_of_an_inverse() -> None:
    array = random_strategy(11, 40, 0, 0.4)
    inverse = triangles.inverse_of(array)
    found = dense_losses.inverse_norm(array, inverse, roundings.row_norms(array))
    true = float(np.linalg.norm(np.linalg.inv(array), 2))
    assert true <= found <= 7 * true
    wrong = inverse.copy()
    wrong[30, 2] += 1.0
    with pytest.raises(NotEnclosed, match="ill-conditioned"):
        dense_losses.inverse_norm(array, wrong, roundings.row_norms(array))


def test_inverses_in_blocks() -> None:
    array = random_strategy(12, 300, 2, 0.01)
    assert np.allclose(triangles.inverse_of(array) @ array, np.eye(300), atol=1e-8)
    with pytest.raises(NotEnclosed):
        triangles.inverse_of(np.tril(np.full((400, 400), 1e3)) - 999.0 * np.eye(400))
    with pytest.raises(NotEnclosed):
        triangles.inverse_of(np.zeros((3, 3)))


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


@pytest.mark.parametrize(
    "mechanism",
    [
        {"kind": "banded", "bands": 8},
        {"kind": "anti_pgd"},
        {"kind": "banded_inverse_square_root", "bands": 8},
        {"kind": "square_root", "normalization": "columns"},
    ],
)
def test_a_bound_that_c_does_not_suggest_is_proved_without_integers(
    mechanism: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second and the third have no entries of C stored, and the last has factors beside them."""
    spec = {"workload": {"kind": "prefix", "n": 44}, "mechanism": mechanism}
    data = sealed(*parts(solvers.solve(parse_spec({**spec, "participation": {"kind": "min_sep", "min_sep": 8}}))))
    monkeypatch.setattr("factorize.exact.routes.Routes._bound_in_integers", lambda *_: pytest.fail("integers"))
    report = check_factor_file(data)
    said = next(one for one in report.claims if one["claim"] == "certificate.lower_bound")
    assert said["status"] == "proved"


def test_what_needs_entries_of_c_that_are_not_stored_is_left() -> None:
    parts_of = {"diagonal": np.ones(3)} | {name: np.full((3, 1), 0.5) for name in ("decay", "input", "output")}
    spec = {"workload": {"kind": "prefix", "n": 3}, "objective": {"kind": "mean"}, "participation": {"kind": "single"}}
    proof = DenseProof({**spec, "mechanism": {}}, Strategy("buffered", parts_of, 3), {"weights": np.ones(3)}, {})
    for asked in (proof.lower_bound, proof.losses):
        with pytest.raises(NotEnclosed, match="the entries of C are computed from what is stored"):
            asked()


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


@pytest.mark.parametrize("least", [1.0, 1e-3, 1e-7])
def test_a_polar_factor_is_guessed_whatever_the_condition(least: float) -> None:
    """By eigenvectors as long as squares keep enough digits, then by singular vectors."""
    luck = np.random.default_rng(2)
    left, right = (np.linalg.qr(luck.standard_normal((9, 9)))[0] for _ in range(2))
    guess = vector_bound._polar_factor(left * np.geomspace(1.0, least, 9) @ right)
    assert np.abs(guess - left @ right).max() < 1e-8


def test_a_bound_that_is_large_enough_is_not_raised_further(monkeypatch: pytest.MonkeyPatch) -> None:
    file, proof, exact = proof_beside_integers(BOUNDED[4])
    taken, steps = polar_bound._Step.taken, []
    monkeypatch.setattr(polar_bound, "_NEAR", 0.0)
    monkeypatch.setattr(polar_bound._Step, "taken", lambda self, *given: steps.append(self) or taken(self, *given))
    assert_near_below(proof(file.dual).lower_bound(float(exact) * (1 - 1e-9)), exact)
    assert len(steps) == 1
    assert_near_below(proof(file.dual).lower_bound(float(exact) * (1 + 1e-9)), exact)
    assert len(steps) == 1 + polar_bound._MOST_STEPS


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


def test_a_band_has_the_bound_of_integers() -> None:
    document = {"workload": {"kind": "prefix", "n": 24}, "mechanism": {"kind": "banded", "bands": 3}}
    data = sealed(*parts(solvers.solve(parse_spec(document))))
    said = [
        next(one for one in check_factor_file(data, integers=integers).claims if "class" in one["claim"])
        for integers in (False, True)
    ]
    assert [one["status"] for one in said] == ["proved", "proved"]
    bounds = [float(one["why"].split("below ")[1].split(" ")[0]) for one in said]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-9)


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


def test_lengths_that_are_out_of_reach_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    data = sealed(*parts(solvers.solve(parse_spec(BOUNDED[4]))))
    report = check_factor_file(data, whole=8)
    assert report.supported
    assert {"certificate.loss", "certificate.lower_bound"} <= set(report.unseen)
    assert any("whole matrices are multiplied up to n=8" in text for text in report.not_checked)
    assert check_factor_file(data, integers_up_to=8).unseen == []
    monkeypatch.setattr("factorize.exact.doubles.dense_proof.LARGEST", 8)
    assert any("up to n=8" in text for text in check_factor_file(data, integers_up_to=8).not_checked)


def test_doubles_that_do_not_support_a_bound_say_nothing_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond integers a bound that is not reached is left, never called false: the guess may be the reason."""
    monkeypatch.setattr(DenseProof, "lower_bound", lambda self, wanted: Fraction(1))
    monkeypatch.setattr(DenseProof, "lower_bound_by_vectors", lambda self: Fraction(1))
    monkeypatch.setattr(DenseProof, "class_bound", lambda self, wanted: Fraction(1))
    banded = {"workload": {"kind": "prefix", "n": 24}, "mechanism": {"kind": "banded", "bands": 3}}
    for document, claim in ((BOUNDED[4], "lower_bound"), (banded, "class_lower_bound")):
        data = sealed(*parts(solvers.solve(parse_spec(document))))
        report = check_factor_file(data, integers_up_to=8)
        assert report.supported and f"certificate.{claim}" in report.unseen
        assert any("proves 1.0 only" in text for text in report.not_checked)
        assert f"certificate.{claim}" not in check_factor_file(data).unseen


def test_sums_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven products in sums of three: three roundings within a sum and three more; integers come out exactly."""
    monkeypatch.setattr(triangles, "TERMS", 3)
    monkeypatch.setattr(polar_bound, "TERMS", 3)
    assert [triangles.roundings_of(terms) for terms in (1, 3, 4, 7)] == [2, 4, 5, 6]
    rows, lower = np.arange(14.0).reshape(2, 7), np.tril(np.arange(49.0).reshape(7, 7))
    assert (triangles.times_lower(rows, lower) == np.einsum("ij,jk->ik", rows, lower)).all()
    assert (polar_bound._gram(lower, slice(2, 5)) == (lower.T @ lower)[:, 2:5]).all()
    monkeypatch.setattr(polar_bound, "_SIDE", 3)
    assert (polar_bound.whole_gram(rows) == rows.T @ rows).all()
    assert (polar_bound.whole_gram(lower) == lower.T @ lower).all()


def test_a_product_in_pairs_of_blocks_is_that_of_the_matrices() -> None:
    left, right = np.arange(600.0).reshape(2, 300), np.arange(210_000.0).reshape(300, 700) % 17
    assert (vector_bound._product(left, right) == left @ right).all()
    assert (vector_bound._product(right.T, left.T) == right.T @ left.T).all()


def test_no_entry_of_a_gram_matrix_is_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows at one time up to the diagonal: two threads never write to one place."""
    shapes: list[tuple[int, ...]] = []

    def product(left: np.ndarray, right: np.ndarray, *, out: np.ndarray) -> np.ndarray:
        shapes.append(out.shape)
        return np.asarray(np.matmul(left, right, out=out))

    monkeypatch.setattr(polar_bound, "_SIDE", 3)
    monkeypatch.setattr(polar_bound, "np", SimpleNamespace(**vars(np) | {"matmul": product}))
    guess = np.arange(35.0).reshape(5, 7)
    assert (polar_bound.whole_gram(guess) == guess.T @ guess).all()
    assert sorted(shapes) == [(1, 7), (3, 3), (3, 6)]


@pytest.mark.parametrize(("n", "together"), [(12, 1), (256, 1), (257, 3), (4096, 3), (4097, 1)])
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_blocks_two_at_a_time_come_in_order_and_say_nothing_of_what_overflows(
    count: int, n: int, together: int
) -> None:
    held: list[int] = []

    def given() -> Iterator[int]:
        for block in range(count):
            held.append(block)
            yield block

    found = []
    for block, value in pairs.in_pairs(lambda block: np.float64(1e300) * 1e300 + block, given(), n):
        assert len(held) == min(block + together, count), "so many blocks are in memory"
        found.append((block, float(value)))
    assert found == [(block, float("inf")) for block in range(count)]


def test_blocks_are_made_in_two_threads_or_in_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    pool = pairs.ThreadPoolExecutor
    monkeypatch.setattr(pairs, "ThreadPoolExecutor", lambda *given: asked.append(given) or pool(*given))
    for n in (256, 257, pairs.LONGEST_IN_PAIRS + 1):
        assert [value for _, value in pairs.in_pairs(lambda block: block + 1, range(3), n)] == [1, 2, 3]
    assert [most for most, *_ in asked] == [2]


def test_a_guess_is_brought_nearer_in_single_precision() -> None:
    """As long as it is neither near nor far; what it returns is near, up to what single precision rounds."""
    luck = np.random.default_rng(3)
    exact = np.linalg.qr(luck.standard_normal((40, 12)))[0]
    noise = luck.standard_normal((40, 12))
    apart = [_apart(polar_bound._nearer(exact + size * noise)) for size in (1e-7, 1e-4, 1e-2, 1.0)]
    left = [_apart(exact + size * noise) for size in (1e-7, 1e-4, 1e-2, 1.0)]
    assert apart[0] == left[0]
    assert apart[3] == left[3]
    assert max(apart[1:3]) < 2e-5 < min(left[1:])
    lost = np.full((4, 3), np.nan)
    assert polar_bound._nearer(lost) is lost


def _apart(guess: np.ndarray) -> float:
    return float(np.linalg.norm(guess.T @ guess - np.eye(guess.shape[1])))
