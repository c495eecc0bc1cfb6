"""What rests on a stored B or C^-1, and what the losses of C are: bounds by hand for matrices of two or three steps."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from factorize.errors import CertificateError
from factorize.exact import forms
from factorize.exact.arithmetic.integers import Numbers, integers, limbs
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.losses import residual
from factorize.exact.losses import toeplitz_forms as toeplitz
from factorize.exact.losses.residual import Losses, losses
from factorize.exact.spec import weighing_of
from factorize.exact.strategy import Strategy

TIGHT = Fraction(1, 2**50)


def numbers(values: Any, radius: int = 0) -> Numbers:
    return Numbers(np.array(values, dtype=object), 0, radius)


def just_above(found: float | str, true: Fraction | int) -> bool:
    """Not below, and no further above than a rounding."""
    assert isinstance(found, float)
    return true <= Fraction(found) <= true * (1 + TIGHT)


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


def test_toeplitz_encoders_by_hand() -> None:
    """1 / b = 1, -1/2, 1/4 for b = 1, 1/2: coefficients that sum to 7/4."""
    found = toeplitz.added_noise(np.array([1.0, 0.5, 0.0]), numbers([3, 0, 4]), 2, Fraction(1))
    assert isinstance(found, float) and 1 + 2 * Fraction(35, 4) <= found <= (1 + 2 * Fraction(35, 4)) * (1 + 1e-9)
    assert "singular" in str(toeplitz.added_noise(np.array([0.0, 1.0]), numbers([0, 0]), 1, Fraction(1)))
    with pytest.raises(NotEnclosed, match="range of doubles"):
        toeplitz.added_noise(np.array([1e-200, 1.0, 0.0]), numbers([0, 0, 0]), 1, Fraction(1))


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


def test_rows_that_restarts_refer_to() -> None:
    assert weighing_of({"kind": "lambda_tau", "tau": 3}, 7).references == [-1, -1, -1, 2, 2, 2, 5]
    assert weighing_of({"kind": "lambda_tau", "tau": 1}, 3).references == [-1, 0, 1]
    assert weighing_of({"kind": "max"}, 2).references == [-1, -1]


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
