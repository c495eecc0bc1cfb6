"""What structures of C say of themselves to the exact checker: limits of work, entries and signs, at their ends."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from factorize.errors import InvalidStrategy
from factorize.exact.arithmetic.integers import limbs
from factorize.exact.spec import program_of
from factorize.exact.strategy import Strategy
from factorize.exact.structures import base, buffered, dense, nu_toeplitz
from factorize.exact.structures.banded import BandedReading
from factorize.exact.structures.blt import BltReading

N = 4
BANDS = np.array([[1.0, 2.0, 1.0, 1.0], [0.5, 0.25, -1.0, 0.0]])
WHOLE = np.diag(BANDS[0]) + np.diag(BANDS[1, :3], -1)


def reading(structure: str, **parts: Any) -> Any:
    return Strategy(structure, {name.replace("whole", ""): np.array(part) for name, part in parts.items()}, N).reading


def test_patterns_of_long_matrices_are_afforded_up_to_a_limit() -> None:
    """n^2 times the steps is at most 2^30, and 2^32 where slices multiply; what is enclosed affords none."""
    stored, array = reading("banded", bands=BANDS), reading("dense", whole=WHOLE)
    for n, most, affords in ((1 << 15, 1, True), (1 << 14, 4, True), (1 << 14, 5, False), ((1 << 15) + 1, 1, False)):
        stored.n = array.n = n
        assert stored.affords_patterns(most) is affords
        assert array.affords_patterns(4 * most) is affords
    stored.n = 3
    assert stored.affords_patterns((1 << 30) // 9) is True and stored.affords_patterns((1 << 30) // 9 + 1) is False
    assert reading("blt", theta=[0.5], omega=[0.5]).affords_patterns(1) is False


def test_entries_that_are_stored_are_those_of_the_array() -> None:
    assert (reading("banded", bands=BANDS).doubles == WHOLE).all()
    array = np.tril(np.ones((N, N)))
    assert (reading("dense", whole=array).doubles == array).all()


def test_decays_as_buffers_of_two_states() -> None:
    """b <- a and a <- theta a: the same at every step, so stored once."""
    found = reading("blt", theta=[0.5, 0.25, 0.0], omega=[0.5, 0.125, 2.0]).buffers
    assert found.diagonal.tolist() == [1.0] * N
    assert found.transition.tolist() == [[[[t, 0.0], [1.0, 0.0]] for t in (0.5, 0.25, 0.0)]]
    assert found.inputs.tolist() == [[[1.0, 0.0]] * 3]
    assert found.outputs.tolist() == [[[0.0, w] for w in (0.5, 0.125, 2.0)]]


def test_a_structure_says_nothing_of_what_it_cannot_know() -> None:
    found = reading("blt", theta=[0.5], omega=[0.5])
    assert found.doubles is None and found.array is None and found.by_columns is None
    assert reading("banded", bands=BANDS).series is None and reading("banded", bands=BANDS).buffers is None
    assert BltReading.unit_diagonal and not BandedReading.unit_diagonal
    assert base.Reading.computed is False and dense.DenseReading.computed is False


def test_blocks_are_transposed_group_by_group() -> None:
    entries: Any = list(range(8))
    assert buffered._transposed(entries, 2, 2) == [0, 2, 1, 3, 4, 6, 5, 7]


def test_what_buffers_keep() -> None:
    one = np.full((1, 2), 0.5)
    parts = {"diagonal": np.ones(1), "decay": one, "input": one, "output": one}
    assert Strategy("buffered", parts, 1).reading.memory == (2, 0)


class TestArrays:
    STEEP = np.array([[1.0, 0, 0, 0], [0.5, 2, 0, 0], [0.25, 0.5, 2, 0], [0.125, 0.25, 0.5, 2]])

    def test_one_diagonal_that_is_not_constant(self) -> None:
        assert reading("dense", whole=self.STEEP).series is None
        assert reading("dense", whole=np.tril(np.ones((N, N)))).series is not None

    def test_what_is_stored(self) -> None:
        found = reading("dense", whole=self.STEEP)
        assert (found.array == self.STEEP).all() and found.diagonals(10**9) is None and found.bandwidth == N
        constant = reading("dense", whole=np.eye(N) + 0.5 * np.eye(N, k=-1))
        assert constant.diagonals(N * 2**2).tolist() == [[1.0] * N, [0.5] * (N - 1) + [0.0]]
        assert constant.diagonals(N * 2**2 - 1) is None

    def test_the_first_entry_above_the_diagonal(self) -> None:
        above = np.eye(N)
        above[1, 3] = 0.25
        with pytest.raises(InvalidStrategy, match=r"entry \(1, 3\) above the diagonal is 0\.25, not 0"):
            reading("dense", whole=above)

    @pytest.mark.parametrize(("row", "column"), [(0, 1), (0, 599), (255, 256), (256, 257), (10, 300), (598, 599)])
    def test_one_entry_above_the_diagonal_of_many_rows(self, row: int, column: int) -> None:
        above = np.eye(600)
        above[row, column] = 1e-300
        for also in (0.0, 2.0):
            above[599, :] = above[row, column + 1 :] = also
            with pytest.raises(
                InvalidStrategy, match=rf"entry \({row}, {column}\) above the diagonal is 1e-300, not 0"
            ):
                dense.DenseReading(above).check()

    def test_norms_of_columns_a_few_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Columns of very different sizes, each in a block of its own."""
        array = np.tril(np.random.default_rng(0).integers(1, 9, (N, N)) * 2.0 ** np.array([0, 40, -60, 7]))
        monkeypatch.setattr(dense, "_COLUMNS_AT_ONCE", 1)
        found = dense.norms_in_integers(array)
        wanted = [sum(Fraction(x) ** 2 for x in column) for column in array.T.tolist()]
        assert [found.fraction(int(value)) for value in found.values] == wanted and found.radius == 0

    def test_one_column_whose_bits_are_cut_makes_all_uncertain(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dense, "_COLUMNS_AT_ONCE", 1)
        monkeypatch.setattr(dense, "limbs", lambda array: limbs(array, 72))
        array = np.array([[1.0, 1.0, 3.0], [1.0, 2.0**-90, 4.0]])
        for order in ([0, 1, 2], [1, 2, 0]):
            found = dense.norms_in_integers(array[:, order])
            wanted = [sum(Fraction(x) ** 2 for x in column) for column in array[:, order].T.tolist()]
            off = [abs(found.fraction(int(value)) - true) for value, true in zip(found.values, wanted, strict=True)]
            assert 0 < max(off) <= found.fraction(found.radius)


