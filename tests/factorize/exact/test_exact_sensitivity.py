"""The exact checker's sensitivities one rule at a time: answers by hand, and selections and signs by enumeration."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from brute_force import min_sep_patterns
from exact_files import true_squares
from hypothesis import given
from hypothesis import strategies as st

from factorize.errors import InvalidParticipation, TooLarge
from factorize.exact import sensitivity
from factorize.exact.arithmetic.integers import Numbers
from factorize.exact.sensitivity import (
    TWO_STAGE,
    Allowed,
    Bracket,
    allowed,
    best_selection,
    square_root_down,
    square_root_up,
    squared_sensitivity,
)
from factorize.exact.strategy import Strategy
from factorize.exact.structures import dense, redrawn
from factorize.exact.structures.base import Selection
from factorize.exact.structures.blt import BltReading
from factorize.exact.structures.dense import DenseReading
from factorize.exact.structures.redrawn import RedrawnReading


def whole(values: list[int], radius: int = 0) -> Numbers:
    return Numbers(np.array(values, dtype=object), 0, radius)


def separated(min_sep: int, most: int | None = None) -> dict[str, Any]:
    found = {"kind": "min_sep", "min_sep": min_sep}
    return found if most is None else found | {"max_participations": most}


@pytest.mark.parametrize(
    ("participation", "form"),
    [
        ({"kind": "single"}, Allowed(12, 1, False)),
        ({"kind": "fixed_epochs", "epochs": 1}, Allowed(12, 1, True)),
        ({"kind": "fixed_epochs", "epochs": 3}, Allowed(4, 3, True)),
        ({"kind": "min_sep", "min_sep": 5}, Allowed(5, 3, False)),
        ({"kind": "min_sep", "min_sep": 5, "max_participations": 2}, Allowed(5, 2, False)),
        ({"kind": "min_sep", "min_sep": 5, "max_participations": 9}, Allowed(5, 3, False)),
        ({"kind": "min_sep", "min_sep": 5, "max_participations": 1}, Allowed(5, 1, False)),
        ({"kind": "min_sep", "min_sep": 1}, Allowed(1, 12, False)),
        ({"kind": "min_sep", "min_sep": 12}, Allowed(12, 1, False)),
    ],
)
def test_participations(participation: dict[str, Any], form: Allowed) -> None:
    assert allowed(participation, 12) == form


@pytest.mark.parametrize("kind", ["poisson", "fixed_epochs", "min_sep"])
def test_participations_that_are_none(kind: str) -> None:
    with pytest.raises(InvalidParticipation, match="does not fit n=12"):
        allowed({"kind": kind, "epochs": 5, "min_sep": 13}, 12)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.data())
def test_the_best_selection_by_enumeration(values: list[int], data: st.DataObject) -> None:
    n = len(values)
    separation = data.draw(st.integers(1, n))
    form = Allowed(separation, data.draw(st.integers(1, math.ceil(n / separation))), False)
    total, chosen = best_selection(np.array(values, dtype=object), form)
    patterns = min_sep_patterns(n, separation, form.most)
    assert total == max(sum(values[i] for i in pattern) for pattern in patterns)
    assert sum(values[i] for i in chosen) == total and (chosen in patterns or total == 0)


def test_selections_as_long_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensitivity, "MOST_STEPS", 12)
    ones = np.array([1] * 6, dtype=object)
    assert best_selection(ones, Allowed(1, 2, False)) == (2, (4, 5))
    assert best_selection(ones, Allowed(1, 6, False)) == (6, (0, 1, 2, 3, 4, 5))  # without a limit it takes n steps
    assert best_selection(ones, Allowed(2, 3, False)) == (3, (1, 3, 5))
    with pytest.raises(TooLarge, match="of 18 steps"):
        best_selection(ones, Allowed(1, 3, False))


def test_two_stages_as_long_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    array, twice = np.tri(3) + np.diag([0.0, 1.0, 2.0]), separated(1, 2)
    monkeypatch.setattr(sensitivity, "MOST_STEPS", 3 * 3 * 2)
    assert "two-stage" in bracket(array, twice).rule
    monkeypatch.setattr(sensitivity, "MOST_STEPS", 3 * 3 * 2 - 1)
    with pytest.raises(TooLarge, match="of 18 steps"):
        bracket(array, twice)


def test_what_is_affordable() -> None:
    """All of C^T C up to n = 2048; beyond, 2^32 operations on the patterns of a matrix that is stored."""

    def fits(n: int, most: int, periodic: bool, computed: bool = False, inverse: bool = False) -> bool:
        kind = RedrawnReading if inverse else BltReading if computed else DenseReading
        reading = kind.__new__(kind)
        reading.n = n
        strategy: Any = SimpleNamespace(n=n, reading=reading)
        return sensitivity._fits(strategy, Allowed(n // most, most, periodic))

    assert fits(2048, 2, False) and not fits(2049, 2, False)
    assert fits(4096, 256, True) and not fits(4096, 257, True) and not fits(4096, 64, False)
    assert fits(16_384, 16, True) and not fits(16_384, 17, True)
    assert not fits(4096, 64, True, computed=True) and fits(2048, 2, True, computed=True)
    longest = redrawn.LARGEST_BY_COLUMNS  # of what is stored as its inverse, whose columns are solved for
    assert fits(longest, 2, True, inverse=True) and not fits(longest + 1, 2, True, inverse=True)
    assert fits(2048, 2, False, inverse=True) and not fits(2049, 2, False, inverse=True)


def test_the_leading_pattern_by_hand() -> None:
    """Column 0 is 4 2 1 and column 2 is 0 0 4: together 4 2 5, each off by at most 2."""
    found = sensitivity._leading(whole([4, 2, 1], 1), Allowed(2, 2, False))
    wrong = 2 * (2 * (4 + 2 + 5) + 3 * 2)
    assert (found.lower, found.upper) == (0, 45 + wrong)
    assert found.pattern == (0, 2) and found.signs == (1, 1)
    exact = sensitivity._leading(whole([4, 2, 1, 1, 1]), Allowed(2, 2, False))  # the third multiple of 2 is not taken
    assert exact.lower == exact.upper == 4**2 + 2**2 + (1 + 4) ** 2 + (1 + 2) ** 2 + (1 + 1) ** 2
    assert exact.pattern == (0, 2)
    assert sensitivity._leading(whole([1, 1]), Allowed(2, 1, False)).pattern == (0,)
    next_to_each_other = sensitivity._leading(whole([1, 1, 1, 1]), Allowed(1, 2, False))
    assert next_to_each_other.upper == 1 + 4 + 4 + 4
    assert sensitivity._leading(whole([1, 1, 1, 1, 1]), Allowed(3, 2, False)).upper == 1 + 1 + 1 + 4 + 4


def test_the_majorant_by_hand() -> None:
    """1 0 -2 1 has the majorant 2 2 2 1; twice, 2 apart, that is 2 2 4 3."""
    column, form = whole([1, 0, -2, 1]), Allowed(2, 2, False)
    leading = sensitivity._leading(column, form)
    found = sensitivity._majorant(column, form, leading)
    assert found.upper == 2**2 + 2**2 + 4**2 + 3**2
    assert leading.lower == 1 + 0 + (-2 + 1) ** 2 + 1  # less than column 0 alone, which is then the witness
    assert found.lower == 1 + 4 + 1 and found.pattern == (0,) and found.signs == (1,)
    rising = whole([1, 2, 1, 1])
    assert sensitivity._majorant(rising, form, sensitivity._leading(rising, form)).pattern == (0, 2)


def bracket(array: list[list[float]] | np.ndarray, participation: dict[str, Any]) -> Bracket:
    return squared_sensitivity(Strategy("dense", {"": np.array(array, dtype=float)}, len(array)), participation)


@pytest.mark.parametrize("seed", range(12))
def test_three_steps_are_given_their_worst_signs(seed: int) -> None:
    """From any signs of three steps, any others can be had by one flip: the lower end is what is attained at most."""
    rng = np.random.default_rng(seed)
    array = np.tril(rng.integers(-3, 4, (6, 6))).astype(float)
    array[np.arange(6), np.arange(6)] = 1 + rng.integers(0, 3, 6)
    found = bracket(array, {"kind": "fixed_epochs", "epochs": 3})
    signed, absolute = true_squares(array, {"kind": "fixed_epochs", "epochs": 3})
    assert (found.lower, found.upper) == (signed, absolute)


def test_signs_by_hand() -> None:
    """Of ones, of the first row's signs, and of what flips make of them, the best is kept."""
    alone = sensitivity._signed(whole([[2, -1, -1], [-1, 2, -1], [-1, -1, 2]]), (0, 4, 8))
    assert alone.lower == alone.upper == 6 - 2 + 2 + 2 and sorted(map(abs, alone.signs)) == [1, 1, 1]
    by_flips = sensitivity._signed(whole([[2, 0, 0], [0, 2, -1], [0, -1, 2]]), (0, 4, 8))
    assert by_flips.lower == 6 + 2  # the first row says nothing, and one flip gains a unit
    with_zero = sensitivity._signed(whole([[2, 0, 1], [0, 2, 1], [1, 1, 2]]), (0, 4, 8))
    assert with_zero.lower == 10 and with_zero.signs == (1, 1, 1) and with_zero.pattern == (0, 4, 8)
    blurred = sensitivity._signed(whole([[9, 1, 1], [1, 9, 1], [1, 1, 9]], 2), (0, 4, 8))
    assert blurred.lower == blurred.upper == 33 - 2 * 9
    assert sensitivity._signed(whole([[1, 0], [0, 1]], 9), (0, 4)).lower == 0


