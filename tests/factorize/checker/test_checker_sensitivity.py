"""The checker's sensitivities against fractions and enumeration: never below the truth, and never far above it."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from checker_files import in_fractions, min_sep_patterns, patterns_of, true_squares
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from structure_cases import exact, signed_buffers, strategies

from factorize.checker import longest_path, sensitivity
from factorize.checker.arithmetic.near import NotEnclosed, square_root_down, square_root_up
from factorize.checker.check import check_matrix_sensitivity
from factorize.checker.sensitivity import Allowed, Bracket, best_selection, bracket_sensitivity
from factorize.checker.strategy import Strategy
from factorize.errors import CertificateError, FactorizeError, TooLarge
from factorize.factors import plain_sensitivity
from factorize.factors.plain_sensitivity import Chains
from factorize.factors.sensitivity import sensitivity_of
from factorize.participation import FixedEpochs, MinSep, Single, read_participation
from factorize.structures.buffered import BufferedMatrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import BltMatrix, InverseBandedToeplitz, ToeplitzMatrix


def separated(min_sep: int, most: int | None = None) -> dict[str, Any]:
    found = {"kind": "min_sep", "min_sep": min_sep}
    return found if most is None else found | {"max_participations": most}


def bracket(array: np.ndarray, participation: dict[str, Any]) -> Bracket:
    return bracket_sensitivity(Strategy("dense", {"": np.array(array, dtype=float)}, len(array)), participation)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=20), st.data())
def test_the_best_selection_by_enumeration(values: list[int], data: st.DataObject) -> None:
    n = len(values)
    separation = data.draw(st.integers(1, n))
    form = Allowed(separation, min(data.draw(st.integers(1, 4)), math.ceil(n / separation)), False)
    total, chosen = best_selection(np.array(values, dtype=float), form)
    patterns = min_sep_patterns(n, separation, form.most)
    assert total == max(sum(values[i] for i in pattern) for pattern in patterns)
    assert sum(values[i] for i in chosen) == total and (chosen in patterns or total == 0)


SCALE = np.array([0.25, 4.0, 1.0, 2.0, 0.5, 1.0])
entries = st.one_of(st.floats(-2, 2), st.sampled_from([0.0, -0.0, 1e-300, -1e-160, 5e-324, 1.0]))
PARTICIPATIONS = [
    {"kind": "single"},
    {"kind": "fixed_epochs", "epochs": 2},
    {"kind": "fixed_epochs", "epochs": 6},
    separated(2),
    separated(1, 2),
    separated(3, 2),
]


@settings(max_examples=60)
@given(arrays(np.float64, (6, 6), elements=entries), st.integers(0, 5), st.sampled_from(PARTICIPATIONS))
def test_brackets_hold_the_truth(raw: np.ndarray, bands: int, participation: dict[str, Any]) -> None:
    """By enumeration in fractions: signs attain no more than the upper end, and at least the lower one."""
    array, kind = np.triu(np.tril(raw), -bands), read_participation(participation)
    np.fill_diagonal(array, np.abs(np.diagonal(array)) + 0.1)
    falling = ToeplitzMatrix(np.sort(np.abs(array[:, 0]))[::-1].copy(), 6)
    for matrix in (
        DenseMatrix(array),
        DenseMatrix(np.abs(array)),
        ToeplitzMatrix(array[:, 0], 6),
        falling,
        ColumnScaled(DenseMatrix(array), SCALE),
    ):
        dense = matrix.dense()
        signed, absolute = true_squares(dense, participation)
        found = bracket_sensitivity(Strategy(matrix.structure, matrix.tensors(), 6), participation)
        assert found.lower <= signed <= found.upper <= Fraction(found.stated) ** 2
        if "Gram blocks" in found.rule:
            assert absolute <= found.upper <= absolute * (1 + Fraction(1, 10**12))
        assert not found.exact or Fraction(found.stated) ** 2 <= signed * (1 + Fraction(2, 10**9))
        separated_columns = matrix.bandwidth() <= kind.spread(6).separation
        positive_epochs = participation["kind"] == "fixed_epochs" and (dense >= 0).all()
        assert found.exact or not (separated_columns or positive_epochs or matrix is falling)
        assert found.pattern in patterns_of(participation, 6)
        attained = ((in_fractions(dense)[:, found.pattern] @ np.array(found.signs)) ** 2).sum()
        assert attained * (1 - Fraction(1, 10**12)) <= found.lower <= attained
        stated = sensitivity_of(matrix, kind)
        assert found.upper <= Fraction(stated.value) ** 2 and (stated.kind == "exact") == found.exact


@pytest.mark.parametrize("seed", range(3))
def test_overlapping_columns_by_the_rules_definitions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest sum of |C^T C| over a pattern; where it is not held whole, the best selections of its rows' best."""
    array = np.tril(np.random.default_rng(seed).integers(-3, 4, (6, 6))).astype(float)
    np.fill_diagonal(array, 4.0)
    gram = abs(array.T @ array)
    for min_sep, most in itertools.product((1, 2), (2, 3)):
        patterns = [list(pattern) for pattern in min_sep_patterns(6, min_sep, most)]
        rows = np.array([max(row[pattern].sum() for pattern in patterns) for row in gram])
        worst = max(gram[np.ix_(pattern, pattern)].sum() for pattern in patterns)
        two_stages = max(rows[pattern].sum() for pattern in patterns)
        for at_once, rule, expected in ((36, "longest path", worst), (35, "two-stage", two_stages)):
            with monkeypatch.context() as patch:
                patch.setattr(sensitivity, "_ENTRIES_AT_ONCE", at_once)
                found = bracket(array, separated(min_sep, most))
            assert rule in found.rule and expected <= found.upper <= expected * (1 + 1e-13)


