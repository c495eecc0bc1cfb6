"""Sensitivities to the last unit: wide numbers against fractions, and sensitivities against the truth in fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from exact_files import gram_in_fractions, strategy_of
from hypothesis import given
from hypothesis import strategies as st

from factorize.certificate.sensitivity import sensitivity_of
from factorize.errors import CertificateError
from factorize.numbers.pattern_sums import best_periodic, best_separated, leading_pattern
from factorize.numbers.wide import (
    Wide,
    largest,
    of_doubles,
    product,
    squares,
    sum_above,
)
from factorize.participation import FixedEpochs, MinSep, Single
from factorize.structures.base import Matrix
from factorize.structures.buffered import BufferedMatrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.scaled import ColumnScaled

SMALLEST = Fraction(1, 10**180)  # beside squares of numbers that are next to nothing
doubles = st.floats(-1e30, 1e30, allow_nan=False)


def true(numbers: Wide, i: int) -> Fraction:
    return Fraction(float(numbers.high[i])) + Fraction(float(numbers.low[i]))


def close(numbers: Wide, i: int, value: Fraction) -> None:
    error = Fraction(float(numbers.error[i]))
    assert abs(true(numbers, i) - value) <= error
    assert error <= abs(value) / 2**80 + SMALLEST


@given(st.lists(doubles, min_size=1, max_size=12), st.lists(doubles, min_size=1, max_size=12))
def test_sums_and_products_are_enclosed(left: list[float], right: list[float]) -> None:
    size = min(len(left), len(right))
    a, b = np.array(left[:size]), np.array(right[:size])
    found, both = product(a, b), squares(a).plus(squares(b))
    for i in range(size):
        close(found, i, Fraction(a[i]) * Fraction(b[i]))
        close(both, i, Fraction(a[i]) ** 2 + Fraction(b[i]) ** 2)
        close(both.times(squares(a)), i, true(both, i) * Fraction(a[i]) ** 2)


def test_numbers_that_overflow_are_refused() -> None:
    for ask in (sum_above, largest):
        with pytest.raises(CertificateError, match="overflows"):
            ask(squares(np.array([1e200, 1.0])))
    with pytest.raises(CertificateError, match="overflows"):
        sensitivity_of(DenseMatrix(1e200 * np.tri(4)), FixedEpochs(kind="fixed_epochs", epochs=2))
    with pytest.raises(CertificateError, match="overflows"):
        sensitivity_of(DenseMatrix(1e200 * np.tri(4)), MinSep(kind="min_sep", min_sep=1))


def matrices(rng: np.random.Generator, n: int) -> list[Matrix]:
    found = [strategy_of(rng, n, structure) for structure in ("dense", "toeplitz", "banded")]
    scale = 0.5 + rng.random(n)
    return [*found, *(ColumnScaled(matrix, scale) for matrix in found)]


def test_column_norms_of_every_structure() -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        for matrix in matrices(rng, 7):
            found = matrix.enclosed_column_norms()
            assert found is not None
            inner = matrix.inner if isinstance(matrix, ColumnScaled) else matrix
            factors = matrix.scale if isinstance(matrix, ColumnScaled) else np.ones(7)
            gram = gram_in_fractions(inner.dense())
            for j in range(7):
                close(found, j, gram[j][j] * Fraction(factors[j]) ** 2)


@pytest.mark.parametrize("growth", [2.0**70, 3.0e30, 1e60])
def test_buffers_that_cancel_and_grow_are_never_understated(growth: float) -> None:
    """Two buffers with one decay and nearly opposite inputs: in plain doubles what is left of them is nothing."""
    inputs = np.array([[1.0, -1.0 + 2.0**-40]] * 3)
    matrix = BufferedMatrix(np.ones(3), np.full((3, 2), growth), inputs, np.ones((3, 2)))
    entry = Fraction(growth) * Fraction(2.0**-40)
    exact = 1 + entry**2 + (entry * Fraction(growth)) ** 2
    try:
        stated = sensitivity_of(matrix, Single())
    except CertificateError:
        return
    assert stated.kind == "exact"
    assert 0 <= Fraction(stated.value) ** 2 / exact - 1 < 2.0**-35


def test_selections_and_patterns() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        n = 9
        values = rng.random(n)
        numbers = squares(values)
        exact = [Fraction(value) ** 2 for value in values]
        for separation, most in ((1, 3), (2, 9), (4, 2), (9, 1)):
            best = [Fraction(0)] * (n + separation)
            for _ in range(most):
                level = [Fraction(0)] * (n + separation)
                for i in range(n - 1, -1, -1):
                    level[i] = max(level[i + 1], exact[i] + best[i + separation])
                best = level
            found = best_separated(numbers, separation, most)
            assert best[0] <= found <= best[0] * (1 + Fraction(1, 2**80))
            column = np.sort(values)[::-1]
            sums = [
                sum((Fraction(column[t - i * separation]) for i in range(most) if t >= i * separation), Fraction(0))
                for t in range(n)
            ]
            squared = sum((entry**2 for entry in sums), Fraction(0))
            assert (
                squared <= leading_pattern(of_doubles(column), separation, most) <= squared * (1 + Fraction(1, 2**80))
            )
        periodic = max(exact[j] + exact[j + 3] + exact[j + 6] for j in range(3))
        assert periodic <= best_periodic(numbers, 3) <= periodic * (1 + Fraction(1, 2**80))


@pytest.mark.parametrize(
    ("diagonal", "transition", "inputs", "outputs"),
    [
        # The square of the output keeps three bits; the transition brings it back to the normal range.
        ([1.0, 1.0], [1.0, -2.3e99], [1e100, 1e100], [0.0, -3.96e-161]),
        ([1.0, 1e-50], [0.0, 4.085435647911435e99], [3.0300713665717473e99, 0.6], [0.0, -3.0963842069056622e-161]),
    ],
)
def test_what_leaves_the_normal_range_and_returns_is_not_lost(
    diagonal: list[float], transition: list[float], inputs: list[float], outputs: list[float]
) -> None:
    columns = (np.array(part)[:, None] for part in (transition, inputs, outputs))
    matrix = BufferedMatrix(np.array(diagonal), *columns)
    entry = Fraction(outputs[1]) * Fraction(transition[1]) * Fraction(inputs[0])
    try:
        stated = sensitivity_of(matrix, Single())
    except CertificateError:
        return
    assert Fraction(stated.value) ** 2 >= Fraction(diagonal[0]) ** 2 + entry**2
