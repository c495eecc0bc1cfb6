"""What a stored C_inv protects: proved from its bytes, covered by the claim, or refused; and what the client draws from."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checker_files import in_fractions, inverted, parts, sealed
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import claimed, spec_of

from factorize.checker import stored as stored_matrices
from factorize.checker.arithmetic.balls import of_doubles
from factorize.checker.check import check_factor_file
from factorize.checker.report import Report
from factorize.checker.strategy import Strategy
from factorize.client import load as load_factors
from factorize.errors import CorruptObject, InvalidStrategy
from factorize.factors.factor_file import load
from factorize.factors.factorization import Factorization
from factorize.noise.source import ComputedRows, source_of
from factorize.numbers.covered import column_defect, cover_column, cover_inverse, covering, defect
from factorize.numbers.triangular import toeplitz_rows
from factorize.structures.dense import DenseMatrix


def factorized(array: np.ndarray) -> Factorization:
    spec = spec_of({"kind": "identity", "n": len(array)}, "dense")
    return claimed(spec, DenseMatrix(array))


def strategy_array(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.tril(rng.random((n, n)) / np.arange(1, n + 1)[:, None]) + np.eye(n)


def squared_in_fractions(noising_matrix: np.ndarray) -> Fraction:
    """The largest squared column norm of the inverse of a lower-triangular array, without rounding."""
    return max((inverted(in_fractions(noising_matrix)) ** 2).sum(axis=0))


def tiny_diagonal() -> tuple[Factorization, dict[str, Any], dict[str, np.ndarray]]:
    """C[7, 7] = 2^-46, so that row 7 of C^-1 dwarfs the others; these shrunk to a thousandth."""
    array = strategy_array(8)
    array[7] = 0
    array[7, 7] = 2.0**-46
    made = factorized(array)
    manifest, tensors = parts(made.with_matrices(["C_inv", "B"]))
    tensors["C_inv"][:7] *= 1e-3
    return made, manifest, tensors


def test_a_false_inverse_behind_a_tiny_diagonal_entry_is_refused_and_never_drawn_from(tmp_path: Path) -> None:
    made, manifest, tensors = tiny_diagonal()
    claim = made.certificate.sensitivity.value
    assert squared_in_fractions(tensors["C_inv"]) > (500 * Fraction(claim)) ** 2
    data = sealed(manifest, tensors)
    report = check_factor_file(data)
    assert any("the stored C_inv is not C^-1" in text for text in report.failed)
    (tmp_path / "f.safetensors").write_bytes(data)
    with pytest.raises(CorruptObject, match="stored C_inv is not the one"):
        load(tmp_path / "f.safetensors")
    source = source_of(load_factors(tmp_path / "f.safetensors"))
    assert isinstance(source, ComputedRows)  # for a dense C
    drawn = np.array([source.make()(step) for step in range(source.steps)])
    assert squared_in_fractions(drawn) <= Fraction(claim) ** 2


def test_what_is_published_with_a_tiny_diagonal_entry_is_covered() -> None:
    made, _, _ = tiny_diagonal()
    report = check_factor_file(sealed(*parts(made.with_matrices(["C_inv", "B"]))))
    assert report.supported, report.failed
    assert any("is covered by the claim" in text for text in report.checked)


def test_halved_rows_beyond_whole_matrices_are_refused() -> None:
    n = 2050
    made = factorized(strategy_array(n))
    manifest, tensors = parts(made.with_matrices(["C_inv"]))
    report = check_factor_file(sealed(manifest, tensors))
    assert report.supported and any("multiply to I" in text for text in report.checked)
    tensors["C_inv"] = tensors["C_inv"].copy()
    tensors["C_inv"][: n // 2] *= 0.5
    assert any("is not C^-1" in text for text in check_factor_file(sealed(manifest, tensors)).failed)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(-24, 24))
def test_an_inverse_that_was_enlarged_is_covered_whatever_it_rounds_to(seed: int, n: int, power: int) -> None:
    rng = np.random.default_rng(seed)
    array = np.tril(rng.standard_normal((n, n))) + np.diag(3 + rng.random(n))
    column = array[:, 0] / 4
    column[0] = 1 + abs(column[0])
    array[int(rng.integers(n))] *= 2.0**power
    truth = max(sum((Fraction(float(x)) ** 2 for x in column), Fraction(0)) for column in array.T)
    assert squared_in_fractions(cover_inverse(array)) <= truth
    guess = np.linalg.inv(toeplitz_rows(column, 0, n))[:, 0]
    found = toeplitz_rows(cover_column(column, guess), 0, n)
    assert squared_in_fractions(found) <= sum((Fraction(float(x)) ** 2 for x in column), Fraction(0))


def test_defects_are_not_below_the_truth() -> None:
    array = strategy_array(9, 3)
    inverse = np.linalg.inv(array) * (1 + 1e-6)
    exact = [
        [sum((Fraction(a) * Fraction(b) for a, b in zip(row, column, strict=True)), Fraction(-int(i == j)))
         for j, column in enumerate(inverse.T)]
        for i, row in enumerate(array)
    ]  # fmt: skip
    truth = math.sqrt(sum((x * x for row in exact for x in row), Fraction(0)))
    assert truth <= defect(array, inverse) <= truth * (1 + 1e-6)
    column = array[:, 0]
    guess = np.linalg.inv(toeplitz_rows(column, 0, 9))[:, 0] * (1 + 1e-6)
    assert 1e-6 <= column_defect(column, guess) <= 1e-6 * (1 + 1e-3)


def test_what_is_too_ill_conditioned_is_refused_with_a_remedy() -> None:
    assert covering(0.0) >= 1 and covering(2.0**-7) >= 1 / (1 - 2.0**-6)  # the sums of rows lose as much again
    for bad in (2.0**-6, math.nan, math.inf):
        with pytest.raises(InvalidStrategy, match=r"ill-conditioned.*recurrence"):
            covering(bad)
    growing = np.eye(80) + 3 * np.eye(80, k=-1) + 2 * np.eye(80, k=-2)
    growing[0, 0] = 1e-300
    growing[1:, 0] = 1e300
    with pytest.raises(InvalidStrategy, match="ill-conditioned"):
        cover_inverse(growing)


def said(found: stored_matrices.Noising | str, claim: float = 2.0, dtype: str = "float64") -> Report:
    report = Report()
    file: Any = type("File", (), {})()
    file.manifest = {
        "certificate": {"sensitivity": {"hex": claim.hex()}},
        "matrices": {"C_inv": {"dtype": dtype}},
    }
    stored_matrices.check_noising(report, file, found)
    return report


def test_what_is_said_of_a_stored_inverse() -> None:
    covered = said(stored_matrices.Noising(Fraction(4), Fraction(0)))
    assert not covered.failed and not covered.not_checked and "N^-1 has sensitivity at most 2.0" in covered.checked[1]
    assert "is covered by the claim" in said(stored_matrices.Noising(Fraction(9), Fraction(0)), claim=3.0).checked[1]
    above = said(stored_matrices.Noising(Fraction(4) + Fraction(1, 10**30), Fraction(0)))
    assert not above.failed and "which the claim 2.0 does not cover; draw it from C" in above.not_checked[0]
    assert "no sensitivity" in said(stored_matrices.Noising(None, Fraction(0))).failed[0]
    assert "too long; draw it from C" in said("too long").not_checked[0]
    for dtype, most in (("float64", Fraction(1, 2**26)), ("float32", Fraction(1, 2**10))):
        assert not said(stored_matrices.Noising(Fraction(1), most), dtype=dtype).failed
        assert (
            "is not C^-1"
            in said(stored_matrices.Noising(Fraction(1), most * Fraction(1001, 1000)), dtype=dtype).failed[0]
        )


@pytest.mark.parametrize("seed", range(8))
def test_a_toeplitz_inverse_is_enclosed_by_fractions(seed: int) -> None:
    rng, n = np.random.default_rng(seed), 7
    c = np.concatenate([[1.0 + rng.random()], 0.3 * rng.standard_normal(n - 1)])
    stored = np.linalg.inv(toeplitz_rows(c, 0, n))[:, 0] + 1e-4 * rng.standard_normal(n)
    image = [sum((Fraction(stored[s]) * Fraction(c[t - s]) for s in range(t + 1)), Fraction(0)) for t in range(n)]
    upper = sum((Fraction(x) ** 2 for x in c), Fraction(0))
    found = stored_matrices.noising_of_column(of_doubles(c), stored, upper)
    below = sum(map(abs, image[1:]), Fraction(0))
    distance, squared = abs(image[0] - 1) + below, upper / (image[0] - below) ** 2
    assert distance <= found.distance <= distance * (1 + Fraction(1, 2**20))
    assert found.squared is not None and squared <= found.squared <= squared * (1 + Fraction(1, 2**40))
    assert squared_in_fractions(toeplitz_rows(stored, 0, n)) <= found.squared


def test_the_bound_for_whole_matrices_is_above_the_truth_in_fractions() -> None:
    for seed in range(6):
        array = strategy_array(6, seed)
        stored = np.tril(np.linalg.inv(array) * (1 + 1e-3 * np.random.default_rng(seed).standard_normal((6, 6))))
        upper = max(sum((Fraction(float(x)) ** 2 for x in column), Fraction(0)) for column in array.T)
        found = stored_matrices.noising_of_array(Strategy("dense", {"": array}, 6), stored, upper)
        assert found.squared is not None
        assert squared_in_fractions(stored) <= found.squared <= upper * Fraction(102, 100)
