"""Error terms of proofs in doubles beside their formulas, in units so coarse that no term of them is out of sight.

In doubles a bound may lose a term, or a sign of one, and still be above the truth of most inputs. Here u is 1/600 where
the code has 2^-53, and the other constants are as large; the formulas are those of docs/notes/exact-checker.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from exact_files import fractions

from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.doubles import (
    band_bound,
    dense_losses,
    polar_bound,
    roundings,
    suffix_sums,
    vector_bound,
    weighted_targets,
    workload_rows,
)
from factorize.exact.doubles.dense_losses import RowBlock
from factorize.exact.doubles.weighted_targets import Factor, TargetBlock, WeightedTarget
from factorize.exact.doubles.workload_rows import Near, WorkloadRows
from factorize.exact.spec import weighing_of

U, S, T, R, GROWN = 1 / 600, 1 / 100, 1 / 5000, 1 / 300, 1 + 1 / 70
NEARLY = 1e-12
N = 6


def g(count: int) -> float:
    return count / 1024


def norm(numbers: Any) -> float:
    """At least the norm of some numbers that are sizes."""
    return math.sqrt(sum(float(x) ** 2 for x in numbers)) * (1 + S) + R


def row_norm(numbers: Any) -> float:
    """At least the norm of a row, or of a column, by a sum of squares in doubles."""
    return math.sqrt(sum(float(x) ** 2 for x in numbers)) * (1 + g(len(numbers) + 4)) + R


def near(found: Any, wanted: Any) -> None:
    assert np.shape(found) == np.shape(wanted)
    assert np.asarray(found) == pytest.approx(np.asarray(wanted), rel=NEARLY)


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    units = {"gamma": g, "UNIT": U, "SLACK": S, "TINY": T, "ROOT_OF_TINY": R, "_GROWN": GROWN}
    for module in (
        roundings,
        dense_losses,
        polar_bound,
        weighted_targets,
        suffix_sums,
        band_bound,
        vector_bound,
        workload_rows,
    ):
        for name, value in units.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    for module in (dense_losses, polar_bound, weighted_targets):
        monkeypatch.setattr(module, "blocks_of", by_fours)
    monkeypatch.setattr(weighted_targets, "_LEAST_COLUMNS", 1)


def by_fours(n: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + 4, n)) for start in range(0, n, 4))


def some(seed: int, *shape: int) -> np.ndarray:
    """Numbers of both signs, none near 0."""
    luck = np.random.default_rng(seed)
    return luck.uniform(0.5, 2.0, shape) * luck.choice((-1.0, 1.0), shape)


def lower(seed: int, steep: float) -> np.ndarray:
    return np.tril(some(seed, N, N), -1) * steep + np.diag(np.abs(some(seed + 1, N)))


def test_gamma_is_rounded_up() -> None:
    for k in (1, 2, 3, 1000, 2**22):
        exact = Fraction(k, 2**53) / (1 - Fraction(k, 2**53))
        assert exact <= Fraction(roundings.gamma(k)) <= Fraction(k, 2**53) * (1 + Fraction(1, 2**29))


@pytest.mark.usefixtures("coarse")
def test_norms() -> None:
    array = some(1, 3, 5)
    near(roundings.row_norms(array), [row_norm(row) for row in array])
    near(roundings.column_norms(array), [row_norm(column) for column in array.T])
    near(roundings.norm_of(np.abs(array[0])), norm(array[0]))


def test_a_norm_that_overflows() -> None:
    assert roundings.norm_of(np.full(3, 7e153)) == pytest.approx(math.sqrt(3) * 7e153)
    assert roundings.norm_of(np.full(3, 1e154)) == math.inf
    with np.errstate(over="ignore"):
        assert roundings.norm_of(np.array([1e200, 1.0])) == math.inf


def test_numbers_that_are_not_finite() -> None:
    roundings.finite()
    roundings.finite(1.0, -1e308)
    for wrong in (math.inf, -math.inf, math.nan):
        with pytest.raises(NotEnclosed, match="leave the range"):
            roundings.finite(0.0, wrong)


def rounded(row: Any, lengths: Any, before: int = 0) -> float:
    k = len(row)
    most = sum(abs(x) * y for x, y in zip(row, lengths, strict=True)) * (1 + g(k))
    return float(g(k + 1 + before + 1) * most * (1 + S) + k * k * T)


@pytest.mark.usefixtures("coarse")
def test_what_a_product_with_c_rounds() -> None:
    """Each row by gamma times its sizes times the norms of the rows of C; k <= 512 terms are one sum, set down once."""
    sizes, lengths = np.abs(some(2, 4, N)), np.abs(some(3, N))
    near(dense_losses._rounded(sizes, lengths), [rounded(row, lengths) for row in sizes])
    near(dense_losses._rounded(sizes, lengths, 3), [rounded(row, lengths, 3) for row in sizes])


CROSS = np.eye(N)
CROSS[:, 0] = CROSS[-1] = 1.0


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("inverse", [np.eye(N) - 0.5 * np.eye(N, k=-1), CROSS], ids=["by sums", "by squares"])
def test_the_norm_of_an_inverse_with_its_defect(inverse: np.ndarray, before: int) -> None:
    """|N| / (1 - |N C - I|): the lesser of two bounds on |N|, and the rounding of N C and of C with it."""
    array, lengths = np.linalg.inv(inverse) + 0.01 * np.tril(np.ones((N, N))), np.linspace(0.1, 0.3, N)
    image, rows = inverse @ array - np.eye(N), [i for block in by_fours(N) for i in range(*block)]
    width = dict.fromkeys(range(4), 4) | dict.fromkeys(range(4, N), N)  # of the block that a row is in
    defect = norm(
        row_norm(image[i, : width[i]]) * (1 + S) + rounded(inverse[i, : width[i]], lengths[: width[i]], before)
        for i in rows
    )
    by_sums = math.sqrt(np.abs(inverse).sum(axis=0).max() * np.abs(inverse).sum(axis=1).max())
    by_squares = norm(row_norm(inverse[i, : width[i]]) for i in rows)
    assert 0.05 < defect < 0.5 and (by_sums < by_squares) == (inverse is not CROSS)
    found = dense_losses.inverse_norm(array, inverse, lengths, before)
    assert before or found == dense_losses.inverse_norm(array, inverse, lengths)
    near(found, min(by_sums, by_squares) * (1 + g(4 * N)) / (1 - defect) * (1 + S))
    with pytest.raises(NotEnclosed, match="ill-conditioned"):
        dense_losses.inverse_norm(array, inverse, lengths * 1000)


def decoder_of_sums(seed: int, *, cross: bool) -> np.ndarray:
    """B for prefix sums: sums of the rows of a C^-1."""
    return np.asarray(np.cumsum(CROSS if cross else np.eye(N) + 0.2 * np.tril(some(seed, N, N), -1), axis=0))


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("cross", [False, True], ids=["by sums", "by squares"])
def test_the_norm_of_an_inverse_by_differences_of_rows_of_the_decoder(cross: bool) -> None:
    """A^-1 B for prefix sums A, in blocks of rows as long as they are, and |A^-1| <= 2 times what B C is off by."""
    decoder, away = decoder_of_sums(14, cross=cross), np.linspace(0.01, 0.03, N)
    differences = np.diff(decoder, axis=0, prepend=0.0)
    found = dense_losses.Differences(N)
    for start, stop in by_fours(N):
        rows = decoder[start:stop, :stop].copy()
        found.add(RowBlock(start, stop, rows))
        assert (rows == decoder[start:stop, :stop]).all()
    width = dict.fromkeys(range(4), 4) | dict.fromkeys(range(4, N), N)
    by_sums = math.sqrt(np.abs(differences).sum(axis=0).max() * np.abs(differences).sum(axis=1).max())
    by_squares = norm(row_norm(differences[i, : width[i]]) for i in range(N))
    assert (by_sums < by_squares) == (not cross)
    defect = 2 * norm(away) * (1 + S)
    near(found.inverse_norm(away), min(by_sums, by_squares) * (1 + g(4 * N)) / (1 - defect) * (1 + S))
    with pytest.raises(NotEnclosed, match="ill-conditioned"):
        found.inverse_norm(away * 10)


@pytest.mark.parametrize("seed", range(4))
def test_the_norm_of_an_inverse_is_not_below_the_truth_however_far_the_decoder_is_off(seed: int) -> None:
    """For B = A C^-1 and something, as large as a tenth: with R = B C - A the inverse is A^-1 (B - R C^-1)."""
    luck = np.random.default_rng(seed)
    array = np.eye(N) + 0.3 * np.tril(luck.standard_normal((N, N)), -1)
    inverse, ones = np.linalg.inv(array), np.tril(np.ones((N, N)))
    decoder = ones @ inverse + 0.05 * np.tril(luck.standard_normal((N, N))) / N
    found = dense_losses.Differences(N)
    for start, stop in by_fours(N):
        found.add(RowBlock(start, stop, decoder[start:stop, :stop]))
    away = np.linalg.norm(decoder @ array - ones, axis=1)
    assert np.linalg.norm(inverse, 2) <= found.inverse_norm(away)


class Rows:
    """A workload of some rows, off by something."""

    def __init__(self, *, exact: bool) -> None:
        self.rows = self.columns = N
        self.triangular, self.of_ones = True, False
        self.near = Near(np.tril(some(6, N, N)), np.zeros((1, 1)) if exact else np.abs(some(7, N, N)) / 100)

    def row_block(self, start: int, stop: int) -> Near:
        errors = self.near.errors
        return Near(self.near.values[start:stop], errors if errors.size == 1 else errors[start:stop])

    def column_block(self, indices: np.ndarray) -> Near:
        errors = self.near.errors
        return Near(self.near.values[:, indices], errors if errors.size == 1 else errors[:, indices])

    def applied(self, matrix: np.ndarray, start: int, stop: int, _: Any) -> np.ndarray:
        return np.asarray(self.near.values[start:stop] @ matrix)


def away_of(row: Any, wanted: Any, off: Any, array: np.ndarray, lengths: Any, before: int = 0) -> tuple[float, float]:
    """The norm of a row of B C - A, and its largest entry."""
    image = [sum(row[k] * array[k, j] for k in range(len(row))) - wanted[j] for j in range(len(row))]
    beside = rounded(row, lengths, before) + row_norm(off) * (1 + S)
    return row_norm(image) * (1 + S) + beside, max(abs(x) for x in image) * (1 + S) + beside


def around(row: Any, error: float) -> tuple[float, float]:
    """Ends of a squared norm."""
    high = row_norm(row)
    low = max(high * (1 - 2 * g(len(row) + 8)) - 2 * R - error * (1 + S), 0)
    return low**2 * (1 - S), ((high + error) * (1 + S)) ** 2 * (1 + S)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("exact", [False, True])
def test_rows_of_the_residual(exact: bool) -> None:
    array, lengths, workload = lower(8, 0.5), np.abs(some(9, N)), Rows(exact=exact)
    block = RowBlock(1, 4, some(10, 3, 4))
    away, largest = dense_losses._residual(block, array, lengths, workload)  # type: ignore[arg-type]
    errors = [[0.0]] * 3 if exact else workload.near.errors[1:4]
    wanted = [
        away_of(row, a[:4], off, array, lengths[:4])
        for row, a, off in zip(block.rows, workload.near.values[1:4], errors, strict=True)
    ]
    near(away, [one for one, _ in wanted])
    near(largest, max(entry for _, entry in wanted))


@pytest.mark.usefixtures("coarse")
def test_ends_of_squared_norms() -> None:
    rows, errors = some(11, 4, N) * 3, np.array([0.0, 0.1, 1.0, 100.0])
    near(
        dense_losses._around(dense_losses._norms_around(rows), errors).T,
        [around(*one) for one in zip(rows, errors, strict=True)],
    )


def test_the_widest_loss() -> None:
    ends: Any = ((1.0, 2.0), (0.0, 0.0), (3.0, 4.0))
    assert dense_losses.width_of_losses(ends) == 0.5
    assert dense_losses.width_of_losses(ends[1:2]) == 0.0


OBJECTIVES: list[dict[str, Any]] = [
    {"kind": "mean"},
    {"kind": "lambda_tau", "tau": 1},
    {"kind": "lambda_tau", "tau": 3},
]


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_losses_with_what_their_rows_are_off_by(
    objective: dict[str, Any], before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference of two rows is off by the errors of both; entries of C that were rounded count as often."""
    monkeypatch.setattr(dense_losses, "weighed", lambda *given: given)
    inverse, workload, weighing = np.tril(np.ones((N, N))), Rows(exact=False), weighing_of(objective, N)
    array = np.linalg.inv(inverse) + 1e-3 * np.tril(np.ones((N, N)))
    monkeypatch.setattr(
        dense_losses, "inverse_norm", lambda *given: 0.7 if given[2] is not None and given[3] == before else None
    )
    given: Any = (array, inverse, workload, weighing)
    found = dense_losses.enclosed_losses(*given, before) if before else dense_losses.enclosed_losses(*given)
    ends, handed_on, since = found.ends  # type: ignore[misc]
    lengths = np.array([row_norm(row) for row in array])
    rows = [(workload.near.values @ inverse)[i, : 4 if i < 4 else N] for i in range(N)]
    away = [
        away_of(row, a[: len(row)], off, array, lengths[: len(row)], before)
        for row, a, off in zip(rows, workload.near.values, workload.near.errors, strict=True)
    ]
    errors = [one * 0.7 * (1 + S) for one, _ in away]
    near(found.residual, max(entry for _, entry in away))
    near(np.transpose(ends), [around(*one) for one in zip(rows, errors, strict=True)])
    assert handed_on is weighing
    if weighing.tau is None:
        assert since is None
        return
    for i, other in enumerate(weighing.references):
        moved, error = np.array(rows[i]), errors[i]
        if other >= 0:
            moved[: len(rows[other])] -= rows[other]
            error += errors[other]
        near(since[:, i], around(moved, error * (1 + S)))


