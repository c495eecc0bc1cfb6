"""Rows times the inverse of a triangular array, and the inverse, against exact arithmetic and LAPACK."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy.linalg import solve_triangular

from factorize.numbers.triangular import lower_inverse, right_solve

SIZES = [1, 5, 64, 65, 255, 256, 257, 600]


def lower(n: int) -> np.ndarray:
    rng = np.random.default_rng(n)
    return np.tril(rng.uniform(-1, 1, (n, n))) / np.sqrt(n) + np.eye(n)


@pytest.mark.parametrize("n", SIZES)
def test_the_inverse(n: int) -> None:
    array = lower(n)
    inverse = lower_inverse(array)
    assert not np.triu(inverse, 1).any()
    assert np.abs(array @ inverse - np.eye(n)).max() < 1e-13
    assert np.abs(inverse - solve_triangular(array, np.eye(n), lower=True)).max() < 1e-13


@pytest.mark.parametrize("n", SIZES)
def test_rows_times_the_inverse(n: int) -> None:
    array, rows = lower(n), np.random.default_rng(0).standard_normal((7, n))
    rows[:, n // 2 + 1 :] = 0
    found = right_solve(array, rows)
    assert np.abs(found @ array - rows).max() < 1e-13
    assert not found[:, n // 2 + 1 :].any()
    assert not right_solve(array, np.zeros((2, n))).any()
    assert right_solve(array, np.zeros((0, n))).shape == (0, n)


def test_against_fractions() -> None:
    array, n = lower(12), 12
    exact = [[Fraction(int(i == j)) for j in range(n)] for i in range(n)]
    for i in range(n):
        for j in range(n):
            known = sum(Fraction(float(array[i, k])) * exact[k][j] for k in range(i))
            exact[i][j] = (exact[i][j] - known) / Fraction(float(array[i, i]))
    expected = np.array([[float(entry) for entry in row] for row in exact])
    assert np.abs(lower_inverse(array) - expected).max() < 1e-15
    assert np.abs(right_solve(array, np.eye(n)) - expected).max() < 1e-15


def test_a_spread_of_scales_is_solved_as_accurately_as_by_substitution() -> None:
    """Each column's error is relative to that column, as for LAPACK, and not to the largest entry."""
    scale = 10.0 ** np.linspace(-8, 8, 600)
    array = lower(600) * scale
    found, known = right_solve(array, np.eye(600)), solve_triangular(array, np.eye(600), lower=True)
    assert (np.abs(found - known) <= 1e-12 * np.abs(known).max(axis=1, keepdims=True)).all()
