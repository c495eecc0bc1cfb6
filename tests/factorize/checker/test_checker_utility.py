"""Losses and bounds beside fractions and answers by hand: whatever the sizes of entries, enclosures hold the truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from checker_files import SOLVER, exact_rows, fractions, parts, sealed
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import solved

from factorize import parse_spec
from factorize.certificate import certificate
from factorize.checker import check, stored
from factorize.checker.arithmetic import machine
from factorize.checker.arithmetic.balls import of_doubles
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.check import check_factor_file
from factorize.checker.doubles import whole
from factorize.checker.losses import balls
from factorize.checker.losses.variances import WIDEST
from factorize.checker.report import (
    ADDED_NOISE,
    CLASS_BOUND,
    CONVERGED,
    DECODER,
    GAP,
    INVERSE,
    LOSS,
    LOWER_BOUND,
    MECHANISM,
    SENSITIVITY,
    STRATEGY,
    Status,
)
from factorize.checker.strategy import Strategy
from factorize.checker.utility import Utility
from factorize.encoding import tensor_digest
from factorize.factorization import Factorization
from factorize.solution import Outcome, Solution
from factorize.structures.dense import DenseMatrix

Rows = list[list[Fraction]]
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


def utility_of(
    strategy: Strategy | np.ndarray,
    workload: dict[str, Any],
    objective: dict[str, Any] | None = None,
    dual: dict[str, np.ndarray] | None = None,
    participation: dict[str, Any] | None = None,
    user: dict[str, np.ndarray] | None = None,
) -> Utility:
    if isinstance(strategy, np.ndarray):
        strategy = Strategy("dense", {"": strategy}, len(strategy))
    spec = {
        "workload": workload,
        "objective": objective or {"kind": "mean"},
        "participation": participation or {"kind": "single"},
        "mechanism": {"kind": "dense"},
    }
    return Utility(spec, strategy, dual or {}, user or {})


def divided(target: Rows, lower: Rows) -> Rows:
    """A C^-1 by substitution from the last column."""
    n, out = len(lower), []
    for row in target:
        found = [Fraction(0)] * n
        for j in range(n - 1, -1, -1):
            rest = row[j] - sum((found[k] * lower[k][j] for k in range(j + 1, n)), Fraction(0))
            found[j] = rest / lower[j][j]
        out.append(found)
    return out


def rows_of(workload: dict[str, Any]) -> Rows:
    rows = exact_rows(workload)
    assert rows is not None
    found: Rows = rows.tolist()
    return found


def true_losses(decoder: Rows, objective: dict[str, Any]) -> dict[str, Fraction]:
    errors = [sum((entry**2 for entry in row), Fraction(0)) for row in decoder]
    m, tau = len(errors), objective.get("tau", 0)
    chosen = {"mean": sum(errors) / m, "max": max(errors)}.get(objective["kind"], Fraction(0))
    if objective["kind"] == "weighted":
        chosen = sum((Fraction(w) * e for w, e in zip(objective["weights"], errors, strict=True)), Fraction(0))
    for t in range(1, m + 1) if tau else ():
        reference = t - tau if t % tau == 0 else t // tau * tau
        before = decoder[reference - 1] if reference else [Fraction(0)] * len(decoder[0])
        square = sum(((a - b) ** 2 for a, b in zip(decoder[t - 1], before, strict=True)), Fraction(0))
        chosen += square if t % tau == 0 else square / tau
    return {"total": sum(errors, Fraction(0)), "largest": max(errors), "last": errors[-1], "objective": chosen}


def assert_hold(ends: Any, decoder: Rows, objective: dict[str, Any], width: float = WIDEST) -> None:
    for name, true in true_losses(decoder, objective).items():
        low, high = getattr(ends, name)
        assert Fraction(low) * (1 - Fraction(1, 10**25)) <= true <= Fraction(high) * (1 + Fraction(1, 10**25)), name
        assert high - low <= width * high, name


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda document: str(document["kind"]))
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda document: str(document["kind"]))
def test_losses_hold_those_of_fractions(workload: dict[str, Any], objective: dict[str, Any]) -> None:
    """Dense, with factors of its columns, Toeplitz by series, by its inverse, and of buffers."""
    array, random = random_strategy(5, 12, 0, 0.3), np.random.default_rng(7)
    column, scale = random_strategy(3, 12, 0, 0.3)[:, 0], random.uniform(0.3, 3.0, 12)
    toeplitz = np.array([np.concatenate([column[i::-1], np.zeros(11 - i)]) for i in range(12)])
    cases = [
        (Strategy("dense", {"": array}, 12), array),
        (Strategy("toeplitz", {"coefficients": column}, 12), toeplitz),
        (Strategy("scaled", {"": array, "column_scale": scale}, 12), None),
        (Strategy("scaled", {"coefficients": column, "column_scale": scale}, 12), None),
    ]
    for strategy, lower in cases:
        rows = fractions(array if strategy.reading.series is None else toeplitz) if lower is None else fractions(lower)
        factors = [Fraction(1)] * 12 if strategy.scale is None else [Fraction(float(each)) for each in scale]
        exact = [[entry * f for entry, f in zip(row, factors, strict=True)] for row in rows]
        ends = utility_of(strategy, workload, objective).losses
        assert_hold(ends, divided(rows_of(workload), exact), objective)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 2**32),
    st.integers(1, 12),
    st.sampled_from([0, 3, 40, 200, 480]),
    st.sampled_from([0.0, 0.1, 1.0, 3.0]),
    st.sampled_from(OBJECTIVES[:3]),
)
def test_losses_of_columns_far_apart(seed: int, n: int, spread: int, steep: float, objective: dict[str, Any]) -> None:
    array, workload = random_strategy(seed, n, spread, steep), {"kind": "prefix", "n": n}
    try:
        ends = utility_of(array, workload, objective).losses
    except NotEnclosed:
        assert spread > 0 or steep > 1
        return
    assert_hold(ends, divided(rows_of(workload), fractions(array)), objective, width=math.inf)


def test_no_claim_rests_on_products_that_fail_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses of a dense C, its lower bound over epochs, a stored B and a stored C_inv."""
    found = solved(8, participation={"kind": "fixed_epochs", "epochs": 2}).with_matrices(["C", "B", "C_inv"])
    data = sealed(*parts(found))
    assert not check_factor_file(data).unseen
    monkeypatch.setattr(machine, "_fault", lambda: "a product loses bits")
    monkeypatch.setattr(balls, "LARGEST", 0)
    report = check_factor_file(data)
    assert {LOSS, LOWER_BOUND, DECODER, INVERSE} <= set(report.unseen) and report.supported


