"""The service's tables, and how a database that holds them is reached."""

import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from factorize.errors import MissingExtra, StoreUnavailable, extras_named

FIRST_VERSION = 5
"""The oldest version of the tables that is brought up to date."""
SCHEMA_VERSION = 7
"""The version of the tables below, which only grow: a release adds tables, indexes, and columns that may be empty or
have a default in the database (`server_default`). It opens the databases of earlier releases, from the first one on."""
_POSTGRES = {
    "connect_timeout": 5,
    "application_name": "factorize",
    # A statement takes milliseconds; one that takes longer waits for a lock whose holder is gone or stopped.
    "options": "-c statement_timeout=30000 -c lock_timeout=20000 -c idle_in_transaction_session_timeout=60000",
}
NETWORK_FILE_SYSTEMS = frozenset("nfs nfs4 cifs smb3 smbfs afs ceph lustre glusterfs fuse.glusterfs fuse.sshfs".split())
"""The kinds of mounts on which SQLite's write-ahead log does not work (sqlite.org/wal.html)."""
_BUSY_SECONDS = 30  # a connection to SQLite waits this long for others
_CREATION_LOCK = 0x666163746F72  # the name of the lock under which PostgreSQL's tables are created
_TURN_LOCK = 0x6175646974  # the name of the lock under which its transactions take turns

LISTED, KEPT, REVOKED = "listed", "kept", "revoked"
"""The standings of a result: it answers its spec; it does not, as a form or a later answer; it was taken back."""

metadata = sa.MetaData()


def _columns(kind: Any, names: str, **more: Any) -> list[sa.Column[Any]]:
    """Return columns of a type, which always have a value unless something else is said."""
    return [sa.Column(name, kind, **{"nullable": False, **more}) for name in names.split()]


def _table_of_owners(name: str, key: str, *more: Any) -> sa.Table:
    """Return a table of what several callers may have each, by a digest of 64 hexadecimal digits, and since when."""
    digest, owner = _columns(sa.String(64), key, primary_key=True), _columns(sa.String(128), "owner", primary_key=True)
    return sa.Table(name, metadata, *digest, *owner, *more, *_columns(sa.Float, "since"))


jobs = sa.Table(
    "jobs",
    metadata,
    *_columns(sa.String(64), "spec_digest", primary_key=True),
    *_columns(sa.String(64), "workload owner request_id client_request_id"),
    *_columns(sa.Text, "spec"),
    *_columns(sa.Integer, "memory_mb threads attempts deaths"),
    *_columns(sa.Float, "seconds_limit lease"),
    *_columns(sa.BigInteger, "seq turn"),
    *_columns(sa.String(9), "state"),
    *_columns(sa.String(96), "task"),
    *_columns(sa.Text, "progress error", nullable=True),
    *_columns(sa.String(64), "digest", nullable=True),
    *_columns(sa.String(27), "submitted updated"),
    *_columns(sa.String(55), "traceparent"),
    *_columns(sa.String(128), "caller"),
    sa.Index("jobs_by_time", "submitted", "spec_digest"),
    sa.Index("jobs_by_state", "state", "submitted", "spec_digest"),
    sa.Index("jobs_by_workload", "workload", "submitted", "spec_digest"),
    sa.Index("jobs_by_turn", "state", "caller", "turn"),
)
schema = sa.Table("schema_version", metadata, *_columns(sa.Integer, "version"), *_columns(sa.BigInteger, "renewals"))
"""The table of one row, with the number of the tables' version, and how often leases were renewed."""
access_keys = sa.Table(
    "access_keys",
    metadata,
    *_columns(sa.String(12), "id", primary_key=True),
    *_columns(sa.String(64), "name scopes secret_sha256"),
    *_columns(sa.Float, "created expires"),
    *_columns(sa.Float, "revoked", nullable=True),
    *_columns(sa.BigInteger, "open_jobs core_seconds_per_day kept_bytes", nullable=True),
)
"""Keys by which callers are known: the sha256 of each secret, never the secret. Times are seconds since 1970."""
holds = _table_of_owners("holds", "spec_digest", sa.Index("holds_by_owner", "owner"))
"""Callers that have asked for a job: several may hold one."""
uploads = _table_of_owners("uploads", "sha256", *_columns(sa.BigInteger, "bytes"))
"""Callers that have sent a matrix."""
charges = sa.Table(
    "charges",
    metadata,
    *_columns(sa.String(128), "owner"),
    *_columns(sa.Float, "began core_seconds"),
    sa.Index("charges_by_owner", "owner", "began"),
)
"""Work that was begun for a caller, of the last two days."""
results = sa.Table(
    "results",
    metadata,
    *_columns(sa.String(64), "digest", primary_key=True),
    *_columns(sa.String(64), "spec_digest workload"),
    *_columns(sa.BigInteger, "bytes"),
    *_columns(sa.String(40), "created submitted"),
    *_columns(sa.String(64), "form", nullable=True),
    *_columns(sa.Text, "summary"),
    *_columns(sa.String(8), "standing"),
    sa.Index("results_by_time", "standing", "created", "spec_digest"),
    sa.Index("results_by_workload", "standing", "workload", "created", "spec_digest"),
    sa.Index("results_by_spec", "spec_digest"),
    sa.Index("results_by_form", "form"),
)
"""The catalog of the store's results (`factorize.api.catalog`); lost rows are made anew from the store."""
forms = _table_of_owners("forms", "digest", sa.Index("forms_by_owner", "owner"))
"""Callers that have had a further form of a result made."""
answers = sa.Table(
    "answers",
    metadata,
    *_columns(sa.String(128), "owner", primary_key=True),
    *_columns(sa.String(64), "digest", primary_key=True),
    *_columns(sa.Float, "told looked"),
    *_columns(sa.Text, "progress answer", nullable=True),
)
"""Long answers (`factorize.api.jobs.long_answers`): when their service last told of them, and when others looked."""
audit = sa.Table(
    "audit",
    metadata,
    *_columns(sa.BigInteger, "seq", primary_key=True, autoincrement=False),
    *_columns(sa.String(32), "time event"),
    *_columns(sa.String(128), "actor"),
    *_columns(sa.String(64), "request_id subject", nullable=True),
    *_columns(sa.Text, "detail"),
    *_columns(sa.String(64), "hash"),
)
"""The audit log (`factorize.api.jobs.audit_log`), which is only added to."""


