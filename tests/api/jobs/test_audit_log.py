"""The audit log: every change is seen, a change and its row stand or fall together, and writers take turns."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from audit_rows import rows_of
from command_line import ROOT, CommandLine

from factorize.api.jobs import audit_log
from factorize.api.jobs.audit_log import BEGINNING, AuditLog, ChainHead, add_row, read_head, verify_log
from factorize.api.jobs.database import writing
from factorize.api.jobs.ledger import Ledger
from factorize.errors import CorruptObject, InvalidParameter


def fill(engine: sa.Engine, rows: int = 4) -> None:
    for number in range(rows):
        AuditLog(engine).add("submission", actor="key:a", subject=f"{number:064x}", detail={"workload": "prefix"})


def change(engine: sa.Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


def test_the_hashes_are_those_of_the_page(database_url: str) -> None:
    """Recomputed here from the rows, as an auditor's own script would."""
    with Ledger(database_url) as ledger:
        fill(ledger.engine)
        before = BEGINNING
        for number, row in enumerate(rows_of(database_url), 1):
            digest = row.pop("hash")
            assert row["seq"] == number
            text = json.dumps({**row, "previous": before}, sort_keys=True, separators=(",", ":"))
            assert digest == hashlib.sha256(text.encode()).hexdigest()
            before = digest
        found = verify_log(ledger.engine)
        assert (found.rows, found.head) == (4, ChainHead(4, before))


CHANGES: dict[str, tuple[str, ...]] = {
    **{
        column: (f"UPDATE audit SET {column} = 'other' WHERE seq = 2",)
        for column in ("time", "event", "actor", "request_id", "subject", "hash")
    },
    "detail": ("""UPDATE audit SET detail = '{"workload":"matrix"}' WHERE seq = 2""",),
    "detail in other words": ("""UPDATE audit SET detail = '{"workload": "prefix"}' WHERE seq = 2""",),
    "detail that is none": ("UPDATE audit SET detail = '{' WHERE seq = 2",),
    "take out": ("DELETE FROM audit WHERE seq = 2",),
    "take out the first": ("DELETE FROM audit WHERE seq = 1",),
    "close the gap": ("DELETE FROM audit WHERE seq = 2", "UPDATE audit SET seq = seq - 1 WHERE seq > 2"),
    "swap": (
        "UPDATE audit SET seq = 9 WHERE seq = 2",
        "UPDATE audit SET seq = 2 WHERE seq = 3",
        "UPDATE audit SET seq = 3 WHERE seq = 9",
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_whatever_is_changed_is_seen(kind: str, tmp_path: Path) -> None:
    with Ledger(f"sqlite:///{tmp_path}/jobs.sqlite") as ledger:
        fill(ledger.engine)
        change(ledger.engine, *CHANGES[kind])
        with pytest.raises(CorruptObject, match="of the audit log"):
            verify_log(ledger.engine)


def test_rows_cut_off_the_end_are_seen_by_a_head_written_down(database_url: str) -> None:
    with Ledger(database_url) as ledger:
        assert verify_log(ledger.engine, ChainHead()).expected is True
        fill(ledger.engine)
        head = verify_log(ledger.engine).head
        assert verify_log(ledger.engine, read_head(str(head))).expected is True
        change(ledger.engine, "DELETE FROM audit WHERE seq = 4")
        assert verify_log(ledger.engine).rows == 3
        assert verify_log(ledger.engine, head).expected is False
    with pytest.raises(InvalidParameter, match="SEQ:HASH"):
        read_head("1:xyz")


def test_a_change_that_is_undone_leaves_no_row(database_url: str) -> None:
    with Ledger(database_url) as ledger:
        with pytest.raises(ZeroDivisionError), writing(ledger.engine) as connection:
            add_row(connection, "upload", actor="key:a")
            raise ZeroDivisionError
        AuditLog(ledger.engine).add("upload", actor="key:b")
        assert [(row["seq"], row["actor"]) for row in rows_of(database_url)] == [(1, "key:b")]


WRITER = """
import sys
from factorize.api.jobs.audit_log import AuditLog
from factorize.api.jobs.ledger import Ledger
with Ledger(sys.argv[1]) as ledger:
    while True:
        AuditLog(ledger.engine).add("submission", actor="key:" + sys.argv[2], detail={"number": sys.argv[2]})
"""


def test_writers_that_are_killed_leave_a_whole_log(database_url: str) -> None:
    """Three processes write as fast as they can, and are killed wherever they are."""
    with Ledger(database_url) as ledger:
        writers = [subprocess.Popen([sys.executable, "-c", WRITER, database_url, name], cwd=ROOT) for name in "abc"]
        for count, writer in enumerate(writers, 1):
            while verify_log(ledger.engine).rows < 10 * count:
                assert writer.poll() is None
                time.sleep(0.05)
            writer.kill()
            writer.wait()
        AuditLog(ledger.engine).add("submission", actor="key:last")
        assert verify_log(ledger.engine).rows > 30


def test_refusals_are_counted_and_not_all_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(audit_log, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with Ledger(f"sqlite:///{tmp_path}/jobs.sqlite") as ledger:
        log = AuditLog(ledger.engine)
        for _ in range(1000):
            log.refuse("address:10.0.0.9", "401 not known")
        log.refuse("key:a", "429 too much")
        clock[0] += 61
        log.refuse("address:10.0.0.9", "401 not known")
        log.refuse("address:10.0.0.9", "401 not known")
        log.close()
        assert verify_log(ledger.engine).rows == 4
    rows = rows_of(tmp_path / "jobs.sqlite")
    found = [(row["actor"], row["detail"]["kind"][:3], row["detail"]["more_before"]) for row in rows]
    nine = "address:10.0.0.9"
    assert found == [(nine, "401", 0), ("key:a", "429", 0), (nine, "401", 999), (nine, "401", 1)]


def test_the_command_verifies(tmp_path: Path) -> None:
    factorize: Callable[..., Any] = CommandLine(tmp_path)
    store = tmp_path / "store"
    assert "there is no ledger" in factorize("audit", "verify", "--store", store).error(2)
    with Ledger(f"sqlite:///{store}/jobs.sqlite") as ledger:
        fill(ledger.engine)
        document = factorize("audit", "verify", "--store", store, "--output", "json").json()
        assert document["rows"] == 4
        assert "head" in factorize("audit", "verify", "--store", store, "--expect", document["head"]).out
        change(ledger.engine, "DELETE FROM audit WHERE seq = 4")
        cut = factorize("audit", "verify", "--database", f"sqlite:///{store}/jobs.sqlite", "--expect", document["head"])
        assert "cut off" in cut.error(4)
        change(ledger.engine, "UPDATE audit SET actor = 'key:b' WHERE seq = 1")
        assert "row 1 of the audit log" in factorize("audit", "verify", "--store", store).error(4)