@pytest.mark.parametrize(
    ("gram", "most"),
    [  # found by trial: where flips get stuck from ones, from the first row's signs, and from minus for its zeros
        ([[9, 1, -2, 4], [1, 13, 4, 0], [-2, 4, 2, -2], [4, 0, -2, 9]], 55),
        ([[13, 0, 0, -8], [0, 9, 3, 1], [0, 3, 5, 3], [-8, 1, 3, 9]], 66),
        ([[12, -8, -2, -6, 0], [-8, 12, 0, 8, 0], [-2, 0, 13, -1, 10], [-6, 8, -1, 9, -6], [0, 0, 10, -6, 16]], 136),
    ],
)
def test_signs_that_one_start_alone_would_miss(gram: list[list[int]], most: int) -> None:
    found = sensitivity._signed(whole(gram), tuple(range(len(gram))))
    signs = np.array(found.signs)
    assert found.lower == most == signs @ np.array(gram) @ signs


def test_patterns_that_other_selections_would_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of the Gram entries make the leading pattern the best one, which neither bound can see."""
    array = np.array([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [-2, -2, 1, 0, 0], [-2, 2, 0, 2, 0], [2, -1, -1, 2, 1.0]])
    found = bracket(array, separated(2, 2))
    assert found.pattern == (0, 2) and found.lower == true_squares(array, separated(2, 2))[0] == 24
    monkeypatch.setattr(sensitivity, "_LARGEST_PATTERN", 2)  # as many steps as are still tried
    assert bracket(array, separated(2, 2)).lower == 24
    monkeypatch.setattr(sensitivity, "_LARGEST_PATTERN", 1)
    assert bracket(array, separated(2, 2)).pattern == (0,)


def test_sums_over_patterns_that_do_not_overlap() -> None:
    array = np.diag([1.0, 3.0, 2.0, 2.0])
    periodic = bracket(array, {"kind": "fixed_epochs", "epochs": 2})
    assert periodic.lower == periodic.upper == 9 + 4 and periodic.pattern == (1, 3) and periodic.signs == (1, 1)
    selected = bracket(array, separated(2, 2))
    assert selected.lower == selected.upper == 9 + 4 and selected.pattern == (1, 3)
    ends = np.diag([3.0, 1.0, 1.0, 3.0])
    assert bracket(ends, {"kind": "fixed_epochs", "epochs": 2}).upper == 9 + 1
    assert bracket(ends, separated(2, 2)).upper == 9 + 9
    once = bracket(array, separated(2, 1))
    assert once.lower == once.upper == 9 and once.pattern == (1,) and once.rule == "column norms"


def test_bands_as_wide_as_the_separation_do_not_overlap() -> None:
    array = np.eye(4) + np.eye(4, k=-1)
    apart, together = bracket(array, separated(2)), bracket(array, separated(1))
    assert apart.rule.startswith("banded") and apart.upper == 2 + 2
    assert not together.rule.startswith("banded") and together.upper == 4 + 4 + 4 + 1


def test_long_columns_that_overlap_have_only_the_rules_of_toeplitz_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensitivity, "LARGEST_WHOLE", 3)
    rising = Strategy("toeplitz", {"coefficients": np.array([1.0, 0.0, 2.0, 0.0])}, 4)
    assert "majorant" in squared_sensitivity(rising, separated(2, 2)).rule
    bands = np.array([[1.0, 2.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]])
    with pytest.raises(TooLarge, match="reaches n=4"):
        squared_sensitivity(Strategy("banded", {"bands": bands}, 4), separated(1, 2))


@pytest.mark.parametrize("most", [None, 0])
def test_enclosures_enlarge_every_rule(monkeypatch: pytest.MonkeyPatch, most: int | None) -> None:
    """What is cut of 1 and 2^-170 in one matrix is on the safe side under every participation.

    Column norms are exact, but where Python's integers would take too long.
    """
    if most is not None:
        monkeypatch.setattr(dense, "_MOST_IN_INTEGERS", most)
    array = np.eye(4)
    array[1, 0] = 2.0**-100 + 2.0**-152
    array[3, 2] = 2.0**-170
    for participation in ({"kind": "single"}, {"kind": "fixed_epochs", "epochs": 2}, separated(2), separated(1, 2)):
        found = bracket(array, participation)
        signed, absolute = true_squares(array, participation)
        assert found.lower <= signed <= absolute <= found.upper
        if most is None and found.rule != TWO_STAGE:
            assert found.lower == found.upper
        else:
            assert found.lower < found.upper  # what was cut is not forgotten


def test_column_factors_of_very_different_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows of the Gram matrix are known the least, and what they do not know counts."""
    inner = np.eye(3)
    inner[1, 0] = 2.0**-110 + 2.0**-162  # of which the last place is cut
    factors = np.array([2.0**400, 1.0, 1.0])
    strategy = Strategy("scaled", {"": inner, "column_scale": factors}, 3)
    monkeypatch.setattr(sensitivity, "_GRAM_ENTRIES", 3)  # one row at a time
    found = squared_sensitivity(strategy, separated(1, 2))
    assert found.rule.startswith("two-stage")
    assert found.lower <= true_squares(inner * factors, separated(1, 2))[0] <= found.upper


