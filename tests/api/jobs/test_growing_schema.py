"""A database of an earlier release is brought up to date with all of its rows, and its tables only grow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from factorize.api.access.caller import Scope
from factorize.api.access.holdings import Holdings
from factorize.api.access.key_register import KeyRegister, KeyRequest
from factorize.api.jobs import database
from factorize.api.jobs.audit_log import AuditLog, verify_log
from factorize.api.jobs.ledger import Ledger
from factorize.api.jobs.solve_job import JobOrder
from factorize.errors import StoreUnavailable

DIGEST = "a" * 64


@pytest.fixture
def old(database_url: str) -> Iterator[sa.Engine]:
    """A database as the release with schema version 5 made it."""
    engine = database._connect(database_url)
    with engine.connect().execution_options(write=True) as connection, connection.begin():
        for statement in Path(__file__).with_name("schema_5.sql").read_text().split(";\n"):
            lines = [line for line in statement.splitlines() if not line.startswith("--")]
            if lines:
                connection.execute(sa.text("\n".join(lines)))
        connection.execute(database.schema.insert().values(version=5, renewals=7))
    yield engine
    engine.dispose()


def shape(engine: sa.Engine) -> dict[str, Any]:
    seen = sa.inspect(engine)
    return {
        table: (
            {c["name"]: (str(c["type"]), c["nullable"]) for c in seen.get_columns(table)},
            sorted(str(index["name"]) for index in seen.get_indexes(table)),
            seen.get_pk_constraint(table)["constrained_columns"],
        )
        for table in seen.get_table_names()
    }


def test_rows_of_an_earlier_release_are_kept(old: sa.Engine, database_url: str) -> None:
    with database.writing(old) as connection:
        connection.execute(database.results.insert().values(_result()))
    key, token = KeyRegister(old).create(KeyRequest(name="team", scopes=[Scope.SUBMIT]))
    log = AuditLog(old)
    log.add("configuration", actor="operator")
    log.close()
    old.dispose()

    def opened(_number: int) -> int:
        with Ledger(database_url) as ledger:
            return database.read_version(ledger.engine)

    with ThreadPoolExecutor(4) as threads:  # services that start at once
        assert set(threads.map(opened, range(4))) == {database.SCHEMA_VERSION}
    with Ledger(database_url) as ledger:
        kept = KeyRegister(ledger.engine).get(key.id)
        assert kept == key and token.is_of(kept.secret_sha256) and kept.state(time.time()) == "active"
        job, claimed = ledger.claim(JobOrder(DIGEST, "{}", "prefix", 100, 60.0, 2))
        assert claimed and ledger.get(DIGEST) == job
        assert verify_log(ledger.engine).head.seq == 2
        Holdings(ledger.engine).keep_form(kept.caller, DIGEST)
        with database.reading(ledger.engine) as connection:
            assert connection.execute(sa.select(database.results.c.digest)).scalars().all() == [DIGEST]
            assert connection.scalar(sa.select(database.schema.c.renewals)) == 7


def _result() -> dict[str, Any]:
    words = dict.fromkeys(("workload", "created", "submitted", "summary"), "x")
    return {**words, "digest": DIGEST, "spec_digest": DIGEST, "bytes": 1, "standing": "listed"}


def test_an_earlier_database_becomes_what_a_new_one_is(old: sa.Engine, database_url: str, tmp_path: Path) -> None:
    before = shape(old)
    with Ledger(database_url) as ledger:
        grown = shape(ledger.engine)
    for table, (columns, indexes, key) in before.items():
        now = grown[table]
        assert columns.items() <= now[0].items() and set(indexes) <= set(now[1]) and key == now[2]
    with old.connect().execution_options(write=True) as connection, connection.begin():
        database.metadata.drop_all(connection)
    with Ledger(database_url) as ledger:
        assert shape(ledger.engine) == grown


def test_a_column_that_a_later_release_adds_is_added(
    old: sa.Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = sa.MetaData()
    for table in database.metadata.sorted_tables:
        table.to_metadata(later)
    later.tables["jobs"].append_column(sa.Column("priority", sa.Integer, nullable=False, server_default="3"))
    sa.Index("jobs_by_priority", later.tables["jobs"].c.priority)
    with Ledger(database_url) as ledger:
        ledger.claim(JobOrder(DIGEST, "{}", "prefix", 100, 60.0, 2))
    monkeypatch.setattr(database, "metadata", later)
    monkeypatch.setattr(database, "SCHEMA_VERSION", database.SCHEMA_VERSION + 1)
    with Ledger(database_url) as ledger, database.reading(ledger.engine) as connection:
        assert connection.execute(sa.text("SELECT priority FROM jobs")).scalars().all() == [3]
        assert "jobs_by_priority" in shape(ledger.engine)["jobs"][1]


@pytest.mark.parametrize("version", [1, 4, 99])
def test_databases_before_the_first_version_and_of_later_releases_are_refused(
    old: sa.Engine, database_url: str, version: int
) -> None:
    with database.writing(old) as connection:
        connection.execute(database.schema.update().values(version=version))
    before = shape(old)
    with pytest.raises(StoreUnavailable, match=f"schema version {version}, but this release reads 5 to"):
        Ledger(database_url)
    assert shape(old) == before


def test_every_column_since_the_first_version_may_be_added(old: sa.Engine) -> None:
    before = shape(old)
    for table in database.metadata.sorted_tables:
        for column in table.columns:
            new = table.name in before and column.name not in before[table.name][0]
            assert not new or column.nullable or column.server_default is not None, f"{table.name}.{column.name}"


@pytest.mark.parametrize("kind", ["ext4", "nfs4", "cifs"])
def test_sqlite_is_refused_on_a_network_file_system(tmp_path, monkeypatch, kind):
    mounts = [SimpleNamespace(mountpoint="/", fstype="ext4"), SimpleNamespace(mountpoint=str(tmp_path), fstype=kind)]
    monkeypatch.setattr("psutil.disk_partitions", lambda **_: mounts)
    expected = (
        nullcontext() if kind == "ext4" else pytest.raises(StoreUnavailable, match=f"network file system .{kind}")
    )
    with expected:
        Ledger(f"sqlite:///{tmp_path}/jobs/jobs.sqlite").close()
