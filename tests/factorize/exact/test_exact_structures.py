"""What structures of C say of themselves to the exact checker: limits of work, entries and signs, at their ends."""

from __future__ import annotations

from typing import Any

import numpy as np

from factorize.exact.strategy import Strategy
from factorize.exact.structures import base, dense
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
