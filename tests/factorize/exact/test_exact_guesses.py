"""Guesses that proofs in doubles rest on: each is what it is said to be, and what cannot be guessed is refused.

A wrong guess proves nothing false. It proves less of an honest file than there is to prove, which these tests notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from exact_files import parts, sealed

from factorize import parse_spec, solvers
from factorize.errors import CertificateError
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.bounds.bound import Piece
from factorize.exact.doubles import (
    band_bound,
    dense_losses,
    dense_proof,
    polar_bound,
    triangles,
    vector_bound,
    weighted_targets,
)
from factorize.exact.doubles.dense_proof import DenseProof
from factorize.exact.doubles.weighted_targets import Factor, TargetBlock, WeightedTarget
from factorize.exact.doubles.workload_rows import WorkloadRows
from factorize.exact.file import FactorFile, read_factor_file
from factorize.exact.spec import weighing_of
from factorize.exact.strategy import Strategy

N = 6
MEAN: dict[str, Any] = {"kind": "mean"}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (dense_losses, polar_bound, weighted_targets):
        monkeypatch.setattr(module, "blocks_of", by_fours)
    monkeypatch.setattr(weighted_targets, "_LEAST_COLUMNS", 1)


def by_fours(n: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + 4, n)) for start in range(0, n, 4))


def some(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def weighted_by(array: np.ndarray, objective: dict[str, Any] = MEAN, *, whole: bool = True) -> WeightedTarget:
    """W A for a matrix of a user, or for prefix sums."""
    document = {"kind": "matrix", "shape": list(array.shape), "sha256": "x"}
    workload = WorkloadRows(document, {"x": array}) if whole else WorkloadRows({"kind": "prefix", "n": len(array)}, {})
    return WeightedTarget(workload, weighing_of(objective, len(array)), np.linspace(1, 2, len(array)))


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("objective", [MEAN, {"kind": "lambda_tau", "tau": 3}])
@pytest.mark.parametrize("whole", [True, False])
def test_the_decoder_of_c_turned_back(whole: bool, objective: dict[str, Any], scale: float) -> None:
    """W A N N^T, in blocks of which rows know where they end; for prefix sums by sums of rows."""
    inverse = np.tril(some(1, N, N))
    array = some(2, N, N) if whole else np.tril(np.ones((N, N)))
    weighted = weighted_by(array, objective, whole=whole)._replace(scales=np.linspace(1.0, scale, N))
    rows = array.copy()
    for i, before in enumerate(weighted.weighing.references):
        if before >= 0:
            rows[i] = array[i] - array[before]
    found = polar_bound.weighted_decoder_by_inverse(weighted, inverse)
    assert np.allclose(found, weighted.scales[:, None] * (rows @ inverse @ inverse.T), rtol=1e-12, atol=1e-12)


def test_columns_of_the_target_by_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weighted_targets, "_PARTS", 1)
    weighted = weighted_by(some(2, 12, 12))
    array = weighted.scales[:, None] * weighted.workload.row_block(0, 12).values
    for count, k in ((12, 1), (6, 2), (5, 2), (1, 12)):
        patterns = np.random.default_rng(3).permutation(12)[: count * k].reshape(count, k)
        blocks = np.tril(some(4, count, k, k))
        found, start = [], 0
        for place, make in Factor(patterns, blocks).targets(weighted):
            assert place.start == start
            start = place.stop
            found.append(make()[0])
        wanted = np.hstack([array[:, p] @ b for p, b in zip(patterns, blocks, strict=True)])
        assert start == count * k and np.allclose(np.hstack(found), wanted)


@pytest.mark.parametrize("epochs", [False, True])
@pytest.mark.parametrize("triangular", [False, True])
@pytest.mark.parametrize(("count", "k"), [(6, 1), (3, 2), (2, 3), (1, 6)])
def test_rows_turned_back_by_f(
    count: int, k: int, triangular: bool, epochs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any patterns, and of those of epochs, some rows at a time; also where the rows are no run of memory."""
    monkeypatch.setattr(weighted_targets, "_ROWS", 4)
    monkeypatch.setattr(weighted_targets, "_SHORT", N - 1)
    order = np.arange(N).reshape(k, count).T if epochs else np.random.default_rng(3).permutation(N).reshape(count, k)
    blocks, rows = some(4, count, k, k), some(5, N, N)
    blocks = np.tril(blocks) if triangular else blocks
    wanted = np.hstack([rows[:, p] @ np.linalg.inv(b).T for p, b in zip(order, blocks, strict=True)])
    for given in (rows.copy(), np.asfortranarray(rows)):
        found = Factor(order, blocks).undone(given)
        assert found is given and np.allclose(found, wanted)


