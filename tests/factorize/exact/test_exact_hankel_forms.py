"""Hankel forms below a metric, in doubles: what is accepted is true in fractions, and what is near is accepted."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from exact_files import parts, sealed
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import eigh
from specs import solved

from factorize.exact import check_factor_file
from factorize.exact.arithmetic.integers import Numbers, integers
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.machine import integers_only
from factorize.exact.bounds import classes, overlaps
from factorize.exact.doubles.hankel_forms import require_below
from factorize.exact.participation import Allowed

FORM = Allowed(3, 3, False)


def some(seed: int, n: int, bands: int, *, signed: bool = True) -> tuple[np.ndarray, Numbers, Numbers]:
    """Multipliers, weights, and the metric of correlated columns of which three are 3 apart."""
    rng = np.random.default_rng(seed)
    multipliers = rng.standard_normal(n) / (1 + np.arange(n))
    dual = {"class_column": np.ones(n), "class_signs": rng.standard_normal((FORM.most, 2)) + [2.0, 0.0]}
    metric = overlaps.evidence(dual, FORM, n, bands)[1]
    return multipliers if signed else np.abs(multipliers), integers(1 + rng.random(n)), metric


def in_fractions(multipliers: np.ndarray, weights: Numbers, metric: Numbers) -> tuple[list[Any], list[Any]]:
    """N and M."""
    n, bands = len(multipliers), len(metric.values)
    long = [Fraction(float(x)) for x in multipliers] + [Fraction(0)] * bands
    inverse = [1 / weights.fraction(int(w)) for w in weights.values]
    gram = [
        [sum((inverse[t] * long[t + i] * long[t + j] for t in range(n)), Fraction(0)) for j in range(bands)]
        for i in range(bands)
    ]
    return gram, [[metric.fraction(int(v)) for v in row] for row in metric.values]


def is_positive(matrix: list[list[Fraction]]) -> bool:
    """Whether a symmetric matrix is semidefinite, by its pivots; none may be zero."""
    rows = [list(row) for row in matrix]
    for k in range(len(rows)):
        if rows[k][k] <= 0:
            return False
        for i in range(k + 1, len(rows)):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    return True


def accepts(limit: float, given: tuple[np.ndarray, Numbers, Numbers]) -> bool:
    try:
        require_below(*given, FORM.separation, limit)
    except NotEnclosed:
        return False
    return True


def least_accepted(given: tuple[np.ndarray, Numbers, Numbers], top: float) -> float:
    low, high = top * 0.9, top * 1.1
    assert accepts(high, given) and not accepts(low, given)
    while high > low * (1 + 1e-15):
        middle = (low + high) / 2
        low, high = (low, middle) if accepts(middle, given) else (middle, high)
    return high


@given(st.integers(0, 10**6), st.integers(1, 9), st.booleans())
def test_what_is_accepted_is_true_in_fractions_and_near_the_truth(seed: int, n: int, signed: bool) -> None:
    given_ = some(seed, n, max(1, n - seed % 3), signed=signed)
    gram, metric = in_fractions(*given_)
    form = np.array(metric, dtype=float)
    top = float(eigh(np.array(gram, dtype=float), form, eigvals_only=True)[-1])
    limit = least_accepted(given_, top)
    t = Fraction(limit)
    assert is_positive([[t * m - g for m, g in zip(*rows, strict=True)] for rows in zip(metric, gram, strict=True)])
    assert limit < top * (1 + 1e-11 / float(np.linalg.eigvalsh(form)[0]))


@pytest.fixture
def no_integers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def use() -> None:
        def none(*_: Any) -> Fraction:
            raise AssertionError("integers were asked")

        monkeypatch.setattr(overlaps, "largest_eigenvalue", none)

    return use


PREFIX = {"kind": "prefix", "n": 12}


@pytest.mark.parametrize("participation", [{"kind": "min_sep", "min_sep": 3}, {"kind": "fixed_epochs", "epochs": 3}])
def test_doubles_are_enough_for_a_file_and_integers_decide_on_a_false_claim(
    participation: dict[str, Any], no_integers: Callable[[], None]
) -> None:
    manifest, tensors = parts(solved(PREFIX | {"kind": "momentum", "momentum": 0.5}, "toeplitz", participation))
    with integers_only():
        assert check_factor_file(sealed(manifest, tensors)).supported
    claim = manifest["certificate"]["class_lower_bound"]
    claim["objective"] *= 1 + 1e-6
    assert any("class_lower_bound" in text for text in check_factor_file(sealed(manifest, tensors)).failed)
    claim["objective"] /= 1 + 1e-6
    no_integers()
    assert check_factor_file(sealed(manifest, tensors)).supported
    with integers_only(), pytest.raises(AssertionError, match="integers were asked"):
        check_factor_file(sealed(manifest, tensors))


def test_doubles_are_enough_for_an_objective_below_one(no_integers: Callable[[], None]) -> None:
    weights = {"kind": "weighted", "weights": [1e-3] * 12}
    manifest, tensors = parts(solved(PREFIX, "toeplitz", {"kind": "fixed_epochs", "epochs": 3}, weights))
    assert 0 < manifest["certificate"]["class_lower_bound"]["objective"] < 1
    no_integers()
    assert check_factor_file(sealed(manifest, tensors)).supported


def test_a_claim_that_is_next_to_nothing_is_left_to_integers() -> None:
    """What supports it is beyond the range of doubles."""
    given_ = some(3, 6, 6)
    wanted = overlaps.largest_eigenvalue(classes._gram(given_[0], given_[1], 6), given_[2])
    assert classes._largest(*given_, FORM.separation, Fraction(1), 5e-324) == wanted
