"""Every structure answers what anyone asks of it as the dense matrix does that it stands for, and never from below."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from structure_cases import strategies

from factorize.errors import UnsupportedProblem
from factorize.format.names import WRAPPED
from factorize.numbers.wide import Wide
from factorize.structures.base import Matrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.endless import EndlessBlt, EndlessMatrix, EndlessNuToeplitz
from factorize.structures.scaled import ColumnScaled

N = 20
CASES = strategies(N) | {
    f"scaled {name}": ColumnScaled(matrix, np.linspace(0.5, 2, N))
    for name, matrix in strategies(N).items()
    if matrix.structure in WRAPPED
}
every = pytest.mark.parametrize("matrix", CASES.values(), ids=list(CASES))
ENDLESS: list[EndlessMatrix] = [
    EndlessBlt(np.array([0.9, 0.5]), np.array([0.2, 0.3])),
    EndlessNuToeplitz(np.array([0.1])),
]


def covers(found: Wide, exact: np.ndarray, slack: float) -> bool:
    """Whether numbers that are right up to `slack` of the largest lie where the enclosure says."""
    off = np.abs(found.high - exact + found.low)
    return bool((off <= found.error + slack * np.abs(exact).max()).all() and (found.error <= slack).all())


@every
def test_entries_and_norms_are_enclosed(matrix: Matrix) -> None:
    dense = matrix.dense()
    assert covers(matrix.enclosed_entries(), dense, 1e-12)
    assert covers(matrix.enclosed_column_norms(), (dense**2).sum(axis=0), 1e-11)
    largest = max(sum(Fraction(v) ** 2 for v in column) for column in dense.T.tolist())
    assert largest * (1 - Fraction(1, 10**12)) <= matrix.largest_column() <= largest * (1 + Fraction(1, 10**12))


@every
def test_who_is_time_invariant_says_so(matrix: Matrix) -> None:
    dense = matrix.dense()
    if matrix.time_invariant:
        assert np.array_equal(dense[1:, 1:], dense[:-1, :-1])
    assert matrix.time_invariant == (matrix.divide(np.eye(1, N)[0]) is not None)


@every
@pytest.mark.parametrize("bins", [1, 3, 7, N])
def test_sums_over_bins(matrix: Matrix, bins: int) -> None:
    sizes = np.abs(matrix.dense())
    exact = np.stack([sizes[:, j::bins].sum(axis=1) for j in range(bins)], axis=1)
    found = np.concatenate(list(matrix.bin_sums(bins)))
    np.testing.assert_allclose(found, exact, rtol=1e-10, atol=1e-13)
    assert (found >= exact * (1 - (N + 4) * 2.0**-52)).all()


def test_a_negative_number_makes_a_matrix_signed() -> None:
    signed = DenseMatrix(np.tril(-np.ones((4, 4)), -1) + np.eye(4))
    assert signed.signed and ColumnScaled(signed, np.ones(4)).signed
    assert not DenseMatrix(np.tri(4)).signed


@every
@pytest.mark.parametrize(("separation", "most"), [(1, N), (4, 5), (7, 2)])
def test_patterns_that_fall(matrix: Matrix, separation: int, most: int) -> None:
    pattern, dense = matrix.falling_pattern(separation, most), matrix.dense()
    toeplitz = np.allclose(dense[1:, 1:], dense[:-1, :-1])
    assert (pattern is None) == (matrix.column_above() is None)
    if pattern is None:
        return
    assert toeplitz
    column = np.abs(dense[:, 0])
    falls = bool((np.diff(column) <= 0).all() and (dense >= 0).all())
    assert pattern.falls == falls
    exact = float((np.abs(dense)[:, ::separation][:, :most].sum(axis=1) ** 2).sum())
    assert float(pattern.squared) >= exact * (1 - 1e-12)
    assert not falls or float(pattern.squared) <= exact * (1 + 1e-12)


@pytest.mark.parametrize("strategy", ENDLESS, ids=lambda one: one.structure)
def test_a_strategy_without_end_is_no_matrix(strategy: EndlessMatrix) -> None:
    assert strategy.side is None and not isinstance(strategy, Matrix)
    with pytest.raises(UnsupportedProblem, match="rows without end"):
        strategy.finite()
    first = strategy.until(8)
    np.testing.assert_array_equal(strategy.rows(2, 8), first.dense()[2:])
    np.testing.assert_allclose(strategy.right_solve(np.eye(8)) @ first.dense(), np.eye(8), atol=1e-13)
    np.testing.assert_allclose(strategy.inverse_rows(0, 8) @ first.dense(), np.eye(8), atol=1e-13)
