"""What a solve says of where it is, in order, and what people read of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from specs import spec_of

from factorize import solvers
from factorize.api.proof import inspect
from factorize.api.stages import Stages
from factorize.api.terminal.progress import progress_of
from factorize.api.terminal.text import state_text
from factorize.solution import PHASES, Progress
from factorize.storage.store import open_store


@pytest.mark.parametrize(
    ("mechanism", "phases"),
    [
        ("dense", ["refine", "certify", "prove", "store"]),
        ("square_root", ["refine", "bound", "certify", "prove", "store"]),
    ],
)
def test_a_solve_names_its_phases_in_order(tmp_path: Path, mechanism: str, phases: list[str]) -> None:
    seen: list[Progress] = []
    store = open_store(tmp_path)
    proof = partial(inspect, store=store.url, strict=False)
    stages = Stages(seen.append, lambda path: {k: proof(path)[k] for k in ("digest", "sha256")})
    store.put(solvers.solve(spec_of(9, mechanism), progress=stages.step), check=stages.check)
    assert list(dict.fromkeys(step.phase for step in seen)) == phases
    assert [step.seconds for step in seen] == sorted(step.seconds for step in seen)
    assert all(step.seconds_left is None or step.seconds_left > 0 for step in seen)


def test_a_coarse_grid_is_named_and_comes_first() -> None:
    seen: list[Progress] = []
    spec = spec_of(4097, {"kind": "toeplitz"})
    solvers.solve(spec, progress=seen.append, evidence=False)
    phases = [step.phase for step in seen]
    assert list(dict.fromkeys(phases)) == ["coarse grid", "refine", "certify"]


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(3, 0.5, None, 1.0), "gap 5.00e-01"),
        (Progress(3, None, 0.25, 1.0, "refine", 12.4), "gap within its class 2.50e-01, about 12 s left"),
        (Progress(3, 0.5, None, 1.0, "coarse grid"), "on a coarse grid, gap 5.00e-01 there"),
        (Progress(3, None, None, 1.0, "bound"), "searching a lower bound, no gap yet of that search"),
        (Progress(3, 0.5, None, 1.0, "certify", 0.2), "certifying, about 1 s left"),
        (Progress(3, 0.5, None, 1.0, "prove"), "proving the written bytes"),
        (Progress(3, 0.5, None, 1.0, "store"), "storing"),
    ],
)
def test_people_read_the_phase_and_whose_gap_it_is(progress: Progress, text: str) -> None:
    assert state_text(progress) == text and progress.phase in PHASES


def test_what_a_service_of_an_earlier_release_says_is_read_too() -> None:
    assert progress_of({"iteration": 2, "relative_gap": 0.5, "class_gap": None, "seconds": 1.0}) == Progress(
        2, 0.5, None, 1.0
    )