class Blurred:
    """A strategy of which Gram entries are known within one unit."""

    n = 6
    decays = scale = None
    column_norms = whole([1] * 6)

    def gram(self, indices: np.ndarray) -> Numbers:
        side = len(indices)
        return Numbers(np.full((side, side), 1, dtype=object), 0, 1)

    def grams(self, patterns: np.ndarray) -> list[Numbers]:
        return [self.gram(pattern) for pattern in patterns]

    def largest_patterns(self, _epochs: int) -> None:
        """Nothing is told of them."""

    def deciding_rows(self, _separation: int, _most: int) -> None:
        """Nor of its rows."""

    def selection(self, _separation: int, _most: int) -> Selection | None:
        """Nor of its structure."""
        return None

    def gram_rows(self, indices: np.ndarray) -> Numbers:
        return Numbers(np.full((len(indices), self.n), 1, dtype=object), 0, 1)


def test_every_entry_of_a_pattern_may_be_off() -> None:
    """Three steps have nine entries."""
    strategy: Any = Blurred()
    periodic = sensitivity._periodic(strategy, Allowed(2, 3, True))
    assert (periodic.lower, periodic.upper) == (0, 9 + 9)
    staged = sensitivity._two_stage(strategy, Allowed(2, 3, False))
    assert (staged.lower, staged.upper) == (0, 9 + 9)
    strategy.deciding_rows = lambda *_: np.array([1])
    staged = sensitivity._two_stage(strategy, Allowed(2, 3, False))
    assert staged.upper == 3 + 9, "rows that do not decide count as nothing"
    for upper, rule in ((Fraction(12), sensitivity.TWO_STAGE), (Fraction(11), sensitivity.NODES)):
        told = Selection(upper, (1, 4))
        strategy.selection = lambda *_, told=told: told
        staged = sensitivity._two_stage(strategy, Allowed(2, 3, False))
        assert (staged.upper, staged.rule) == (upper, rule), "of two bounds the lesser is kept"


