"""Epoch sums: which patterns may have the largest sum of Gram entries, beside sums in integers over all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from factorize.exact import sensitivity
from factorize.exact.arithmetic import epoch_sums, machine
from factorize.exact.arithmetic.epoch_sums import LargestPatterns, largest_patterns
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.slices import gram_blocks
from factorize.exact.strategy import Strategy

SIZES = [(128, 2), (195, 3), (256, 4), (1024, 16)]


def strategy_of(n: int, seed: int, *, signed: bool, even: bool = False) -> np.ndarray:
    """Columns of about one size, or patterns of sums that differ by roundings only."""
    luck = np.random.default_rng(seed)
    array = np.tril(luck.uniform(-1.0 if signed else 0.0, 1.0, (n, n)), -1) / math.sqrt(n) + np.eye(n)
    if even:
        array = np.eye(n) * (1 + luck.integers(0, 9, n) * 2.0**-52)
    return np.asarray(array)


def sums_of(array: np.ndarray, epochs: int) -> list[Fraction]:
    n = len(array)
    found = gram_blocks(array, np.arange(n).reshape(epochs, n // epochs).T)
    assert found.radius == 0 or found.fraction(found.radius) < Fraction(1, 2**70)
    return [found.fraction(int(abs(values).sum())) for values in found.values]


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("n", "epochs"), SIZES)
def test_no_other_pattern_has_a_larger_sum(n: int, epochs: int, signed: bool, even: bool) -> None:
    array = strategy_of(n, epochs, signed=signed, even=even)
    found, sums = largest_patterns(array, epochs), sums_of(array, epochs)
    assert found is not None
    chosen = found.chosen.tolist()
    assert chosen == sorted(set(chosen)) and sums.index(max(sums)) in chosen
    left = [value for p, value in enumerate(sums) if p not in chosen]
    assert all(value <= found.others < max(sums) for value in left)
    assert left or found.others == 0
    assert even or len(chosen) == 1
    if left:
        assert found.others - max(left) < Fraction(1, 10**14)


@pytest.mark.parametrize("power", [-390, -30, 0, 20, 60, 390])
def test_powers_of_two_change_no_choice(power: int) -> None:
    array = strategy_of(128, 5, signed=True)
    found, scaled = largest_patterns(array, 2), largest_patterns(np.ldexp(array, power), 2)
    assert found is not None and scaled is not None
    assert (found.chosen == scaled.chosen).all() and scaled.others == found.others * Fraction(4) ** power


def test_where_all_patterns_are_multiplied_out(monkeypatch: pytest.MonkeyPatch) -> None:
    array = strategy_of(128, 6, signed=False)
    assert largest_patterns(array, 2) is not None
    assert largest_patterns(np.eye(17 * 64), 16 + 1) is None
    for given, epochs in ((array, 1), (array, 4), (array * 2.0**400, 2), (array * 2.0**-410, 2)):
        assert largest_patterns(given, epochs) is None
    with machine.integers_only():
        assert largest_patterns(array, 2) is None

    def faulty() -> None:
        raise NotEnclosed("a fault")

    monkeypatch.setattr(epoch_sums, "check_products", faulty)
    assert largest_patterns(array, 2) is None


def test_sums_that_doubles_do_not_hold_are_not_told() -> None:
    """All entries of both columns are the largest, so that the sums of 2 x 2 entries are 4 n 2^(2 beta) >= 2^53."""
    array = np.tril(np.ones((128, 128)))
    array[:, 64] = 1.0
    assert largest_patterns(array * (1 - 2.0**-53), 2) is None
    assert largest_patterns(np.tril(np.full((128, 128), 0.51)), 2) is not None


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("others", [None, Fraction(10**6)])
@pytest.mark.parametrize(("n", "epochs"), SIZES[:3])
def test_the_bracket_is_that_of_all_patterns(
    n: int, epochs: int, signed: bool, others: Fraction | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the chosen patterns decide, or what is not said of the others asks for all of them."""
    array, participation = strategy_of(n, n, signed=signed), {"kind": "fixed_epochs", "epochs": epochs}
    asked: list[int] = []
    grams = Strategy.grams
    monkeypatch.setattr(Strategy, "grams", lambda self, given: asked.append(len(given)) or grams(self, given))
    if others is not None:
        told = largest_patterns(array, epochs)
        assert told is not None
        monkeypatch.setattr(Strategy, "largest_patterns", lambda *_: LargestPatterns(told.chosen, others))
    found = sensitivity.squared_sensitivity(Strategy("dense", {"": array}, n), participation)
    assert n // epochs in asked if others is not None else signed or n // epochs not in asked
    monkeypatch.setattr(Strategy, "largest_patterns", lambda *_: None)
    assert found == sensitivity.squared_sensitivity(Strategy("dense", {"": array}, n), participation)


def test_a_matrix_with_factors_of_columns_is_multiplied_out() -> None:
    array = np.eye(128)
    assert Strategy("dense", {"": array}, 128).largest_patterns(2) is not None
    assert Strategy("scaled", {"": array, "column_scale": np.ones(128)}, 128).largest_patterns(2) is None


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(epoch_sums, "_UNIT", 1 / 600)
    monkeypatch.setattr(epoch_sums, "_SLACK", 1.01)
    yield