@pytest.mark.parametrize("bands", [2, 3])
@pytest.mark.parametrize(("min_sep", "most"), [(2, 5), (2, 4), (1, 5), (2, 3), (3, 2)])
def test_longest_paths_by_definition(min_sep: int, most: int, bands: int) -> None:
    """Of entries of any sign: signs along a pattern of which only neighbours overlap attain the longest path."""
    for seed in range(5):
        array = np.tril(np.random.default_rng(seed).integers(-3, 4, (9, 9))).astype(float)
        np.fill_diagonal(array, 4.0)
        array -= np.tril(array, -bands * min_sep)
        gram = abs(array.T @ array)
        worst = max(gram[np.ix_(one, one)].sum() for one in map(list, min_sep_patterns(9, min_sep, most)))
        found = bracket(array, separated(min_sep, most))
        assert "longest path" in found.rule and worst <= found.upper <= worst * (1 + 1e-13)
        assert found.exact or bands == 3 and most > 2
        wider = array.copy()
        wider[min(bands * min_sep, 8), 0] = 1e-3  # one more step overlaps
        rule = bracket(wider, separated(min_sep, most)).rule
        assert ("longest path" in rule) == (most <= 3 or bands == 2)


@pytest.mark.parametrize("given_up", [False, True])
@pytest.mark.parametrize(("min_sep", "most"), [(1, 4), (1, 6), (2, 4), (2, 5), (1, 9)])
def test_all_patterns_and_their_bounds_by_definition(
    min_sep: int, most: int, given_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search finds the largest sum of |X|; where it is given up, steps further apart count by the largest |X|."""
    for part in (longest_path, plain_sensitivity):
        if given_up:
            monkeypatch.setattr(part, "MAX_KEPT", 0)
            monkeypatch.setattr(part, "MAX_LEFT_OPEN", -1)
    patterns = [list(pattern) for pattern in min_sep_patterns(9, min_sep, most)]
    falling = np.tril(1.0 / (1 + np.abs(np.subtract.outer(np.arange(9), np.arange(9))))) * np.linspace(1, 0.9, 9)
    for seed in range(5):
        array = np.tril(np.random.default_rng(seed).integers(-3, 4, (9, 9)), -1) + 4.0 * np.eye(9) if seed else falling
        gram = abs(array.T @ array)

        def bound(steps: list[int], gram: np.ndarray = gram) -> float:
            met = [(i, j) for x, i in enumerate(steps) for y, j in enumerate(steps) if abs(x - y) <= 2 or 0 in (x, y)]
            late = [(i, steps[x + 2] + e * min_sep) for x, i in enumerate(steps[:-2]) for e in range(1, most - x - 2)]
            return float(
                sum(gram[pair] for pair in met) + 2 * sum(gram[i, q:].max(initial=0) for i, q in late if i != steps[0])
            )

        bounded, worst = max(map(bound, patterns)), max(gram[np.ix_(one, one)].sum() for one in patterns)
        found = bracket(array, separated(min_sep, most))
        plain, closed = Chains(gram, min_sep, most, 2).worst()
        if given_up:
            assert worst <= found.upper <= bounded * (1 + 1e-11) and worst * (1 - 1e-13) <= plain
            assert plain <= bounded * (1 + 1e-11)
        else:
            assert closed and found.rule == longest_path.ALL_PATTERNS
            assert worst <= found.upper <= worst * (1 + 2 * found.off)  # claims of lists of patterns hold, too
            assert plain == pytest.approx(worst, rel=1e-11)
        assert seed or (found.exact and float(found.upper) == pytest.approx(worst, rel=1e-11))


def test_majorants_by_hand() -> None:
    """1 0 -2 1 has the majorant 2 2 2 1; twice, 2 apart, that is 2 2 4 3. Column 0 alone is the better witness."""
    column = sensitivity.Near(np.array([1.0, 0.0, -2.0, 1.0]), 0.0)
    found = sensitivity._majorant(column, Allowed(2, 2, False))
    assert float(found.upper) == pytest.approx(2**2 + 2**2 + 4**2 + 3**2, rel=1e-14)
    assert float(found.lower) == pytest.approx(1 + 4 + 1, rel=1e-14) and found.pattern == (0,)
    falling = sensitivity._majorant(sensitivity.Near(np.array([4.0, 2, 1, 1, 1]), 0.0), Allowed(2, 2, False))
    assert float(falling.upper) == pytest.approx(4**2 + 2**2 + 5**2 + 3**2 + 2**2, rel=1e-14)
    assert falling.exact and falling.pattern == (0, 2) and falling.rule.startswith("monotone")


def test_where_no_rule_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensitivity, "MAX_N_GRAM", 3)
    monkeypatch.setattr(sensitivity, "MAX_N_WHOLE", 3)
    rising = Strategy("toeplitz", {"coefficients": np.array([1.0, 0.0, 2.0, 0.0])}, 4)
    assert "majorant" in bracket_sensitivity(rising, separated(2, 2)).rule
    bands = Strategy("banded", {"bands": np.array([[1.0, 2.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]])}, 4)
    for participation in (separated(1, 2), {"kind": "fixed_epochs", "epochs": 4}):
        with pytest.raises(TooLarge, match="up to n=3, and this C has n=4"):
            bracket_sensitivity(bands, participation)


@pytest.mark.parametrize("participation", [Single(), FixedEpochs(kind="fixed_epochs", epochs=4)], ids=lambda p: p.kind)
def test_the_identity_is_not_rounded(participation: Any) -> None:
    most = participation.spread(8).most
    strategies_of_one = (
        DenseMatrix(np.eye(8)),
        BltMatrix(np.zeros(1), np.zeros(1), 8),
        InverseBandedToeplitz(np.ones(1), 8),
    )
    for strategy in strategies_of_one:
        found = sensitivity_of(strategy, participation)
        assert (found.value, found.kind) == (math.sqrt(most), "exact")


@pytest.mark.parametrize("size", [5e-324, 1e-300, 1e-160, 1e160, 1e300])
@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=str)
def test_entries_of_any_size_are_right_or_refused(size: float, participation: dict[str, Any]) -> None:
    array = np.tri(6) * size
    signed, _ = true_squares(array, participation)
    try:
        found = bracket(array, participation)
    except CertificateError as refusal:
        assert size > 1e150 and "scale C" in str(refusal)
    else:
        assert found.lower <= signed <= found.upper


@given(st.integers(0, 10**6), st.integers(2, 9))
def test_integers_decide_what_doubles_leave_open(seed: int, n: int) -> None:
    """A claim between both ends: a unit below the true norm is refuted or unsupported, the norm itself is proved."""
    array = np.tril(np.random.default_rng(seed).uniform(0.1, 1, (n, n)))
    for participation in ({"kind": "single"}, {"kind": "fixed_epochs", "epochs": n}):
        least = square_root_up(true_squares(array, participation)[1])
        assert check_matrix_sensitivity(array, participation, claim=least).supported
        assert not check_matrix_sensitivity(array, participation, claim=math.nextafter(least, 0.0)).supported


SIGNED = {f"signed buffers {seed}": signed_buffers(12, seed) for seed in range(4)}
ALL = strategies(12) | SIGNED
COMPUTED = [name for name, one in ALL.items() if one.structure in (
    "buffered", "state_space", "blt", "inverse_banded_toeplitz", "redrawn")]  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_columns_are_as_near_as_they_say(name: str) -> None:
    strategy = ALL[name]
    true, found = exact(strategy), Strategy(strategy.structure, strategy.tensors(), 12)
    values, far = found.near_columns(np.arange(12)[::-1])
    norms = found.column_norms
    for j in range(12):
        apart = sum((Fraction(float(values[i, 11 - j])) - true[i, j]) ** 2 for i in range(12))
        square = sum(true[i, j] ** 2 for i in range(12))
        assert apart <= Fraction(float(far[11 - j])) ** 2 and far[11 - j] <= 1e-12 * math.sqrt(square)
        assert abs(Fraction(float(norms.values[j])) - square) <= Fraction(norms.off) * square and norms.off < 1e-11
    assert (found.reading.signed or (true >= 0).all()) and found.bandwidth >= strategy.bandwidth()


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize(
    "kind", [Single(), FixedEpochs(kind="fixed_epochs", epochs=3), MinSep(kind="min_sep", min_sep=5)]
)
def test_sensitivities_of_computed_columns(name: str, kind: Any) -> None:
    strategy = ALL[name]
    stated, (most, _) = sensitivity_of(strategy, kind), true_squares(exact(strategy), kind.document())
    assert Fraction(stated.value) ** 2 >= most
    assert stated.kind == "upper_bound" or Fraction(stated.value) ** 2 <= most * (1 + Fraction(2, 10**9))


def test_transitions_that_grow_out_of_reach_are_refused() -> None:
    n = 400
    grown = np.full((n, 1), 30.0)
    strategy = BufferedMatrix(np.ones(n), grown, np.full((n, 1), 1e-3), np.full((n, 1), 1e-3))
    with pytest.raises(FactorizeError, match="scale"):
        sensitivity_of(strategy, Single())
    with pytest.raises(NotEnclosed):
        bracket_sensitivity(Strategy("buffered", strategy.tensors(), n), {"kind": "single"})


@given(st.fractions(min_value=0, max_value=10**6), st.integers(-400, 400))
def test_square_roots_are_the_first_double_on_their_side(value: Fraction, shift: int) -> None:
    value *= Fraction(2) ** shift
    up, down = square_root_up(value), square_root_down(value)
    assert Fraction(down) ** 2 <= value <= Fraction(up) ** 2
    assert value == 0 or Fraction(math.nextafter(up, 0.0)) ** 2 < value
    assert Fraction(math.nextafter(down, math.inf)) ** 2 > value


@given(st.floats(0.0, 1e-8), st.floats(0.0, 1e-8))
def test_what_is_stated_as_exact_is_attained_with_all_that_is_added_for_other_orders(gap: float, off: float) -> None:
    bracket = Bracket(Fraction(1), 1 + Fraction(gap), "a rule", (0,), (1,), off)
    assert not bracket.exact or bracket.stated <= 1 + 1.0000001e-9
    assert bracket.exact or gap + 2 * off > 1.99e-9