@pytest.mark.parametrize("seed", range(3))
def test_two_stages_by_their_definition(seed: int) -> None:
    """Within each row of |C^T C| the best selection, and of these sums again."""
    array = np.tril(np.random.default_rng(seed).integers(-3, 4, (6, 6))).astype(float)
    np.fill_diagonal(array, 4.0)
    gram = abs(array.T @ array)
    for min_sep, most in itertools.product((1, 2), (2, 3)):
        patterns = [list(pattern) for pattern in min_sep_patterns(6, min_sep, most)]
        rows = np.array([max(row[pattern].sum() for pattern in patterns) for row in gram])
        assert bracket(array, separated(min_sep, most)).upper == max(rows[pattern].sum() for pattern in patterns)


def test_of_two_rules_for_a_toeplitz_matrix_the_better_ends_are_kept() -> None:
    column = np.array([1.0, 0.5, 0.75, -0.5, 0.25])
    for form in (Allowed(1, 2, False), Allowed(2, 2, False), Allowed(2, 3, False)):
        strategy = Strategy("toeplitz", {"coefficients": column}, 5)
        two_stage = sensitivity._two_stage(strategy, form)
        assert strategy.toeplitz is not None
        leading = sensitivity._leading(strategy.toeplitz, form)
        majorant = sensitivity._majorant(strategy.toeplitz, form, leading)
        assert two_stage.upper != majorant.upper
        found = squared_sensitivity(strategy, separated(form.separation, form.most))
        assert found.upper == min(two_stage.upper, majorant.upper)
        assert found.lower == max(two_stage.lower, majorant.lower)
        assert found.rule == min((two_stage, majorant), key=lambda bracket: bracket.upper).rule


