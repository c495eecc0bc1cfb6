"""Selections in doubles: which rows may decide is never told wrong, and few are left where one selection is the best."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from factorize.exact import sensitivity
from factorize.exact.arithmetic import selections
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.machine import integers_only
from factorize.exact.participation import Allowed
from factorize.exact.strategy import Strategy

FORMS = [(1, 2), (1, 3), (2, 2), (2, 3), (3, 1), (3, 2), (4, 2), (7, 1), (1, 7)]


def held(n: int, separation: int, most: int) -> list[tuple[int, ...]]:
    """Every selection of at most so many of n steps."""
    return [
        steps
        for count in range(1, most + 1)
        for steps in itertools.combinations(range(n), count)
        if all(b - a >= separation for a, b in itertools.pairwise(steps))
    ]


@pytest.mark.parametrize(("separation", "most"), FORMS)
def test_the_best_sums_through_each_step(separation: int, most: int) -> None:
    for seed in range(5):
        values = np.random.default_rng(seed).integers(1, 50, 7).astype(float)
        all_of_them = held(7, separation, most)
        wanted = [max(values[list(some)].sum() for some in all_of_them if i in some) for i in range(7)]
        assert selections.totals_through(values, separation, most).tolist() == wanted


@pytest.mark.parametrize(("separation", "most"), FORMS)
def test_rows_whose_sums_are_near_the_largest_are_left(
    separation: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near is twice what a sum is off by, with a rounding unit of one in ten thousand here."""
    monkeypatch.setattr(selections, "_UNIT", 1e-5)
    n, counts = 7, set()
    for seed in range(40):
        columns = np.tril(np.random.default_rng(seed).integers(-3, 4, (n, n))).astype(float) + 3 * np.eye(n)
        gram, all_of_them = abs(columns.T @ columns), held(n, separation, most)
        rows = np.array([max(row[list(some)].sum() for some in all_of_them) for row in gram])
        totals = np.array([max(rows[list(some)].sum() for some in all_of_them if i in some) for i in range(n)])
        away = 4 * most**2 * (n + 32 + most) * 1e-5 * gram.diagonal().max()
        found = selections.deciding_rows(columns, separation, most)
        assert found is not None
        assert found.tolist() == [i for i in range(n) if totals[i] >= totals.max() - 2 * away]
        counts.add(len(found))
    assert len(counts) > 1 or most == n, "all rows"


@pytest.mark.parametrize(("n", "most"), [(2, 1), (5, 1), (3, 2), (6, 2), (6, 3)])
def test_margins_are_those_of_their_terms(n: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of columns with the squares 4 s, 4, ..., 4 the first is left down to s = 1 less twice what sums are off by."""
    monkeypatch.setattr(selections, "_UNIT", 2.0**-20)
    away = 4 * most**2 * (n + 32 + most) * 2.0**-20
    for share, left in ((0.999, True), (1.001, False)):
        squares = np.array([1 - 2 * away * share, *[1.0] * most, *[0.0] * (n - most - 1)])
        found = selections.deciding_rows(2 * np.diag(np.sqrt(squares)), 1, most)
        assert found is not None and found.tolist() == list(range(1 - left, most + 1))


@pytest.mark.parametrize("power", [-201, -200, 0, 448, 449])
def test_numbers_out_of_range_tell_nothing(power: int) -> None:
    found = selections.deciding_rows(np.diag([1.0, 2.0]) * 2.0**power, 2, 1)
    assert (found is None) == (power in (-201, 449))
    assert found is None or found.tolist() == [1]


def test_nothing_is_told_by_a_machine_that_cannot_be_relied_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with integers_only():
        assert selections.deciding_rows(np.eye(3), 2, 2) is None

    def refused() -> None:
        raise NotEnclosed("no")

    monkeypatch.setattr(selections, "check_products", refused)
    assert selections.deciding_rows(np.eye(3), 2, 2) is None


def scaled(array: np.ndarray, factors: np.ndarray) -> Strategy:
    return Strategy("scaled", {"": array, "column_scale": factors}, len(array))


@pytest.mark.parametrize(("separation", "most"), [(1, 3), (3, 2), (3, 7), (5, 4), (2, 10)])
def test_what_two_stages_find_is_the_same_whatever_rows_are_told(
    separation: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, told = Allowed(separation, most, False), Strategy.deciding_rows
    luck = np.random.default_rng(separation)
    decays = np.tril(0.9 ** np.abs(np.subtract.outer(np.arange(20), np.arange(20))))
    for array in (decays, np.tril(luck.standard_normal((20, 20))) + 4 * np.eye(20), np.eye(20)):
        for strategy in (Strategy("dense", {"": array}, 20), scaled(array, luck.uniform(0.5, 2.0, 20))):
            counts: list[int] = []

            def rows(self: Strategy, *given: int, counts: list[int] = counts) -> Any:
                found = told(self, *given)
                assert found is not None
                counts.append(len(found))
                return found

            monkeypatch.setattr(Strategy, "deciding_rows", rows)
            quick = sensitivity._two_stage(strategy, form)
            monkeypatch.setattr(Strategy, "deciding_rows", lambda *_: None)
            assert quick == sensitivity._two_stage(strategy, form)
            assert quick.upper >= quick.lower > Fraction(0)
            assert array[1, 0] == 0 or counts[0] < 20, "few rows decide"
