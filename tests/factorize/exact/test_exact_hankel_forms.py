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
from factorize.exact.doubles import hankel_forms
from factorize.exact.doubles.hankel_forms import require_below
from factorize.exact.doubles.roundings import SLACK, TINY
from factorize.exact.doubles.workload_rows import Near
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


@pytest.mark.parametrize("n", [40, 300])
def test_more_steps_are_accepted_as_near(n: int) -> None:
    multipliers, weights, metric = some(1, n, n)
    roots = 1 / np.sqrt([float(weights.fraction(int(w))) for w in weights.values])
    hankel = np.array([[multipliers[i + j] if i + j < n else 0.0 for j in range(n)] for i in range(n)])
    form = np.array([[float(metric.fraction(int(v))) for v in row] for row in metric.values])
    top = float(eigh((roots[:, None] * hankel).T @ (roots[:, None] * hankel), form, eigvals_only=True)[-1])
    assert accepts(top * (1 + 1e-10), (multipliers, weights, metric))
    assert not accepts(top * (1 - 1e-10), (multipliers, weights, metric))


@pytest.mark.parametrize(
    ("away", "accepted"),
    [(0.0, True), (0.3, True), (-0.3, True), (1.1, False), (-1.1, False), (1e6, False)],
)
def test_what_a_triangle_leaves_is_covered(monkeypatch: pytest.MonkeyPatch, away: float, accepted: bool) -> None:
    """One number: t - N = L^2 + d + D with an L that is wrong by a part of d, while 1 / 16 of d is to be covered."""
    root = np.linalg.cholesky
    shifts: list[float] = []

    def wrong(matrix: np.ndarray) -> np.ndarray:
        shifts.append(float(4.0 - (1 + SLACK) ** 2 - matrix[0, 0]))
        return np.asarray(root(matrix + away * shifts[0]))

    monkeypatch.setattr(np.linalg, "cholesky", wrong)
    monkeypatch.setattr(hankel_forms, "_TRIALS", 1)
    one = Numbers(np.array([[1 << 60]], dtype=object), -60)
    assert accepts(4.0, (np.ones(1), Numbers(np.array([1], dtype=object), 0), one)) == accepted
    assert shifts[0] > 0


def rounded_squares(array: np.ndarray, roundings: int) -> Fraction:
    """(k + 4) u times the lesser of the sum of squares and the largest row sum times the largest column sum."""
    sizes = [[abs(Fraction(float(x))) for x in row] for row in array]
    rows, columns = max(sum(row) for row in sizes), max(sum(column) for column in zip(*sizes, strict=True))
    square = sum((x * x for row in sizes for x in row), Fraction(0))
    return Fraction(roundings + 4, 2**53) * min(square, rows * columns)


@pytest.mark.parametrize(
    ("array", "roundings"),
    [
        (np.diag([1.0, 2.0, 3.0])[:, :2], 4),
        (np.diag([1.0, 2.0, 3.0])[:2], 3),
        (np.random.default_rng(1).standard_normal((40, 3)), 41),
        (np.random.default_rng(2).standard_normal((3, 40)), 4),
        (np.eye(600, 3) + 1e-9, 514),
    ],
    ids=["tall", "wide", "long", "short", "sums in parts"],
)
def test_what_products_lose(array: np.ndarray, roundings: int) -> None:
    wanted, found = rounded_squares(array, roundings), Fraction(hankel_forms._lost_by_squares(array))
    assert wanted <= found <= wanted * (1 + Fraction(1, 2**28))


def test_what_products_lose_below_the_normal_numbers() -> None:
    found = hankel_forms._lost_by_squares(np.full((4, 3), 1e-200))
    assert 3 * TINY < found < 3 * TINY * (1 + 1e-9)
    assert hankel_forms._lost_by_squares(np.array([[3.0, 0.0]])) > rounded_squares(np.array([[3.0, 0.0]]), 2)
    monkeyed = 1e5 * hankel_forms._lost_by_squares(np.full((1, 2), 0.0))
    assert monkeyed == pytest.approx(2e5 * TINY)


def test_the_least_number_counts_for_each_entry_and_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hankel_forms, "TINY", 1.0)
    assert hankel_forms._lost_by_squares(np.full((5, 3), 7.0)) == pytest.approx(3 * (1 + 7.0))


