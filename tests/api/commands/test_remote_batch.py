"""A batch that a service solves: each spec once, few at a time, on from where it was, and reasons for what failed."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import LiveService, serving

from factorize import solvers
from factorize.api.commands import batch_solving
from factorize.api.commands.batch import batch
from factorize.api.commands.batch_report import Item
from factorize.api.commands.batch_solving import RemoteLanes, solve_all
from factorize.api.terminal.output import OutputForm
from factorize.client.service import Service
from factorize.errors import ServiceError, ServiceUnreachable
from factorize.spec import Spec, parse_spec


def small(n: int) -> dict[str, Any]:
    return {"workload": {"kind": "prefix", "n": n}, "mechanism": {"kind": "square_root"}}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    with serving(tmp_path_factory.mktemp("remote")) as live:
        yield live


def run(live: LiveService, lines: list[str], folder: Path, **more: Any) -> Any:
    (folder / "list.jsonl").write_text("\n".join(lines))
    document, _, *code = batch(folder / "list.jsonl", service=live.url, **more)
    return code[0], json.loads(json.dumps(document))


def test_a_list_is_solved_once_and_the_rest_is_said(live: LiveService, tmp_path: Path) -> None:
    values = [[2.0, 0.0], [1.0, 3.0]]
    own = {"workload": {"kind": "matrix", "rows": values}, "mechanism": {"kind": "identity"}}
    lines = [json.dumps(one) for one in (small(5), small(6), small(5), own)] + [
        "{",
        json.dumps({"workload": {"kind": "x"}}),
    ]
    before = live.solves()
    code, said = run(live, lines, tmp_path, dry_run=True)
    assert said["counts"]["to_solve"] == 3 and said["estimate"]["seconds"] > 0 and live.solves() == before
    table = tmp_path / "table.csv"
    code, said = run(live, lines, tmp_path, report=[table])
    assert code == 3
    assert [item["state"] for item in said["items"]] == ["solved", "solved", "duplicate", "solved", "bad", "bad"]
    assert live.solves() == before + 3
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [bool(row["rmse"]) for row in rows] == [True, True, True, True, False, False]
    squares = [1, 1 / 4, 9 / 64, 25 / 256, 1225 / 16384]  # of binomial(-1/2, j)
    assert float(rows[0]["sensitivity"]) == pytest.approx(sum(squares) ** 0.5)
    code, said = run(live, lines, tmp_path)  # once more, as after a kill
    assert [item["state"] for item in said["items"]][:4] == ["cached", "cached", "duplicate", "cached"]
    assert live.solves() == before + 3


def test_few_are_outstanding_and_every_end_is_told(live: LiveService) -> None:
    ends: dict[str, Any] = {}
    read = []

    def listed() -> Iterator[tuple[Item, Spec]]:
        for number in range(10):
            read.append(number - len(ends))
            yield Item(str(number), "to solve"), named(20 + number)

    told = lambda item, outcome, seconds: ends.update({item.label: outcome})  # noqa: E731
    solve_all(listed(), RemoteLanes(live.url, most=3), told)
    assert sorted(ends) == [str(number) for number in range(10)] and max(read) <= 3
    assert all(outcome["spec"]["workload"]["n"] == 20 + int(number) for number, outcome in ends.items())


def named(n: int) -> Spec:
    return solvers.choose(parse_spec(json.dumps(small(n))))


def test_what_may_come_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends_of(*answers: Any) -> list[Any]:
        left, ends = list(answers), []

        def answer(_service: Service, _asked: Any) -> Any:
            found = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(Service, "post", answer)
        monkeypatch.setattr(Service, "status", answer)
        told = lambda item, outcome, seconds: ends.append(outcome)  # noqa: E731
        solve_all([(Item("", "to solve"), named(4))], RemoteLanes("http://127.0.0.1:9"), told)
        return ends

    monkeypatch.setattr(batch_solving, "MAX_PAUSE_SECONDS", 0.01)
    queued = {"spec_digest": "ab", "state": "queued"}
    busy, away = ServiceError("busy", status=429), ServiceUnreachable("nothing answers")
    failed = queued | {"state": "failed", "error": {"type": "timeout", "message": "it took too long"}}
    assert "it took too long" in str(ends_of(busy, away, queued, busy, failed)[0])
    assert "was cancelled" in str(ends_of(queued | {"state": "cancelled"})[0])
    assert str(ends_of(ServiceError("no mechanism", status=422))[0]) == "no mechanism"
    assert str(ends_of(ServiceError("none left today", status=429, retry_after=9e4))[0]) == "none left today"
    forged = {"certificate": {}, "digest": "0" * 64, "spec_digest": "ab"}
    assert "CorruptObject" in type(ends_of(queued, forged)[0]).__name__
    monkeypatch.setattr(batch_solving, "PATIENCE_SECONDS", 0.05)
    with pytest.raises(ServiceUnreachable):
        ends_of(away)


def test_an_answer_to_another_spec_is_refused(live: LiveService, monkeypatch: pytest.MonkeyPatch) -> None:
    other, ends = Service(live.url).manifest(named(5)), []
    monkeypatch.setattr(Service, "post", lambda *_: other)
    told = lambda item, outcome, seconds: ends.append(outcome)  # noqa: E731
    solve_all([(Item("", "to solve"), named(4))], RemoteLanes(live.url), told)
    assert "answered a different spec" in str(ends[0])


def test_a_service_that_is_gone_leaves_the_rest_not_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_solving, "PATIENCE_SECONDS", 0.0)
    (tmp_path / "list.jsonl").write_text(json.dumps(small(4)))
    with pytest.raises(ServiceUnreachable):
        batch(tmp_path / "list.jsonl", service="http://127.0.0.1:9", output=OutputForm.JSON)
    assert json.loads(capsys.readouterr().out)["counts"]["not_reached"] == 1