def test_no_claim_is_left_without_a_word_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_given: Any) -> Any:
        raise MemoryError("Unable to allocate 2 GiB")

    data = sealed(*parts(solved(8, participation={"kind": "fixed_epochs", "epochs": 2})))
    monkeypatch.setattr(whole, "entries_of", short)
    monkeypatch.setattr(balls, "LARGEST", 0)
    report = check_factor_file(data)
    assert report.supported and report.status(LOSS) is Status.NOT_LOOKED_AT
    assert any("Unable to allocate" in text for text in report.not_checked)


def residual_of(values: Any) -> whole.Residual:
    array = np.array(values, dtype=float)
    return whole.Residual(array, np.zeros(len(array)))


def test_encoders_by_hand() -> None:
    """B^-1 = 1/2 0; -1/2 1/2 takes 6 8 to 3 1; B = (1 0) and R = (0 7): B^+ has norm 1."""
    found = whole.added_noise(np.array([[2.0, 0], [2.0, 2]]), residual_of([[6, 0], [8, 0]]), 1, Fraction(9))
    assert not isinstance(found, str) and found[0] == pytest.approx(3 + math.sqrt(10), rel=1e-9)
    assert found[0] >= 3 + math.sqrt(10) * (1 - 1e-15)
    wide = whole.added_noise(np.array([[1.0, 0.0]]), residual_of([[0, 7]]), 2, Fraction(4))
    assert not isinstance(wide, str) and 16 <= wide[0] <= 16 * (1 + 1e-9)
    assert "more rows than columns" in whole.added_noise(np.ones((3, 2)), residual_of(np.zeros((3, 2))), 1, Fraction(1))
    assert "singular" in whole.added_noise(np.diag([1.0, 0.0]), residual_of(np.zeros((2, 2))), 1, Fraction(1))
    with pytest.raises(NotEnclosed, match="rank cannot be proved"):
        whole.added_noise(np.array([[1.0, 0], [1e20, 1e-20]]), residual_of(np.zeros((2, 2))), 1, Fraction(1))


def test_toeplitz_encoders_by_hand() -> None:
    """B C - A = 3 0 4 for b = 1, 1/2 and c = 1: 1 / b = 1, -1/2, 1/4 has coefficients that sum to 7/4."""
    column, target = of_doubles(np.array([1.0, 0.0, 0.0])), of_doubles(np.array([-2.0, 0.5, -4.0]))
    largest, sums, encoder = stored._by_series(np.array([1.0, 0.5, 0.0]), column, target, 2, Fraction(1))
    assert largest == pytest.approx(4, rel=1e-9) and sums == pytest.approx(6.5, rel=1e-9)
    assert not isinstance(encoder, str) and 1 + 2 * 35 / 4 <= encoder[0] <= (1 + 2 * 35 / 4) * (1 + 1e-9)
    assert "singular" in str(stored._by_series(np.array([0.0, 1.0, 0.0]), column, target, 1, Fraction(1))[2])
    with pytest.raises(NotEnclosed, match="range of doubles"):
        stored._by_series(np.array([1e-200, 1.0, 0.0]), column, target, 1, Fraction(1))


N = 16


def cancelling() -> tuple[np.ndarray, Fraction]:
    """C = I but for a column of 1e-20 and six numbers that sum to 1 in doubles, and by how much they do not."""
    rng = np.random.default_rng(0)
    while True:
        column = rng.random(6) / 6
        column[5] = 1.0 - column[:5].sum()
        left = 1 - sum(map(Fraction, column.tolist()), Fraction(0))
        if abs(left) > Fraction(1, 10**17):
            break
    array = np.eye(N)
    array[0, 0], array[1:7, 0] = 1e-20, column
    return array, left