def test_all_that_is_rounded_before_the_triangle_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What G^T G loses, what the metric is off by, and a rounding of its product with t and of the difference."""
    seen: list[tuple[np.ndarray, float]] = []
    monkeypatch.setattr(hankel_forms, "_require_positive", lambda *given: seen.append(given))
    monkeypatch.setattr(hankel_forms, "_lost_by_squares", lambda array: 1e-15 * float(np.abs(array).max()))
    multipliers, weights = np.array([1.0, 0.5, -0.25]), integers(np.array([1.0, 4.0, 0.25]))
    metric = np.array([[1.0, 0.5], [0.5, 1.0]])
    radius = 1 << 20
    for near in (integers(metric), integers(metric)._replace(radius=radius)):
        require_below(multipliers, weights, near, 1, 5.0)
    scaled = np.array([[1.0, 0.5], [0.25, -0.125], [-0.5, 0.0]])
    off = Fraction(radius + 1) * Fraction(2) ** integers(metric).exponent
    for (found, lost), errors in zip(seen, (Fraction(0), Fraction(15, 2**53) + 10 * off), strict=True):
        assert np.allclose(found, 5.0 * metric - scaled.T @ scaled, rtol=1e-11)
        rounding = Fraction(1, 2**53) * (
            Fraction(7.5) + max(sum(abs(Fraction(float(x))) for x in row) for row in found)
        )
        wanted = Fraction(1e-15) * (1 + Fraction(1, 2**41)) + rounding + errors
        assert wanted <= Fraction(lost) <= wanted * (1 + Fraction(1, 10**8))


@pytest.mark.parametrize(
    ("unit", "squares", "accepted"),
    [(0.0, 0.0, True), (0.9, 0.0, True), (0.95, 0.0, False), (0.0, 14.9, True), (0.0, 15.1, False), (0.5, 7.5, False)],
)
def test_what_the_product_of_the_triangle_rounds_is_covered(
    monkeypatch: pytest.MonkeyPatch, unit: float, squares: float, accepted: bool
) -> None:
    """One of 16 parts of d is lost before, `squares` of them by L L^T, and `unit` of what is left, which is d."""
    lost = 1e-6
    monkeypatch.setattr(hankel_forms, "_TRIALS", 1)
    monkeypatch.setattr(hankel_forms, "UNIT", unit)
    monkeypatch.setattr(hankel_forms, "_lost_by_squares", lambda _array: squares * lost)
    if accepted:
        hankel_forms._require_positive(np.eye(3), lost)
    else:
        with pytest.raises(NotEnclosed, match="do not tell"):
            hankel_forms._require_positive(np.eye(3), lost)


def test_a_triangle_that_loses_more_is_made_again_for_twice_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, root = 1e-6, np.linalg.cholesky
    shifts: list[float] = []

    def seen(matrix: np.ndarray) -> np.ndarray:
        shifts.append(float(1 - matrix[0, 0]))
        return np.asarray(root(matrix))

    monkeypatch.setattr(np.linalg, "cholesky", seen)
    monkeypatch.setattr(hankel_forms, "_lost_by_squares", lambda _array: 20 * lost)
    hankel_forms._require_positive(np.eye(3), lost)
    assert shifts == pytest.approx([16 * lost, 42 * lost])
    shifts.clear()
    with pytest.raises(NotEnclosed, match="do not tell"):  # no triangle at all
        hankel_forms._require_positive(1e-7 * np.eye(3), lost)
    assert len(shifts) == 1


def test_the_norm_of_an_error_is_bounded_by_its_largest_row() -> None:
    array = np.array([[1.0, -2.0, 0.5], [-2.0, 0.0, 0.0], [0.5, 0.0, 4.0]])
    assert 4.5 <= hankel_forms._norm(array) < 4.5 * (1 + 1e-14)


def test_what_the_metric_is_off_by_is_covered() -> None:
    """By 1 / 64 and less: what is left is half, of which 16 times that is taken."""
    ones = Numbers(np.array([1], dtype=object), 0)
    for radius, accepted in ((0, True), (1 << 54, True), (1 << 56, False), (1 << 59, False)):
        metric = Numbers(np.array([[1 << 60]], dtype=object), -60, radius)
        assert accepts(1.5, (np.ones(1), ones, metric)) == accepted


def test_weights_that_may_be_zero_and_numbers_out_of_range_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Numbers(np.array([[1]], dtype=object), 0)
    with pytest.raises(NotEnclosed, match="no weight"):
        require_below(np.ones(1), Numbers(np.array([1], dtype=object), 0, 1), one, 1, 2.0)
    with monkeypatch.context() as patched, pytest.raises(NotEnclosed, match="no weight"):
        patched.setattr(hankel_forms, "nearly", lambda _numbers: Near(np.ones(1), np.ones(1)))
        require_below(np.ones(1), Numbers(np.array([1], dtype=object), 0), one, 1, 2.0)
    with pytest.raises(NotEnclosed, match="range of doubles"):
        require_below(np.full(1, 1e200), Numbers(np.array([1], dtype=object), 0), one, 1, 2.0)


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