def test_inverses_of_few_diagonals() -> None:
    """c_t = c_{t-1} / 2 + c_{t-2} / 4, whose entries doubles hold exactly for small n."""
    n, column = 6, [1.0, 0.5]
    for t in range(2, n):
        column.append(column[t - 1] / 2 + column[t - 2] / 4)
    array = np.array([[column[i - j] if j <= i else 0.0 for j in range(n)] for i in range(n)])
    strategy = Strategy("inverse_banded_toeplitz", {"inverse_coefficients": np.array([1.0, -0.5, -0.25])}, n)
    for participation in (separated(2), separated(1, 2), {"kind": "fixed_epochs", "epochs": 3}):
        found = squared_sensitivity(strategy, participation)
        signed, _ = true_squares(array, participation)
        assert found.lower <= signed <= found.upper and found.exact and "majorant" in found.rule


def test_two_stages_find_the_true_maximum_where_nothing_is_negative() -> None:
    """Two columns: the best partner of each, then the best pair."""
    array = np.array([[2.0, 0, 0, 0], [1, 1, 0, 0], [0, 2, 1, 0], [3, 0, 0, 2]])
    found = bracket(array, separated(2, 2))
    signed, _ = true_squares(array, separated(2, 2))
    assert found.lower == signed == 14 + 4 + 2 * 6 and found.pattern == (0, 3)
    assert found.upper >= signed


@given(st.fractions(min_value=0, max_value=10**6), st.integers(-400, 400))
def test_square_roots_are_the_first_double_on_their_side(value: Fraction, shift: int) -> None:
    value *= Fraction(2) ** shift
    up, down = square_root_up(value), square_root_down(value)
    assert Fraction(down) ** 2 <= value <= Fraction(up) ** 2
    assert value == 0 or Fraction(math.nextafter(up, 0.0)) ** 2 < value
    assert Fraction(math.nextafter(down, math.inf)) ** 2 > value


def test_square_roots_of_squares() -> None:
    for root in (0.75, 3.0, 2.0**500, 2.0**-500):
        assert square_root_up(Fraction(root) ** 2) == square_root_down(Fraction(root) ** 2) == root
    assert square_root_up(Fraction(0)) == square_root_up(Fraction(-1)) == square_root_down(Fraction(0)) == 0.0


def test_brackets_are_exact_up_to_what_enclosures_cut() -> None:
    def exact(gap: Fraction) -> bool:
        return Bracket(1 - gap, Fraction(1), "", (), ()).exact

    assert exact(Fraction(0)) and exact(Fraction(1, 2**80)) and not exact(Fraction(1, 2**79))


