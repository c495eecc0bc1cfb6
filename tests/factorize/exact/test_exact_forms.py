"""What rests on a stored B or C^-1, and what the losses of C are: bounds by hand for matrices of two or three steps."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from factorize.errors import CertificateError, CorruptObject
from factorize.exact import forms
from factorize.exact.arithmetic.integers import Limbs, Numbers, integers, limbs
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.losses import residual
from factorize.exact.losses import toeplitz_forms as toeplitz
from factorize.exact.losses.residual import Losses, losses, read_matrix
from factorize.exact.spec import weighing_of
from factorize.exact.strategy import Strategy

TIGHT = Fraction(1, 2**50)


def numbers(values: Any, radius: int = 0) -> Numbers:
    return Numbers(np.array(values, dtype=object), 0, radius)


def just_above(found: float | str, true: Fraction | int) -> bool:
    """Not below, and no further above than a rounding."""
    assert isinstance(found, float)
    return true <= Fraction(found) <= true * (1 + TIGHT)


def test_what_a_wrong_product_adds_to_the_encoder() -> None:
    """B = 2 I and R with columns of norms 5 and 0: B^-1 R has one of 5 / 2, twice in two participations."""
    rest = numbers([[3, 0], [4, 0]])
    assert just_above(forms.added_noise(2 * np.eye(2), rest, 1, Fraction(9)), 3 + Fraction(5, 2))
    assert just_above(forms.added_noise(2 * np.eye(2), rest, 2, Fraction(9)), 3 + 5)
    blurred = forms.added_noise(2 * np.eye(2), numbers([[3, 0], [4, 0]], 1), 1, Fraction(9))
    assert isinstance(blurred, float) and Fraction(blurred) >= 3 + Fraction(1, 2) * Fraction(64, 10)


def test_decoders_are_inverted() -> None:
    """B^-1 = 1/2 0; -1/2 1/2 takes 6 8 to 3 1."""
    found = forms.added_noise(np.array([[2.0, 0], [2.0, 2]]), numbers([[6, 0], [8, 0]]), 1, Fraction(9))
    assert isinstance(found, float) and math.isclose(found, 3 + math.sqrt(10), rel_tol=1e-15)


def test_a_bad_inverse_weakens_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """N = 3/4 for B = 1: B^-1 R is at most (3/4) |R| / (1 - 1/4); from 1/2 on nothing is proved."""
    monkeypatch.setattr(forms, "_inverse", lambda stored: np.array([[0.75]]))
    assert forms.added_noise(np.eye(1), numbers([[4]]), 1, Fraction(1)) == 1 + 4
    monkeypatch.setattr(forms, "_inverse", lambda stored: np.array([[0.5]]))
    with pytest.raises(CertificateError, match="rank cannot be proved"):
        forms.added_noise(np.eye(1), numbers([[4]]), 1, Fraction(1))
    monkeypatch.setattr(forms, "_inverse", lambda stored: np.array([[0.5 + 2.0**-20]]))
    assert isinstance(forms.added_noise(np.eye(1), numbers([[4]]), 1, Fraction(1)), float)


def test_a_wide_decoder_is_inverted_from_the_right() -> None:
    """B = (1 0) and R = (0 7): B^+ has norm 1."""
    assert just_above(forms.added_noise(np.array([[1.0, 0.0]]), numbers([[0, 7]]), 1, Fraction(4)), 2 + 7)


def test_decoders_that_have_no_encoder() -> None:
    assert forms.added_noise(np.ones((3, 2)), numbers(np.zeros((3, 2), dtype=int)), 1, Fraction(1)) == (
        "B has more rows than columns, so parts of A G that differ from B C G would have no noise"
    )
    singular = forms.added_noise(np.diag([1.0, 0.0]), numbers([[0, 0], [0, 0]]), 1, Fraction(1))
    assert singular == "B is singular, so a part of A G would have no noise"


def test_norms_from_above() -> None:
    assert forms._longest(numbers([[3, 1], [4, 1]])) == 5 and forms._longest(numbers([[2, 0], [3, 0]], 1)) == 5
    assert forms._frobenius(limbs(np.array([[1.0, 2.0], [2.0, 4.0]]))) == 5
    assert forms._defect(limbs(np.array([[4.0]])), limbs(np.array([[1.0]]))) == 3
    assert forms._defect(limbs(np.array([[1.5]])), limbs(np.array([[1.0]]))) == Fraction(1, 2)
    assert forms._defect(Limbs(np.array([[[2.0]]]), -1, 1), limbs(np.array([[1.0]]))) >= Fraction(1, 2)
    uncertain, one = Limbs(np.array([[[3.0]]]), -1, 1), limbs(np.array([[1.0]]))
    found = forms.product(uncertain, one)
    assert forms._defect(uncertain, one) == Fraction(1, 2) + found.fraction(found.radius) > 1
    assert forms._defect(limbs(np.eye(2)), limbs(np.eye(2) + np.array([[0, 3.0], [4.0, 0]]))) == 5


def test_toeplitz_encoders_by_hand() -> None:
    """1 / b = 1, -1/2, 1/4 for b = 1, 1/2: coefficients that sum to 7/4."""
    found = toeplitz.added_noise(np.array([1.0, 0.5, 0.0]), numbers([3, 0, 4]), 2, Fraction(1))
    assert isinstance(found, float) and 1 + 2 * Fraction(35, 4) <= found <= (1 + 2 * Fraction(35, 4)) * (1 + 1e-9)
    assert "singular" in str(toeplitz.added_noise(np.array([0.0, 1.0]), numbers([0, 0]), 1, Fraction(1)))
    with pytest.raises(NotEnclosed, match="range of doubles"):
        toeplitz.added_noise(np.array([1e-200, 1.0, 0.0]), numbers([0, 0, 0]), 1, Fraction(1))


def test_norms_of_columns_from_above() -> None:
    assert toeplitz.norm(Numbers(np.array([6, -8], dtype=object), -1)) == 5
    assert toeplitz.norm(numbers([3, -4])) == 5 and toeplitz.norm(numbers([2, -3], 1)) == 5


def test_stored_matrices_are_dense_or_toeplitz() -> None:
    column = np.array([1.0, 2.0, 3.0])
    assert read_matrix("toeplitz", {"coefficients": column}, (3, 3)).tolist() == [[1, 0, 0], [2, 1, 0], [3, 2, 1]]
    assert read_matrix("dense", {"": np.ones((2, 3))}, (2, 3)).shape == (2, 3)
    for structure, parts, shape in (
        ("dense", {"": np.ones((2, 3))}, (3, 3)),
        ("toeplitz", {"coefficients": column}, (2, 3)),
        ("toeplitz", {"coefficients": column}, (2, 2)),
        ("banded", {"": np.ones((3, 3)), "coefficients": column}, (3, 3)),
    ):
        with pytest.raises(CorruptObject, match="cannot be"):
            read_matrix(structure, parts, shape)


C = np.array([[1.0, 0, 0], [0, 2, 0], [0, 0, 4]])
A = np.array([[4.0, 0, 0], [4, 8, 0], [0, 0, 8]])  # A C^-1 has the rows 4 0 0, 4 4 0 and 0 0 2


def found(objective: dict[str, Any], stored: np.ndarray | None = None) -> Losses:
    return losses(Strategy("dense", {"": C}, 3), integers(A), objective, stored)


def around(ends: tuple[float, float], true: float) -> bool:
    return true * (1 - 1e-9) <= ends[0] <= true <= ends[1] <= true * (1 + 1e-9)


@pytest.mark.parametrize("stored", [None, A @ np.diag([1.0, 0.5, 0.25])])
def test_losses_by_hand(stored: np.ndarray | None) -> None:
    mean = found({"kind": "mean"}, stored)
    assert around(mean.total, 16 + 32 + 4) and around(mean.largest, 32) and around(mean.last, 4)
    assert around(mean.objective, 52 / 3) and mean.residual == 0.0
    assert around(found({"kind": "max"}, stored).objective, 32)
    assert around(found({"kind": "weighted", "weights": [1.0, 0.5, 3.0]}, stored).objective, 16 + 16 + 12)
    # Row 3 less row 2 is -4 -4 2; rows 1 and 3 come after no multiple of 2 but 0 and 2, and have weight 1/2.
    restarts = found({"kind": "lambda_tau", "tau": 2}, stored).objective
    assert around(restarts, 16 / 2 + 32 + (16 + 16 + 4) / 2)
    assert around(found({"kind": "lambda_tau", "tau": 1}, stored).objective, 16 + 16 + (16 + 16 + 4))
    assert around(found({"kind": "lambda_tau", "tau": 3}, stored).objective, 16 / 3 + 32 / 3 + 4)


def test_losses_of_a_matrix_that_is_no_diagonal() -> None:
    """The inverse of 1 0; 1 1 is 1 0; -1 1."""
    strategy = Strategy("dense", {"": np.array([[1.0, 0], [1, 1]])}, 2)
    assert around(losses(strategy, integers(np.eye(2)), {"kind": "mean"}, None).total, 1 + 2)
    wide = losses(
        Strategy("dense", {"": np.eye(2)}, 2), integers(np.array([[1.0, 3.0]])), {"kind": "mean"}, np.array([[1.0, 3]])
    )
    assert around(wide.total, 10)


def test_no_bit_of_a_stored_decoder_is_cut() -> None:
    stored = np.eye(2)
    stored[1, 0] = 2.0**-100
    found = losses(Strategy("dense", {"": np.eye(2)}, 2), integers(np.eye(2)), {"kind": "mean"}, stored)
    assert found.residual == 2.0**-100


@pytest.mark.parametrize("entry", [(0, 1), (0, 2), (1, 2)])
def test_stored_decoders_are_lower_triangular_with_a_diagonal(entry: tuple[int, int]) -> None:
    above = np.eye(3)
    above[entry] = 1e-300
    eye = Strategy("dense", {"": np.eye(3)}, 3)
    with pytest.raises(CertificateError, match="not lower-triangular"):
        losses(eye, integers(np.eye(3)), {"kind": "mean"}, above)
    lost, small = np.diag([1.0, 1.0, 0.0]), np.diag([1.0, 1.0, 2.0**-50])
    with pytest.raises(CertificateError, match="its diagonal is 0 at 2"):
        losses(eye, integers(small), {"kind": "mean"}, lost)
    assert losses(eye, integers(lost), {"kind": "mean"}, lost).residual == 0.0  # where A has none, B has none


def test_rows_that_restarts_refer_to() -> None:
    assert weighing_of({"kind": "lambda_tau", "tau": 3}, 7).references == [-1, -1, -1, 2, 2, 2, 5]
    assert weighing_of({"kind": "lambda_tau", "tau": 1}, 3).references == [-1, 0, 1]
    assert weighing_of({"kind": "max"}, 2).references == [-1, -1]


def test_residuals_up_to_the_limit() -> None:
    """B C - A = 2 in one entry, where the largest column sum of A is 8: each row is off by |C^-1| 2 sqrt(3) at most."""
    stored = A @ np.diag([1.0, 0.5, 0.25])
    stored[2, 0] = 2.0
    wrong = losses(Strategy("dense", {"": C}, 3), integers(A), {"kind": "mean"}, stored, Fraction(1, 4))
    error = math.sqrt((1 + 1 / 4 + 1 / 16) * 4 * 3)
    assert wrong.residual == 2.0 and wrong.total[0] < 52 < wrong.total[1]
    assert math.isclose(wrong.last[1], (math.sqrt(8) + error) ** 2, rel_tol=1e-12)
    with pytest.raises(CertificateError, match="differs from A by 2, above the limit 1.78"):
        losses(Strategy("dense", {"": C}, 3), integers(A), {"kind": "mean"}, stored, Fraction(2, 9))
    tiny = np.array([[2.0**-4]])
    restarts = losses(
        Strategy("dense", {"": np.eye(1)}, 1),
        integers(tiny),
        {"kind": "lambda_tau", "tau": 1},
        2 * tiny,
        Fraction(1, 16),
    )
    assert math.isclose(restarts.objective[1], (2 / 16 + 2 / 16) ** 2, rel_tol=1e-12)  # two rows may be off by 1/16
    assert losses(Strategy("dense", {"": np.eye(1)}, 1), integers(tiny), {"kind": "mean"}, 2 * tiny, Fraction(1, 16))
    with pytest.raises(CertificateError, match="above the limit"):
        losses(Strategy("dense", {"": np.eye(1)}, 1), integers(tiny), {"kind": "mean"}, 2 * tiny, Fraction(1, 17))


def test_an_error_of_a_row_is_on_both_sides() -> None:
    """A norm of 3 within 1 is between 2 and 4; one of 1/2 within 1 is at least 0."""
    low, high = residual._around(3.0, 1.0)
    assert 4 * (1 - 1e-12) <= low <= 4 and 16 <= high <= 16 * (1 + 1e-12)
    assert residual._around(0.5, 1.0)[0] == 0.0
    assert residual._sum([(1.0, 2.0), (3.0, 5.0)], [2.0, 1.0]) == pytest.approx((5.0, 9.0), rel=1e-12)
    low, high = residual._sum([(1.0, 1.0)] * 3)
    assert low < 3 < high
    low, high = residual._objective(weighing_of({"kind": "mean"}, 3), limbs(np.eye(3)), 0.0, [(1.0, 1.0)] * 3)
    assert low < 1 < high
    assert residual._magnitude(numbers([3, -5], 1)) == 6


def test_a_bad_inverse_of_c_weakens_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """N = 3/4 for C = 1: (3/4) / (1 - 1/4)."""
    monkeypatch.setattr(residual, "_solve", lambda strategy, workload: np.array([[0.75]]))
    norm = residual._inverse_norm(np.eye(1), Strategy("dense", {"": np.eye(1)}, 1))
    assert 1 <= norm <= 1 + 1e-12


def test_the_norm_of_the_inverse_from_above() -> None:
    norm = residual._inverse_norm(C, Strategy("dense", {"": C}, 3))
    exact = math.sqrt(1 + 0.25 + 0.0625)
    assert exact <= norm <= exact * (1 + 1e-12)


def test_approximations_of_numbers_beyond_doubles() -> None:
    assert residual.approximation(Numbers(np.array([2**1500, 3], dtype=object), -1500)).tolist() == [1.0, 0.0]
    assert residual.approximation(Numbers(np.array([3, -5], dtype=object), -1)).tolist() == [1.5, -2.5]
