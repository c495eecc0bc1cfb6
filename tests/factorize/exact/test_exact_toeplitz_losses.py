"""Losses of Toeplitz A and C in doubles beside the same by exact series, and each term that widens them."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from factorize.exact.arithmetic import series
from factorize.exact.arithmetic.integers import Numbers, integers
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.machine import integers_only
from factorize.exact.doubles import toeplitz_losses, workload_rows
from factorize.exact.doubles.workload_rows import Near, nearly
from factorize.exact.losses import check_long
from factorize.exact.spec import weighing_of

N = 40
S, T, U = 1 / 100, 1 / 5000, 1 / 600


def g(count: int) -> float:
    return count / 1024


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"gamma": g, "SLACK": S, "TINY": T}.items():
        monkeypatch.setattr(toeplitz_losses, name, value)
    for name, value in {"SLACK": S, "TINY": T, "UNIT": U}.items():
        monkeypatch.setattr(workload_rows, name, value)


def near(found: Any, wanted: Any) -> None:
    assert np.shape(found) == np.shape(wanted)
    assert np.asarray(found) == pytest.approx(np.asarray(wanted), rel=1e-12)


OBJECTIVES: list[dict[str, Any]] = [
    {"kind": "mean"},
    {"kind": "max"},
    {"kind": "lambda_tau", "tau": 7},
    {"kind": "weighted", "weights": np.linspace(1, 3, N).tolist()},
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda one: str(one["kind"]))
@pytest.mark.parametrize("seed", range(4))
def test_losses_beside_those_of_exact_series(seed: int, objective: dict[str, Any]) -> None:
    luck, weighing = np.random.default_rng(seed), weighing_of(objective, N)
    decay = 0.8 ** np.arange(N)
    column, workload = decay * luck.uniform(0.5, 1.0, N), luck.uniform(0.5, 2.0, N)
    column[0] = 2.0
    exact = series.losses(integers(column), integers(workload), objective, None)
    found = toeplitz_losses.enclosed_series(Near(column, np.zeros(1)), Near(workload, np.zeros(1)), weighing)
    assert exact.residual <= found.residual < 1e-12
    true = [getattr(exact, name) for name in ("total", "largest", "last", "objective")]
    for (low, high), (least, most) in zip(found.ends, true, strict=True):
        assert low <= most and least <= high
        assert high - low <= 1e-10 * high
    assert max(high / low for low, high in found.ends) > max(high / low for low, high in true)


@pytest.mark.usefixtures("coarse")
def test_what_a_product_is_off_by() -> None:
    """Sums of 3 products with what the numbers themselves are off by, raised by the slack, and what underflows."""
    guess = np.array([2.0, -1.0, 0.5])
    column = Near(np.array([1.0, -0.5, 0.25]), np.array([0.125, 0.25, 0.5]))
    wanted = Near(np.array([1.0, 1.0, 1.0]), np.array([0.0625, 0.5, 1.0]))
    products = np.array([2.0, -2.0, 1.5])
    sizes = np.array([2.0, 2.0, 1.5])
    errors = np.array([0.25, 0.625, 1.3125]) + wanted.errors
    near(
        toeplitz_losses._apart(guess, column, wanted),
        (np.abs(products - wanted.values) + g(3) * sizes + errors) * (1 + S) + 3 * T,
    )
    exact = Near(column.values, np.zeros(1)), Near(wanted.values, np.zeros(1))
    near(
        toeplitz_losses._apart(guess, *exact),
        (np.abs(products - wanted.values) + g(3) * sizes) * (1 + S) + 3 * T,
    )


@pytest.mark.usefixtures("coarse")
def test_the_sum_of_an_inverse() -> None:
    """The guess's own sum over 1 less the sum of the defect, which has to be below one half."""
    inverse = np.array([1.0, -0.5, 0.25])
    near(toeplitz_losses._sum_of_inverse(inverse, np.array([0.125, 0.0, 0.25])), 1.75 / (1 - 0.375) * (1 + S))
    for defects in (np.array([0.25, 0.25]), np.array([math.nan, 0.0]), np.array([math.inf, 0.0])):
        with pytest.raises(NotEnclosed, match="cannot be bounded in doubles"):
            toeplitz_losses._sum_of_inverse(inverse, defects)


