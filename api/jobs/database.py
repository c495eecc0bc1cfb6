"""The service's tables, and how a database that holds them is opened."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import sqlalchemy as sa

from factorize.errors import StoreUnavailable

SCHEMA_VERSION = 1

metadata = sa.MetaData()
jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("spec_digest", sa.String(64), primary_key=True),
    sa.Column("workload", sa.String(64), nullable=False),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("memory_mb", sa.Integer, nullable=False),
    sa.Column("seconds_limit", sa.Float, nullable=False),
    sa.Column("threads", sa.Integer, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("state", sa.String(9), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("task", sa.String(96), nullable=False),
    sa.Column("progress", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("digest", sa.String(64)),
    sa.Column("submitted", sa.String(27), nullable=False),
    sa.Column("updated", sa.String(27), nullable=False),
    sa.Index("jobs_by_time", "submitted", "spec_digest"),
    sa.Index("jobs_by_state", "state"),
)
engines = sa.Table(
    "engines",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("started", sa.Float, nullable=False),
    sa.Column("beat", sa.BigInteger, nullable=False),
)
schema = sa.Table("schema_version", metadata, sa.Column("version", sa.Integer, nullable=False))


def open_database(url: str) -> sa.Engine:
    """Open a database and create the tables that it lacks.

    An SQLite file is created with its folder, readable by its owner only, since specs reveal training plans.
    A transaction of a connection with the execution option ``write`` takes SQLite's write lock at its start.

    Args:
        url: SQLAlchemy URL, ``sqlite:////path/jobs.sqlite`` or ``postgresql+psycopg://...``.

    Raises:
        StoreUnavailable: the database cannot be opened, or was written by another release.
    """
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise StoreUnavailable(
            "the job database's URL cannot be read; write it as sqlite:////path/jobs.sqlite"
        ) from error
    try:
        if parsed.get_backend_name() == "sqlite":
            _create_private(parsed.database)
            engine = sa.create_engine(parsed, connect_args={"timeout": 30})
            sa.event.listen(engine, "connect", _configure_sqlite)
            sa.event.listen(engine, "begin", _begin_sqlite)
        else:
            engine = sa.create_engine(parsed, pool_pre_ping=True)
        version = _create_schema(engine)
    except (sa.exc.SQLAlchemyError, ImportError, OSError) as error:
        reason = getattr(error, "orig", None) or error
        raise StoreUnavailable(
            f"the job database {parsed.render_as_string()} cannot be used: {reason}; check the path, its "
            "permissions and free space, or move a damaged file away: no factorization is lost with it"
        ) from error
    if version != SCHEMA_VERSION:
        engine.dispose()
        raise StoreUnavailable(
            f"the job database has schema version {version} and this release reads {SCHEMA_VERSION}; "
            "use the release that wrote it, or another database"
        )
    return engine


def _create_schema(engine: sa.Engine) -> int:
    with engine.connect().execution_options(write=True) as connection, connection.begin():
        metadata.create_all(connection)
        version = connection.scalar(sa.select(schema.c.version))
        if version is None:
            version = SCHEMA_VERSION
            connection.execute(schema.insert().values(version=version))
        return int(version)


def _create_private(database: str | None) -> None:
    if database and database != ":memory:":
        path = Path(database)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


def _configure_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # the begin listener decides how a transaction starts
    connection.execute("PRAGMA busy_timeout = 30000")
    if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that first reads and then writes could not wait for another writer; take the lock at once.
    write = connection.get_execution_options().get("write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