def test_the_norm_of_an_inverse_is_that_of_differences_where_the_workload_is_of_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside the norm of N C - I, which a workload of any other numbers takes."""
    array, weighing = lower(15, 0.1), weighing_of({"kind": "mean"}, N)
    inverse, ones = np.linalg.inv(array), Rows(exact=True)
    ones.near, ones.of_ones = Near(np.tril(np.ones((N, N))), np.zeros((1, 1))), True
    found = dense_losses.enclosed_losses(array, inverse, ones, weighing)  # type: ignore[arg-type]
    ones.of_ones = False
    other = dense_losses.enclosed_losses(array, inverse, ones, weighing)  # type: ignore[arg-type]
    assert found.residual == other.residual
    near(found.ends, other.ends)
    asked: list[np.ndarray] = []
    monkeypatch.setattr(dense_losses.Differences, "inverse_norm", lambda _, away: asked.append(away) or 0.7)
    ones.of_ones = True
    again = dense_losses.enclosed_losses(array, inverse, ones, weighing)  # type: ignore[arg-type]
    assert again.residual == found.residual and asked[0].shape == (N,) and 0.0 < asked[0].max() < 1e-10


@pytest.mark.usefixtures("coarse")
def test_losses_of_prefix_sums_by_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of B is looked at for the norm of C^-1, which multiplies what rows are off by."""
    monkeypatch.setattr(dense_losses, "weighed", lambda *given: given)
    ones, weighing = Rows(exact=True), weighing_of({"kind": "mean"}, N)
    ones.near, ones.of_ones = Near(np.tril(np.ones((N, N))), np.zeros((1, 1))), True
    inverse = np.eye(N) * np.linspace(40.0, 90.0, N)
    array = np.diag(1 / np.linspace(40.0, 90.0, N)) + 1e-6 * np.tril(np.ones((N, N)))
    monkeypatch.setattr(dense_losses, "_rounded", lambda sizes, *_: np.zeros(len(sizes)))
    found = dense_losses.enclosed_losses(array, inverse, ones, weighing)  # type: ignore[arg-type]
    ends, _, _ = found.ends  # type: ignore[misc]
    decoder = np.cumsum(inverse, axis=0)
    rows = [decoder[i, : 4 if i < 4 else N] for i in range(N)]
    whole = decoder @ array - np.tril(np.ones((N, N)))
    away = [row_norm(whole[i, : len(rows[i])]) * (1 + S) + row_norm([0.0]) * (1 + S) for i in range(N)]
    differences = dense_losses.Differences(N)
    for start, stop in by_fours(N):
        differences.add(RowBlock(start, stop, decoder[start:stop, :stop]))
    size = differences.inverse_norm(np.array(away))
    assert size > 90
    near(np.transpose(ends), [around(row, a * size * (1 + S)) for row, a in zip(rows, away, strict=True)])


