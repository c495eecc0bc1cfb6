"""Lanes: results that are proved and published, and what a crash, a refusal and an end in the middle leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specs import document_of

from factorize.api.commands.batch_report import Item
from factorize.api.commands.batch_solving import LocalLanes, solve_all
from factorize.api.local import choose
from factorize.api.terminal.progress import Display
from factorize.api.workers.worker import SOLVER
from factorize.errors import LimitExceeded, NotFound
from factorize.solution import Progress
from factorize.spec import Spec, parse_spec
from factorize.storage.fsck import fsck
from factorize.storage.objects import STAGING
from factorize.storage.store import Store, open_store

MISSING = {"workload": {"kind": "matrix", "sha256": "0" * 64, "shape": [2, 2]}, "mechanism": {"kind": "dense"}}


def planned(document: dict[str, Any], number: int, *, seconds: float = 0.1) -> tuple[Item, Spec]:
    return Item(str(number), "to solve", seconds=seconds, bytes=1 << 20), choose(parse_spec(document))


def batch_of(store: Store, documents: list[dict[str, Any]], *, solver: str = SOLVER) -> dict[int, Any]:
    ended: dict[int, Any] = {}
    told = lambda item, outcome, seconds: ended.update({int(item.label): outcome})  # noqa: E731
    lanes = LocalLanes(store, Display(), processors=1, solver=solver)
    solve_all((planned(document, at) for at, document in enumerate(documents)), lanes, told)
    return ended


def test_a_crash_of_a_worker_costs_its_spec_alone(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    ended = batch_of(
        store,
        [document_of(4, "identity"), document_of(5, "identity"), MISSING, document_of(6, "identity")],
        solver="crashing_solver",
    )
    assert sorted(ended) == [0, 1, 2, 3]
    assert isinstance(ended[1], LimitExceeded)
    assert "the solver process was killed by SIGKILL" in str(ended[1])
    assert isinstance(ended[2], NotFound)
    for at, n in ((0, 4), (3, 6)):
        digest = ended[at]["digest"]
        assert store.load(digest).shape("C") == (n, n)
        proof = ended[at]["files"][0]["proof"]
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
    ended: dict[int, Any] = {}
    store, shown = open_store(tmp_path), Watched()
    specs = [planned(document_of(n, "identity"), n, seconds=100.0 if n == 5 else 0.1) for n in (4, 5, 6)]

    def told(item: Item, outcome: Any, _seconds: float) -> None:
        ended[int(item.label)] = outcome

    solve_all(specs, LocalLanes(store, shown, processors=2), told)
    assert {number: store.load(outcome["digest"]).shape("C")[0] for number, outcome in ended.items()} == {
        4: 4,
        5: 5,
        6: 6,
    }
    assert shown.labels == ["5"] and shown.steps[-1].phase == "store"
