"""exp of arrays and the normal law of balls, beside other series for the same numbers."""

from __future__ import annotations

from decimal import Context, Decimal, localcontext

import mpmath
import numpy as np
import pytest
from flint import arb, ctx

from factorize.checker.arithmetic.balls import PLACES, normal
from factorize.checker.arithmetic.exponentials import EXP_SLACK, exponentials


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
