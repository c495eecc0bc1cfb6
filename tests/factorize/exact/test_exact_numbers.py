"""The exact checker's numbers: integers in units of a power of two with a radius, limbs, intervals; answers by hand."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorize.errors import CertificateError, TooLarge
from factorize.exact.arithmetic import integers, intervals
from factorize.exact.arithmetic.integers import Limbs, Numbers, limbs, mantissas, product, split, squares
from factorize.exact.arithmetic.intervals import PLACES, Dyadic, Interval, dyadic

UNIT = Fraction(1, 2**PLACES)
DIGIT = 2**18  # of a limb
MOST_TERMS = 2**17  # of products of two digits, before a sum could pass 2^53
DOUBLES = st.floats(-1e30, 1e30, allow_subnormal=True)


def numbers(values: list, exponent: int = 0, radius: int = 0) -> Numbers:
    return Numbers(np.array(values, dtype=object), exponent, radius)


def fractions_of(found: Numbers) -> list[Fraction]:
    return [found.fraction(value) for value in found.values.ravel()]


def same(found: Numbers, values: list, exponent: int, radius: int) -> bool:
    return found.values.tolist() == values and (found.exponent, found.radius) == (exponent, radius)


def test_numbers_in_a_finer_unit() -> None:
    assert same(numbers([3, -5], 2, 1).at(-1), [24, -40], -1, 8)
    assert numbers([1], -3).fraction(5) == Fraction(5, 8)


def test_differences_are_in_the_finer_unit_and_radii_add_up() -> None:
    assert same(numbers([5], 0, 1).minus(numbers([1], 3, 2)), [5 - 8], 0, 1 + 16)
    assert same(numbers([1], 3, 2).minus(numbers([5], 0, 1)), [8 - 5], 0, 16 + 1)


def test_factors_enlarge_the_radius() -> None:
    assert same(numbers([2, -3], 1, 5).scaled(numbers([-7, 4], 2)), [-14, -12], 3, 35)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=5))
def test_doubles_are_integers_times_powers_of_two(given_: list[float]) -> None:
    array = np.array(given_)
    exact = [Fraction(value) for value in given_]
    whole, exponents = mantissas(array)
    assert [Fraction(int(m)) * Fraction(2) ** int(e) for m, e in zip(whole, exponents, strict=True)] == exact
    assert fractions_of(integers.integers(array)) == exact


def test_no_doubles_but_zeros() -> None:
    assert same(integers.integers(np.zeros(2)), [0, 0], 0, 0)
    assert same(integers.integers(np.array([0.0, 2.0**60])), [0, 2**52], 8, 0)
    assert same(limbs(np.zeros((1, 2))).numbers(), [[0, 0]], 0, 0) and limbs(np.zeros(2)).parts.shape == (1, 2)
    assert same(split(numbers([0, 0], 5, 1)).numbers(), [0, 0], 5, 1)


@given(st.lists(DOUBLES, min_size=1, max_size=4), st.sampled_from([1, 18, 54, 162]))
def test_limbs_are_digits_cut_towards_zero(given_: list[float], bits: int) -> None:
    found = limbs(np.array(given_), bits)
    assert (np.abs(found.parts) < DIGIT).all() and (found.parts == np.trunc(found.parts)).all()
    for value, kept in zip(given_, fractions_of(found.numbers()), strict=True):
        lost = abs(Fraction(value)) - abs(kept)
        assert 0 <= lost <= found.radius * Fraction(2) ** found.exponent
        assert kept * Fraction(value) >= 0
    top = max(abs(Fraction(value)) for value in given_)
    unit = Fraction(2) ** found.exponent
    assert top == 0 or found.radius == 0 or unit <= top * 2 / 2**bits  # so many places are kept
    assert found.radius in (0, 1)


def test_limbs_that_need_no_cut_have_no_radius() -> None:
    assert same(limbs(np.array([0.75])).numbers(), [3], -2, 0)
    assert same(limbs(np.array([6.0, 0.0, -1.0])).numbers(), [6, 0, -1], 0, 0)
    assert limbs(np.array([1.0, 2.0**-53]), 54).radius == 0
    cut = limbs(np.array([1.0, -3 * 2.0**-55]), 54)
    assert same(cut.numbers(), [2**53, 0], -53, 1)
    assert [len(limbs(np.array([value])).parts) for value in (2.0**17, 2.0**18, 2.0**18 + 1, 2.0**36 + 1)] == [
        1,
        1,
        2,
        3,
    ]


def test_limbs_of_part_of_a_matrix() -> None:
    array = np.arange(6.0).reshape(2, 3)
    whole = limbs(array)
    assert (whole.transpose().numbers().values == array.T).all()
    assert (whole.take(slice(None), np.array([2, 0])).numbers().values == array[:, [2, 0]]).all()
    spread = limbs(np.array([[1.0, 1e-100], [2.0, 3.0]]))
    assert spread.radius == 1
    assert spread.transpose().radius == spread.take(0).radius == spread.numbers().radius == 1
    assert spread.transpose().exponent == spread.take(0).exponent == spread.exponent


def test_integers_of_more_than_162_bits_are_cut() -> None:
    value = -(2**170) - 2**9 - 1  # of 171 bits: 9 are cut
    found = split(numbers([value, 5], -3, 513))
    assert same(found.numbers(), [-(2**161) - 1, 0], -3 + 9, 2 + 1)
    assert len(found.parts) == 9 and (np.abs(found.parts) < DIGIT).all()
    assert same(split(numbers([value >> 9], 0, 3)).numbers(), [value >> 9], 0, 3)
    assert found.largest == 2**162 + 3
    assert same(split(numbers([2**162])).numbers(), [2**161], 1, 1)
    assert split(numbers([2**36 - 1, -(2**18)])).parts.tolist() == [[DIGIT - 1, -1], [DIGIT - 1, 0]]


def test_the_error_of_a_product() -> None:
    """Each of two terms is off by at most one radius times the largest of the other side, and the other way round."""
    left, right = Limbs(np.array([[[2.0, 3.0]]]), -1, 1), Limbs(np.array([[[5.0], [7.0]]]), 3, 2)
    found = product(left, right)
    assert same(found, [[31]], 2, 2 * (1 * (DIGIT + 2) + 2 * (DIGIT + 1)))
    extremes = itertools.product((-1, 1), (-1, 1), (-2, 2), (-2, 2))
    assert all(abs((2 + a) * (5 + c) + (3 + b) * (7 + d) - 31) <= found.radius for a, b, c, d in extremes)


def test_the_error_of_squares() -> None:
    found = squares(Limbs(np.array([[[3.0], [4.0]]]), -1, 3))
    assert same(found, [25], -2, 2 * 3 * (DIGIT + 3) * 2)


@pytest.mark.parametrize("limbs_of_right", [1, 2])
def test_the_longest_sums_are_still_exact(limbs_of_right: int) -> None:
    """Digits of both sides meet in one sum as often as the side with fewer has digits."""
    largest = float(DIGIT - 1)
    row = np.full((1, 1, MOST_TERMS), largest)
    column = np.full((limbs_of_right, MOST_TERMS, 1), largest)
    whole = (DIGIT**limbs_of_right - 1) * (DIGIT - 1) * MOST_TERMS
    assert product(Limbs(row, 0), Limbs(column, 0)).values.tolist() == [[whole]]
    assert product(Limbs(column.swapaxes(1, 2), 0), Limbs(row.swapaxes(1, 2), 0)).values.tolist() == [[whole]]


def test_products_of_several_limbs_and_of_stacks() -> None:
    a, b = (2**40 + 3, -(2**25)), (7 - 2**45, 2**50)
    left, right = split(numbers([[[a[0], a[1]]], [[1, 2]]])), split(numbers([[[b[0]], [b[1]]], [[3], [4]]]))
    assert product(left, right).values.tolist() == [[[a[0] * b[0] + a[1] * b[1]]], [[11]]]
    assert squares(split(numbers([[a[0]], [a[1]]]))).values.tolist() == [a[0] ** 2 + a[1] ** 2]


class Wrong(np.ndarray):
    """Digits whose product in floating point is wrong by one, as a broken BLAS might have it."""

    def __matmul__(self, other: np.ndarray) -> np.ndarray:
        return np.asarray(self) @ np.asarray(other) + (self.dtype == np.float64)


def test_products_are_compared_with_what_they_should_be() -> None:
    ones = Limbs(np.ones((1, 2, 2)), 0)
    with pytest.raises(CertificateError, match="BLAS"):
        product(Limbs(ones.parts.view(Wrong), 0), ones)


def test_sums_of_squares_of_the_longest_columns() -> None:
    column = np.full((1, MOST_TERMS, 1), float(DIGIT - 1))
    assert squares(Limbs(column, 0)).values.tolist() == [(DIGIT - 1) ** 2 * MOST_TERMS]
    longer = np.zeros((1, MOST_TERMS + 1, 1))
    with pytest.raises(TooLarge):
        squares(Limbs(longer, 0))
    with pytest.raises(TooLarge):
        product(Limbs(longer.swapaxes(1, 2), 0), Limbs(longer, 0))
    two = np.zeros((2, MOST_TERMS // 2 + 1, 1))
    with pytest.raises(TooLarge):
        squares(Limbs(two, 0))
    with pytest.raises(TooLarge):
        product(Limbs(two.swapaxes(1, 2), 0), Limbs(two, 0))


@pytest.mark.parametrize("place", range(3))
def test_a_product_that_is_wrong_in_one_entry_of_one_limb(place: int) -> None:
    rng = np.random.default_rng(place)
    left, right = (np.floor(DIGIT * rng.random((2, 4, 4))) for _ in range(2))
    sums = [left[0] @ right[0], left[0] @ right[1] + left[1] @ right[0], left[1] @ right[1]]
    integers._compare_with_vector(left, right, sums)
    sums[place][1, 2] += 1
    with pytest.raises(CertificateError, match="BLAS"):
        integers._compare_with_vector(left, right, sums)


@given(st.lists(st.integers(-(2**52), 2**52), min_size=1, max_size=8))
def test_limbs_of_any_sign_and_size_are_put_together(given_: list[int]) -> None:
    count = len(given_)
    whole = sum(value * 2 ** (18 * (count - 1 - place)) for place, value in enumerate(given_))
    assert integers._join([np.array([float(value)]) for value in given_]).tolist() == [whole]


def test_dyadic_numbers() -> None:
    a, b = Dyadic(3, -2), Dyadic(-5, 1)
    assert a.plus(b) == b.plus(a) == Dyadic(3 - 40, -2)
    assert a.times(b) == Dyadic(-15, -1)
    assert dyadic(0.75) == Dyadic(3 * 2**51, -53)  # 0.75 has the mantissa 3 2^51


def ends(found: Interval) -> tuple[Fraction, Fraction]:
    assert found.low.shape == found.high.shape == (1,)
    return Fraction(found.low[0]) * UNIT, Fraction(found.high[0]) * UNIT


def interval(low: int, high: int) -> Interval:
    return Interval(np.array([low], dtype=object), np.array([high], dtype=object))


@given(
    st.tuples(st.integers(-50, 50), st.integers(-50, 50)).map(sorted),
    st.builds(Dyadic, st.integers(-9, 9), st.integers(-4, 4)),
)
def test_intervals_times_a_number_are_the_tightest_around_it(given_: list[int], factor: Dyadic) -> None:
    """In units; the ends are the true ends, rounded down and up."""
    exact = sorted(Fraction(end) * factor.value * Fraction(2) ** factor.exponent for end in given_)
    found = interval(*given_).times(factor)
    assert found.low.tolist() == [exact[0].__floor__()] and found.high.tolist() == [exact[1].__ceil__()]


@given(st.tuples(st.integers(-50, 50), st.integers(-50, 50)).map(sorted), st.integers(1, 7))
def test_intervals_over_a_number(given_: list[int], divisor: int) -> None:
    found = interval(*given_).over(divisor)
    assert found.low.tolist() == [Fraction(given_[0], divisor).__floor__()]
    assert found.high.tolist() == [Fraction(given_[1], divisor).__ceil__()]


def test_sums_of_intervals_and_their_midpoints() -> None:
    assert ends(Interval.of_integers(np.array([-3]))) == (-3, -3)
    assert ends(Interval.zeros(1)) == (0, 0) and Interval.zeros(2, 3).low.shape == (2, 3)
    total = interval(-3, 4).plus(interval(10, 20))
    assert (total.low[0], total.high[0]) == (7, 24)
    both = Interval(np.array([7, 0], dtype=object), np.array([24, 1], dtype=object)).numbers()
    assert same(both, [15, 0], -PLACES, 9)  # 15 - 9 <= 7 and 24 <= 15 + 9
    assert same(interval(2, 4).numbers(), [3], -PLACES, 1)


def test_numbers_as_pairs_of_doubles() -> None:
    """The second double is the nearest to what the first one leaves: 1 / 3 is off by less than 2^-108 of it."""
    third = intervals.pair(Fraction(1, 3))
    assert third == (1 / 3, float(Fraction(1, 3) - Fraction(1 / 3)))
    assert abs(Fraction(third[0]) + Fraction(third[1]) - Fraction(1, 3)) < Fraction(1, 3 * 2**106)
    found = intervals.reciprocals(np.array([3.0, -0.5, 7.0]))
    assert found.tolist() == [list(third), [-2.0, 0.0], list(intervals.pair(Fraction(1, 7)))]
    assert intervals.reciprocals(np.zeros(0)).shape == (0, 2)
