"""Lanes: results that are proved and published, and what a crash, a refusal and an end in the middle leave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specs import document_of

from factorize.api.commands.batch_report import Item
from factorize.api.commands.batch_solving import LocalLanes, solve_all
from factorize.api.local import choose
from factorize.api.terminal.progress import Display
from factorize.errors import LimitExceeded, NotFound
from factorize.factors.solution import Progress
from factorize.spec import Spec, parse_spec
from factorize.storage.fsck import fsck
from factorize.storage.objects import STAGING
from factorize.storage.store import Store, open_store

MISSING = {"workload": {"kind": "matrix", "sha256": "0" * 64, "shape": [2, 2]}, "mechanism": {"kind": "dense"}}


def ends_of(
    store: Store, specs: dict[str, dict[str, Any]], display: Display, *, large: str = "", **options: Any
) -> dict[str, Any]:
    """What becomes of the specs of a batch, each by its label; one may be estimated as large."""
    ends: dict[str, Any] = {}

    def planned() -> Iterator[tuple[Item, Spec]]:
        for label, document in specs.items():
            seconds = 100.0 if label == large else 0.1
            yield Item(label, "to solve", seconds=seconds, bytes=1 << 20), choose(parse_spec(document))

    def end(item: Item, outcome: Any, _seconds: float) -> None:
        ends[item.label] = outcome

    solve_all(planned(), LocalLanes(store, display, **options), end)
    return ends


def test_a_crash_of_a_worker_costs_its_spec_alone(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    specs = {n: document_of(int(n), "identity") for n in "456"} | {"missing": MISSING}
    ends = ends_of(store, specs, Display(), processors=1, solver="crashing_solver")
    assert ends.keys() == specs.keys()
    assert isinstance(ends["5"], LimitExceeded)
    assert "the solver process was killed by SIGKILL" in str(ends["5"])
    assert isinstance(ends["missing"], NotFound)
    for n in "46":
        assert store.load(ends[n]["digest"]).shape("C") == (int(n), int(n))
        proof = ends[n]["files"][0]["proof"]
        assert proof["checked"] and proof["claims"], "another process has proved it"
    assert not list(store.objects.list(STAGING))
    assert fsck(store).clean


class Watched(Display):
    def __init__(self) -> None:
        super().__init__()
        self.labels: list[str] = []
        self.steps: list[Progress] = []

    def start(self, label: str) -> None:
        self.labels.append(label)

    def report(self, progress: Progress) -> None:
        self.steps.append(progress)


def test_a_large_spec_is_solved_with_all_threads_and_watched(tmp_path: Path) -> None:
    store, shown = open_store(tmp_path), Watched()
    specs = {n: document_of(int(n), "identity") for n in "456"}
    ends = ends_of(store, specs, shown, large="5", processors=2)
    assert {n: store.load(outcome["digest"]).shape("C")[0] for n, outcome in ends.items()} == {"4": 4, "5": 5, "6": 6}
    assert shown.labels == ["5"] and shown.steps[-1].phase == "store"