def _connect(url: str | Path) -> sa.Engine:
    """Return the engine of a database, whatever is in it.

    An SQLite file is created with its folder, readable by its owner only, since specs reveal training plans.
    A transaction of a connection with the execution option `write` takes SQLite's write lock at its start.

    Raises:
        StoreUnavailable: the URL cannot be read, or the database cannot be reached.
    """
    try:
        parsed = sa.URL.create("sqlite", database=str(url)) if isinstance(url, Path) else sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise StoreUnavailable(
            "the job database's URL cannot be read; write it as sqlite:////path/jobs.sqlite or "
            "postgresql+psycopg://user@host/name"
        ) from error
    with _report_faults(parsed):
        if parsed.get_backend_name() != "sqlite":
            arguments = _POSTGRES if parsed.get_backend_name() == "postgresql" else {}
            return sa.create_engine(parsed, pool_pre_ping=True, pool_size=10, max_overflow=30, connect_args=arguments)
        _create_private(parsed.database)
        # The begin listener decides how a transaction starts.
        engine = sa.create_engine(parsed, connect_args={"timeout": _BUSY_SECONDS, "isolation_level": None})
    sa.event.listen(engine, "connect", _configure_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def having(search: str, text: sa.ColumnElement[str], *digests: sa.ColumnElement[Any]) -> list[sa.ColumnElement[bool]]:
    """Return the condition that each word of a search is in a text, or that a digest begins with it.

    Args:
        search: words, with spaces, commas and brackets between them; `n=64` is also what JSON says.
        text: a spec in one line, or as JSON.
        digests: digests of the spec, and of what answers it.
    """
    conditions = []
    for word in re.findall(r"[^\s,()\0]+", search):
        forms = dict.fromkeys((word, word.replace("=", '":'), word.replace("=", '":"')))
        inside = (text.icontains(form, autoescape=True) for form in forms)
        conditions.append(sa.or_(*inside, *(one.startswith(word.lower(), autoescape=True) for one in digests)))
    return conditions


def insert_into(engine: sa.Engine, table: sa.Table) -> Any:
    """Return an insert of the engine's own dialect, which can say what to do on a conflict."""
    return import_module(f"sqlalchemy.dialects.{engine.dialect.name}").insert(table)


def clock(engine: sa.Engine) -> sa.ColumnElement[float]:
    """Return the seconds by a database's own clock, as a part of a statement; their beginning is the database's."""
    if engine.dialect.name == "sqlite":
        return sa.func.julianday("now", type_=sa.Float) * 86_400.0
    return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Float)


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Give a connection.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    try:
        with engine.connect() as connection:
            yield connection
    except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        raise StoreUnavailable(f"the job database does not answer: {reason}; try again") from error


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Give a connection in a transaction that writes.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    with reading(engine) as connection, connection.execution_options(write=True).begin():
        yield connection


