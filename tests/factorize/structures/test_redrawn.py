"""Strategies whose noise makes draws again: against their definition in fractions, and what is out of the checker's reach."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import redrawn_cases as cases
from checker_files import exact_rows, in_fractions
from hypothesis import given
from hypothesis import strategies as st

from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.losses import variances
from factorize.checker.sensitivity import bracket_sensitivity
from factorize.checker.strategy import Strategy
from factorize.checker.structures import redrawn
from factorize.errors import CertificateError, TooLarge
from factorize.factors.sensitivity import sensitivity_of
from factorize.participation import FixedEpochs, MinSep, Single
from factorize.structures.redrawn import RedrawnMatrix

EPOCHS = {"kind": "fixed_epochs", "epochs": 4}
SHAPES = st.tuples(st.integers(1, 14), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**31))


def strategy(matrix: RedrawnMatrix) -> Strategy:
    return Strategy("redrawn", matrix.tensors(), matrix.n)


@given(SHAPES, st.data())
def test_rows_of_the_inverse_are_those_of_the_recursion(shape, data):
    """The exact checker encloses them, and bounds what K makes of the columns that it solves for."""
    n, buffers, redraws, seed = shape
    matrix = cases.wild(n, buffers, redraws, data.draw(st.integers(1, n)), seed)
    exact, got, reading = cases.inverse(matrix), matrix.inverse_rows(0, n), redrawn.RedrawnReading(matrix.tensors(), n)
    np.testing.assert_allclose(got, exact.astype(float), rtol=0, atol=1e-13 * max(1, float(abs(exact).max())))
    assert not np.triu(got, 1).any()
    for row, true in zip(reading.inverse_rows(), exact, strict=True):
        assert (abs(in_fractions(row.values) - true) <= in_fractions(row.errors)).all()
    values, apart = reading.solved(np.arange(n))
    rest = exact @ in_fractions(values) - in_fractions(np.eye(n))
    assert ((rest**2).sum(axis=0) <= in_fractions(apart) ** 2).all()


def test_a_draw_is_used_once_more_an_epoch_later():
    """By hand: x_0 = y_0, x_1 = y_1 / 2 + 3 y_0 with lag 1 and no states."""
    none = np.zeros((2, 1))
    direct = np.array([[1.0, 0.5], [0.0, 3.0]])
    matrix = RedrawnMatrix(none, none, np.zeros((2, 2, 1)), direct, 1)
    assert np.array_equal(matrix.inverse_rows(0, 2), [[1, 0], [3, 0.5]])
    assert np.array_equal(matrix.rows(0, 2), [[1, 0], [-6, 2]])


def test_what_a_state_lost_is_not_forgotten_when_it_cancels():
    """The state of column 0 is 0.3 * 0.7 * 0.9 less its nearest double, smaller than what it lost, and is read times 2^60."""
    decay, output, inputs, direct = np.ones((6, 1)), np.zeros((6, 1)), np.zeros((2, 6, 1)), np.zeros((2, 6))
    decay[1:4, 0] = 0.3, 0.7, 0.9
    nearest = float(Fraction(0.3) * Fraction(0.7) * Fraction(0.9))
    inputs[0, 0], inputs[1, 3], output[-1], direct[0] = 1, -nearest, -(2.0**60), 1
    with pytest.raises(NotEnclosed, match="ill-conditioned"):
        strategy(RedrawnMatrix(decay, output, inputs, direct, 3)).near_columns(np.arange(6))


@pytest.mark.parametrize("participation", [Single(), MinSep(kind="min_sep", min_sep=9)])
def test_a_norm_known_to_a_few_digits_is_refused(participation):
    n, ones = 9, np.ones((9, 1))
    inputs, direct = np.ones((2, n, 1)), np.ones((2, n))
    inputs[1, :2], direct[1, :2] = 0, 0
    with pytest.raises(CertificateError, match="cannot be proved"):
        sensitivity_of(RedrawnMatrix(ones * 1000, -ones * 1000, inputs, direct, 2), participation)


def test_signs_that_balance_are_exact():
    """x_1 = y_1 + y_0 makes C_01 negative: contributions of opposite signs attain the absolute sum."""
    none = np.zeros((2, 1))
    matrix = RedrawnMatrix(none, none, np.zeros((2, 2, 1)), np.array([[1.0, 1.0], [0.0, 1.0]]), 1)
    found = sensitivity_of(matrix, FixedEpochs(kind="fixed_epochs", epochs=2))
    assert found.kind == "exact" and found.value**2 == pytest.approx(5, rel=1e-13)


def test_an_inverse_that_is_not_enclosed():
    """x_i = y_i + 2^60 (y_0 + ... + y_{i-1}): entries of C grow by 2^60 a step, beyond all places."""
    ones, inputs, direct = np.ones((8, 1)), np.zeros((2, 8, 1)), np.zeros((2, 8))
    inputs[0], direct[0] = 1, 1
    matrix = RedrawnMatrix(ones, ones * 2.0**60, inputs, direct, 4)
    with pytest.raises(NotEnclosed, match="ill-conditioned"):
        bracket_sensitivity(strategy(matrix), EPOCHS)


@pytest.mark.parametrize("participation", [EPOCHS, {"kind": "single"}])
def test_a_length_above_the_limit(participation):
    n = redrawn.MAX_N + 4
    matrix = cases.likely(n, buffers=1, redraws=1)
    with pytest.raises(TooLarge):
        bracket_sensitivity(strategy(matrix), participation)


def test_what_a_state_lost_is_in_the_losses_too():
    """The state of column 0 is 0.3 * 0.7 * 0.9 less its two nearest doubles: less than a pair of doubles can tell."""
    decay, output = np.ones((9, 1)), np.zeros((9, 1))
    inputs, direct = np.zeros((3, 9, 1)), np.zeros((3, 9))
    decay[1:4, 0] = 0.3, 0.7, 0.9
    product = Fraction(0.3) * Fraction(0.7) * Fraction(0.9)
    high = float(product)
    inputs[0, 0], inputs[1, 3], inputs[2, 6], direct[0] = 1, -high, -float(product - Fraction(high)), 1
    output[7:] = 2.0**110
    matrix = RedrawnMatrix(decay, output, inputs, direct, 3)
    noising = cases.inverse(matrix)
    for workload in ({"kind": "identity", "n": 9}, {"kind": "momentum", "n": 9, "momentum": 0.5}):
        rows: Any = exact_rows(workload)
        norms = ((rows @ noising) ** 2).sum(axis=1)
        found = variances.losses(strategy(matrix), workload, {"kind": "mean"}, 1 << 24)
        assert found is not None and found.last[0] <= norms[-1] <= found.last[1]
        assert found.last[1] > found.last[0] * (1 + 1e-6)


def test_numbers_out_of_range():
    given_ = cases.likely(8, buffers=2, redraws=1, lag=4)
    for name, limit, beyond in (("output", 1e100, 1.001e100), ("direct", 1e-100, 0.999e-100)):
        parts = given_.tensors()
        parts[name] = parts[name].copy()
        parts[name][0, 0] = limit
        redrawn.RedrawnReading(parts, 8).solved(np.arange(8))
        parts[name][0, 0] = beyond
        with pytest.raises(NotEnclosed, match=r"beyond 1e\+100"):
            redrawn.RedrawnReading(parts, 8).solved(np.arange(8))
