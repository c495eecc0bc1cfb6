"""What the bounds over several participations are summed from: enclosed entries, and selections within rows."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from factorize.certificate.gram_bounds import best_selection
from factorize.certificate.sensitivity import sensitivity_of
from factorize.errors import CertificateError
from factorize.numbers.wide_kernels import selected_sums
from factorize.participation import MinSep
from factorize.structures.blt import BltMatrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.inverse_banded_toeplitz import InverseBandedToeplitz
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import ToeplitzMatrix

RNG = np.random.default_rng(11)
SIZES = (1, 2, 5, 300)  # the last takes several blocks of rows


def inner(kind, n):
    if kind == "blt":
        return BltMatrix(np.array([0.8])[: n // 2 + 1], np.array([0.3]), n)
    if kind == "inverse":
        return InverseBandedToeplitz(np.array([1.0, -0.5, -0.25])[:n], n)
    return ToeplitzMatrix(RNG.uniform(0.1, 1, n), n)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", ["toeplitz", "blt", "inverse"])
def test_scaled_entries_are_products_of_the_enclosed_ones(kind, n):
    matrix, scale = inner(kind, n), RNG.uniform(0.5, 2, n)
    before, found = matrix.enclosed_entries(), ColumnScaled(matrix, scale).enclosed_entries()
    whole = before.times(ToeplitzMatrix(np.ones(1), 1).enclosed_entries().take(0, 0)._replace(high=scale))
    np.testing.assert_array_equal(found.high + found.low, whole.high + whole.low)
    assert not np.triu(found.high, 1).any() and (np.diagonal(found.high) > 0).all()
    for i, j in [(0, 0), (n - 1, 0), (n - 1, n - 1), (n // 2, n // 3)]:
        exact = (Fraction(float(before.high[i, j])) + Fraction(float(before.low[i, j]))) * Fraction(scale[j])
        stated = Fraction(float(found.high[i, j])) + Fraction(float(found.low[i, j]))
        allowed = Fraction(float(found.error[i, j])) + Fraction(float(before.error[i, j])) * Fraction(scale[j])
        assert abs(stated - exact) <= allowed


@pytest.mark.parametrize(("separation", "most"), [(1, 1), (1, 9), (3, 2), (4, 7), (30, 2), (50, 3)])
def test_selections_within_rows(separation, most):
    values = RNG.exponential(size=(8, 30))
    out = np.empty(8)
    selected_sums(values, separation, most, out)
    assert out.tolist() == [best_selection(row, separation, most) for row in values]


def test_entries_that_overflow_in_the_gram_matrix_are_refused():
    """A maximum that drops what is no number would state a sensitivity that is too small."""
    whole = np.tril(np.ones((6, 6)))
    whole[5, 0], whole[5, 3] = 1e200, -1e200
    with pytest.raises(CertificateError, match="overflows"):
        sensitivity_of(DenseMatrix(whole), MinSep(kind="min_sep", min_sep=3, max_participations=2))