def test_numbers_that_leave_the_range_of_doubles_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    huge, weighing = Rows(exact=True), weighing_of({"kind": "mean"}, N)
    huge.near = Near(np.tril(np.full((N, N), 1e200)), np.zeros((1, 1)))
    with pytest.raises(NotEnclosed, match="range of doubles"):
        dense_losses.enclosed_losses(np.eye(N), np.eye(N), huge, weighing)  # type: ignore[arg-type]
    blocks = [TargetBlock(slice(0, N), lambda: (np.full((N, N), 1.5e308), 0.0))]
    source = SimpleNamespace(targets=lambda _: blocks, by_patterns=())
    with pytest.raises(NotEnclosed, match="range of doubles"):
        polar_bound.norm_below(None, source, np.full((N, N), 1e-3) + np.eye(N))  # type: ignore[arg-type]


def test_how_far_a_gram_matrix_is_from_one_of_orthonormal_columns() -> None:
    gram = some(18, 4, 4)
    near(polar_bound._distance(gram), np.linalg.norm(gram - np.eye(4)))
    near(polar_bound._distance(np.eye(4)), 0.0)
    assert polar_bound._distance(gram * np.inf) == np.inf


@pytest.mark.parametrize("sizes", [[1] * 12, [5, 5, 2], [2, 1, 9], [12], [7, 1, 4]])
@pytest.mark.parametrize("tau", [1, 2, 3, 5, 12, 20])
def test_rows_less_those_that_they_refer_to(tau: int, sizes: list[int]) -> None:
    """In blocks of any sizes, down to one row that the next block refers to."""
    weighing = weighing_of({"kind": "lambda_tau", "tau": tau}, 12)
    rows, references, start = np.tril(some(12, 12, 12)), dense_losses.References(weighing), 0
    for size in sizes:
        stop = start + size
        found, before = references.subtracted(RowBlock(start, stop, rows[start:stop, :stop]))
        assert before.tolist() == list(weighing.references[start:stop])
        for i, row in enumerate(found, start):
            reference = weighing.references[i]
            assert (row == (rows[i] - (rows[reference] if reference >= 0 else 0))[:stop]).all()
        start = stop