def take_turns(connection: sa.Connection) -> None:
    """Wait for other transactions that take turns, and have them wait for the end of this one.

    SQLite's transactions that write take turns anyway. Locks of rows in `jobs` and `access_keys` come before.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_TURN_LOCK)))


def open_database(url: str | Path) -> sa.Engine:
    """Open a database, create the tables where there are none, and bring those of an earlier release up to date.

    Args:
        url: SQLAlchemy URL, `sqlite:////path/jobs.sqlite` or `postgresql+psycopg://...`; or an SQLite file's path.

    Raises:
        StoreUnavailable: the database cannot be opened, or a later release wrote it.
    """
    engine = _connect(url)
    try:
        with _report_faults(engine.url):
            version = read_version(engine)
            if version < SCHEMA_VERSION:
                version = _bring_up_to_date(engine)
        if version != SCHEMA_VERSION:
            raise StoreUnavailable(other_version(version))
    except BaseException:
        engine.dispose()
        raise
    return engine


def _bring_up_to_date(engine: sa.Engine) -> int:
    """Create the tables, columns and indexes that are missing, unless somebody was faster, and return the version."""
    with engine.connect().execution_options(write=True) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
        version = _version_in(connection)
        if version and not FIRST_VERSION <= version < SCHEMA_VERSION:
            return version
        metadata.create_all(connection)
        for table in metadata.sorted_tables:
            present = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
            for column in (column for column in table.columns if column.name not in present):
                ddl = sa.schema.CreateColumn(column).compile(dialect=engine.dialect)
                connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {ddl}"))
            for index in table.indexes:
                index.create(connection, checkfirst=True)
        if version:
            connection.execute(schema.update().values(version=SCHEMA_VERSION))
        else:
            connection.execute(schema.insert().values(version=SCHEMA_VERSION, renewals=0))
        return SCHEMA_VERSION


def read_version(engine: sa.Engine) -> int:
    """Return the version of a database's tables, 0 where it is empty."""
    with engine.connect() as connection:
        return _version_in(connection)


def other_version(version: int) -> str:
    """Say that tables are not this release's, and what to do."""
    return (
        f"the job database has schema version {version}, but this release reads {FIRST_VERSION} to {SCHEMA_VERSION}; "
        "use the release that wrote it, or another database (the store keeps all factorizations)"
    )


def _version_in(connection: sa.Connection) -> int:
    """Return the version of the tables that a transaction sees, 0 where there are none.

    Raises:
        StoreUnavailable: there are tables of our names and no version.
    """
    tables = set(sa.inspect(connection).get_table_names())
    if schema.name in tables:
        return int(connection.scalar(sa.select(schema.c.version)) or 0)
    if strangers := tables & set(metadata.tables):
        raise StoreUnavailable(
            f"the database has a table {min(strangers)!r} that this service did not make; use another database"
        )
    return 0


@contextmanager
def _report_faults(url: sa.URL) -> Iterator[None]:
    name = url.database if url.get_backend_name() == "sqlite" else url.render_as_string()
    try:
        with extras_named(f"the job database {name}"):
            yield
    except MissingExtra:
        raise
    except (sa.exc.SQLAlchemyError, ImportError, OSError) as error:
        reason = getattr(error, "orig", None) or error
        raise StoreUnavailable(
            f"the job database {name} cannot be used: {reason}; check the path, its permissions and "
            "free space, or move a damaged file away (the store keeps all factorizations)"
        ) from error


def _create_private(database: str | None) -> None:
    if not database or database == ":memory:":
        raise StoreUnavailable(
            "the job database would be in memory, where each connection has one of its own; write "
            "sqlite:////path/jobs.sqlite"
        )
    path = Path(database)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_local(path.resolve())
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


def _check_local(path: Path) -> None:
    """Raise where a file is on another machine: SQLite's log of writes needs memory that all who open it share."""
    import psutil

    mounts = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    kind = next((mounts[str(folder)] for folder in path.parents if str(folder) in mounts), "")
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnavailable(
            f"the job database {path} would be on a network file system ({kind}), where SQLite can lose what was "
            "written; set `database` to a path on a disk of this machine, or to a PostgreSQL"
        )


def _configure_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    try:
        _write_ahead(connection)
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error:
        connection.close()  # the pool has not taken it yet
        raise


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Let the file keep a log of writes. SQLite refuses two that ask for it at once, and does not let them wait."""
    end = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY  # the low byte is the kind of an extended code
            if not busy or time.monotonic() > end:
                raise
            time.sleep(0.01)


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that first reads and then writes could not wait for another writer; take the lock at once.
    write = connection.get_execution_options().get("write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
