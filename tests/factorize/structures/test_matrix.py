"""What is no strategy matrix, and products of series."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorize.errors import InvalidStrategy, TooLarge
from factorize.numbers.series import _fft_quotient, series_quotient
from factorize.structures.banded import BandedMatrix
from factorize.structures.base import check_dense
from factorize.structures.buffered import BufferedMatrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import ToeplitzMatrix


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((2, 3)), "square"),
        (np.zeros((0, 0)), "not empty"),
        (np.array([[1.0, 1e-300], [0.0, 1.0]]), "exactly 0"),
        (np.array([[1.0, 0.0], [np.nan, 1.0]]), "NaN"),
        (np.array([[1.0, 0.0], [1.0, 0.0]]), "diagonal entry 1"),
        (np.array([[-1.0]]), "diagonal entry 0"),
    ],
)
def test_what_cannot_be_a_strategy(array: np.ndarray, message: str) -> None:
    with pytest.raises(InvalidStrategy, match=message):
        DenseMatrix(array)


@pytest.mark.parametrize("column", [[], [0.0], [-1.0], [1.0, np.inf], [1.0, 2.0, 3.0], [[1.0]]])
def test_what_cannot_be_a_toeplitz_column(column: list[float]) -> None:
    with pytest.raises(InvalidStrategy):
        ToeplitzMatrix(np.array(column), 2)


@pytest.mark.parametrize(
    "bands",
    [
        np.ones(3),
        np.ones((0, 3)),
        np.ones((4, 3)),
        np.array([[1.0, 1.0], [0.5, 0.5]]),
        np.array([[1.0, 0.0], [0.5, 0.0]]),
        np.array([[1.0, np.nan], [0.5, 0.0]]),
    ],
    ids=str,
)
def test_what_cannot_be_bands(bands: np.ndarray) -> None:
    with pytest.raises(InvalidStrategy):
        BandedMatrix(bands)


@pytest.mark.parametrize(
    "change",
    [
        {"diagonal": np.array([1.0, 0.0, 1.0])},
        {"diagonal": np.array([1.0, np.nan, 1.0])},
        {"transition": np.ones((2, 2))},
        {"transition": np.ones((3, 2, 3))},
        {"transition": np.ones((3, 2, 1, 2))},
        {"transition": np.ones((3, 3))},
        {"inputs": np.ones((3, 3))},
        {"inputs": np.ones((3, 0)), "outputs": np.ones((3, 0))},
        {"outputs": np.full((3, 2), np.inf)},
        {"diagonal": np.ones(0)},
    ],
    ids=str,
)
def test_what_cannot_be_buffers(change: dict[str, np.ndarray]) -> None:
    good = {"diagonal": np.ones(3)} | dict.fromkeys(("transition", "inputs", "outputs"), np.ones((3, 2)))
    BufferedMatrix(**good)
    with pytest.raises(InvalidStrategy):
        BufferedMatrix(**(good | change))


@pytest.mark.parametrize("scale", [[1.0], [1.0, 0.0], [1.0, np.nan]])
def test_what_cannot_be_a_scale(scale: list[float]) -> None:
    with pytest.raises(InvalidStrategy):
        ColumnScaled(DenseMatrix(np.eye(2)), np.array(scale))


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