@pytest.mark.usefixtures("coarse")
def test_what_the_sums_round() -> None:
    """2 gamma_(n+4) sum |u + l/2| sum |l|, |l| <= sqrt(n) / 2, and a rounding of each small sum and term."""
    luck, n, k = np.random.default_rng(7), 12, 3
    first, second = luck.uniform(1.0, 4.0, (k, k, 5)), luck.uniform(-1.0, 1.0, (k, k, 5))
    found = epoch_sums._rounded(first, second, n)
    for p in range(5):
        lengths = sum(math.sqrt(first[e, e, p]) + math.sqrt(n) / 4 for e in range(k))
        products = 2 * (n + 4) / 600 * lengths * k * math.sqrt(n) / 2
        added = (k * k + 4) / 600 * np.abs(second[:, :, p]).sum()
        assert found[p] == pytest.approx((products + added) * 1.01, rel=1e-12)


@pytest.mark.parametrize("shift", [4, 21])
def test_the_two_products(shift: int) -> None:
    """u^T u is exact, and with w it is all of C^T C, as integers say."""
    array, epochs = strategy_of(128, 8, signed=True), 2
    first, second = epoch_sums._products(array, epochs, shift)
    upper = np.rint(array * 2.0**shift)
    for p in (0, 5, 63):
        steps = [p, p + 64]
        own = upper[:, steps]
        assert (first[:, :, p] == own.T @ own).all()
        whole = (array[:, steps] * 2.0**shift).T @ (array[:, steps] * 2.0**shift)
        both = second[:, :, p] + second[:, :, p].T
        assert np.abs(first[:, :, p] + both - whole).max() <= 1e-13 * np.abs(whole).max()
        rest = (array[:, steps] * 2.0**shift - own).T @ own
        low = array[:, steps] * 2.0**shift - own
        assert np.abs(both - (rest + rest.T + low.T @ low)).max() <= 1e-12 * np.abs(rest).max()


UNIT = Fraction(1, 4**22)  # of 128 steps whose largest entry is from 1 to 2


def told_of(
    values: dict[int, float], off: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[int], Fraction]:
    """What is said of 64 patterns whose sums, in units, are 0 but for some, and off by as much."""
    first, lost = np.zeros((2, 2, 64)), np.zeros(64)
    for pattern, value in values.items():
        first[0, 0, pattern], lost[pattern] = value, off.get(pattern, 0.0)
    monkeypatch.setattr(epoch_sums, "_products", lambda *_: (first, np.zeros((2, 2, 64))))
    monkeypatch.setattr(epoch_sums, "_rounded", lambda *_: lost)
    found = largest_patterns(np.eye(128), 2)
    assert found is not None
    return found.chosen.tolist(), found.others / UNIT


def test_patterns_that_may_be_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose upper end reaches the largest lower end, 9, and not the next one."""
    assert told_of({3: 10, 5: 9, 7: 8}, {3: 1, 5: 0.5, 7: 0.75}, monkeypatch) == ([3, 5], 8.75)
    assert told_of({3: 10, 5: 8.5, 7: 8}, {3: 1, 5: 0.5, 7: 0.75}, monkeypatch) == ([3, 5], 8.75)
    assert told_of({3: 10, 5: 8.5, 7: 2}, {3: 1, 5: 0.25, 7: 0.5}, monkeypatch) == ([3], 8.75)
    assert told_of(dict.fromkeys(range(64), 5), {}, monkeypatch) == (list(range(64)), 0)


def test_sums_up_to_2_to_53_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told_of({3: 2.0**53 - 1}, {}, monkeypatch) == ([3], 0)
    for value in (2.0**53, 1.5 * 2.0**53):
        with pytest.raises(AssertionError, match="is not None"):
            told_of({3: value}, {}, monkeypatch)


@pytest.mark.parametrize(("n", "epochs"), [(128, 2), (195, 3), (256, 4), (513, 3), (1024, 16)])
def test_rows_times_integers_are_sums_below_2_to_53(n: int, epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the size of the largest entry, whatever its sign."""
    shifts: list[int] = []
    products = epoch_sums._products
    monkeypatch.setattr(
        epoch_sums, "_products", lambda array, k, shift: shifts.append(shift) or products(array, k, shift)
    )
    for array, exponent in ((np.eye(n), 1), (np.eye(n) * 0.75, 0), (np.eye(n) - 5 * np.eye(n, k=-1), 3)):
        assert largest_patterns(array, epochs) is not None
        bits = shifts.pop() + exponent
        assert n * 4**bits <= 2**53 < 2 * n * 4 ** (bits + 1)


@pytest.mark.parametrize("rows", [1, 2], ids=["one sign", "signs that differ"])
def test_entries_of_which_nothing_is_in_the_integers(rows: int) -> None:
    """Products 1.3 times 0.4 of units, and 0.4 times -1.3: the first part of the Gram entry is 0, and both signs count.

    The sum of the pattern that is not chosen is known far closer than a unit.
    """
    array, unit = np.eye(128) * 0.5, 2.0**-23  # of integers: the largest entry is 1.5, of which they have 23 bits
    array[0, 0] = array[64, 64] = 1.0
    array[1, 1] = 1.5
    array[100, [0, 64]] = np.array([1.3, 0.4]) * unit * 2
    if rows == 2:
        array[101, [0, 64]] = np.array([0.4, -1.3]) * unit * 2
    found, sums = largest_patterns(array, 2), sums_of(array, 2)
    assert found is not None and found.chosen.tolist() == [1]
    assert 0 <= found.others - sums[0] < Fraction(unit) ** 2 / 1000
    array[100, 0] *= -1
    found, sums = largest_patterns(array, 2), sums_of(array, 2)
    assert found is not None and 0 <= found.others - sums[0] < Fraction(unit) ** 2 / 1000
