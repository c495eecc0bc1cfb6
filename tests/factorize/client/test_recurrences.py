"""The recurrences' own numbers: how far roundings can take C by hand, and how much a step may scale."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from factorize.certificate.sensitivity import Sensitivity
from factorize.client import allowances
from factorize.client.allowances import CHEAP, LARGEST, check_allowance, choose_precision, raised, rounding_of
from factorize.client.noise_source import noise_source
from factorize.client.recurrences.banded import BandedRecurrence
from factorize.client.recurrences.blt import BltRecurrence
from factorize.client.recurrences.buffered import BufferedRecurrence, StateSpaceRecurrence
from factorize.client.recurrences.inverse_banded_toeplitz import InverseBandedToeplitzRecurrence
from factorize.client.recurrences.redrawn import RedrawnRecurrence
from factorize.client.recurrences.scaled import ScaledRecurrence
from factorize.client.recurrences.state_rounding import (
    DOUBLE,
    SINGLE,
    Deviation,
    geometric_column,
    observed_columns,
    varying_columns,
)
from factorize.client.recurrences.tree import TreeRecurrence
from factorize.errors import InvalidParameter, UnsupportedProblem
from factorize.format.manifest import ENDLESS
from factorize.privacy import PrivacyTarget, calibrate

UNIT, ONE = 2.0**-24, 2.0**-40
"""Of a state and of one operation, in what is worked out by hand below."""
SLACK = 1 + 2.0**-16


def close(expected: float) -> object:
    return pytest.approx(expected, rel=1e-12, abs=0)


def buffered(n: int = 3) -> BufferedRecurrence:
    return BufferedRecurrence(np.ones(n), np.full((n, 1, 1, 1), 0.5), np.full((n, 1), 0.25), np.full((n, 1), 0.8))


def inverse_banded(n: int) -> InverseBandedToeplitzRecurrence:
    return InverseBandedToeplitzRecurrence.of_tensors({"inverse_coefficients": np.array([1.0, 2.0, -2.0])}, n)


def test_noise_without_end_and_without_a_recurrence_is_refused():
    with pytest.raises(UnsupportedProblem, match="the noise of nu_toeplitz without end takes all .* use blt"):
        noise_source("nu_toeplitz", {"nu": np.array([0.5])}, ENDLESS, "")


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

    def test_blt(self):
        theta, omega = np.array([0.5, 0.25]), np.array([0.3, -0.2])
        found = BltRecurrence(1000, theta, omega).deviation(UNIT, ONE)
        assert found.columns == close(geometric_column(theta, omega, 1000, UNIT + 10 * ONE))
        assert found.entries == close(10 * ONE) and (found.rows, found.inverse) == (0, 0)

    def test_buffered(self):
        """Column 0: what row 1 reads has one factor, 0.4 = 0.8 0.5 of 0.25, and what row 2 reads has two and 0.5 more."""
        e = UNIT + 11 * ONE  # one state: 1, twice 1, and 8
        column = e * SLACK * 0.25 * math.hypot(0.4 * (1 + e), 2 * 0.4 * 0.5 * (1 + e) ** 2)
        assert buffered().deviation(UNIT, ONE) == Deviation(columns=close(column), entries=close(11 * ONE))

    def test_state_space(self):
        """Three groups of two states: 6, twice 2, and 8 operations; only one state of each group is written and read."""
        n, move = 2, np.zeros((2, 3, 2, 2))
        move[:, :, 0, 0] = 0.5
        chosen = np.tile([1.0, 0.0], (n, 3))
        found = StateSpaceRecurrence(np.ones(n), move, chosen, chosen).deviation(UNIT, ONE)
        e = UNIT + 18 * ONE
        assert found == Deviation(columns=close(3 * e * SLACK * 0.5 * (1 + e)), entries=close(18 * ONE))

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

    def test_coarse_bounds_are_the_smaller_of_two(self):
        """States that turn: their sizes would grow as 1.38^n, what is read of them falls as 0.98^n."""
        n, one = 40, np.ones((40, 2))
        reads = one * [1.0, 0.9]
        move = np.broadcast_to(np.array([[[0.9, -0.9], [0.9, 0.9]]]) / 1.3, (n, 1, 2, 2))
        found = StateSpaceRecurrence(np.ones(n), move, one, reads).deviation(UNIT, DOUBLE)
        sizes = np.einsum("tgi,tgij->tgj", reads[:, None], np.abs(move))
        (coarse,) = varying_columns(move, sizes, [one[:, None]], UNIT + 14 * DOUBLE)
        seen = observed_columns(
            move, np.einsum("tgi,tgij->tgj", reads[:, None], move), sizes, one[:, None], UNIT, 14 * DOUBLE
        )
        assert coarse.max() > 1e-5 and seen.max() < coarse.max()
        assert found.columns == close(float(np.minimum(coarse, seen).max()))


class TestColumnsByHand:
    def test_geometric(self):
        u, left = 2.0**-10, 0.5 - 0.5 * 2.0**-10
        gap = left * (2 - left)
        tail = 0.25 * u * math.sqrt((2 - gap) / gap**3) * SLACK
        assert geometric_column(np.array([0.5]), np.array([-0.25]), 1000, u) == close(tail)
        assert geometric_column(np.array([0.5]), np.array([0.25]), 1, u) == close(0.25 * u * SLACK)  # n^3 is less
        both = geometric_column(np.array([0.5, -0.5]), np.array([0.25, 0.5]), 1000, u)
        assert both == close(3 * tail)

    def test_geometric_of_no_decay(self):
        u = 2.0**-10
        found = geometric_column(np.array([1.0]), np.array([0.25]), 1000, u)
        assert found == close(0.25 * u * math.sqrt(math.exp(3 * math.log(1000) + 2000 * math.log1p(u))) * SLACK)
        edge = 1 / (1 + u)  # decay (1 + u) is 1 to the last bit: n^3 without growth
        assert geometric_column(np.array([edge]), np.array([1.0]), 10, u) <= u * math.sqrt(1001) * SLACK
        assert geometric_column(np.array([1.0]), np.array([0.25]), 10**6, u) == math.inf

    def test_observed(self):
        """Three steps of one state that moves by 0.5, is read as 0.4 of itself and written as 0.25."""
        u, b = 2.0**-12, 2.0**-14
        steps = np.ones((3, 1, 1))
        found = observed_columns(0.5 * steps[..., None], 0.4 * steps, 0.4 * steps, 0.25 * steps, u, b)
        first_seen = math.hypot(0.4, 0.2)  # by row 1, and by row 2 after a move
        second = (u + 2 * b) * 0.4  # rounded and read once, by the last row, which adds it up
        first = u * first_seen + b * (first_seen + 0.5 * 0.4 + 0.4)
        later = 0.5 * second * math.pi / math.sqrt(6)
        again = max((first + later) / first_seen, second / 0.4)
        assert found[0] == close((first + later) * 0.25 / (1 - again) * SLACK)
        assert found[1] == close(second * 0.25 / (1 - again) * SLACK) and found[2] == 0

    def test_observed_of_two_states_doubles_a_square(self):
        """The same state beside one that nobody reads: the inequality takes the number of states once more."""
        u = 2.0**-12
        one = np.array([1.0, 0.0])
        moves, steps = np.zeros((3, 1, 2, 2)), np.tile(one, (3, 1, 1))
        moves[:, :, 0, 0] = 0.5
        found = observed_columns(moves, 0.4 * steps, 0.4 * steps, 0.25 * steps, u, 0.0)
        first_seen, second = math.hypot(0.4, 0.2), u * 0.4
        own = u * first_seen + 0.5 * second * math.pi / math.sqrt(3)
        assert found[0] == close(own * 0.25 / (1 - own / first_seen) * SLACK)

    def test_observed_has_a_limit(self):
        """Roundings that double what is read leave no bound; half as many do."""
        steps = np.ones((2, 1, 1))
        assert np.isinf(observed_columns(steps[..., None], steps, steps, steps, 0.5, 0.0)).all()
        assert observed_columns(steps[..., None], steps, steps, steps, 0.25, 0.0)[0] == close(0.25 / 0.75 * SLACK)

    def test_no_step_and_one_step(self):
        for n in (0, 1):
            moves, steps = np.ones((n, 1, 1, 1)), np.ones((n, 1, 1))
            assert varying_columns(moves, steps, [steps], 0.1)[0].tolist() == [0.0] * n
            assert observed_columns(moves, steps, steps, steps, 0.1, 0.1).tolist() == [0.0] * n


class TestAllowance:
    SCALE = calibrate(Sensitivity(2.0, "exact", "by hand", {"kind": "single"}), PrivacyTarget(mu=1.0))

    def test_limits_themselves_are_paid(self, monkeypatch: pytest.MonkeyPatch):
        assert check_allowance(LARGEST, "float32") == LARGEST == 1e-2 and CHEAP == 1e-3
        with pytest.raises(InvalidParameter, match='float32 state .* use precision="float64"'):
            check_allowance(LARGEST * 1.0001, "float32")
        with pytest.raises(InvalidParameter, match="float64 state .* rows of C"):
            check_allowance(math.inf, "float64")
        cost = rounding_of(buffered(), self.SCALE, SINGLE)
        monkeypatch.setattr(allowances, "CHEAP", cost)
        assert choose_precision(buffered(), self.SCALE, None) == ("float32", cost)
        monkeypatch.setattr(allowances, "CHEAP", cost / 1.0001)
        assert choose_precision(buffered(), self.SCALE, None)[0] == "float64"

    def test_one_that_is_asked_for(self):
        for precision, unit in (("float32", SINGLE), ("float64", DOUBLE)):
            expected = rounding_of(buffered(), self.SCALE, unit, 0.001)
            assert choose_precision(buffered(), self.SCALE, precision, draws=0.001) == (precision, expected)
            assert expected == pytest.approx(1 / 0.999 - 1, rel=1e-3)  # draws, off in the other direction
        assert choose_precision(buffered(), self.SCALE, None, draws=1e-4)[1] == pytest.approx(1e-4, rel=2e-3)

    def test_of_a_recurrence(self):
        deviation = buffered().deviation(UNIT, ONE)
        found = rounding_of(buffered(), self.SCALE, UNIT, 0.0, ONE)
        expected = (1 + deviation.columns / 2 + deviation.entries) / (1 - SINGLE) - 1
        assert expected < found < expected * (1 + 2.0**-15) + 8 * DOUBLE

    def test_of_nothing_but_the_release(self):
        least = 1 / ((1 - Fraction(2) ** -24) * (1 - Fraction(2) ** -53)) - 1  # rounded to float32, and once divided
        assert least < Fraction(allowances.allowance(Deviation(), 1.0, 1, 1)) < least * Fraction(1 + 2.0**-15)

    def test_half_of_c_is_too_much(self):
        assert allowances.allowance(Deviation(inverse=0.5), 1.0, 1, 1) == math.inf
        assert allowances.allowance(Deviation(inverse=0.25), 1.0, 1, 1) == pytest.approx(1 / 3, rel=1e-4)

    def test_the_raise_is_rounded_up(self):
        assert raised(1.0, 0.0) == math.nextafter(1.0, 2.0)
        assert raised(2.0, 0.5) == math.nextafter(3.0, 4.0)
