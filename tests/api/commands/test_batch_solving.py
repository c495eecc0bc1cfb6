"""Lanes: results that are proved and published, and what a crash, a refusal and an end in the middle leave."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from specs import document_of, solved

from factorize.api.commands.batch_report import COLUMNS, Item, check_path, write_report
from factorize.api.commands.batch_solving import LocalLanes, solve_all
from factorize.api.local import choose
from factorize.api.terminal.progress import Display
from factorize.api.workers.worker import SOLVER
from factorize.errors import FactorizeError, InvalidParameter, LimitExceeded, NotFound
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


def test_reports_have_a_row_for_each_spec(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    manifest = store.put(solved(4, "identity"))
    none = dict.fromkeys(("spec_digest", "digest"))
    bad = {"label": "line 2", "state": "bad", **none, "error": {"type": "x", "detail": 'not, "this"'}}
    good = {"label": "line 1", "state": "solved", "spec_digest": "a", "digest": manifest["digest"], "error": None}
    rows = [(good, manifest), (bad, None)]
    write_report(tmp_path / "r.csv", rows)
    write_report(tmp_path / "r.json", rows)
    write_report(tmp_path / "empty.json", [])
    with (tmp_path / "r.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert tuple(table[0]) == tuple(COLUMNS)
    assert float(table[0]["loss"]) == manifest["certificate"]["loss"]["objective"]
    assert float(table[0]["sensitivity"]) == manifest["certificate"]["sensitivity"]["value"]
    assert table[0]["objective"] == '{"kind": "mean"}'
    assert [row["error"] for row in table] == ["", 'not, "this"']
    documents = json.loads((tmp_path / "r.json").read_text())
    assert documents[0]["certificate"] == manifest["certificate"]
    assert documents[1] == bad
    assert json.loads((tmp_path / "empty.json").read_text()) == []


def test_reports_that_cannot_be_written_are_refused_before_anything_is_solved(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "r.xml", "must end in .csv or .json"),
        (tmp_path / "no" / "r.csv", "make it first"),
    ):
        with pytest.raises(InvalidParameter, match=words):
            check_path(path)
    assert issubclass(InvalidParameter, FactorizeError)
