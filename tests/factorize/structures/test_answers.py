"""Every structure answers what anyone asks of it as the dense matrix does that it stands for, and never from below."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from specs import spec_of
from structure_cases import exact, strategies

from factorize.checker.sensitivity import bracket_sensitivity
from factorize.checker.strategy import Strategy
from factorize.errors import UnsupportedProblem
from factorize.factors.plain_sensitivity import plain_sensitivity
from factorize.factors.sensitivity import sensitivity_of
from factorize.format.tensors import INNER_STRUCTURES
from factorize.participation import FixedEpochs, MinSep, Participation, Single
from factorize.structures.base import Matrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.endless import EndlessBlt, EndlessMatrix, EndlessNuToeplitz
from factorize.structures.layouts import build_matrix
from factorize.structures.scaled import ColumnScaled

N = 20
CASES = strategies(N) | {
    f"scaled {name}": ColumnScaled(matrix, np.linspace(0.5, 2, N))
    for name, matrix in strategies(N).items()
    if matrix.structure in INNER_STRUCTURES
}
every = pytest.mark.parametrize("matrix", CASES.values(), ids=list(CASES))
PARTICIPATIONS = [
    Single(),
    FixedEpochs(kind="fixed_epochs", epochs=4),
    FixedEpochs(kind="fixed_epochs", epochs=N),
    MinSep(kind="min_sep", min_sep=7),
    MinSep(kind="min_sep", min_sep=3, max_participations=2),
]
ENDLESS: list[EndlessMatrix] = [
    EndlessBlt(np.array([0.9, 0.5]), np.array([0.2, 0.3])),
    EndlessNuToeplitz(np.array([0.1])),
]


@every
@pytest.mark.parametrize("compiled", [True, False])
def test_products_are_those_of_the_dense_matrix(
    matrix: Matrix, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And numpy runs the same statements where numba is absent."""
    dense, block = matrix.dense(), np.random.default_rng(1).normal(size=(3, N)) * (np.arange(N) < 17)
    if not compiled:
        monkeypatch.setattr("factorize.structures.recursion.HAS_COMPILER", False)
    inverse = matrix.inverse_rows(0, N)
    np.testing.assert_allclose(dense, exact(matrix).astype(np.float64), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(inverse @ dense, np.eye(N), atol=1e-12)
    np.testing.assert_allclose(matrix.right_solve(block), block @ inverse, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(matrix.left_multiply(block), block @ dense, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(matrix.column_norms_squared(), (dense**2).sum(axis=0), rtol=1e-11)
    if matrix.time_invariant:
        np.testing.assert_allclose(matrix.divide(block[0]), inverse @ block[0], rtol=1e-11, atol=1e-12)
    for start, stop in ((0, 7), (7, N), (3, 3)):
        np.testing.assert_allclose(matrix.rows(start, stop), dense[start:stop], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(matrix.inverse_rows(start, stop), inverse[start:stop], rtol=1e-12, atol=1e-14)
    again = build_matrix(matrix.structure, matrix.tensors(), N)
    np.testing.assert_allclose(again.dense(), dense, rtol=1e-12, atol=1e-14)


@every
@pytest.mark.parametrize("units", [64, 7])
def test_errors_by_recursion_are_those_of_rows(matrix: Matrix, units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorize.structures.recursion._UNITS", units)
    workload = spec_of({"kind": "momentum", "n": N, "momentum": 0.9}).workload
    found = matrix.decoder_errors(workload.state_space())
    if found is not None:
        decoder = workload.dense() @ matrix.inverse_rows(0, N)
        np.testing.assert_allclose(found, (decoder**2).sum(axis=1), rtol=1e-11)


@every
def test_who_is_time_invariant_says_so(matrix: Matrix) -> None:
    dense = matrix.dense()
    if matrix.time_invariant:
        assert np.array_equal(dense[1:, 1:], dense[:-1, :-1])
    assert matrix.time_invariant == (matrix.divide(np.eye(1, N)[0]) is not None)


@every
def test_numbers_that_the_structure_tells(matrix: Matrix) -> None:
    dense, column = matrix.dense(), matrix.coefficients()
    assert not np.triu(dense, 1).any()
    assert matrix.bandwidth() == max(d for d in range(N) if np.diagonal(dense, -d).any()) + 1
    assert column is None or np.array_equal(column, dense[:, 0])


def test_a_negative_number_makes_a_matrix_signed() -> None:
    signed = DenseMatrix(np.tril(-np.ones((4, 4)), -1) + np.eye(4))
    assert signed.signed and ColumnScaled(signed, np.ones(4)).signed
    assert not DenseMatrix(np.tri(4)).signed


@every
@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=lambda one: one.kind)
def test_both_programs_find_the_same_sensitivity(matrix: Matrix, participation: Participation) -> None:
    found = sensitivity_of(matrix, participation)
    bracket = bracket_sensitivity(Strategy(matrix.structure, matrix.tensors(), N), participation.document())
    assert bracket.upper <= Fraction(found.value) ** 2 <= bracket.upper * (1 + Fraction(1, 10**10))
    assert plain_sensitivity(matrix, participation) == pytest.approx(found.value, rel=1e-11)


@pytest.mark.parametrize("strategy", ENDLESS, ids=lambda one: one.structure)
def test_a_strategy_without_end_is_no_matrix(strategy: EndlessMatrix) -> None:
    assert strategy.side is None and not isinstance(strategy, Matrix)
    with pytest.raises(UnsupportedProblem, match="no last step"):
        strategy.finite()
    first = strategy.until(8)
    np.testing.assert_array_equal(strategy.rows(2, 8), first.dense()[2:])
    np.testing.assert_allclose(strategy.right_solve(np.eye(8)) @ first.dense(), np.eye(8), atol=1e-13)
    np.testing.assert_allclose(strategy.inverse_rows(0, 8) @ first.dense(), np.eye(8), atol=1e-13)
