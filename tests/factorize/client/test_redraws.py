"""Streaming strategies that make draws of earlier epochs again: how near they come to the optimum, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from specs import spec_of

from factorize import parse_spec, solvers
from factorize.errors import UnsupportedProblem


def redrawn(epochs: int, length: int, buffers: int, redraws: int | None) -> Any:
    mechanism = {"kind": "buffered_linear", "buffers": buffers} | ({} if redraws is None else {"redraws": redraws})
    return spec_of(epochs * length, mechanism, epochs)


def test_two_states_with_redraws_come_near_the_optimum() -> None:
    with_redraws, without = (solvers.solve(redrawn(3, 24, 2, redraws)).certificate for redraws in (None, 0))
    assert with_redraws.relative_gap is not None and without.relative_gap is not None
    assert with_redraws.relative_gap < 2.5e-3 < 2.5e-2 < without.relative_gap
    assert with_redraws.sensitivity.kind == "exact"


def test_one_redraw_helps_less_than_all() -> None:
    none, one, three = (solvers.solve(redrawn(4, 16, 2, redraws)).certificate.loss.objective for redraws in (0, 1, 3))
    assert none > one > three


@pytest.mark.parametrize(
    ("epochs", "length", "buffers", "redraws", "message"),
    [
        (4, 16, 2, 4, "redraws=4 exceeds the 3 returns that 4 epochs have; use at most 3"),
        (4, 4, 4, 1, "buffers=4 is not below the 4 steps of an epoch"),
    ],
)
def test_what_cannot_be_asked_for(epochs: int, length: int, buffers: int, redraws: int, message: str) -> None:
    with pytest.raises(UnsupportedProblem, match=message):
        solvers.solve(redrawn(epochs, length, buffers, redraws))


def test_redraws_need_steps_that_return() -> None:
    single = {"workload": {"kind": "prefix", "n": 64}, "participation": {"kind": "single"}}
    with pytest.raises(UnsupportedProblem, match="redraws=1 needs fixed_epochs.*leave redraws out"):
        solvers.solve(parse_spec({**single, "mechanism": {"kind": "buffered_linear", "buffers": 2, "redraws": 1}}))
