"""Workloads that oscillate and are damped: intervals of their entries stay narrow over any number of steps."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from exact_files import parts, sealed
from hypothesis import given
from hypothesis import strategies as st
from specs import solved, spec_of

from factorize.exact import check_factor_file
from factorize.exact.arithmetic.intervals import Interval
from factorize.exact.doubles.workload_rows import WorkloadRows
from factorize.exact.spec import program_of, programs, workload_numbers
from factorize.exact.spec.programs import X

COUPLED: dict[str, Any] = {"kind": "weight_decay", "rate": 0.5, "mode": "coupled", "momentum": 0.9}
SHRINKING = COUPLED | {"learning_rates": {"kind": "cosine", "final": 0.1}}


def canonical(workload: dict[str, Any], n: int) -> dict[str, Any]:
    found: dict[str, Any] = spec_of({"n": n} | workload, "identity").canonical().document()["workload"]
    return found


def in_fractions(document: dict[str, Any], column: int) -> list[Fraction]:
    """A column of A without any rounding."""
    program, held, found = program_of(document), dict[int, Fraction](), []
    assert program is not None
    for i in range(document["n"]):
        held[X] = Fraction(int(i == column))
        for target, terms in program.statements:
            held[target] = sum(
                (
                    (factor[i] if isinstance(factor, list) else factor) * held[source]
                    for source, factor in terms.items()
                    if source in held
                ),
                Fraction(0),
            )
        found.append(held[program.output])
    return found


@given(st.integers(-(10**9), 10**9), st.integers(0, 10**9), st.integers(0, 40))
def test_a_finer_unit_and_back_holds_the_same(low: int, width: int, places: int) -> None:
    interval = Interval(np.array([low], dtype=object), np.array([low + width], dtype=object))
    assert interval.finer(places).coarser(places) == interval
    coarse = interval.coarser(places)
    assert coarse.low[0] << places <= low and low + width <= coarse.high[0] << places
    assert (coarse.low[0] + 1) << places > low and (coarse.high[0] - 1) << places < low + width


@pytest.mark.parametrize("workload", [{"kind": "prefix"}, {"kind": "momentum", "momentum": 0.9}, COUPLED, SHRINKING])
@pytest.mark.parametrize("n", [1, 7, 200])
def test_lost_places_are_those_of_widths(workload: dict[str, Any], n: int) -> None:
    """By the widths themselves, with the largest factor of all steps."""
    program = program_of(canonical(workload, n))
    assert program is not None
    held = {target: Fraction(0) for target, _ in program.statements}
    for _ in range(n):
        for target, terms in program.statements:
            wide = {source: max(map(abs, f)) if isinstance(f, list) else abs(f) for source, f in terms.items()}
            held[target] = sum((f * held.get(source, Fraction(0)) + 1 for source, f in wide.items()), Fraction(0))
            held[target] = Fraction(-(-held[target].numerator * 2**20 // held[target].denominator), 2**20)
    widest = int(max(held.values()))
    assert abs(program.lost_places(n) - widest.bit_length()) <= 1


@pytest.mark.parametrize("workload", [COUPLED, SHRINKING])
def test_a_damped_oscillation_is_enclosed_over_many_steps(workload: dict[str, Any]) -> None:
    """Widths grow by up to 1.7 at each step, where the entries themselves do not grow."""
    document = canonical(workload, 300)
    numbers = workload_numbers(document, {})
    assert numbers is not None and numbers.fraction(numbers.radius) < Fraction(1, 2**180)
    for column in (0, 17):
        for i, exact in enumerate(in_fractions(document, column)):
            assert abs(numbers.fraction(int(numbers.values[i, column])) - exact) <= numbers.fraction(numbers.radius)


def test_a_damped_oscillation_is_near_in_doubles() -> None:
    document = canonical(COUPLED, 300)
    found = WorkloadRows(document, {}).row_block(299, 300)
    exact = in_fractions(document, 0)[::-1]
    for value, error, true in zip(found.values[0], found.errors[0], exact, strict=True):
        assert abs(Fraction(float(value)) - true) <= Fraction(float(error)) < Fraction(1, 2**50)


def test_what_would_take_too_long_stays_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(canonical(COUPLED, 300))
    assert program is not None
    taken = (program.lost_places(300) - programs._LOST_AT_MOST) * 300 * 300
    for longest, narrow in ((taken, True), (taken - 1, False)):
        monkeypatch.setattr(programs, "_LONGEST", longest)
        numbers = workload_numbers(canonical(COUPLED, 300), {})
        assert numbers is not None and (numbers.fraction(numbers.radius) < Fraction(1, 2**80)) == narrow


@pytest.mark.parametrize("mechanism", ["identity", "toeplitz", "dense"])
def test_right_claims_for_a_damped_oscillation_are_proved(mechanism: str) -> None:
    result = solved({"n": 300} | COUPLED, mechanism, {"kind": "fixed_epochs", "epochs": 4})
    assert check_factor_file(sealed(*parts(result))).supported
