"""Slices beside fractions: sums of squares and Gram matrices, whatever the sizes of entries."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from exact_files import fractions, gram_in_fractions
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from factorize.exact.arithmetic import machine, slices
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.structures.dense import DenseReading, norms, norms_in_integers

ANY = st.one_of(
    st.floats(-1e150, 1e150),
    st.sampled_from([0.0, 5e-324, 2.0**-1022, 1.0, -1.0, 1 + 2.0**-52, 2.0**500, 2.0**-500, 1e-30, 3e-200]),
)
SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 5))


@given(SHAPES.flatmap(lambda shape: arrays(np.float64, shape, elements=ANY)))
def test_squared_norms_hold_the_true_ones(array: np.ndarray) -> None:
    try:
        found = slices.squared_norms(array, triangular=False)
    except NotEnclosed:
        assert np.abs(array).max() > 2.0**20  # only then can scaling underflow
        return
    for value, column in zip(found.values, zip(*fractions(array), strict=True), strict=True):
        true = sum(entry * entry for entry in column)
        assert abs(found.fraction(value) - true) <= found.fraction(found.radius)
    largest = found.fraction(max(found.values))
    assert found.fraction(found.radius) <= largest / 2**80  # what a bracket may be off by, and be exact


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(0, 120))
def test_gram_blocks_hold_the_true_ones(seed: int, patterns: int, k: int, rows: int, spread: int) -> None:
    random = np.random.default_rng(seed)
    array = np.ldexp(random.standard_normal((rows, patterns * k)), random.integers(-spread, 1, (rows, patterns * k)))
    chosen = random.permutation(patterns * k).reshape(patterns, k)
    found, true = slices.gram_blocks(array, chosen), gram_in_fractions(array)
    for place, pattern in enumerate(chosen.tolist()):
        for a, i in enumerate(pattern):
            for b, j in enumerate(pattern):
                away = abs(found.fraction(int(found.values[place, a, b])) - true[i][j])
                assert away <= found.fraction(found.radius)


def test_entries_within_the_slices_lose_nothing() -> None:
    """Ones and 2^-50: squares are known without a radius, so that a norm of exactly 1 is told from one just above it."""
    array = np.array([[1.0, 1.0, 1.0], [0.0, 2.0**-50, 2.0**-30]])
    found = slices.squared_norms(array, triangular=False)
    assert found.radius == 0
    assert [found.fraction(value) for value in found.values] == [1, 1 + Fraction(1, 2**100), 1 + Fraction(1, 2**60)]


def test_triangular_arrays_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "_BLOCK", 40)
    array = np.tril(np.random.default_rng(1).standard_normal((17, 17)))
    found, other = norms(array, triangular=True), norms_in_integers(array)
    assert found.radius == other.radius == 0 and not found.minus(other).values.any()
    patterns = np.arange(16).reshape(2, 8).T
    monkeypatch.setattr(slices, "_BLOCK", 1)
    one_by_one = slices.gram_blocks(array, patterns)
    monkeypatch.setattr(slices, "_BLOCK", 1 << 16)
    assert not one_by_one.minus(slices.gram_blocks(array, patterns)).values.any()


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 6])
def test_every_block_of_columns_is_summed(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two columns of two rows at one time: one block, two or three."""
    monkeypatch.setattr(slices, "_BLOCK", 4)
    array = np.arange(1.0, 2 * columns + 1).reshape(2, columns)
    found = slices.squared_norms(array, triangular=False)
    assert [found.fraction(value) for value in found.values] == (array**2).sum(axis=0).tolist()


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(NotEnclosed, match="rows"):
        slices.sliced(np.ones((1, 1)), 1 << 32)


def test_integers_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.tril(np.random.default_rng(2).standard_normal((5, 5)))
    monkeypatch.setattr(machine, "_fault", lambda: "it is broken")
    with pytest.raises(NotEnclosed, match="it is broken"):
        slices.squared_norms(array, triangular=True)
    assert not norms(array).minus(norms_in_integers(array)).values.any()


