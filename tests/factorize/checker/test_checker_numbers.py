"""The exact checker's numbers: integers in units of a power of two with a radius, limbs, intervals; answers by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorize.checker.arithmetic import integers
from factorize.checker.arithmetic.integers import Limbs, Numbers, limbs, product, split, squares
from factorize.checker.arithmetic.intervals import Dyadic, Interval
from factorize.errors import CertificateError

DIGIT = 2**18  # of a limb
MOST_TERMS = 2**17  # of products of two digits, before a sum could pass 2^53
DOUBLES = st.floats(-1e30, 1e30, allow_subnormal=True)


def numbers(values: list, exponent: int = 0, radius: int = 0) -> Numbers:
    return Numbers(np.array(values, dtype=object), exponent, radius)


def fractions_of(found: Numbers) -> list[Fraction]:
    return [found.fraction(value) for value in found.values.ravel()]


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


@pytest.mark.parametrize("place", range(3))
def test_a_product_that_is_wrong_in_one_entry_of_one_limb(place: int) -> None:
    rng = np.random.default_rng(place)
    left, right = (np.floor(DIGIT * rng.random((2, 4, 4))) for _ in range(2))
    sums = [left[0] @ right[0], left[0] @ right[1] + left[1] @ right[0], left[1] @ right[1]]
    integers._compare_with_vector(left, right, sums)
    sums[place][1, 2] += 1
    with pytest.raises(CertificateError, match="BLAS"):
        integers._compare_with_vector(left, right, sums)


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