def test_losses_that_cancel_in_doubles_are_not_proved() -> None:
    """Rows from 6 on have (1 - sum c) / 1e-20 as first entry: about 2000, where doubles may say 0."""
    array, left = cancelling()
    document = {
        "workload": {"kind": "prefix", "n": N},
        "mechanism": {"kind": "dense"},
        "objective": {"kind": "weighted", "weights": [0.0] * 6 + [1.0] * (N - 6)},
    }
    result = Factorization.from_solution(
        parse_spec(document), Solution(DenseMatrix(array), Outcome.CLOSED_FORM, 0), solver=SOLVER
    )
    true = sum(i + (left / Fraction(1e-20)) ** 2 for i in range(6, N))
    assert result.certificate.loss.objective == pytest.approx(float(true), rel=1e-9), "by balls"
    manifest, tensors = parts(result)
    manifest["certificate"]["loss"]["objective"] = float(sum(range(6, N)))
    report = check_factor_file(sealed(manifest, tensors))
    assert report.status(LOSS) is Status.FALSE
    assert report.status(SENSITIVITY) is Status.PROVED, "1, whatever column spans many places"


def test_losses_below_the_normal_numbers_are_not_proved() -> None:
    """Rows of 1e-170 have squares that doubles round to 0."""
    rows = (np.tril(np.ones((4, 4))) * 1e-170).tolist()
    document = {"workload": {"kind": "matrix", "rows": rows}, "mechanism": {"kind": "dense"}}
    spec = parse_spec(document)
    result = Factorization.from_solution(spec, Solution(DenseMatrix(np.eye(4)), Outcome.CLOSED_FORM, 0), solver=SOLVER)
    assert any("the middle is stated" in warning for warning in result.certificate.warnings)
    own = spec.user_matrices()["workload"]
    report = check_factor_file(sealed(*parts(result)), user={str(own.sha256): own.array})
    assert report.status(LOSS) is Status.NOT_LOOKED_AT


FILE: dict[str, Any] = {
    "mechanism": {"kind": "banded", "bands": 3},
    "participation": {"kind": "fixed_epochs", "epochs": 2},
    "tolerance": 1e-6,
}
WIDE = Fraction(1, 10**8)


def _losses(found: Any) -> Any:
    return found._replace(
        **{name: (low * (1 - 1e-8), high * (1 + 1e-8)) for name, (low, high) in found._asdict().items()}
    )


WIDER: list[tuple[Any, str, Callable[[Any], Any]]] = [
    (check, "squared_sensitivity", lambda b: b._replace(lower=b.lower * (1 - WIDE), upper=b.upper * (1 + WIDE))),
    (Utility, "losses", _losses),
    (Utility, "lower_bound", lambda bound: bound._replace(objective=bound.objective / 2)),
    (Utility, "class_bound", lambda bound: bound._replace(objective=bound.objective / 2)),
    (stored, "_whole", lambda found: (1.0, found[1], (2 * found[2][0], found[2][1]))),
    (stored, "noising_of_array", lambda found: found._replace(distance=Fraction(1, 4))),
]
"""Where enclosures are made, and how their result is made wide."""


def made_wider(real: Any, wider: Callable[[Any], Any]) -> Any:
    if isinstance(real, cached_property):
        return property(lambda utility: wider(real.func(utility)))
    return lambda *given: wider(real(*given))


def test_enclosures_made_wide_prove_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every claim that rests on numbers; what says of itself that it is finite and triangular has no enclosure."""
    data = sealed(*parts(solved(8, **FILE).with_matrices(["C", "B", "C_inv"])))
    report = check_factor_file(data)
    numbers = {SENSITIVITY, LOSS, LOWER_BOUND, CLASS_BOUND, GAP, CONVERGED, DECODER, INVERSE, ADDED_NOISE}
    assert report.supported and not report.unseen and set(report.stated) == numbers | {MECHANISM, STRATEGY}
    for room, name, wider in WIDER:
        monkeypatch.setattr(room, name, made_wider(getattr(room, name), wider))
    report = check_factor_file(data)
    assert [name for name in numbers if report.status(name) is Status.PROVED] == []


class TestProofsThatAreThere:
    """`proved` of `check_factor_file`: the proofs of the certificate, for the numbers that they are about alone."""

    def result(self) -> Factorization:
        return solved(parse_spec({"workload": {"kind": "prefix", "n": 12}}))

    @pytest.mark.parametrize("part", ["C", "dual.weights", "objective"])
    def test_serve_no_other_file(self, part: str) -> None:
        result = self.result()
        proved = certificate.utility_of(result.spec, result.matrix, result.dual)
        manifest, tensors = parts(result)
        if part == "objective":
            manifest["spec"]["objective"] = {"kind": "max"}
        else:
            tensors[part] *= np.linspace(0.5, 1.0, 12)
            manifest["dual"]["sha256"] = tensor_digest([tensors["dual.weights"]])
        data = sealed(manifest, tensors)
        other = check_factor_file(data, proved=proved)
        assert other.failed == check_factor_file(data).failed != []
