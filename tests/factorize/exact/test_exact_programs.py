"""Programs: the forms that follow from one description of a workload are forms of the same matrix."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from cases import WORKLOADS
from specs import spec_of

from factorize.exact.spec import program_of, workload_numbers
from factorize.exact.spec.programs import Program, X

ONE = Fraction(1)
NAMES = [name for name, document in WORKLOADS.items() if document["kind"] not in ("window", "matrix")]


def document(name: str) -> dict[str, Any]:
    found = spec_of(WORKLOADS[name]).document()["workload"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_steps_make_the_rows(name: str) -> None:
    given = document(name)
    program, numbers = program_of(given), workload_numbers(given, {})
    assert program is not None and numbers is not None
    n, steps = given["n"], program.steps(given["n"])
    several = given.get("momentum") or given["kind"] == "srg" or given.get("output") in ("w", "x")
    assert (steps is None) == bool(several or given["kind"] == "identity" or not all(given.get("learning_rates", [1])))
    if steps is None:
        return
    row = [Fraction(0)] * n
    for i, (kept, added) in enumerate(steps):
        row = [kept * entry for entry in row]
        row[i] += added
        found = [numbers.fraction(value) for value in numbers.values[i]]
        radius = numbers.fraction(numbers.radius)
        assert all(abs(a - b) <= radius for a, b in zip(found, row, strict=True)) and radius < Fraction(1, 2**200)


def test_a_state_that_is_read_before_it_is_set_is_one_to_remember() -> None:
    """With coupled weight decay and no momentum, s_i = (1 - eta rate) s_{i-1} + eta x_i."""
    half, tenth = Fraction(1, 2), Fraction(1, 10)
    coupled = Program([(0, {0: Fraction(0), X: ONE, 1: -tenth}), (1, {1: ONE, 0: [half, ONE]})], 1)
    assert coupled.steps(2) == [(1 - half * tenth, half), (1 - tenth, ONE)]
    assert not coupled.constant and Program([(0, {0: ONE, X: ONE})], 0).constant
    two = Program([(0, {0: ONE, X: ONE}), (1, {1: ONE, 0: ONE})], 1)
    assert two.steps(2) is None and Program([], X).steps(2) is None
    assert Program([(0, {0: ONE, X: [ONE, Fraction(0)]})], 0).steps(2) is None


def test_a_factor_that_is_no_double_is_enclosed() -> None:
    """A third of a sum, and a state of nothing."""
    program = Program([(0, {0: ONE, X: ONE}), (1, {0: Fraction(1, 3)}), (2, {3: ONE})], 1)
    rows = list(program.rows(3, 2))
    for i, row in enumerate(rows):
        for j in range(2):
            true = Fraction(int(j <= i), 3)
            assert Fraction(int(row.low[j]), 2**256) <= true <= Fraction(int(row.high[j]), 2**256)
            assert row.high[j] - row.low[j] <= 1
    assert not any(np.any(row.high) for row in Program(program.statements, 2).rows(3, 2))
