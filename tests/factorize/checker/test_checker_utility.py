"""What claims of losses, bounds and stored matrices rest on: answers by hand, and what is no proof of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from checker_files import parts, sealed
from specs import claimed, solved

from factorize import parse_spec
from factorize.checker import check, stored
from factorize.checker.arithmetic import machine
from factorize.checker.arithmetic.balls import of_doubles
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.check import check_factor_file
from factorize.checker.losses import loss_balls, whole_matrices
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
from factorize.checker.utility import Utility
from factorize.encoding import tensor_digest
from factorize.factors import certificate
from factorize.factors.factorization import Factorization
from factorize.structures.dense import DenseMatrix


def test_no_claim_rests_on_products_that_fail_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses of a dense C, its lower bound over epochs, a stored B and a stored C_inv."""
    found = solved(8, participation={"kind": "fixed_epochs", "epochs": 2}).with_matrices(["C", "B", "C_inv"])
    data = sealed(*parts(found))
    assert not check_factor_file(data).unseen
    monkeypatch.setattr(machine, "_fault", lambda: "a product loses bits")
    monkeypatch.setattr(loss_balls, "MAX_N", 0)
    report = check_factor_file(data)
    assert {LOSS, LOWER_BOUND, DECODER, INVERSE} <= set(report.unseen) and report.supported


def test_no_claim_is_left_without_a_word_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_given: Any) -> Any:
        raise MemoryError("Unable to allocate 2 GiB")

    data = sealed(*parts(solved(8, participation={"kind": "fixed_epochs", "epochs": 2})))
    monkeypatch.setattr(whole_matrices, "entries_of", short)
    monkeypatch.setattr(loss_balls, "MAX_N", 0)
    report = check_factor_file(data)
    assert report.supported and report.status(LOSS) is Status.NOT_LOOKED_AT
    assert any("Unable to allocate" in text for text in report.not_checked)


def residual_of(values: Any) -> whole_matrices.Residual:
    array = np.array(values, dtype=float)
    return whole_matrices.Residual(array, np.zeros(len(array)))


def test_encoders_by_hand() -> None:
    """B^-1 = 1/2 0; -1/2 1/2 takes 6 8 to 3 1; B = (1 0) and R = (0 7): B^+ has norm 1."""
    found = whole_matrices.bound_added_noise(
        np.array([[2.0, 0], [2.0, 2]]), residual_of([[6, 0], [8, 0]]), 1, Fraction(9)
    )
    assert not isinstance(found, str) and found[0] == pytest.approx(3 + math.sqrt(10), rel=1e-9)
    assert found[0] >= 3 + math.sqrt(10) * (1 - 1e-15)
    wide = whole_matrices.bound_added_noise(np.array([[1.0, 0.0]]), residual_of([[0, 7]]), 2, Fraction(4))
    assert not isinstance(wide, str) and 16 <= wide[0] <= 16 * (1 + 1e-9)
    assert "more rows than columns" in whole_matrices.bound_added_noise(
        np.ones((3, 2)), residual_of(np.zeros((3, 2))), 1, Fraction(1)
    )
    assert "singular" in whole_matrices.bound_added_noise(
        np.diag([1.0, 0.0]), residual_of(np.zeros((2, 2))), 1, Fraction(1)
    )
    with pytest.raises(NotEnclosed, match="rank cannot be proved"):
        whole_matrices.bound_added_noise(
            np.array([[1.0, 0], [1e20, 1e-20]]), residual_of(np.zeros((2, 2))), 1, Fraction(1)
        )


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
    result = claimed(parse_spec(document), DenseMatrix(array))
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
    result = claimed(spec, DenseMatrix(np.eye(4)))
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
    (check, "bracket_sensitivity", lambda b: b._replace(lower=b.lower * (1 - WIDE), upper=b.upper * (1 + WIDE))),
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
