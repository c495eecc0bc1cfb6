"""The recurrences' own numbers: how far roundings can take C by hand, and how much a step may scale."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from factorize.noise import allowances
from factorize.noise.allowances import raised
from factorize.noise.recurrences.banded import BandedRecurrence, InverseBandedToeplitzRecurrence
from factorize.noise.recurrences.base import ScaledRecurrence
from factorize.noise.recurrences.buffered import BufferedRecurrence
from factorize.noise.recurrences.redrawn import RedrawnRecurrence
from factorize.noise.recurrences.state_rounding import Deviation
from factorize.noise.recurrences.tree import TreeRecurrence

UNIT, ONE = 2.0**-24, 2.0**-40
"""Of a state and of one operation, in what is worked out by hand below."""
SLACK = 1 + 2.0**-16


def close(expected: float) -> object:
    return pytest.approx(expected, rel=1e-12, abs=0)


def buffered(n: int = 3) -> BufferedRecurrence:
    return BufferedRecurrence(np.ones(n), np.full((n, 1, 1, 1), 0.5), np.full((n, 1), 0.25), np.full((n, 1), 0.8))


def inverse_banded(n: int) -> InverseBandedToeplitzRecurrence:
    return InverseBandedToeplitzRecurrence.of_tensors({"inverse_coefficients": np.array([1.0, 2.0, -2.0])}, n)


class TestSpreadByHand:
    def test_banded(self):
        assert BandedRecurrence(np.ones((1, 4)), 9).deviation(UNIT, ONE) == Deviation(entries=UNIT + 9 * ONE)
        assert BandedRecurrence(np.ones((1, 1)), 9).deviation(UNIT, ONE) == Deviation(entries=6 * ONE)

    def test_inverse_banded(self):
        found = inverse_banded(9).deviation(UNIT, ONE)
        assert found == Deviation(rows=close(UNIT + 4 * ONE), inverse=close(6 * ONE * 3 * 1.001))

    def test_tree(self):
        found = TreeRecurrence(np.ones((4, 8)), 8).deviation(UNIT, ONE)
        assert found == Deviation(entries=close(1.001 * 3 * (UNIT + 4 * ONE) + 6 * ONE))

    def test_scaled(self):
        inner = inverse_banded(3)
        found = ScaledRecurrence(inner, np.array([4.0, 0.5, 2.0])).deviation(UNIT, ONE)
        assert found == Deviation(0, close(3 * ONE), close(UNIT + 4 * ONE), close(6 * ONE * 3 * 1.001 / 0.5))
        columns = ScaledRecurrence(buffered(), np.array([4.0, 0.5, 2.0])).deviation(UNIT, ONE)
        assert columns.columns == close(4 * buffered().deviation(UNIT, ONE).columns)

    def test_redrawn(self):
        """One state that is read as 0.5 of itself; draw 0 is written as 3 at step 0, and again as 2 at step 1 = lag; two redraws more."""
        decay, outputs = np.full((3, 1), 0.25), np.full((3, 1), 0.5)
        inputs = np.array([[[3.0], [0], [0]], [[0], [2.0], [0]], *np.zeros((2, 3, 1))])
        direct = np.array([[1.0, 1.0, 1.0], [0.0, 0.125, 0.0], [0.0, 0.0, 0.25], [0.0, 0.0, 0.0]])
        e = UNIT + (1 + 6 + 8) * ONE
        own = e * SLACK * 3 * math.hypot(0.5 * (1 + e), 2 * 0.5 * 0.25 * (1 + e) ** 2)
        again = e * SLACK * 2 * 0.5 * (1 + e)
        found = RedrawnRecurrence(decay, outputs, inputs, direct, 1).deviation(UNIT, ONE)
        assert found == Deviation(inverse=close((own + again + 15 * ONE * (1 + 0.125 + 0.25)) * 1.001))


class TestAllowance:
    def test_of_nothing_but_the_release(self):
        least = 1 / ((1 - Fraction(2) ** -24) * (1 - Fraction(2) ** -53)) - 1  # rounded to float32, and once divided
        assert least < Fraction(allowances.allowance(Deviation(), 1.0, 1, 1)) < least * Fraction(1 + 2.0**-15)

    def test_the_raise_is_rounded_up(self):
        assert raised(1.0, 0.0) == math.nextafter(1.0, 2.0)
        assert raised(2.0, 0.5) == math.nextafter(3.0, 4.0)
