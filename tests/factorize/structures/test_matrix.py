"""What is no strategy matrix, and products of series."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorize.errors import InvalidStrategy, TooLarge
from factorize.numbers.triangular import _fft_quotient, series_quotient
from factorize.structures.banded import BandedMatrix
from factorize.structures.base import check_dense
from factorize.structures.buffered import BufferedMatrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.redrawn import RedrawnMatrix
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import BltMatrix, InverseBandedToeplitz, ToeplitzMatrix
from factorize.structures.tree import TreeMatrix


@pytest.mark.parametrize(
    "make",
    [
        lambda: DenseMatrix(np.ones((2, 3))),
        lambda: DenseMatrix(np.zeros((0, 0))),
        lambda: DenseMatrix(np.array([[1.0, 1e-300], [0.0, 1.0]])),
        lambda: ToeplitzMatrix(np.array([0.0]), 2),
        lambda: BandedMatrix(np.array([[1.0, 0.0], [0.5, 0.0]])),
        lambda: BufferedMatrix(np.ones(3), np.ones((3, 2)), np.ones((3, 3)), np.ones((3, 2))),
        lambda: BltMatrix(np.array([1.5]), np.array([0.1]), 8),
        lambda: InverseBandedToeplitz(np.array([1.0, 0.5]), 8),
        lambda: RedrawnMatrix(np.ones((2, 1)), np.ones((2, 1)), np.ones((2, 2, 1)), np.ones((2, 2)), 0),
        lambda: TreeMatrix(np.ones((4, 6)), 6),
        lambda: ColumnScaled(DenseMatrix(np.eye(2)), np.array([1.0, np.nan])),
    ],
)
def test_every_class_refuses_what_the_reader_of_files_refuses(make: Callable[[], object]) -> None:
    """Which that is stands in tests/factorize/format/test_tensors.py."""
    with pytest.raises(InvalidStrategy):
        make()


def test_a_dense_array_that_is_too_large_is_refused_before_it_exists() -> None:
    with pytest.raises(TooLarge, match=r"7450\.6 GiB"):
        check_dense(1_000_000)
    with pytest.raises(TooLarge):
        ToeplitzMatrix(np.array([1.0]), 100_000_000).dense()


def test_the_callers_array_stays_its_own() -> None:
    mine = np.eye(3)
    matrix = DenseMatrix(mine)
    mine[1, 0] = 7.0
    assert matrix.rows(1, 2)[0, 0] == 0.0


@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 10))
def test_quotients_undo_products(n: int, bands: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    denominator = np.concatenate([[1.0], rng.uniform(-1, 1, min(bands, n) - 1) / n])
    numerator = rng.normal(size=n)
    quotient = series_quotient(numerator, denominator)
    np.testing.assert_allclose(np.convolve(quotient, denominator)[:n], numerator, atol=1e-11)
    np.testing.assert_allclose(_fft_quotient(numerator, denominator), quotient, atol=1e-11)


def test_large_toeplitz_inverse_by_fft_matches_the_closed_form() -> None:
    n = 40_000
    t = np.arange(1, n)
    column = np.concatenate([[1.0], np.cumprod((t - 0.5) / t)])
    expected = np.concatenate([[1.0], np.cumprod((t - 1.5) / t)])
    np.testing.assert_allclose(ToeplitzMatrix(column, n).inverse_coefficients, expected, atol=1e-14)
