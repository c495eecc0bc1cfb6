"""exp of arrays and the normal law of balls, beside other series for the same numbers; and doubles below fractions."""

from __future__ import annotations

import math
import sys
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from flint import arb, ctx
from hypothesis import example, given
from hypothesis import strategies as st

from factorize.checker.arithmetic.balls import PLACES, normal
from factorize.checker.arithmetic.machine import EXP_SLACK, exponentials
from factorize.checker.arithmetic.near import double_below


def test_exponentials_are_within_their_slack() -> None:
    luck = np.random.default_rng(0)
    x = np.concatenate([[-700.0, 700.0, 0.0, -0.0, 1e-300, 0.3465, -0.3466], luck.uniform(-700, 700, 200)])
    x = np.concatenate([x, luck.uniform(-1, 1, 100)])
    with localcontext(Context(prec=40)):
        for given, found in zip(x.tolist(), exponentials(x).tolist(), strict=True):
            true = Decimal(given).exp()
            assert abs(Decimal(found) - true) <= true * Decimal(2) ** -48, given
    assert EXP_SLACK >= 2.0**-48
    assert exponentials(np.zeros((2, 3))).tolist() == np.ones((2, 3)).tolist()


@pytest.mark.parametrize("x", [0.0, 1e-30, 0.3, 1.0, 2.0, 9.5, 40.5, -0.7, -5.0, -38.0, -45.0])
def test_the_normal_law_is_enclosed_closely(x: float) -> None:
    """On both sides, within 2^-200 of the number itself."""
    with ctx.workprec(PLACES), mpmath.workdps(600):
        found, true = normal(arb(x)), mpmath.ncdf(mpmath.mpf(x))
        ends = [
            mpmath.mpf(int(m)) * mpmath.mpf(2) ** int(e) for m, e in (found.lower().man_exp(), found.upper().man_exp())
        ]
        assert ends[0] <= true <= ends[1]
        assert ends[1] - ends[0] <= true * mpmath.mpf(2) ** -200


@given(st.floats(0, allow_nan=False, allow_infinity=False))
@example(5e-324)
@example(1e-154 * (1 + 2.0**-52))
@example(1.0 + 2.0**-52)
@example(1e200)
def test_squares_are_rounded_down_by_less_than_a_place(value: float) -> None:
    found, exact = double_below(Fraction(value) ** 2), Fraction(value) ** 2
    assert Fraction(found) <= exact
    assert exact < Fraction(math.nextafter(found, math.inf)) if found < sys.float_info.max else exact > 1
