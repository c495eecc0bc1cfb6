"""Sensitivities against the published vectors and by hand, and participations by their patterns."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from checker_files import min_sep_patterns, true_squares

from factorize.errors import CertificateError, InvalidStrategy
from factorize.factors.sensitivity import sensitivity_of
from factorize.participation import FixedEpochs, MinSep, Single
from factorize.structures.base import Matrix
from factorize.structures.buffered import BufferedMatrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import InverseBandedToeplitz, ToeplitzMatrix


def sqrt_column(n: int) -> np.ndarray:
    return np.cumprod([1.0] + [(t - 0.5) / t for t in range(1, n)])


def test_published_square_root(vectors: dict[str, Any]) -> None:
    expected = vectors["C.sqrt.n8"]
    forms: list[Matrix] = [ToeplitzMatrix(sqrt_column(8), 8), DenseMatrix(ToeplitzMatrix(sqrt_column(8), 8).dense())]
    for matrix in forms:
        assert sensitivity_of(matrix, Single()).value == pytest.approx(expected["single"], rel=1e-12)
        two = sensitivity_of(matrix, FixedEpochs(kind="fixed_epochs", epochs=2))
        assert (two.value, two.kind) == (pytest.approx(expected["fixed_k2_b4"], rel=1e-12), "exact")
        three = sensitivity_of(matrix, MinSep(kind="min_sep", min_sep=2, max_participations=3))
        assert three.value == pytest.approx(expected["minsep_b2_k3"], rel=1e-12)


def test_published_traps(vectors: dict[str, Any]) -> None:
    trap = vectors["C.negative_gram_trap"]
    negative = ToeplitzMatrix(np.array(trap["coef"], dtype=float), trap["n"])
    stated = sensitivity_of(DenseMatrix(negative.dense()), FixedEpochs(kind="fixed_epochs", epochs=4))
    assert stated.value == pytest.approx(trap["exact_vector"], rel=1e-12)
    counter = vectors["C.toeplitz_nonmonotone_counterexample"]
    column = ToeplitzMatrix(np.array(counter["coef"]), counter["n"])
    stated = sensitivity_of(column, MinSep(kind="min_sep", min_sep=1, max_participations=2))
    assert stated.value >= counter["exact"]
    banded = vectors["C.banded"]
    stated = sensitivity_of(DenseMatrix(np.array(banded["C"])), MinSep(kind="min_sep", min_sep=2, max_participations=2))
    assert (stated.value, stated.kind) == (pytest.approx(banded["brute"], rel=1e-12), "exact")
    monotone_case = vectors["C.toeplitz_monotone"]
    stated = sensitivity_of(
        ToeplitzMatrix(np.array(monotone_case["coef"]), 6), MinSep(kind="min_sep", min_sep=2, max_participations=3)
    )
    assert (stated.value, stated.kind) == (pytest.approx(monotone_case["brute"], rel=1e-12), "exact")


@pytest.mark.parametrize("key", ["C.frustrated_gram", "C.frustrated_gram2"])
def test_frustrated_grams_are_only_bounded(vectors: dict[str, Any], key: str) -> None:
    case = vectors[key]
    reversal = np.eye(3)[::-1]
    factor = reversal @ np.linalg.cholesky(reversal @ np.array(case["X"]) @ reversal).T @ reversal
    stated = sensitivity_of(DenseMatrix(np.tril(factor)), FixedEpochs(kind="fixed_epochs", epochs=3))
    assert stated.kind == "upper_bound"
    assert stated.value == pytest.approx(case["abs_bound"], rel=1e-12)
    assert stated.value > case["elliptope_exact"]


@pytest.mark.parametrize("diagonal", [1e-61, 1e-160, 5e-324])
def test_a_strategy_too_small_for_double_precision_is_refused(diagonal: float) -> None:
    """Its squares underflow: without a limit, 2e-160 was stated as 1.99999e-160, and 1e-162 as 0, both as exact."""
    ones = np.ones((2, 1))
    strategies = (
        DenseMatrix(np.eye(2) * diagonal),
        BufferedMatrix(np.full(2, diagonal), ones, 0 * ones, ones),
        ToeplitzMatrix(np.array([diagonal]), 2),
    )
    for strategy in strategies:
        for participation in (Single(), FixedEpochs(kind="fixed_epochs", epochs=2), MinSep(kind="min_sep", min_sep=1)):
            with pytest.raises(CertificateError, match="scale"):
                sensitivity_of(strategy, participation)
    with pytest.raises(InvalidStrategy, match="column_scale has numbers outside"):
        ColumnScaled(DenseMatrix(np.eye(2)), np.array([1.0, diagonal]))


def test_a_zero_before_a_larger_coefficient_is_no_fall() -> None:
    """C^-1 = 1 - x^2 / 2 has C = 1, 0, 1/2, 0, 1/4: a majorant is no more than an upper bound, and columns 0 and 2 attain 9/2."""
    strategy = InverseBandedToeplitz(np.array([1.0, 0.0, -0.5]), 5)
    stated = sensitivity_of(strategy, MinSep(kind="min_sep", min_sep=1, max_participations=2))
    apart = {"kind": "min_sep", "min_sep": 1, "max_participations": 2}
    assert Fraction(stated.value) ** 2 >= true_squares(strategy.dense(), apart)[1]


@pytest.mark.parametrize("n", [1, 5, 12])
def test_spreads_are_those_of_the_patterns(n):
    assert Single().spread(n)[:2] == (n, 1)
    for epochs in (k for k in range(1, n + 1) if n % k == 0):
        patterns = FixedEpochs(kind="fixed_epochs", epochs=epochs).patterns(n)
        separation, count, _ = FixedEpochs(kind="fixed_epochs", epochs=epochs).spread(n)
        assert count == patterns.shape[1] and (np.diff(patterns, axis=1) == separation).all()
    for apart, most in itertools.product(range(1, n + 1), (None, 1, 2, 20)):
        separation, count, _ = MinSep(kind="min_sep", min_sep=apart, max_participations=most).spread(n)
        assert separation == apart
        assert count == max(len(pattern) for pattern in min_sep_patterns(n, apart, most or n))