def test_what_slices_lose_by_hand() -> None:
    """Two rows: slices of 26 bits, of which four hold 104 places below 2; what is left below is lost, times 2^26 + 1."""
    array = np.array([[1.0], [2.0**-200]])
    cut = slices.sliced(array, 2)
    assert (cut.bits, len(cut.parts), cut.whole, cut.exponents.tolist()) == (26, 4, False, [1])
    assert cut.lost == 2 * (2**26 + 1) * 2**78
    found = slices.squared_norms(array, triangular=False)
    assert (found.radius, found.fraction(found.values[0])) == (cut.lost, 1)
    assert found.exponent == 2 - 2 * 26 - 6 * 26
    assert slices.sliced(array[:1], 2).lost == 0
    assert slices.sliced(np.array([[1.0]]), 2).lost == slices.sliced(np.array([[2.0**1023]]), 2).lost == 0
    assert [slices.sliced(np.ones((1, 1)), rows).bits for rows in (1, 2, 3, 2048, 2049)] == [26, 26, 25, 21, 20]


@pytest.mark.parametrize(("rows", "count"), [(1, 4), (64, 4), (65, 5), (2048, 5), (1 << 31, 11)])
def test_so_many_slices_hold_86_places_beside_those_of_the_rows(rows: int, count: int) -> None:
    """86 + 6 places are 4 slices of 23 bits for 64 rows, and 86 + 7 are 5 of them."""
    cut = slices.sliced(np.array([[1.0], [2.0**-300]])[: min(rows, 2)] * np.pi, rows)
    assert rows * 4**cut.bits <= 2**53 < rows * 4 ** (cut.bits + 1)
    if rows > 1:
        assert not cut.whole and len(cut.parts) == count
        assert (count - 1) * cut.bits < slices.KEPT + (rows - 1).bit_length() <= count * cut.bits


def test_blocks_of_different_sizes_share_the_largest_radius(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of size 2^40 loses 2^80 times what one of size 1 does, in the unit of the smaller; a whole one nothing."""
    array = np.array([[2.0**40, 1.0, 1.0], [2.0**-160, 2.0**-200, 0.0]])
    monkeypatch.setattr(slices, "_BLOCK", 1)
    found = slices.squared_norms(array, triangular=False)
    assert found.exponent == 2 - 2 * 26 - 6 * 26
    assert found.radius == slices.sliced(array[:, :1], 2).lost << 80
    assert [found.fraction(value) for value in found.values] == [2**80, 1, 1]
    apart = slices.gram_blocks(array, np.array([[1, 0]]))
    assert apart.radius >= found.radius and apart.fraction(apart.values[0, 0, 1]) == 2**40


def test_scaling_that_underflows_is_refused() -> None:
    """5e-324 beside 2^60 would be halved; beside 2^20 its 26 places up are exact."""
    with pytest.raises(NotEnclosed, match="underflows"):
        slices.squared_norms(np.array([[2.0**60], [5e-324]]), triangular=False)
    found = slices.squared_norms(np.array([[2.0**20], [5e-324]]), triangular=False)
    assert found.fraction(found.values[0]) == 2**40
    both = slices.squared_norms(np.array([[2.0**60], [2.0**-900]]), triangular=False)
    assert both.fraction(both.values[0]) == 2**120
    assert slices.squared_norms(np.array([[5e-324]]), triangular=False).radius == 0


def test_gram_blocks_test_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_fault", lambda: "it is broken")
    with pytest.raises(NotEnclosed, match="it is broken"):
        slices.gram_blocks(np.eye(2), np.array([[0, 1]]))


def test_gram_matrices_of_arrays_are_afforded_to_the_longest_that_is_proved() -> None:
    reading = object.__new__(DenseReading)
    reading.n = 16384
    assert reading.affords_patterns(16) and not reading.affords_patterns(17)


def test_entries_are_brought_to_the_finest_unit_of_those_that_are_not_zero() -> None:
    ones, none = np.array([1, 0, 3], dtype=object), np.array([0], dtype=object)
    found = slices._aligned([(ones, np.array([-5, -99, 2]), 0), (none, np.array([-200]), 0)])
    assert (found.values.tolist(), found.exponent, found.radius) == ([1, 0, 3 << 7, 0], -5, 0)
    lost = slices._aligned([(ones, np.array([-5, -99, 2]), 7), (none, np.array([-200]), 1 << 9)])
    assert lost.radius == max(7 << 7, 1 << 9)
    nothing = slices._aligned([(none, np.array([-200]), 0)])
    assert (nothing.values.tolist(), nothing.exponent, nothing.radius) == ([0], 0, 0)
