"""The migrations: an old database comes up to date with its jobs, a new one is what the migrations make."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from first_ledger import first_release

from factorize.api.jobs.database import REVISION, connect, read_revision, usable
from factorize.api.jobs.ledger import Ledger
from factorize.api.jobs.migrations import differences, open_database, upgrade
from factorize.errors import StoreUnavailable


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.sqlite"
    return request.getfixturevalue("postgres").database()


def test_a_database_of_the_first_release_is_brought_up_to_date_when_it_is_opened(url):
    first_release(url)
    if url.startswith("postgresql"):  # others may use it: the operator decides
        with pytest.raises(StoreUnavailable, match="version 1 .* run `factorize db upgrade`"):
            Ledger(url)
        engine = connect(url)
        upgrade(engine)
        engine.dispose()
    with Ledger(url) as ledger:
        job = ledger.get("d")
        assert job is not None and (job.attempts, job.deaths, job.seq) == (2, 0, 5)
        assert read_revision(ledger._engine) == REVISION and differences(ledger._engine) == []


@pytest.mark.parametrize("start", range(REVISION))
def test_the_migrations_make_the_tables_of_this_release_from_every_revision(url, start):
    engine = connect(url)
    assert upgrade(engine, target=start) == start
    assert bool(differences(engine)) == (start < REVISION)
    assert upgrade(engine) == REVISION == upgrade(engine)
    assert differences(engine) == []
    engine.dispose()


def test_a_new_database_is_what_the_migrations_make(url, request):
    engine = open_database(url)
    other = request.getfixturevalue("tmp_path") / "other.sqlite"
    migrated = connect(request.getfixturevalue("postgres").database() if "postgres" in url else f"sqlite:///{other}")
    upgrade(migrated)
    for table in ("schema_version", "alembic_version"):
        with engine.connect() as one, migrated.connect() as other:
            query = sa.text(f"SELECT * FROM {table}")
            assert one.execute(query).all() == other.execute(query).all()
    assert differences(engine) == []
    engine.dispose()
    migrated.dispose()


def test_a_failed_migration_leaves_the_old_schema(url, monkeypatch):
    from alembic import op

    first_release(url)
    old = connect(url)
    monkeypatch.setattr(op, "execute", lambda _: (_ for _ in ()).throw(OSError("the disk is full")))
    with pytest.raises(StoreUnavailable, match="disk is full"), usable(old):
        upgrade(old)
    engine = connect(url)
    assert read_revision(engine) == 1 and differences(engine) != []
    engine.dispose()


def test_tables_of_somebody_else_are_left_alone(url):
    engine = connect(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE jobs (title TEXT)")
    engine.dispose()
    with pytest.raises(StoreUnavailable, match="a table jobs that this service has not made"):
        open_database(url)