@pytest.mark.usefixtures("coarse")
def test_what_losses_are_widened_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest of |B C - A| times the sum of the inverse, for the guesses of exact series."""
    monkeypatch.setattr(toeplitz_losses, "gamma", lambda count: count / 2**20)
    monkeypatch.setattr(toeplitz_losses, "TINY", 2.0**-20)
    column, workload = np.array([2.0, 1.0, 0.5, 0.25]), np.array([1.0, 2.0, 3.0, 4.0])
    given, asked = [], series.around
    monkeypatch.setattr(series, "around", lambda *given_: given.append(given_) or asked(*given_))
    c, a = Near(column, np.full(4, 2.0**-10)), Near(workload, np.zeros(1))
    weighing = weighing_of({"kind": "mean"}, 4)
    found = toeplitz_losses.enclosed_series(c, a, weighing)
    inverse = series.approximate_inverse(column)
    guess = series.approximate_product(workload, inverse)
    one = Near(np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(1))
    off = toeplitz_losses._apart(guess, c, a).max()
    error = off * toeplitz_losses._sum_of_inverse(inverse, toeplitz_losses._apart(inverse, c, one)) * (1 + S)
    [(used, widened, by)] = given
    assert (used == guess).all() and by is weighing and found.residual == off
    near(widened, error)
    assert found.ends == asked(guess, widened, weighing)


@pytest.mark.usefixtures("coarse")
def test_numbers_as_doubles() -> None:
    """Exact where no unit is lost; else off by two roundings, and by a unit more than the radius."""
    for values, exponent, radius, exact in (
        ([3, -1 << 53], -999, 0, True),
        ([3, (1 << 53) + 1], -999, 0, False),
        ([3, -(1 << 53) - 1], 0, 0, False),
        ([3, 1 << 53], -1000, 0, False),
        ([3, 5], -4, 1, False),
    ):
        numbers = Numbers(np.array(values, dtype=object), exponent, radius)
        found = nearly(numbers)
        near(found.values, [math.ldexp(float(value), exponent) for value in values])
        if exact:
            assert found.errors.tolist() == [0.0]
        else:
            near(found.errors, 2 * U * np.abs(found.values) + (radius + 1) * 2.0**exponent * (1 + S) + T)


def test_numbers_that_leave_the_range_of_doubles() -> None:
    huge = Near(np.array([1e300, 1e300]), np.zeros(1))
    with pytest.raises(NotEnclosed):
        toeplitz_losses.enclosed_series(
            Near(np.array([1e-100, 1.0]), np.zeros(1)), huge, weighing_of({"kind": "mean"}, 2)
        )
    wide = Near(np.array([1.0, 0.0]), np.array([math.inf, 0.0]))
    with pytest.raises(NotEnclosed, match="range of doubles"):
        toeplitz_losses.enclosed_series(Near(np.array([1.0, 0.0]), np.zeros(1)), wide, weighing_of({"kind": "mean"}, 2))


def test_which_losses_are_taken_in_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short ones on a machine that can be relied on, if they are narrow: of stored numbers, or of enclosed ones."""
    ones, weighing = integers(np.ones(3)), weighing_of({"kind": "mean"}, 3)
    stored = np.array([1.0, 0.5, 0.25])

    def strategy(column: np.ndarray | None, radius: int = 0) -> Any:
        return SimpleNamespace(n=3, column=column, toeplitz=integers(stored)._replace(radius=radius))

    found = check_long._series_in_doubles(strategy(stored), ones, weighing)
    computed = check_long._series_in_doubles(strategy(None), ones, weighing)
    assert found is not None and computed is not None
    true = sum(Fraction(row) for row in (1, 1 + Fraction(1, 4), 1 + Fraction(2, 4)))
    assert Fraction(found.ends.total[0]) <= true <= Fraction(found.ends.total[1])
    off = check_long._series_in_doubles(strategy(None, 1 << 40), ones, weighing)
    assert off is None, "numbers that are off by much"
    with integers_only():
        assert check_long._series_in_doubles(strategy(stored), ones, weighing) is None
    monkeypatch.setattr(check_long, "WIDEST", check_long.width_of_losses(found.ends))
    assert check_long._series_in_doubles(strategy(stored), ones, weighing) is not None
    monkeypatch.setattr(check_long, "WIDEST", check_long.width_of_losses(found.ends) * (1 - 1e-9))
    assert check_long._series_in_doubles(strategy(stored), ones, weighing) is None
    monkeypatch.undo()
    monkeypatch.setattr(toeplitz_losses, "LARGEST", 3)
    assert check_long._series_in_doubles(strategy(stored), ones, weighing) is not None
    monkeypatch.setattr(toeplitz_losses, "LARGEST", 2)
    assert check_long._series_in_doubles(strategy(stored), ones, weighing) is None
