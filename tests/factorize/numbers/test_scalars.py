"""Single numbers: what is refused, and rounding upwards."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorize.errors import InvalidParameter
from factorize.numbers.scalars import double_above, finite_real, root_above, whole_number

EXACT = st.fractions(min_value=Fraction(1, 10**30), max_value=10**30)


@given(EXACT)
def test_double_above_is_the_smallest_double_that_is_not_below(value: Fraction) -> None:
    result = double_above(value, "x")
    assert Fraction(result) >= value
    assert Fraction(math.nextafter(result, 0.0)) < value


@given(EXACT)
def test_root_above_is_not_below_the_root_and_close_to_it(value: Fraction) -> None:
    result = root_above(value, "x")
    assert Fraction(result) ** 2 >= value
    assert Fraction(result * (1 - 1e-15)) ** 2 < value


def test_rounding_up_keeps_exact_values_and_never_reaches_zero() -> None:
    assert double_above(Fraction(1, 2), "x") == 0.5
    assert double_above(Fraction(1, 3), "x") == math.nextafter(1 / 3, 1)
    assert double_above(Fraction(1, 10**400), "x") == 5e-324
    assert root_above(Fraction(9, 4), "x") == 1.5


def test_a_value_above_every_double_is_refused() -> None:
    with pytest.raises(InvalidParameter, match=r"sigma would exceed the largest double.*rescale"):
        double_above(Fraction(10) ** 400, "sigma")


@pytest.mark.parametrize("value", [True, "1", None, 1j, [1.0], np.ones(1), np.bool_(True)])
def test_what_is_not_a_real_number_is_refused_by_its_type(value: object) -> None:
    with pytest.raises(InvalidParameter, match=rf"rho is of type {type(value).__name__}, .*; try 1"):
        finite_real("rho", value, remedy="try 1")


@pytest.mark.parametrize("value", [0, -0.0, -1.5, math.inf, -math.inf, math.nan, 10**400, -(10**400)])
def test_what_is_not_finite_and_positive_is_refused(value: float) -> None:
    with pytest.raises(InvalidParameter, match=r"rho=.* must be finite and > 0; try 1") as caught:
        finite_real("rho", value, remedy="try 1")
    assert caught.value.field == "rho"


@pytest.mark.parametrize("value", [1, 0.25, np.float32(0.25), np.int64(3), Fraction(1, 4)])
def test_real_numbers_of_every_library_become_plain_doubles(value: float) -> None:
    result = finite_real("rho", value, remedy="try 1")
    assert type(result) is float and result == value


def test_the_limit_itself_is_accepted_unless_strict() -> None:
    assert finite_real("epsilon", 0, strict=False, remedy="try 1") == 0.0
    with pytest.raises(InvalidParameter, match=r"finite and >= 0"):
        finite_real("epsilon", -1e-9, strict=False, remedy="try 1")


@pytest.mark.parametrize("value", [1, 7, np.int64(3)])
def test_a_whole_number_of_python_or_numpy(value: object) -> None:
    number = whole_number("count", value, high=7)
    assert number == value and type(number) is int


@pytest.mark.parametrize("value", [0, 8, -1, True, 2.0, "2", None, float("nan")])
def test_what_is_no_whole_number_within_the_limits(value: object) -> None:
    with pytest.raises(InvalidParameter, match="is not an integer from 1 to 7; give one") as caught:
        whole_number("count", value, high=7)
    assert caught.value.field == "count"