class TestRenewals:
    def test_a_diagonal_of_ones(self) -> None:
        found = reading("inverse_banded_toeplitz", inverse_coefficients=[1.0, -0.5])
        assert found.diagonal.tolist() == [1.0]
        assert reading("blt", theta=[0.5], omega=[0.5]).diagonal.tolist() == [1.0]

    def test_how_many_states_are_followed(self) -> None:
        """One of the workload, one of x, and two that are kept: n (1 + 4) (1 + 2 * 4)."""
        found = reading("inverse_banded_toeplitz", inverse_coefficients=[1.0, 0.0, -0.5])
        program = program_of({"kind": "prefix", "n": N})
        assert program is not None
        for most, followed in ((N * 5 * 9, True), (N * 5 * 9 - 1, None)):
            assert found.variances(program, np.empty((2, N)), most) is followed


def test_means_of_damped_roots_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """nu = 1/2 in units of 1/1000: from 1000 and 866.03 the means are 933 and 930.6 below, 934 and 932.1 above."""
    monkeypatch.setattr(nu_toeplitz, "_ROOT_UNIT", 1000)
    assert nu_toeplitz._damped(Fraction(1, 2)) == (Fraction(1000, 934), Fraction(1000, 930))
    monkeypatch.setattr(nu_toeplitz, "_ROOT_UNIT", 10**6)  # the mean of 1 and the root of 0.0199 is 0.46797238
    assert nu_toeplitz._damped(Fraction(1, 100)) == (Fraction(10**6, 467974), Fraction(10**6, 467969))
    monkeypatch.setattr(nu_toeplitz, "_ROOT_UNIT", 16)
    assert nu_toeplitz._damped(Fraction(1, 2)) == (1, Fraction(16, 13))
