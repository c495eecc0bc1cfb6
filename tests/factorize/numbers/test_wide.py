"""Sensitivities to the last unit: wide numbers against fractions, and sensitivities against the truth in fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from brute_force import min_sep_patterns
from exact_files import gram_in_fractions, strategy_of
from hypothesis import given
from hypothesis import strategies as st

from factorize.certificate.sensitivity import sensitivity_of
from factorize.errors import CertificateError
from factorize.numbers.pattern_sums import attained_selection, best_periodic, best_separated, gram_sums, leading_pattern
from factorize.numbers.wide import (
    Wide,
    add_into,
    largest,
    of_doubles,
    product,
    root_above,
    running_sums,
    squares,
    sum_above,
)
from factorize.participation import FixedEpochs, MinSep, Single
from factorize.structures import dense as dense_structure
from factorize.structures.base import Matrix
from factorize.structures.buffered import BufferedMatrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import ToeplitzMatrix
from factorize.structures.tree import TreeMatrix

SMALLEST = Fraction(1, 10**180)  # beside squares of numbers that are next to nothing
doubles = st.floats(-1e30, 1e30, allow_nan=False)


def true(numbers: Wide, i: int) -> Fraction:
    return Fraction(float(numbers.high[i])) + Fraction(float(numbers.low[i]))


def close(numbers: Wide, i: int, value: Fraction) -> None:
    error = Fraction(float(numbers.error[i]))
    assert abs(true(numbers, i) - value) <= error
    assert error <= abs(value) / 2**80 + SMALLEST


@given(st.lists(doubles, min_size=1, max_size=12), st.lists(doubles, min_size=1, max_size=12))
def test_sums_and_products_are_enclosed(left: list[float], right: list[float]) -> None:
    size = min(len(left), len(right))
    a, b = np.array(left[:size]), np.array(right[:size])
    found, both = product(a, b), squares(a).plus(squares(b))
    for i in range(size):
        close(found, i, Fraction(a[i]) * Fraction(b[i]))
        close(both, i, Fraction(a[i]) ** 2 + Fraction(b[i]) ** 2)
        close(both.times(squares(a)), i, true(both, i) * Fraction(a[i]) ** 2)


@given(st.lists(st.floats(-1e20, 1e20, allow_nan=False), min_size=1, max_size=20))
def test_running_sums_and_ends(values: list[float]) -> None:
    numbers = squares(np.array(values))
    exact = [Fraction(value) ** 2 for value in values]
    sums = running_sums(numbers)
    for i in range(len(values)):
        close(sums, i, sum(exact[: i + 1], start=Fraction(0)))
    assert sum(exact) <= sum_above(numbers) <= sum(exact) * (1 + Fraction(1, 2**80)) + SMALLEST
    assert max(exact) <= largest(numbers) <= max(exact) * (1 + Fraction(1, 2**80)) + SMALLEST


def test_what_was_not_rounded_has_no_error() -> None:
    whole = squares(np.arange(9.0))
    assert not running_sums(whole).error.any()
    assert sum_above(whole) == 204 and largest(whole) == 64
    assert sensitivity_of(DenseMatrix(np.eye(5)), Single()).value == 1.0
    assert sensitivity_of(BufferedMatrix(np.ones(4), *(np.zeros((4, 2)),) * 3), Single()).value == 1.0
    for participation in (FixedEpochs(kind="fixed_epochs", epochs=4), MinSep(kind="min_sep", min_sep=2)):
        assert sensitivity_of(DenseMatrix(np.eye(8)), participation).value == 2.0
        assert sensitivity_of(ToeplitzMatrix(np.ones(1), 8), participation).value == 2.0


@given(st.fractions(min_value=0, max_value=10**9), st.integers(-500, 400))
def test_roots_are_the_nearest_above(value: Fraction, shift: int) -> None:
    value *= Fraction(2) ** shift
    root = root_above(value)
    assert Fraction(root) ** 2 >= value
    assert root == 0.0 or Fraction(np.nextafter(root, 0.0)) ** 2 < value


def test_numbers_that_overflow_are_refused() -> None:
    for ask in (sum_above, largest):
        with pytest.raises(CertificateError, match="overflows"):
            ask(squares(np.array([1e200, 1.0])))
    with pytest.raises(CertificateError, match="overflows"):
        sensitivity_of(DenseMatrix(1e200 * np.tri(4)), FixedEpochs(kind="fixed_epochs", epochs=2))
    with pytest.raises(CertificateError, match="overflows"):
        sensitivity_of(DenseMatrix(1e200 * np.tri(4)), MinSep(kind="min_sep", min_sep=1))


def matrices(rng: np.random.Generator, n: int) -> list[Matrix]:
    found = [strategy_of(rng, n, structure) for structure in ("dense", "toeplitz", "banded")]
    scale = 0.5 + rng.random(n)
    return [*found, *(ColumnScaled(matrix, scale) for matrix in found)]


def test_column_norms_of_every_structure() -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        for matrix in matrices(rng, 7):
            found = matrix.enclosed_column_norms()
            assert found is not None
            inner = matrix.inner if isinstance(matrix, ColumnScaled) else matrix
            factors = matrix.scale if isinstance(matrix, ColumnScaled) else np.ones(7)
            gram = gram_in_fractions(inner.dense())
            for j in range(7):
                close(found, j, gram[j][j] * Fraction(factors[j]) ** 2)


@pytest.mark.parametrize(("n", "restart"), [(1, 1), (7, 7), (8, 8), (11, 4), (11, 5), (12, 1)])
def test_column_norms_of_trees(n: int, restart: int) -> None:
    rng = np.random.default_rng(4)
    nodes = rng.standard_normal(((restart - 1).bit_length() + 1, n))
    nodes[0] = 1 + rng.random(n)
    nodes[1:][(np.arange(n) % restart >> np.arange(len(nodes) - 1)[:, None]) & 1 == 0] = 0.0
    matrix = TreeMatrix(nodes, restart)
    found, gram = matrix.enclosed_column_norms(), gram_in_fractions(matrix.dense())
    assert found is not None
    for j in range(n):
        assert abs(true(found, j) - gram[j][j]) <= Fraction(float(found.error[j])) <= gram[j][j] / 2**70


def buffered_in_fractions(matrix: BufferedMatrix) -> list[list[Fraction]]:
    diagonal, blocks, inputs, outputs = matrix.arrays
    n, groups, s = inputs.shape
    whole = [[Fraction(0)] * n for _ in range(n)]
    for j in range(n):
        whole[j][j] = Fraction(diagonal[j])
        state = [[Fraction(x) for x in group] for group in inputs[j]]
        for i in range(j + 1, n):
            state = [
                [sum((Fraction(blocks[i, g, a, b]) * state[g][b] for b in range(s)), Fraction(0)) for a in range(s)]
                for g in range(groups)
            ]
            whole[i][j] = sum(
                (Fraction(outputs[i, g, a]) * state[g][a] for g in range(groups) for a in range(s)), Fraction(0)
            )
    return whole


@pytest.mark.parametrize("shape", [(6, 2), (6, 2, 2), (6, 1, 2, 2)])
def test_column_norms_of_buffers(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    matrix = BufferedMatrix(1 + rng.random(6), rng.standard_normal(shape), *rng.standard_normal((2, 6, 2)))
    found, whole = matrix.enclosed_column_norms(), buffered_in_fractions(matrix)
    assert found is not None
    for j in range(6):
        close(found, j, sum((row[j] ** 2 for row in whole), Fraction(0)))


def test_rotating_buffers_stay_enclosed() -> None:
    """Absolute values of these transitions grow without end, and the transitions themselves do not."""
    n, angle = 20_000, 0.3
    turn = 0.999 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    ones = np.full((n, 2), 0.5)
    found = BufferedMatrix(np.ones(n), np.tile(turn, (n, 1, 1, 1)), ones, ones).enclosed_column_norms()
    assert found is not None
    assert (found.error < 2.0**-70 * found.high).all()


def test_buffers_that_grow_are_enclosed_by_their_entries_or_refused() -> None:
    n = 2000
    ones = np.ones((n, 1))
    growing = BufferedMatrix(np.ones(n), np.full((n, 1), 1.2), ones, ones)
    with pytest.raises(CertificateError, match="not enclosed in doubles"):
        growing.enclosed_column_norms()
    small = BufferedMatrix(np.ones(300), np.full((300, 1), 1.5), ones[:300], ones[:300])
    exact = 1 + sum(Fraction(3, 2) ** (2 * t) for t in range(1, 300))
    assert 0 <= Fraction(sensitivity_of(small, Single()).value) ** 2 / exact - 1 < 2.0**-50


@pytest.mark.parametrize("growth", [2.0**70, 3.0e30, 1e60])
def test_buffers_that_cancel_and_grow_are_never_understated(growth: float) -> None:
    """Two buffers with one decay and nearly opposite inputs: in plain doubles what is left of them is nothing."""
    inputs = np.array([[1.0, -1.0 + 2.0**-40]] * 3)
    matrix = BufferedMatrix(np.ones(3), np.full((3, 2), growth), inputs, np.ones((3, 2)))
    entry = Fraction(growth) * Fraction(2.0**-40)
    exact = 1 + entry**2 + (entry * Fraction(growth)) ** 2
    try:
        stated = sensitivity_of(matrix, Single())
    except CertificateError:
        return
    assert stated.kind == "exact"
    assert 0 <= Fraction(stated.value) ** 2 / exact - 1 < 2.0**-35


def test_selections_and_patterns() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        n = 9
        values = rng.random(n)
        numbers = squares(values)
        exact = [Fraction(value) ** 2 for value in values]
        for separation, most in ((1, 3), (2, 9), (4, 2), (9, 1)):
            best = [Fraction(0)] * (n + separation)
            for _ in range(most):
                level = [Fraction(0)] * (n + separation)
                for i in range(n - 1, -1, -1):
                    level[i] = max(level[i + 1], exact[i] + best[i + separation])
                best = level
            found = best_separated(numbers, separation, most)
            assert best[0] <= found <= best[0] * (1 + Fraction(1, 2**80))
            column = np.sort(values)[::-1]
            sums = [
                sum((Fraction(column[t - i * separation]) for i in range(most) if t >= i * separation), Fraction(0))
                for t in range(n)
            ]
            squared = sum((entry**2 for entry in sums), Fraction(0))
            assert (
                squared <= leading_pattern(of_doubles(column), separation, most) <= squared * (1 + Fraction(1, 2**80))
            )
        periodic = max(exact[j] + exact[j + 3] + exact[j + 6] for j in range(3))
        assert periodic <= best_periodic(numbers, 3) <= periodic * (1 + Fraction(1, 2**80))


@pytest.mark.parametrize("signed", [False, True])
def test_gram_sums(signed: bool) -> None:
    rng = np.random.default_rng(3)
    for _ in range(10):
        columns = (rng.standard_normal((30, 4)) if signed else rng.random((30, 4))) * 10.0 ** rng.integers(-3, 4, 4)
        exact = sum(abs(x) for row in gram_in_fractions(columns) for x in row)
        assert exact <= gram_sums(of_doubles(columns)) <= exact * (1 + Fraction(1, 2**58))


@pytest.mark.parametrize(("separation", "most"), [(1, 2), (2, 3), (3, 2), (4, 4)])
def test_selections_that_a_pattern_attains(separation: int, most: int) -> None:
    """Patterns by enumeration: what is returned is attained, and nothing exceeds it."""
    rng, n, found = np.random.default_rng(5), 8, 0
    for trial in range(20):
        columns = np.tril(rng.random((n, n)))
        if trial % 2:
            columns = ToeplitzMatrix(np.sort(rng.random(n))[::-1], n).dense()
        attained = attained_selection(columns, separation, most)
        gram = gram_in_fractions(columns)
        patterns = min_sep_patterns(n, separation, most)
        best = max(sum((gram[i][j] for i in p for j in p), Fraction(0)) for p in patterns)
        if attained is not None:
            found += 1
            assert best <= attained <= best * (1 + Fraction(1, 2**51))
    assert found >= 3


def test_many_columns_of_one_length_are_summed_together() -> None:
    n = 90
    array = np.tril(np.random.default_rng(6).random((n, n))) + np.eye(n)
    array /= np.linalg.norm(array, axis=0)
    true_square = max(sum(Fraction(x) ** 2 for x in column) for column in array.T)
    assert sensitivity_of(DenseMatrix(array), Single()).value == root_above(true_square)


@pytest.mark.parametrize("scaled", [False, True])
def test_epochs_of_matrices_whose_entries_are_computed(scaled: bool) -> None:
    """Their doubles are rounded, and the sensitivity is that of the entries themselves."""
    rng = np.random.default_rng(7)
    for _ in range(10):
        inner = BufferedMatrix(1 + rng.random(6), rng.random((6, 2)), *rng.random((2, 6, 2)))
        scale = 0.5 + rng.random(6) if scaled else np.ones(6)
        whole = [[x * Fraction(s) for x, s in zip(row, scale, strict=True)] for row in buffered_in_fractions(inner)]
        best = max(sum(((row[j] + row[j + 2] + row[j + 4]) ** 2 for row in whole), Fraction(0)) for j in range(2))
        matrix = ColumnScaled(inner, scale) if scaled else inner
        found = sensitivity_of(matrix, FixedEpochs(kind="fixed_epochs", epochs=3))
        assert found.kind == "exact" and root_above(best) <= found.value <= np.nextafter(root_above(best), np.inf)


def cancelling(rng: np.random.Generator, n: int) -> BufferedMatrix:
    """Entries near 1e-12 that are differences of numbers near 1: as doubles they keep four digits."""
    decay = np.tile([1.0, 1.0 - 2.0**-40], (n, 1))
    inputs = 1 + rng.random((n, 1)) * np.ones(2)
    return BufferedMatrix(1e-13 * (1 + rng.random(n)), decay, inputs, np.tile([1.0, -1.0], (n, 1)))


@pytest.mark.parametrize("scaled", [False, True])
def test_entries_that_cancel_are_enclosed_and_their_selections_bounded(scaled: bool) -> None:
    rng, n = np.random.default_rng(8), 7
    for _ in range(5):
        inner = cancelling(rng, n)
        scale = 0.5 + rng.random(n) if scaled else np.ones(n)
        whole = [[x * Fraction(s) for x, s in zip(row, scale, strict=True)] for row in buffered_in_fractions(inner)]
        matrix = ColumnScaled(inner, scale) if scaled else inner
        enclosed = matrix.enclosed_entries()
        for i, j in zip(*np.tril_indices(n), strict=True):
            middle = Fraction(enclosed.high[i, j]) + Fraction(enclosed.low[i, j])
            assert abs(middle - whole[i][j]) <= Fraction(enclosed.error[i, j]) < Fraction(1, 10**28)
        squared = (sum((sum(row[j] for j in p) ** 2 for row in whole), Fraction(0)) for p in min_sep_patterns(n, 2, 3))
        best = max(squared)
        found = sensitivity_of(matrix, MinSep(kind="min_sep", min_sep=2, max_participations=3))
        assert root_above(best) <= found.value <= 1.3 * root_above(best)
        epochs = sensitivity_of(matrix, FixedEpochs(kind="fixed_epochs", epochs=n))
        together = sum((sum(row, Fraction(0)) ** 2 for row in whole), Fraction(0))
        assert root_above(together) <= epochs.value <= root_above(together) * (1 + 1e-15)


def test_entries_of_rotating_buffers_stay_enclosed_over_many_steps() -> None:
    """Products without signs grow like 1.4^n here; the entries do not, and neither may their enclosure."""
    n, angle = 200, np.pi / 4
    turn = 0.999 * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    matrix = BufferedMatrix(
        np.ones(n), np.tile(turn, (n, 1, 1)), np.tile([0.3, 0.1], (n, 1)), np.tile([0.2, -0.4], (n, 1))
    )
    found = matrix.enclosed_entries()
    assert found.error.max() < 1e-28
    exact = [[Fraction(x) for x in row] for row in turn.tolist()]
    carried = [Fraction(0.2), Fraction(-0.4)]
    for j in range(n - 2, -1, -1):
        carried = [carried[0] * exact[0][b] + carried[1] * exact[1][b] for b in range(2)]
        truth = carried[0] * Fraction(0.3) + carried[1] * Fraction(0.1)
        distance = abs(truth - Fraction(found.high[n - 1, j]) - Fraction(found.low[n - 1, j]))
        assert distance <= Fraction(found.error[n - 1, j]), j


@pytest.mark.parametrize(
    ("diagonal", "transition", "inputs", "outputs"),
    [
        # The square of the output keeps three bits; the transition brings it back to the normal range.
        ([1.0, 1.0], [1.0, -2.3e99], [1e100, 1e100], [0.0, -3.96e-161]),
        ([1.0, 1e-50], [0.0, 4.085435647911435e99], [3.0300713665717473e99, 0.6], [0.0, -3.0963842069056622e-161]),
    ],
)
def test_what_leaves_the_normal_range_and_returns_is_not_lost(
    diagonal: list[float], transition: list[float], inputs: list[float], outputs: list[float]
) -> None:
    columns = (np.array(part)[:, None] for part in (transition, inputs, outputs))
    matrix = BufferedMatrix(np.array(diagonal), *columns)
    entry = Fraction(outputs[1]) * Fraction(transition[1]) * Fraction(inputs[0])
    try:
        stated = sensitivity_of(matrix, Single())
    except CertificateError:
        return
    assert Fraction(stated.value) ** 2 >= Fraction(diagonal[0]) ** 2 + entry**2


def test_entries_of_buffers_allow_for_what_underflows() -> None:
    """Beside a transition of 1e160 no second bound is kept, and what multiplied the first one was 0: no error at all."""
    matrix = BufferedMatrix(
        np.ones(2), np.array([[1.0], [1e160]]), np.array([[1e-300], [0.0]]), np.array([[0.0], [1e-220]])
    )
    found = matrix.enclosed_entries()
    missed = Fraction(1e-300) * Fraction(1e160) * Fraction(1e-220) - Fraction(float(found.high[1, 0]))
    assert 0 < abs(missed) <= Fraction(float(found.error[1, 0]))
    assert sensitivity_of(matrix, Single()).value > 1.0


def test_adding_in_place_gives_the_bits_of_a_sum() -> None:
    numbers = np.random.default_rng(3).normal(size=(6, 40)) * 10.0 ** np.arange(-20, 20)
    left, right = (Wide(high, low * 1e-17, np.abs(error) * 1e-30) for high, low, error in np.split(numbers, 2))
    wanted = left.plus(right)
    add_into(left, right)
    assert all(np.array_equal(*parts) for parts in zip(left, wanted, strict=True))


@pytest.mark.parametrize("n", [1, 2, 17, 300])
@pytest.mark.parametrize("scale", [1.0, 1e-140, 1e-200, 1e160])
def test_compiled_sums_of_squares_have_the_bits_of_those_in_numpy(
    n: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(n)
    entries = np.tril(random.standard_normal((n, n)) * np.exp(random.uniform(-30, 0, (n, n))))
    entries[random.random((n, n)) < 0.2] *= scale
    entries[np.arange(n), np.arange(n)] = random.uniform(0.1, 2.0, n)
    matrix = dense_structure.DenseMatrix(entries)
    monkeypatch.setattr(dense_structure, "_LONG", 0)
    compiled = matrix.enclosed_column_norms()
    monkeypatch.setattr(dense_structure, "_compiled", lambda _n: None)
    for found, wanted in zip(compiled, matrix.enclosed_column_norms(), strict=True):
        np.testing.assert_array_equal(found, wanted)
    if n == 300:
        assert (compiled.error > 0).any()
