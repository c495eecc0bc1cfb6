"""The migrations of the job ledger's schema, one file per revision, and how they are run and checked.

A new database gets the tables of this release. An SQLite file of an earlier release is brought up to date when it is
opened, since only this service uses it; a PostgreSQL database may serve others, so there the operator decides
(`factorize db upgrade`).
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from factorize.api.jobs.database import (
    REVISION,
    alembic_version,
    changing,
    connect,
    create_or_read,
    metadata,
    other_revision,
    read_revision,
    revision_in,
    usable,
)
from factorize.errors import StoreUnavailable

_FOLDER = str(Path(__file__).parent)
_COPIED = ("jobs", "access_keys", "holds", "uploads", "usage")


def open_database(url: str) -> sa.Engine:
    """Open a database with the schema of this release, and create the tables where there are none.

    Args:
        url: SQLAlchemy URL, `sqlite:////path/jobs.sqlite` or `postgresql+psycopg://...`.

    Raises:
        StoreUnavailable: the database cannot be opened, or has the schema of another release.
    """
    engine = connect(url)
    with usable(engine):
        found = create_or_read(engine)
        if found < REVISION and engine.dialect.name == "sqlite":
            found = upgrade(engine)
    if found != REVISION:
        engine.dispose()
        raise StoreUnavailable(other_revision(found))
    return engine


def upgrade(engine: sa.Engine, *, target: int = REVISION) -> int:
    """Bring a database to a revision, in one transaction, and return the revision that it has then.

    Args:
        engine: the database.
        target: the revision; a database that is there already, or beyond, is left as it is.

    Raises:
        StoreUnavailable: the database holds tables of the same names that are not ours.
    """
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", _FOLDER)
    config.set_main_option("version_locations", _FOLDER)
    config.set_main_option("path_separator", "newline")
    scripts = ScriptDirectory.from_config(config)
    with changing(engine) as connection:
        if _enter(connection) < target:
            environment = EnvironmentContext(
                config, scripts, fn=lambda current, _context: scripts._upgrade_revs(str(target), current)
            )
            with environment:
                environment.configure(connection=connection, target_metadata=metadata)
                environment.run_migrations()
    return read_revision(engine)


def _enter(connection: sa.Connection) -> int:
    """Return the revision that a transaction sees; one from before the migrations is entered where alembic looks."""
    found = revision_in(connection)
    if found and not sa.inspect(connection).has_table(alembic_version.name):
        alembic_version.create(connection)
        connection.execute(alembic_version.insert().values(version_num=str(found)))
    return found


def copy_ledger(engine: sa.Engine, to: Path) -> int:
    """Copy a ledger of any revision, as it is at one moment, into a new SQLite file; how many jobs it has.

    Engines are not copied: a service that is started on the copy takes up every open job.
    """
    found = read_revision(engine)
    copy = connect(f"sqlite:///{to}")
    try:
        upgrade(copy, target=found)
        snapshot = {"isolation_level": "REPEATABLE READ"} if engine.dialect.name == "postgresql" else {}
        with engine.connect().execution_options(**snapshot) as source, copy.begin() as target:
            there = sa.MetaData()
            there.reflect(source, only=lambda name, _: name in _COPIED)
            return {table.name: _copy_rows(table, source, target) for table in there.sorted_tables}["jobs"]
    finally:
        copy.dispose()


def _copy_rows(table: sa.Table, source: sa.Connection, target: sa.Connection) -> int:
    count = 0
    for part in source.execute(sa.select(table)).mappings().partitions(1000):
        target.execute(table.insert(), [dict(row) for row in part])
        count += len(part)
    return count


def differences(engine: sa.Engine) -> list[str]:
    """Return what the tables of a database have and those of this release have not, or the other way round."""
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "version_table": "-"})
        return [str(entry) for entry in compare_metadata(context, metadata)]
