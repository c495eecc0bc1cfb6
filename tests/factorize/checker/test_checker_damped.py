"""Workloads that oscillate and are damped: intervals of their entries stay narrow over any number of steps."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from checker_files import parts, sealed
from specs import solved, spec_of

from factorize.checker import check_factor_file
from factorize.checker.spec import program_of, workload_numbers
from factorize.checker.spec.programs import X

COUPLED: dict[str, Any] = {"kind": "weight_decay", "rate": 0.5, "mode": "coupled", "momentum": 0.9}
SHRINKING = COUPLED | {"learning_rates": {"kind": "cosine_to_last", "final": 0.1}}


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


@pytest.mark.parametrize("workload", [COUPLED, SHRINKING])
def test_a_damped_oscillation_is_enclosed_over_many_steps(workload: dict[str, Any]) -> None:
    """Widths grow by up to 1.7 at each step, where the entries themselves do not grow."""
    document = canonical(workload, 300)
    numbers = workload_numbers(document, {})
    assert numbers is not None and numbers.fraction(numbers.radius) < Fraction(1, 2**180)
    for column in (0, 17):
        for i, exact in enumerate(in_fractions(document, column)):
            assert abs(numbers.fraction(int(numbers.values[i, column])) - exact) <= numbers.fraction(numbers.radius)


@pytest.mark.parametrize("mechanism", ["identity", "toeplitz", "dense"])
def test_right_claims_for_a_damped_oscillation_are_proved(mechanism: str) -> None:
    result = solved({"n": 300} | COUPLED, mechanism, {"kind": "fixed_epochs", "epochs": 4})
    assert check_factor_file(sealed(*parts(result))).supported