def root_of_squares(numbers: Any) -> float:
    return math.sqrt(sum(float(x) ** 2 for x in np.ravel(numbers)))


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_what_columns_of_the_target_are_off_by(k: int, exact: bool) -> None:
    """W A F by patterns: gamma_(k + 2) times the norms of both factors, and what A is off by times the largest of F."""
    workload, blocks = Rows(exact=exact), some(12, N // k, k, k) * 2.0 ** np.arange(N // k)[:, None, None]
    factor = Factor(np.arange(N).reshape(k, N // k).T.copy(), blocks)
    weighted = WeightedTarget(workload, weighing_of({"kind": "mean"}, N), np.ones(N))  # type: ignore[arg-type]
    for first in range(0, N // k, 2):
        chosen = slice(first, first + 2)
        made, off = factor._target(weighted, chosen)
        patterns = factor.patterns[chosen]
        parts = [workload.near.values[:, steps] for steps in patterns]
        near(made, np.hstack([part @ block for part, block in zip(parts, blocks[chosen], strict=True)]))
        sizes = [root_of_squares(part) * (1 + g(N * k * len(patterns))) for part in parts]
        factors = [root_of_squares(block) * (1 + g(k * k)) for block in blocks[chosen]]
        errors = [[0.0]] if exact else workload.near.errors[:, patterns.ravel()]
        given = norm([root_of_squares(row) * (1 + g(N * k * len(patterns))) for row in errors])
        own = g(k + 2) * norm([a * b for a, b in zip(sizes, factors, strict=True)])
        near(off, (own + given * max(factors) + made.size * k * T) * (1 + S))


def test_what_is_lost_of_a_tiny_workload_is_not_forgotten() -> None:
    """Squares of its entries underflow; the rounding of its products with a large F does not."""
    workload = Rows(exact=True)
    workload.near = Near(np.ldexp(np.random.default_rng(3).standard_normal((N, N)), -560), np.zeros((1, 1)))
    blocks = np.ldexp(np.random.default_rng(4).standard_normal((2, 3, 3)), 500)
    weighted = WeightedTarget(workload, weighing_of({"kind": "mean"}, N), np.ones(N))  # type: ignore[arg-type]
    made, off = Factor(np.arange(N).reshape(2, 3), blocks)._target(weighted, slice(0, 2))
    squares = Fraction(0)
    for p in range(2):
        left, right = fractions(workload.near.values[:, 3 * p : 3 * p + 3]), fractions(blocks[p])
        for i in range(N):
            for j in range(3):
                true = sum((left[i][k] * right[k][j] for k in range(3)), Fraction(0))
                squares += (Fraction(float(made[i, 3 * p + j])) - true) ** 2
    assert 0 < squares <= Fraction(off) ** 2


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("exact", [False, True])
def test_what_columns_of_the_target_are_off_by_where_one_factor_is_for_all(exact: bool) -> None:
    workload, block = Rows(exact=exact), lower(13, 1.0)
    order = np.array([2, 0, 1, 5, 3, 4])
    weighted = WeightedTarget(workload, weighing_of({"kind": "mean"}, N), np.ones(N))  # type: ignore[arg-type]
    values, errors = workload.column_block(order)
    found = list(Factor(order[None], block[None]).targets(weighted))
    assert [columns for columns, _ in found] == [slice(0, 4), slice(4, 6)]
    for columns, make in found:
        made, off = make()
        near(made, values @ block[:, columns])
        own = norm([row_norm(column) for column in block[columns.start :, columns].T])
        lengths, given = norm([row_norm(row) for row in values]), norm([row_norm(row) for row in errors])
        terms = N - columns.start
        near(off, ((g(terms + 2) * lengths + given) * own + made.size * terms * T) * (1 + S))


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("objective", OBJECTIVES[:2])
@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("exact", [False, True])
def test_what_weighted_columns_are_off_by(objective: dict[str, Any], scale: float, exact: bool) -> None:
    """A difference of rows adds both errors and its own rounding; a row factor multiplies it and adds another one."""
    workload, weighing, scales = Rows(exact=exact), weighing_of(objective, N), np.ones(N)
    scales[2:] = scale
    order = np.array([4, 0, 1])
    values, errors = workload.column_block(order)
    errors = np.broadcast_to(errors, values.shape)
    wanted, off = values.copy(), errors.copy()
    for i, before in enumerate(weighing.references):
        if weighing.tau is not None:
            wanted[i] = values[i] - (values[before] if before >= 0 else 0.0)
            off[i] = (errors[i] + (errors[before] if before >= 0 else 0.0) + U * np.abs(wanted[i])) * GROWN
    if scale != 1:
        wanted = wanted * scales[:, None]
        off = (off * scales[:, None] + U * np.abs(wanted)) * GROWN + T
    found = WeightedTarget(workload, weighing, scales).column_block(order)  # type: ignore[arg-type]
    near(found.values, wanted)
    near(np.broadcast_to(found.errors, wanted.shape), off)


def magnitude(guess: np.ndarray) -> float:
    sizes = np.abs(guess)
    by_sums = math.sqrt(sizes.sum(axis=0).max() * sizes.sum(axis=1).max())
    by_squares = norm([row_norm(column) for column in guess.T])
    return min(by_sums, by_squares) * (1 + g(2 * sum(guess.shape)))


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("guess", [np.ones((4, 3)), CROSS, np.eye(7, 3)], ids=["flat", "cross", "thin"])
def test_the_norm_of_magnitudes(guess: np.ndarray) -> None:
    near(polar_bound._magnitude(guess), magnitude(guess))


def guess_near_orthonormal(seed: int, rows: int, columns: int) -> np.ndarray:
    luck = np.random.default_rng(seed)
    return np.asarray(np.linalg.qr(luck.standard_normal((rows, columns)))[0] * luck.uniform(0.97, 1.03, columns))


def spectral_squared(error: float, apart: float) -> float:
    delta = apart + error
    return 1 + (error * (1 + delta) * (1 + delta / 2) + error**2) * (1 + S)


def error_of_gram(guess: np.ndarray, apart: float) -> float:
    """What E is off by: its sums, taking 1 from its diagonal, and products that underflow."""
    off = g(len(guess) + 1 + 1) * magnitude(guess) ** 2 + 2 * U * (apart + 1)
    return (off + guess.size * T) * (1 + S)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("whole", [True, False])
def test_what_a_step_loses(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """tr(Q^T M) from below over |Q| from above, with every sum's rounding."""
    if not whole:
        monkeypatch.setattr(polar_bound, "_WHOLE_GRAM", 2)
    rows, columns = 8, 3
    guess, target = guess_near_orthonormal(5, rows, columns) * 0.98, some(14, rows, columns) * 3
    target = guess * 40 + target
    offs = [0.3, 0.7]
    e = guess.T @ guess - np.eye(columns)
    parts, lost, squares = 0.0, 0.0, 0.0
    blocks = [slice(0, 2), slice(2, 3)]
    step = polar_bound._Step(guess)
    for block, off in zip(blocks, offs, strict=True):
        turned, sizes = guess @ e[:, block], [row_norm(column) for column in target[:, block].T]
        apart = norm([row_norm(column) for column in e[:, block].T])
        both = [row_norm(p) + 0.5 * row_norm(q) for p, q in zip(guess[:, block].T, turned.T, strict=True)]
        rounded = g(columns + 1) * magnitude(guess) * apart * (1 + S) + columns * len(sizes) * T
        own = g(rows + 4) * sum(a * b for a, b in zip(both, sizes, strict=True)) * (1 + S)
        own += (0.5 * rounded * norm(sizes) + (norm(both) + rounded) * off) * (1 + S) + rows * len(sizes) * T
        moved = guess[:, block] - 0.5 * turned
        share = step._share(TargetBlock(block, lambda b=block, o=off: (target[:, b], o)))
        near(share.lost, own)
        near(share.apart, apart)
        near(math.fsum(share.parts), (moved * target[:, block]).sum())
        near(step.moved[:, block], moved)
        parts, lost, squares = parts + (moved * target[:, block]).sum(), lost + own, squares + apart**2 * (1 + S)
    source = SimpleNamespace(
        by_patterns=(),
        targets=lambda _: (
            TargetBlock(b, lambda b=b, o=o: (target[:, b], o)) for b, o in zip(blocks, offs, strict=True)
        ),
    )
    found = polar_bound._Step(guess)
    below = found.taken(None, source)  # type: ignore[arg-type]
    apart = math.sqrt(squares) * (1 + S)
    near(found.apart, apart)
    error = error_of_gram(guess, apart)
    assert parts * (1 - S) > 2 * lost * (1 + S) and apart + error < 0.5
    wanted = (parts * (1 - S) - lost * (1 + S)) / math.sqrt(spectral_squared(error, apart))
    near(float(below), wanted)
    for worse in (guess * 0.02, guess * 1.3):
        with pytest.raises(NotEnclosed, match="too far"):
            polar_bound._Step(worse).taken(None, source)  # type: ignore[arg-type]
    target = -target
    assert polar_bound._Step(guess).taken(None, source) == 0  # type: ignore[arg-type]


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("k", [1, 2, 3])
def test_what_suffix_sums_lose(k: int) -> None:
    """Traces against A F for prefix sums A: what sums of sums round, by norms of columns, and products with E."""
    guess, n = some(20, N, N), N
    blocks, patterns = some(21, N // k, k, k), np.random.default_rng(22).permutation(N).reshape(N // k, k)
    near_e = some(23, N, N) / 10
    whole = np.hstack([np.tril(np.ones((N, N)))[:, p] @ b for p, b in zip(patterns, blocks, strict=True)])
    lengths = np.array([row_norm(column) for column in guess.T])
    sums = suffix_sums.SuffixSums.of(guess, lengths)
    near(sums.values, np.tril(np.ones((N, N))).T @ guess)
    sizes = lengths * math.sqrt(N) * (1 + S)
    near(sums.sizes, sizes)
    for chosen in (slice(0, 1), slice(1, N // k)):
        own = slice(chosen.start * k, chosen.stop * k)
        e = near_e[own]
        found = sums.traces(patterns[chosen], blocks[chosen], own.start, e)
        wanted = (guess[:, own] * whole[:, own]).sum() - 0.5 * ((guess @ e.T) * whole[:, own]).sum()
        near(math.fsum(found.parts), wanted)
        apart = norm([row_norm(row) for row in e])
        near(found.apart, apart)
        column_sums = np.abs(blocks[chosen]).sum(axis=1).ravel() * (1 + g(k))
        lost = g(n + k * k + 4) * (sizes[own] * column_sums).sum()
        lost += 0.5 * g(n + k + N + 8) * apart * norm(sizes) * norm(column_sums) + (k + 1) ** 2 * e.size * T
        near(found.lost, lost * (1 + S))


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_step_by_suffix_sums_and_one_by_products(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suffix sums are for prefix sums alone, and for many patterns; what a step moves P to is the same."""
    guess = guess_near_orthonormal(24, N, N)
    blocks, patterns = some(25, N // k, k, k), np.random.default_rng(26).permutation(N).reshape(N // k, k)
    factor = Factor(patterns, blocks * 1e-3)
    whole = np.hstack([np.tril(np.ones((N, N)))[:, p] @ b for p, b in zip(patterns, factor.blocks, strict=True)])
    flips = np.sign((guess * whole).sum(axis=0)).reshape(N // k, 1, k)
    factor = Factor(patterns, factor.blocks * flips)
    e, lengths = guess.T @ guess - np.eye(N), np.array([row_norm(column) for column in guess.T])
    sums = suffix_sums.SuffixSums.of(guess, lengths)
    mean, prefix = weighing_of({"kind": "mean"}, N), WorkloadRows({"kind": "prefix", "n": N}, {})
    step, found = polar_bound._Step(guess), []
    for some_of in factor.groups(N):
        own = slice(some_of.start * k, some_of.stop * k)
        found.append(sums.traces(patterns[some_of], factor.blocks[some_of], own.start, e[own]))
    shares = list(step._shares(WeightedTarget(prefix, mean, np.ones(N)), factor))
    assert len(shares) == len(found)
    for share, wanted in zip(shares, found, strict=True):
        near(math.fsum(share.parts), math.fsum(wanted.parts))
        near([share.lost, share.apart], [wanted.lost, wanted.apart])
    near(step.moved, guess - 0.5 * guess @ e)
    moved = step.moved
    moved[0, 0] = 7.0
    assert step.moved[0, 0] == 7.0  # it is made once
    scaled = WeightedTarget(prefix, mean, np.full(N, 2.0))
    by_ones = WeightedTarget(prefix, mean, np.ones(N))
    for weighted, short in ((scaled, True), (by_ones, False)):
        if not short:
            monkeypatch.setattr(polar_bound, "_WHOLE_GRAM", 2)
        step = polar_bound._Step(guess)
        shares = list(step._shares(weighted, factor))
        targets = list(factor.targets(weighted))
        assert [share.lost for share in shares] == [step._share(block).lost for block in targets]
        near(step.moved, guess - 0.5 * guess @ e)
        step.moved[0, 0] = 7.0
        assert step.moved[0, 0] == 7.0


@pytest.mark.usefixtures("coarse")
def test_a_step_by_suffix_sums_of_patterns_of_two_lengths() -> None:
    """Each length has its own columns of P, one after the other; a single pattern goes by products."""
    guess, steps = guess_near_orthonormal(24, N, N), np.random.default_rng(26).permutation(N)
    ones, twos = Factor(steps[:2, None], some(25, 2, 1, 1)), Factor(steps[2:].reshape(2, 2), some(27, 2, 2, 2))
    both = vector_bound.GroupedFactor((ones, twos))
    assert both.by_patterns == ((0, ones), (2, twos)) and vector_bound.GroupedFactor((twos,)).by_patterns == (
        (0, twos),
    )
    assert vector_bound.GroupedFactor((Factor(steps[None], some(28, 1, N, N)),)).by_patterns == ()
    assert Factor(steps[None], some(28, 1, N, N)).by_patterns == () and ones.by_patterns == ((0, ones),)
    weighted = WeightedTarget(
        WorkloadRows({"kind": "prefix", "n": N}, {}), weighing_of({"kind": "mean"}, N), np.ones(N)
    )
    e, lengths = guess.T @ guess - np.eye(N), np.array([row_norm(column) for column in guess.T])
    sums, wanted = suffix_sums.SuffixSums.of(guess, lengths), []
    for start, factor, k in ((0, ones, 1), (2, twos, 2)):
        for p in factor.groups(N):
            own = slice(start + p.start * k, start + p.stop * k)
            wanted.append(sums.traces(factor.patterns[p], factor.blocks[p], own.start, e[own]))
    shares = list(polar_bound._Step(guess)._shares(weighted, both))
    assert len(shares) == len(wanted) == 4
    for share, other in zip(shares, wanted, strict=True):
        near(math.fsum(share.parts), math.fsum(other.parts))
        near([share.lost, share.apart], [other.lost, other.apart])
    target = np.tril(np.ones((N, N))) @ both.whole(N)
    moved = guess - 0.5 * guess @ e
    near(math.fsum(part for share in shares for part in share.parts), (moved * target).sum())


def test_which_workloads_are_known_to_be_prefix_sums() -> None:
    """Exactly 1 on and below the diagonal; a matrix of a user is not looked at."""
    prefix = WorkloadRows({"kind": "prefix", "n": N}, {})
    assert prefix.of_ones is True
    others: list[dict[str, Any]] = [
        {"kind": "identity", "n": N},
        {"kind": "decay", "n": N, "rate": 0.7},
        {"kind": "schedule", "n": N, "learning_rates": [1.0, 0.5] * 3},
        {"kind": "window", "n": N, "width": 3},
    ]
    for document in others:
        assert WorkloadRows(document, {}).of_ones is False
    near_ones = WorkloadRows({"kind": "prefix", "n": N}, {})
    near_ones._column = Near(np.ones(N), np.full(N, 1e-17))
    assert near_ones.of_ones is False
    mean, restarted = weighing_of({"kind": "mean"}, N), weighing_of({"kind": "lambda_tau", "tau": 2}, N)
    assert WeightedTarget(prefix, mean, np.ones(N)).of_ones is True
    for weighing, scale in ((mean, 2.0), (restarted, 1.0)):
        assert not WeightedTarget(prefix, weighing, np.full(N, scale)).of_ones


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("bands", [1, 3, 9])
def test_what_a_factor_costs_within_a_band(bands: int) -> None:
    """The trace of F F^T and twice its absolute entries in the band, each with what its sum rounds."""
    root = lower(15, 1.0)
    total, sizes = 0.0, 0.0
    for i in range(N):
        for j in range(N):
            if abs(i - j) < bands:
                total += abs(float(root[i] @ root[j]))
                sizes += root_of_squares(root[i]) * root_of_squares(root[j]) * (1 + g(N + 4)) ** 2
    wanted = (total + g(N + 2) * sizes * (1 + S) * (1 + g(N))) * (1 + S) + N * N * T
    near(float(band_bound.cost_in_band(Factor(np.arange(N)[None], root[None]), bands)), wanted)
    with pytest.raises(NotEnclosed, match="range"):
        band_bound.cost_in_band(Factor(np.arange(N)[None], root[None] * 1e200), bands)


@pytest.mark.usefixtures("coarse")
def test_what_factors_of_patterns_cost() -> None:
    """The sum over the patterns of the largest diagonal entry of F F^T; groups add up."""
    factors = [Factor(np.arange(6).reshape(2, 3), some(16, 2, 3, 3)), Factor(np.array([[6]]), some(17, 1, 1, 1))]
    wanted = []
    for factor in factors:
        k = factor.blocks.shape[2]
        total = sum(max(float(row @ row) for row in block) for block in factor.blocks)
        wanted.append(total * (1 + g(k + 2) + S / 4096) + factor.patterns.size * T)
        near(float(vector_bound.cost_of(factor)), wanted[-1])
    near(float(vector_bound.GroupedFactor(tuple(factors)).cost()), sum(wanted))


@pytest.mark.usefixtures("coarse")
def test_what_steps_of_a_program_carry_along() -> None:
    """A product by a factor adds what the factor rounds, what its own product rounds, and what underflows."""
    third, exact = workload_rows._factor(Fraction(1, 3)), workload_rows._factor(Fraction(-5, 2))
    assert third is not None and exact is not None
    near(third, [1 / 3, U / 3 + T])
    near(exact, [-2.5, 0.0])
    near(workload_rows._factor(Fraction(-2, 3)), [-2 / 3, 2 * U / 3 + T])
    assert workload_rows._factor(Fraction(0)) is None
    value, off = 7.0, 0.25
    by_third = ((off / 3 + third.away * (value + off)) + U * value / 3) * GROWN + T
    near(workload_rows._sum([((value, off), third)], 0.0), [value / 3, by_third * GROWN])
    by_exact = (2.5 * off + U * 2.5 * value) * GROWN + T
    near(workload_rows._sum([((-value, off), exact)], 0.0), [17.5, by_exact * GROWN])
    one = workload_rows._Factor(1.0, 0.0)
    near(workload_rows._sum([((value, off), one), ((-3.0, 0.5), None)], 0.0), [value, off * GROWN])
    total, error = workload_rows._sum([((1.0, off), one), ((2.0**-60, 0.5), one), ((-1.0, 0.0), one)], 0.0)
    assert total == 0.0
    near(error, (((off * GROWN) + 0.5 + 2.0**-60) * GROWN) * GROWN)


def test_a_factor_below_the_normal_numbers_is_off_by_more_than_u_of_it() -> None:
    for exact in (Fraction(3, 2) / 2**1074, Fraction(1, 3) / 2**1060, Fraction(1, 2**1080), Fraction(1, 3)):
        found = workload_rows._factor(exact)
        assert found is not None
        assert abs(Fraction(found.value) - exact) <= Fraction(found.away)


@pytest.mark.parametrize("late", [False, True])
def test_sums_are_off_by_what_they_round(late: bool) -> None:
    """Either term may be the one of which digits are lost."""
    one = workload_rows._Factor(1.0, 0.0)
    terms = [((1.0, 0.0), one), ((2.0**60, 0.0), one)]
    total, error = workload_rows._sum(terms[::-1] if late else terms, 0.0)
    assert total == 2.0**60 and 1 <= error <= 1 + 1e-12


def test_sums_of_which_both_parts_round() -> None:
    """The larger comes second, and what is lost of the two has opposite signs."""
    one = workload_rows._Factor(1.0, 0.0)
    small, large = float.fromhex("0x1.dbc799a2723f3p-1"), float.fromhex("0x1.be6c6fe51008fp+0")
    total, error = workload_rows._sum([((small, 0.0), one), ((large, 0.0), one)], 0.0)
    lost = abs(Fraction(small) + Fraction(large) - Fraction(total))
    assert 0 < lost <= Fraction(error) <= lost * (1 + Fraction(1, 10**12))


def test_where_a_user_matrix_or_a_window_has_its_rows() -> None:
    window = WorkloadRows({"kind": "window", "n": N, "width": 3}, {})
    assert not window.triangular
    assert window.row_block(0, N).values.tolist() == [[float(0 <= i - j < 3) for j in range(N)] for i in range(N)]
    assert WorkloadRows({"kind": "prefix", "n": N}, {}).triangular


def test_a_program_times_a_matrix_where_steps_have_no_weight() -> None:
    rates = [0.0, 0.5, 0.0, 1.0, 0.25, 2.0]
    document = {"kind": "schedule", "n": N, "learning_rates": rates}
    matrix = some(19, N, 4)
    found = WorkloadRows(document, {}).applied(matrix, 0, N, {})
    near(found[1:], np.cumsum(np.array(rates)[:, None] * matrix, axis=0)[1:])
    assert not found[0].any()
