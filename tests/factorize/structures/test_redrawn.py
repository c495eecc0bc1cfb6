"""Strategies whose noise makes draws again: against their definition in fractions, and the certificate on top."""

from __future__ import annotations

import numpy as np
import pytest
import redrawn_cases as cases
from hypothesis import given
from hypothesis import strategies as st

from factorize.certificate.sensitivity import sensitivity_of
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.strategy import Strategy
from factorize.errors import CertificateError
from factorize.participation import FixedEpochs, MinSep, Single
from factorize.structures.redrawn import RedrawnMatrix

SHAPES = st.tuples(st.integers(1, 14), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**31))


def made(shape: tuple[int, int, int, int], data: st.DataObject) -> RedrawnMatrix:
    n, buffers, redraws, seed = shape
    return cases.wild(n, buffers, redraws, data.draw(st.integers(1, n)), seed)


def doubles(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


class TestDefinition:
    @given(SHAPES, st.data())
    def test_inverse_rows_are_those_of_the_recursion(self, shape, data):
        matrix = made(shape, data)
        exact = doubles(cases.inverse(matrix))
        got = matrix.inverse_rows(0, matrix.n)
        np.testing.assert_allclose(got, exact, rtol=0, atol=1e-13 * max(1, np.abs(exact).max()))
        assert not np.triu(got, 1).any()

    def test_a_draw_is_used_once_more_an_epoch_later(self):
        """By hand: x_0 = y_0, x_1 = y_1 / 2 + 3 y_0 with lag 1 and no states."""
        none = np.zeros((2, 1))
        direct = np.array([[1.0, 0.5], [0.0, 3.0]])
        matrix = RedrawnMatrix(none, none, np.zeros((2, 2, 1)), direct, 1)
        assert np.array_equal(matrix.inverse_rows(0, 2), [[1, 0], [3, 0.5]])
        assert np.array_equal(matrix.rows(0, 2), [[1, 0], [-6, 2]])


class TestSensitivity:
    def test_what_a_state_lost_is_not_forgotten_when_it_cancels(self):
        """A state that is far smaller than what it has lost, and is read times 2^60."""
        matrix = cases.cancelling(3)
        with pytest.raises(NotEnclosed, match="ill-conditioned"):
            Strategy("redrawn", matrix.tensors(), matrix.n).near_columns(np.arange(matrix.n))

    @pytest.mark.parametrize("participation", [Single(), MinSep(kind="min_sep", min_sep=9)])
    def test_a_norm_known_to_a_few_digits_is_refused(self, participation):
        n, ones = 9, np.ones((9, 1))
        inputs, direct = np.ones((2, n, 1)), np.ones((2, n))
        inputs[1, :2], direct[1, :2] = 0, 0
        with pytest.raises(CertificateError, match="is not known"):
            sensitivity_of(RedrawnMatrix(ones * 1000, -ones * 1000, inputs, direct, 2), participation)

    def test_signs_that_balance_are_exact(self):
        """x_1 = y_1 + y_0 makes C_01 negative: contributions of opposite signs attain the absolute sum."""
        none = np.zeros((2, 1))
        matrix = RedrawnMatrix(none, none, np.zeros((2, 2, 1)), np.array([[1.0, 1.0], [0.0, 1.0]]), 1)
        found = sensitivity_of(matrix, FixedEpochs(kind="fixed_epochs", epochs=2))
        assert found.kind == "exact" and found.value**2 == pytest.approx(5, rel=1e-13)
