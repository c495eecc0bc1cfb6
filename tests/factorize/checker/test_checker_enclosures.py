"""Enclosures of exp, log and the normal law beside other series for the same numbers, and how wide they are."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest

from factorize.checker.arithmetic import enclosures
from factorize.checker.arithmetic.enclosures import Enclosed, context, exponentials, normal

PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798214808651"
)


def test_exponentials_are_within_their_slack() -> None:
    luck = np.random.default_rng(0)
    x = np.concatenate([[-700.0, 700.0, 0.0, -0.0, 1e-300, 0.3465, -0.3466], luck.uniform(-700, 700, 200)])
    x = np.concatenate([x, luck.uniform(-1, 1, 100)])
    with localcontext(context(40)):
        for given, found in zip(x.tolist(), exponentials(x).tolist(), strict=True):
            true = Decimal(given).exp()
            assert abs(Decimal(found) - true) <= true * Decimal(2) ** -48, given
    assert enclosures.EXP_SLACK >= 2.0**-48
    assert exponentials(np.zeros((2, 3))).tolist() == np.ones((2, 3)).tolist()


def by_powers(x: Decimal) -> Decimal:
    """Phi by the alternating series of x - x^3 / 6 + x^5 / 40 - ..., with as many digits more as its terms are large."""
    with localcontext(context(260)):
        power, total, k = x, x, 0
        while abs(power) > Decimal(10) ** -250:
            k += 1
            power = -power * x * x / (2 * k)
            total += power / (2 * k + 1)
        return Decimal("0.5") + total / (2 * PI).sqrt()


@pytest.mark.parametrize("digits", [8, 25, 60])
@pytest.mark.parametrize("x", ["0", "1E-30", "0.3", "0.7", "1", "1.7", "2", "5", "9.5", "13"])
def test_the_normal_law_is_enclosed_closely(x: str, digits: int) -> None:
    """On both sides, within 10^-digits of what the tail is of, up to a digit."""
    for size in (Decimal(x), -Decimal(x)):
        found, true = normal(size, digits), by_powers(size)
        places = digits + int(size * size * Decimal("0.2172")) + 5
        with localcontext(context(200)):
            known = Decimal(10) ** -100  # digits of pi
            assert found.low <= true + known and true - known <= found.high
            assert abs((found.high - found.low) / (2 * Decimal(10) ** (5 - places)) - 1) < Decimal("1E-5")
            middle = (found.low + found.high) / 2
            assert places > 95 or abs(middle - true) < Decimal(10) ** (-places - 1)


def test_the_normal_law_far_out() -> None:
    """From 40 on, exclusive: 0 and the leading term with 2.5 in place of the root of 2 pi; or all but 10^-20."""
    assert normal(Decimal("40.5")) == Enclosed(1 - Decimal(10) ** -20, Decimal(1))
    with localcontext(context()):
        tail = (-(Decimal("40.5") ** 2) / 2).exp() / (Decimal("2.5") * Decimal("40.5"))
        assert tail > (-(Decimal("40.5") ** 2) / 2).exp() / ((2 * PI).sqrt() * Decimal("40.5"))
    assert normal(Decimal("-40.5")) == Enclosed(Decimal(0), tail)
    last = normal(Decimal(-40), 10)
    assert 0 < last.low < last.high < last.low * (1 + Decimal("1E-7"))
    assert last.low > tail