@pytest.mark.parametrize("first", [0, 1])
def test_brackets_of_signed_columns_hold_for_every_pattern(first: int) -> None:
    rng = np.random.default_rng(first)
    array = np.tril(rng.integers(-2, 3, (5, 5))).astype(float)
    np.fill_diagonal(array, 1.0)
    for min_sep, most in itertools.product(range(1, 6), range(1, 6)):
        found = bracket(array, separated(min_sep, most))
        signed, _ = true_squares(array, separated(min_sep, most))
        assert found.lower <= signed <= found.upper


@pytest.mark.parametrize(("scale", "square"), [((0.5, 1.0), 1.0), ((0.5, 0.25), 0.3125)])
def test_the_last_column_of_scaled_decays_is_its_factor(scale: tuple[float, float], square: float) -> None:
    """C = [[1, 0], [1/2, 1]] by a BLT: squared norms 5/4 and 1 times the squares of the factors."""
    parts = {"theta": np.array([0.0]), "omega": np.array([0.5]), "column_scale": np.array(scale)}
    found = squared_sensitivity(Strategy("scaled", parts, 2), {"kind": "single"})
    assert found.lower <= square <= found.upper
    assert (found.lower == found.upper == 1) == (scale[1] == 1.0)
    assert found.upper - found.lower < Fraction(1, 2**100)


@pytest.mark.parametrize(
    ("scale", "square", "worst"),
    [
        ((0.5, 0.25, 2.0), Fraction(4), 2),
        ((2.0, 0.5, 2.0), Fraction(5), 0),
        ((0.5, 2.0, 2.0), Fraction(5), 1),
        ((0.5,), Fraction(1, 4), 0),
    ],
)
def test_the_worst_of_several_columns_with_factors(scale: tuple[float, ...], square: Fraction, worst: int) -> None:
    """Squared norms 5/4, ..., 5/4 and 1 times the squares of the factors: only the last is known without a radius."""
    parts = {"theta": np.array([0.0]), "omega": np.array([0.5]), "column_scale": np.array(scale)}
    n = len(scale)
    found = squared_sensitivity(Strategy("scaled", parts, n), {"kind": "single"})
    assert (found.pattern, found.signs) == ((worst,), (1,))
    if worst == n - 1:
        assert found.lower == found.upper == square
    else:
        assert found.lower <= square < found.upper < square * (1 + Fraction(1, 2**100))


def test_patterns_are_tried_from_the_largest_sum_on() -> None:
    """Of columns with squares 1, 1, 4 and 4, 4, 4 the third pattern has 8; two others have 5, the first of which stays."""
    found = sensitivity._periodic(Strategy("dense", {"": np.diag([1.0, 1, 2, 2, 2, 2])}, 6), Allowed(3, 2, True))
    assert (found.lower, found.upper, found.pattern) == (8, 8, (2, 5))
    equal = sensitivity._periodic(Strategy("dense", {"": np.eye(6)}, 6), Allowed(3, 2, True))
    assert (equal.lower, equal.upper, equal.pattern) == (2, 2, (0, 3))


def test_series_that_are_told_by_their_majorant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Falling coefficients: nothing else is asked. Rising ones: Gram entries too, as long as they are within reach."""
    monkeypatch.setattr(sensitivity, "LARGEST_WHOLE", 4)
    asked: list[str] = []
    two_stage = sensitivity._two_stage
    monkeypatch.setattr(sensitivity, "_two_stage", lambda *given: asked.append("") or two_stage(*given))

    def strategy(weights: list[float], n: int) -> Strategy:
        return Strategy("inverse_banded_toeplitz", {"inverse_coefficients": np.array(weights)}, n)

    falling, rising = [1.0, -0.5, -0.25], [1.0, 0.0, -0.9]
    for weights, n, times in ((falling, 4, 0), (falling, 5, 0), (rising, 4, 1), (rising, 5, 0)):
        asked.clear()
        squared_sensitivity(strategy(weights, n), separated(1, 2))
        assert len(asked) == times, (weights, n)
    asked.clear()
    squared_sensitivity(Strategy("toeplitz", {"coefficients": np.array([1.0, 0.5, 0.75, 0.25])}, 4), separated(1, 2))
    assert len(asked) == 1
