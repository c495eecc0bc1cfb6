"""What a solve says of where it is, in order, and what people read of it."""

from __future__ import annotations

import importlib
from pathlib import Path

import numba
import pytest
from specs import spec_of

from factorize import solvers
from factorize.api.local import obtain
from factorize.api.terminal.progress import state_text
from factorize.errors import Cancelled
from factorize.factors.solution import PHASES, Progress
from factorize.storage.store import open_store


@pytest.mark.parametrize(
    ("mechanism", "phases"),
    [
        ("dense", ["refine", "prove", "store"]),
        ("square_root", ["refine", "bound", "prove", "store"]),
    ],
)
def test_a_solve_names_its_phases_in_order(tmp_path: Path, mechanism: str, phases: list[str]) -> None:
    seen: list[Progress] = []
    store = open_store(tmp_path)
    obtain(spec_of(9, mechanism), store, progress=seen.append)
    assert list(dict.fromkeys(step.phase for step in seen if step.phase != "compile")) == phases
    assert [step.seconds for step in seen] == sorted(step.seconds for step in seen)
    assert all(step.seconds_left is None or step.seconds_left > 0 for step in seen)


def test_a_coarse_grid_is_named_and_comes_first() -> None:
    seen: list[Progress] = []
    spec = spec_of(4097, {"kind": "toeplitz"})
    solvers.solve(spec, progress=seen.append, evidence=False)
    phases = [step.phase for step in seen if step.phase != "compile"]
    assert list(dict.fromkeys(phases)) == ["coarse grid", "refine", "certify"]


@pytest.mark.parametrize("kernels", [1, 2])
def test_a_kernel_that_has_to_compile_is_a_phase_and_can_be_cancelled(kernels: int) -> None:
    importlib.import_module("factorize.numbers.kernel_compiler")  # as the first kernel does
    inner = numba.njit(lambda x: x + 1.0)
    outer = numba.njit(lambda x: inner(x) + 1.0)
    last = ["certify"] + kernels * ["compile"]
    phases: list[str] = []

    def report(step: Progress) -> None:
        phases.append(step.phase)
        assert step.phase != "compile" or step.seconds_left is None
        if step.phase == "certify":
            outer(1.0)
        elif phases[-len(last) :] == last:
            raise Cancelled("enough")

    with pytest.raises(Cancelled, match="enough"):
        solvers.solve(spec_of(9, "identity"), progress=report, evidence=False)
    assert phases[-len(last) :] == last and outer(1.0) == 3.0


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(3, 0.5, None, 1.0), "gap 5.00e-01"),
        (Progress(3, None, 0.25, 1.0, "refine", 12.4), "gap within its class 2.50e-01, about 12 s left"),
        (Progress(3, 0.5, None, 1.0, "coarse grid"), "on a coarse grid, gap 5.00e-01 there"),
        (Progress(0, None, None, 1.0, "compile"), "compiling, once on this machine"),
        (Progress(3, None, None, 1.0, "bound"), "searching a lower bound, no gap yet of that search"),
        (Progress(3, 0.5, None, 1.0, "certify", 0.2), "certifying, about 1 s left"),
        (Progress(3, 0.5, None, 1.0, "prove"), "proving the written bytes"),
        (Progress(3, 0.5, None, 1.0, "store"), "storing"),
    ],
)
def test_people_read_the_phase_and_whose_gap_it_is(progress: Progress, text: str) -> None:
    assert state_text(progress) == text and progress.phase in PHASES