def test_rows_are_turned_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """By epochs, some rows at one time, in whichever parts."""
    monkeypatch.setattr(weighted_targets, "_SHORT", 1)
    blocks, rows = some(31, N // 2, 2, 2), some(32, 11, N)
    patterns = np.arange(N).reshape(2, N // 2).T.copy()
    wanted = np.hstack([rows[:, p] @ np.linalg.inv(b).T for p, b in zip(patterns, blocks, strict=True)])
    for size in (1, 2, 5, 11, 128):
        monkeypatch.setattr(weighted_targets, "_ROWS", size)
        for stops in ([(0, 11)], [(0, 4), (4, 11)]):
            monkeypatch.setattr(weighted_targets, "blocks_of", lambda n, stops=stops: iter(stops))
            assert np.allclose(Factor(patterns, blocks).undone(rows.copy()), wanted)


def test_which_rows_are_turned_by_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 1024 of them, for up to 8 epochs."""
    assert (weighted_targets._SHORT, weighted_targets._MOST_EPOCHS) == (1024, 8)
    turned: list[int] = []
    by_epochs = weighted_targets._turn_epochs
    monkeypatch.setattr(weighted_targets, "_turn_epochs", lambda *given: turned.append(1) or by_epochs(*given))
    patterns, rows = np.arange(N).reshape(3, 2).T.copy(), some(33, 9, N)
    for short, most, asked in ((8, 3, True), (9, 3, False), (8, 2, False)):
        monkeypatch.setattr(weighted_targets, "_SHORT", short)
        monkeypatch.setattr(weighted_targets, "_MOST_EPOCHS", most)
        turned.clear()
        Factor(patterns, some(34, 2, 3, 3)).undone(rows.copy())
        assert bool(turned) == asked


def test_a_guess_that_leaves_the_range_of_doubles() -> None:
    """It is nothing, or so small that its scale is lost; the same sizes with another scale are brought to one norm."""
    factor = Factor(np.arange(N)[:, None], np.ones((N, 1, 1)))
    for scale in (0.0, 2.0**-515, 2.0**515):
        with pytest.raises(NotEnclosed, match="range of doubles"):
            polar_bound.polar_guess(weighted_by(np.eye(N) * scale), factor, np.eye(N))
    for scale in (2.0**-400, 1.0, 2.0**400):
        found = polar_bound.polar_guess(weighted_by(np.eye(N) * scale), factor, np.eye(N))
        assert (found**2).sum() == pytest.approx(N)


@pytest.mark.parametrize("bands", [1, 2, 3, 9])
def test_evidence_of_a_band_has_no_entries_within_it(bands: int) -> None:
    """F F^T is Z^T Z without its entries of the band off the diagonal, for a C that is not the best of its class."""
    array, inverse = np.diag(np.linspace(1, 2, N)) + 0.05 * some(6, N, N), np.eye(N) + 0.05 * np.tril(some(7, N, N))
    weighted = weighted_by(array)
    target = weighted.scales[:, None] * (array @ inverse @ inverse.T)
    apart = np.abs(np.subtract.outer(np.arange(N), np.arange(N)))
    wanted = np.where((apart == 0) | (apart >= bands), target.T @ target, 0.0)
    factor, guess = band_bound.band_evidence(weighted, inverse, bands)
    root = factor.blocks[0]
    assert np.allclose(root @ root.T, wanted) and factor.patterns.tolist() == [list(range(N))]
    assert np.allclose(guess, target @ np.linalg.inv(root).T)


def test_a_c_that_is_no_evidence_of_a_band() -> None:
    """Without the entries of the band the matrix is not positive; or numbers overflow."""
    with pytest.raises(NotEnclosed, match="too far from the best of its class"):
        band_bound.band_evidence(weighted_by(np.ones((N, N)) + 0.1 * np.eye(N)), np.eye(N), 2)
    with pytest.raises(NotEnclosed, match="range of doubles"):
        band_bound.band_evidence(weighted_by(np.eye(N)), np.eye(N) * 1e120, 2)


@pytest.mark.parametrize("power", [-900, 0, 40])
def test_factors_by_lengths_of_patterns(power: int) -> None:
    """The largest entry of all comes near 1; blocks of one length stand together, cut to squares."""
    pieces = [
        Piece((0, 3), np.ldexp(np.array([[1.0, 2.0], [3.0, 40.0]]), power)),
        Piece((1,), np.ldexp(np.array([[7.0, 9.0]]), power)),
        Piece((2, 4), np.ldexp(np.array([[5.0, 6.0], [7.0, 8.0]]), power)),
    ]
    ones, twos = vector_bound.grouped(pieces).groups
    assert ones.patterns.tolist() == [[1]] and twos.patterns.tolist() == [[0, 3], [2, 4]]
    assert (ones.blocks * 64 == [[[7.0]]]).all()
    assert (twos.blocks * 64 == [[[1.0, 2.0], [3.0, 40.0]], [[5.0, 6.0], [7.0, 8.0]]]).all()
    assert vector_bound.grouped([]).groups == ()


def test_which_evidence_singular_vectors_are_computed_of(monkeypatch: pytest.MonkeyPatch) -> None:
    weighted = weighted_by(some(8, N, 4))
    square, zero = Factor(np.array([[0, 1]]), some(9, 1, 2, 2)), Factor(np.array([[2], [3]]), np.zeros((2, 1, 1)))
    wide = Factor(np.array([[2]]), some(10, 1, 1, 3))
    monkeypatch.setattr(vector_bound, "LARGEST_VECTORS", 4)
    whole = np.hstack(
        [
            (weighted.scales[:, None] * weighted.workload.row_block(0, N).values)[:, :2] @ square.blocks[0],
            np.zeros((N, 2)),
        ]
    )
    nuclear = np.linalg.svd(whole, compute_uv=False).sum()
    both = vector_bound.GroupedFactor((square, zero))
    assert float(vector_bound.bound_by_vectors(weighted, both)) == pytest.approx(nuclear**2 / float(both.cost()))
    short = WeightedTarget(weighted_by(some(8, 3, 4)).workload, weighing_of(MEAN, 3), np.ones(3))
    refused: list[tuple[WeightedTarget, tuple[Factor, ...]]] = [(weighted, (square, wide)), (short, (square, zero))]
    for given, groups in refused:
        with pytest.raises(NotEnclosed, match="square blocks up to n=4"):
            vector_bound.bound_by_vectors(given, vector_bound.GroupedFactor(groups))
    with pytest.raises(NotEnclosed, match="all zero"):
        vector_bound.bound_by_vectors(weighted, vector_bound.GroupedFactor((zero,)))
    monkeypatch.setattr(vector_bound, "LARGEST_VECTORS", 3)
    with pytest.raises(NotEnclosed, match="square blocks up to n=3"):
        vector_bound.bound_by_vectors(weighted, both)


@pytest.mark.parametrize("shared", [False, True])
def test_sums_of_few_rows_take_the_place_of_a_product(shared: bool) -> None:
    """A F S by sums over the rows of F S, for patterns of two lengths in any order; not where a step is in two."""
    steps = np.array([[4, 0], [1, 3]]), np.array([[4 if shared else 2]])
    factors = vector_bound.GroupedFactor(
        tuple(Factor(some_steps, some(11, *some_steps.shape, some_steps.shape[1])) for some_steps in steps)
    )
    assert factors.apart == (not shared)
    whole, start = np.zeros((5, 5)), 0
    for group in factors.groups:
        for pattern, block in zip(group.patterns, group.blocks, strict=True):
            whole[pattern, start : start + len(block)] += block
            start += len(block)
    if not shared:
        assert (factors.whole(5) == whole).all() and factors.whole(6).shape == (6, 5)
        assert np.allclose(factors.times(some(12, 5, 3), 5), whole @ some(12, 5, 3))
    target = np.tril(np.ones((5, 5))) @ whole
    weighted = WeightedTarget(WorkloadRows({"kind": "prefix", "n": 5}, {}), weighing_of(MEAN, 5), np.ones(5))
    assert weighted.of_ones
    left, _, right = np.linalg.svd(target)
    if not shared:  # else two columns are dependent
        assert np.allclose(vector_bound._guess(weighted, factors, 5), left @ right)


def test_patterns_come_in_groups_of_a_sixteenth_of_the_steps_and_of_128_at_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    for n, k, sizes in ((4096, 4, [64] * 16), (256, 4, [32] * 2), (250, 5, [25] * 2), (512, 256, [1, 1])):
        factor = Factor(np.arange(n).reshape(n // k, k), np.zeros((n // k, k, k)))
        assert [some.stop - some.start for some in factor.groups(n)] == sizes


@pytest.mark.parametrize("n", [1, 64, 65, 300])
def test_products_with_an_upper_triangle(n: int) -> None:
    rows, upper = some(13, 7, n), np.triu(some(14, n, n))
    assert np.allclose(triangles.times_upper(rows, upper), rows @ upper, rtol=1e-12, atol=1e-12)


def test_singular_vectors_that_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> np.ndarray:
        raise np.linalg.LinAlgError("no convergence")

    monkeypatch.setattr(vector_bound, "_polar_factor", none)
    factors = vector_bound.GroupedFactor((Factor(np.arange(N)[None], np.eye(N)[None]),))
    with pytest.raises(NotEnclosed, match="no singular vectors"):
        vector_bound.bound_by_vectors(weighted_by(np.eye(N)), factors)


@pytest.mark.parametrize("least", [1.0, 1e-9])
def test_a_polar_factor_of_more_rows_than_columns(least: float) -> None:
    left, right = np.linalg.qr(some(11, 9, 4))[0], np.linalg.qr(some(12, 4, 4))[0]
    guess = vector_bound._polar_factor(left * np.geomspace(1.0, least, 4) @ right)
    assert np.abs(guess - left @ right).max() < 1e-6


def steps_of(guess: np.ndarray, monkeypatch: pytest.MonkeyPatch, **asked: Any) -> tuple[int, float]:
    """How many steps are taken from a guess that is not brought nearer beforehand, and what they prove of 7 Q."""
    target, steps, taken = 7 * np.eye(*guess.shape), [], polar_bound._Step.taken
    blocks = [TargetBlock(slice(0, guess.shape[1]), lambda: (target, 0.0))]
    source = SimpleNamespace(targets=lambda _: blocks, by_patterns=())
    monkeypatch.setattr(polar_bound, "_nearer", lambda given: given)
    monkeypatch.setattr(polar_bound._Step, "taken", lambda self, *given: steps.append(self) or taken(self, *given))
    below = polar_bound.norm_below(None, source, guess, **asked)  # type: ignore[arg-type]
    monkeypatch.undo()
    return len(steps), float(below)


def test_steps_are_taken_until_a_guess_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """|E|^2 up to 1e-10 of the columns is near; a step squares what is left, and three are the most."""
    orthonormal = np.eye(5, 3)
    for apart, steps in ((5e-6, 1), (1e-4, 2), (0.1, 3), (0.4, 3)):
        found, below = steps_of(orthonormal * np.sqrt(1 + apart / np.sqrt(3)), monkeypatch)
        assert found == steps, apart
        assert below <= 21
        assert below == pytest.approx(21, rel=1e-9 if apart < 0.2 else 1e-3)
    found, below = steps_of(orthonormal * 1.01, monkeypatch, enough=lambda norm: norm > 20)
    assert found == 1


def test_which_guesses_are_brought_nearer_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those from 1e-10 of the columns to a quarter, of no more columns than a whole P^T P has, and while it helps."""
    guess = np.linalg.qr(some(13, 40, 12))[0] + 1e-3 * some(14, 40, 12)
    monkeypatch.setattr(polar_bound, "_WHOLE_GRAM", 11)
    assert polar_bound._nearer(guess) is guess
    monkeypatch.setattr(polar_bound, "_WHOLE_GRAM", 12)
    assert polar_bound._nearer(guess) is not guess
    for estimates, moves in (([0.2, 1e-12], True), ([0.3], False), ([0.2, 0.21], False), ([1e-12], False)):
        said = iter(estimates)
        monkeypatch.setattr(polar_bound, "_estimate", lambda _, s=said: next(s))
        assert (polar_bound._nearer(guess) is not guess) == moves, estimates


def test_how_far_a_guess_is_by_signs_of_both_kinds() -> None:
    """The sum of all columns tells nothing of this one: E is 0.1 of (1, -1) by (1, -1)."""
    values, vectors = np.linalg.eigh(np.eye(2) + 0.1 * np.array([[1.0, -1.0], [-1.0, 1.0]]))
    found = polar_bound._estimate(vectors * np.sqrt(values) @ vectors.T)
    assert 0.01 < found < 0.16


def banded(bands: int, apart: int) -> FactorFile:
    asked = {"workload": {"kind": "prefix", "n": 12}, "mechanism": {"kind": "banded", "bands": bands}}
    return read_factor_file(
        sealed(*parts(solvers.solve(parse_spec({**asked, "participation": {"kind": "min_sep", "min_sep": apart}}))))
    )


def class_proof(file: FactorFile, **spec: Any) -> DenseProof:
    strategy = Strategy(file.manifest["matrices"]["C"]["structure"], file.matrices["C"], 12)
    return DenseProof({**file.manifest["spec"], **spec}, strategy, file.dual, {})


def test_the_bound_of_a_class_and_what_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bands of C, at most those of the class, at most as many steps as participations are apart."""
    file = banded(3, 3)
    claimed = file.manifest["certificate"]["loss"]["objective"]
    found = float(class_proof(file).class_bound())
    assert found <= claimed and found == pytest.approx(claimed, rel=1e-2)
    banded_class = file.manifest["spec"]["mechanism"]
    for changed in (
        {"mechanism": {**banded_class, "kind": "dense"}},
        {"mechanism": {**banded_class, "bands": 2}},
        {"mechanism": {**banded_class, "bands": 4}},
        {"mechanism": {name: value for name, value in banded_class.items() if name != "bands"}},
        {"objective": {"kind": "max"}},
    ):
        with pytest.raises(NotEnclosed, match="class is not evaluated"):
            class_proof(file, **changed).class_bound()
    one = banded(1, 3)
    assert class_proof(one).class_bound() > 0
    with pytest.raises(NotEnclosed, match="class is not evaluated"):
        class_proof(one, mechanism={"kind": "banded"}).class_bound()
    steps, taken = [], polar_bound._Step.taken
    monkeypatch.setattr(polar_bound, "_NEAR", 0.0)
    monkeypatch.setattr(polar_bound._Step, "taken", lambda self, *given: steps.append(self) or taken(self, *given))
    for wanted, most in ((found * (1 - 1e-9), 1), (found * (1 + 1e-9), 3)):
        steps.clear()
        class_proof(file).class_bound(wanted)
        assert len(steps) == most


def test_losses_that_are_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = class_proof(banded(3, 3))
    assert proof.losses().residual < 1e-12
    monkeypatch.setattr(dense_proof, "WIDEST", 1e-18)
    with pytest.raises(NotEnclosed, match="enclose the losses to relative"):
        proof.losses()


def test_a_guess_of_the_inverse_is_made_ahead_where_it_will_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of stored arrays that are not Toeplitz, neither short nor so long that memory is a limit."""
    n = dense_proof._AHEAD
    luck = np.random.default_rng(5)
    array = np.tril(luck.uniform(0.0, 1.0, (n, n)), -1) / n + np.eye(n)
    with dense_proof.inverse_ahead(Strategy("dense", {"": array}, n), n) as found:
        assert found is not None
        inverse = found()
        assert np.abs(inverse @ array - np.eye(n)).max() < 1e-12
    document = {"workload": {"kind": "prefix", "n": n}, "objective": MEAN, "participation": {"kind": "single"}}
    strategy = Strategy("dense", {"": array}, n)
    own = DenseProof(document, strategy, {}, {})
    monkeypatch.setattr(dense_proof, "inverse_of", None)  # not asked again
    assert DenseProof(document, strategy, {}, {}, lambda: inverse).losses() == own_losses(own, inverse, monkeypatch)
    for given, longest in (
        (Strategy("dense", {"": array}, n), n - 1),
        (Strategy("dense", {"": array[1:, 1:].copy()}, n - 1), n),
        (Strategy("dense", {"": np.eye(n)}, n), n),
        (Strategy("scaled", {"": array, "column_scale": np.ones(n)}, n), n),
        (Strategy("banded", {"bands": np.ones((1, n))}, n), n),
    ):
        with dense_proof.inverse_ahead(given, longest) as none:
            assert none is None
    monkeypatch.setattr(dense_proof, "LONGEST_IN_PAIRS", n - 1)
    with dense_proof.inverse_ahead(Strategy("dense", {"": array}, n), n) as none:
        assert none is None


def own_losses(proof: DenseProof, inverse: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(dense_proof, "inverse_of", lambda _: inverse)
    return proof.losses()


def test_what_is_asked_of_the_machine_and_of_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    file, asked = banded(3, 3), []
    monkeypatch.setattr(dense_proof, "check_products", lambda: asked.append(1))
    monkeypatch.setattr(dense_proof, "LARGEST", 12)
    class_proof(file)
    assert asked
    with pytest.raises(NotEnclosed, match="not evaluated"):
        class_proof(file, objective={"kind": "max"}).lower_bound_by_vectors()
    monkeypatch.setattr(dense_proof, "LARGEST", 11)
    with pytest.raises(NotEnclosed, match="up to n=11"):
        class_proof(file)


def test_blocks_of_steps() -> None:
    """An eighth of the steps, at least 64 and at most 1024."""
    sizes = {5: 5, 64: 64, 513: 65, 800: 100, 8192: 1024, 20000: 1024}
    for n, size in sizes.items():
        blocks = list(triangles.blocks_of(n))
        assert blocks[0] == (0, size) and blocks[-1][1] == n
        assert all(stop == start for (_, stop), (start, _) in zip(blocks, blocks[1:], strict=False))


@pytest.mark.parametrize("place", [0, 40, 99])
def test_no_inverse_of_what_has_a_zero_on_its_diagonal(place: int) -> None:
    lower = np.tril(np.ones((100, 100)))
    lower[place, place] = 0.0
    with pytest.raises(NotEnclosed, match="ill-conditioned"):
        triangles.inverse_of(lower)
    lower[place, place] = 1e-320
    with pytest.raises(NotEnclosed, match="ill-conditioned"):
        triangles.inverse_of(lower)
    alone = np.eye(100)
    alone[place, place] = 1e-320
    with pytest.raises(NotEnclosed, match="ill-conditioned"):
        triangles.inverse_of(alone)
    if 0 < place < 99:  # what overflows is far from the first column
        alone[place, place], alone[place + 5, place] = 1e-200, 1e200
        with pytest.raises(NotEnclosed, match="ill-conditioned"):
            triangles.inverse_of(alone)


def test_evidence_of_which_one_factor_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Square blocks of one side, not all zero."""
    proof: Any = SimpleNamespace(_spec={"participation": {}}, _dual={}, _strategy=SimpleNamespace(n=4))

    def made(*blocks: Any) -> Factor | None:
        pieces = [Piece(np.arange(len(block)), np.array(block)) for block in blocks]
        monkeypatch.setattr(dense_proof, "pieces_of", lambda *given: pieces or None)
        return DenseProof._evidence(proof)

    both = made(np.eye(2), 2 * np.eye(2))
    assert both is not None and both.blocks.tolist() == [np.eye(2).tolist(), (2 * np.eye(2)).tolist()]
    assert both.patterns.tolist() == [[0, 1], [0, 1]]
    assert made() is None and made(np.eye(2), np.eye(1)) is None and made(np.ones((2, 3))) is None
    with pytest.raises(CertificateError, match="all zero"):
        made(np.zeros((2, 2)))
