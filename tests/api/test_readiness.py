"""Readiness: what is missing has a name, found with real failures of the parts."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from issuer_server import issuing
from postgres_server import PostgresServer
from servers import serving

from factorize.api.jobs.dask_solves import DaskSolves
from factorize.api.jobs.ledger import Ledger
from factorize.api.jobs.one_solve import LocalSolves, Missing
from factorize.api.readiness import Readiness
from factorize.errors import StoreUnavailable
from factorize.storage.medium.bucket import Bucket, connect
from factorize.storage.medium.location import directory_of
from factorize.storage.store import Store, open_store

STATES = set(
    re.findall(r"^\| `([a-z-]+)`", (Path(__file__).parents[2] / "docs" / "operating.md").read_text(), re.MULTILINE)
)
"""Those that the page explains."""


@dataclass
class StandingEngine:
    """What readiness asks of an engine and of its solves, while other parts fail."""

    notes: list[Missing] = field(default_factory=list)
    writes: bool = True

    @property
    def solves(self) -> StandingEngine:
        return self

    def missing(self) -> list[Missing]:
        return self.notes


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = open_store(str(tmp_path / "store"))
    opened.check_format(create=True)
    return opened


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(f"sqlite:///{tmp_path}/jobs.sqlite") as opened:
        yield opened


def states(ledger: Ledger, store: Store, engine: Any = None) -> dict[str, str]:
    """The names of what is missing, each with its sentence."""
    readiness = Readiness(ledger, store, engine or StandingEngine())
    try:
        found = readiness.look(60)
    finally:
        readiness.close()
    assert all(one.state in STATES and one.detail for one in found)
    return {one.state: one.detail for one in found}


def test_nothing_is_missing(ledger: Ledger, store: Store) -> None:
    assert states(ledger, store) == {}
    assert not list((directory_of(store.url) / "tmp").iterdir())


def test_a_database_that_is_stopped_and_started(postgres: PostgresServer, store: Store) -> None:
    with Ledger(postgres.database()) as ledger:
        assert states(ledger, store) == {}
        postgres.kill()
        try:
            assert list(states(ledger, store)) == ["ledger-unreachable"]
        finally:
            postgres.start()
        assert states(ledger, store) == {}


def test_tables_of_another_release(ledger: Ledger, store: Store) -> None:
    with ledger.engine.begin() as connection:
        connection.execute(sa.text("UPDATE schema_version SET version = 99"))
    assert "the release that wrote it" in states(ledger, store)["ledger-other-release"]


def test_a_ledger_that_takes_no_writes(ledger: Ledger, store: Store) -> None:
    assert list(states(ledger, store, StandingEngine(writes=False))) == ["ledger-read-only"]


def test_a_folder_that_is_gone_or_takes_no_files(ledger: Ledger, store: Store, tmp_path: Path) -> None:
    temporary = tmp_path / "store" / "tmp"
    if temporary.exists():
        temporary.rmdir()
    temporary.write_text("in the way")
    assert list(states(ledger, store)) == ["store-unreachable"]
    shutil.rmtree(tmp_path / "store")
    assert list(states(ledger, store)) == ["store-gone"]


def test_a_bucket_that_is_gone_or_overwrites(ledger: Ledger, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = "s3://no-such-bucket/results"
    assert list(states(ledger, Store(connect(gone), gone))) == ["store-gone"]
    opened = open_store(bucket)
    opened.check_format(create=True)
    assert states(ledger, opened) == {}
    monkeypatch.setattr(Bucket, "create", lambda self, key, data: not self.write(key, data))
    assert list(states(ledger, opened)) == ["store-overwrites"]


@pytest.mark.parametrize(
    ("code", "state", "remedy"),
    [
        (b"AccessDenied", "store-forbidden", "check the credentials"),
        (b"RequestTimeTooSkewed", "store-clock", "set it, by NTP"),
    ],
)
def test_a_bucket_that_refuses_us_or_our_clock(
    ledger: Ledger, bucket: str, monkeypatch: pytest.MonkeyPatch, code: bytes, state: str, remedy: str
) -> None:
    with issuing() as refusing:  # in place of an S3 server
        refusing.answer = 403, {}, b"<Error><Code>" + code + b"</Code><Message>no</Message></Error>"
        monkeypatch.setenv("AWS_ENDPOINT_URL", refusing.url)
        opened = Store(connect(bucket.partition("?")[0]), bucket)
        assert remedy in states(ledger, opened)[state]


def test_a_part_that_is_silent_is_asked_once(ledger: Ledger, store: Store) -> None:
    asked, answer = [], threading.Event()

    class Silent(StandingEngine):
        def missing(self) -> list[Missing]:
            asked.append(1)
            answer.wait(600)
            return []

    readiness = Readiness(ledger, store, Silent())  # type: ignore[arg-type]
    try:
        for _ in range(3):
            assert [one.state for one in readiness.look(0.5) if one.check == "engine"] == ["scheduler-gone"]
        assert len(asked) == 1
        answer.set()
        assert readiness.look(60) == []
    finally:
        answer.set()
        readiness.close()


def test_what_an_engine_is_missing_is_handed_on(ledger: Ledger, store: Store) -> None:
    """Schedulers and workers that bring about the rest are in jobs/test_dask_solves.py and jobs/test_engine.py."""
    (gone,) = DaskSolves("tcp://10.0.0.5:8786", "store", print).missing()
    assert gone.state == "scheduler-gone" and "tcp://10.0.0.5:8786" in gone.detail
    (loading,) = LocalSolves(SimpleNamespace(loads=True), "store", print).missing()  # type: ignore[arg-type]
    rest = [Missing("engine", name, "why") for name in ("scheduler-unreadable", "other-worker", "no-workers")]
    notes = {one.state: one.detail for one in (gone, loading, *rest)}
    assert states(ledger, store, StandingEngine([gone, loading, *rest])) == notes and "loading" in notes


def test_over_http_notes_do_not_count_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path / "store") as live:
        other = Missing("engine", "other-worker", "the worker x is of factorize-0")
        monkeypatch.setattr(live.service.engine.solves, "missing", lambda: [other])
        document = live.get("/readyz").json()
        assert document["status"] == "ready" and document["missing"] == []
        assert document["notes"] == [asdict(other)]
        (tmp_path / "store" / "store.json").unlink()
        problem = live.get("/readyz").problem(503, "unavailable")
        assert problem["detail"] == "not ready: store (store-gone)" and problem["checks"]["store"] is False
        assert [one["state"] for one in problem["missing"]] == ["store-gone"]
        live.get(f"/v1/factorizations/{'0' * 64}").problem(503, "unavailable")  # nobody can know that nothing has it
        monkeypatch.setattr(live.service, "obtain", Mock(side_effect=StoreUnavailable("the disk of host-7 is full")))
        refused = live.post({"workload": {"kind": "prefix", "n": 4}}).problem(503, "unavailable")
        assert "Its log and /readyz say more" in refused["detail"] and "the disk of host-7 is full" in caplog.text
