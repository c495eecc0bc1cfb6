"""The simulated database: SQLite in memory files, whose statements give way to others, fail, and lose their answers."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from sqlite3 import dbapi2
from typing import Any
from unittest import mock

from factorize.api.jobs import database as product

from .medium import Faults, request
from .world import EPOCH, Killed, Process, World

connect_directly = sqlite3.connect


class Database:
    """One file, and who writes to it now."""

    def __init__(self, world: World, faults: Faults, path: Path) -> None:
        self.world, self.faults, self.path, self.file = world, faults, path, path
        self.writer: Connection | None = None
        self.watching: sqlite3.Connection | None = None
        self.committed: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def look(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Ask for rows, outside of the simulation."""
        if self.watching is None:
            self.watching = connect_directly(self.file, isolation_level=None)
        return self.watching.execute(query, values).fetchall()

    def copy(self, target: Path) -> None:
        source, copy = connect_directly(self.file), connect_directly(target)
        source.backup(copy)
        source.close()
        copy.close()

    def close(self) -> None:
        if self.watching is not None:
            self.watching.close()
            self.watching = None

    def restore(self, copy: Path) -> None:
        """Put a copy in the file's place: a file of its own, so that SQLite remembers nothing of the one before."""
        self.close()
        self.file = self.file.with_suffix(".again" + self.file.suffix)
        shutil.copy(copy, self.file)


class Connection(sqlite3.Connection):
    """A connection of a simulated process."""

    database: Database
    process: Process
    task: Any = None

    def cursor(self, *_: Any) -> Any:
        return super().cursor(Cursor)

    def commit(self) -> None:
        if not self.in_transaction:
            return
        try:
            with _asked(self, "commit"):
                super().commit()
                self.database.committed()
        except sqlite3.OperationalError:
            self.rollback()
            raise
        finally:
            self._let_go()

    def rollback(self) -> None:
        super().rollback()
        self._let_go()

    def close(self) -> None:
        self._let_go()
        super().close()

    def _let_go(self) -> None:
        if self.database.writer is self:
            self.database.writer = None


class Cursor(sqlite3.Cursor):
    """A cursor whose transactions wait for each other on the simulated clock."""

    connection: Connection

    def execute(self, statement: str, *values: Any) -> Any:
        connection = self.connection
        if statement.startswith("BEGIN"):
            with _asked(connection, "begin"):
                if statement == "BEGIN IMMEDIATE":
                    end = connection.database.world.now + 30.0
                    while connection.database.writer is not None:
                        connection.database.world.park(0.003)
                        if connection.database.world.now > end:
                            raise sqlite3.OperationalError("database is locked")
                    connection.database.writer = connection
                return super().execute(statement, *values)
        with _asked(connection, "statement", quick=connection.database.writer is connection):
            return super().execute(statement, *values)


@contextmanager
def _asked(connection: Connection, name: str, *, quick: bool = False) -> Iterator[None]:
    database, process = connection.database, connection.process
    if not database.world.inside:
        yield
        return
    if not process.alive:
        raise Killed

    def error(effect: str) -> sqlite3.OperationalError:
        if not effect.endswith("-after") and connection.in_transaction:
            connection.rollback()
        words = {"conflict": "could not serialize access due to concurrent update", "full": "database or disk is full"}
        return sqlite3.OperationalError(words.get(effect.split("-")[0], "server closed the connection unexpectedly"))

    with request(database.faults, process, name, error, conditions=["database"], quick=quick):
        yield


@contextmanager
def connecting(database: Database) -> Iterator[None]:
    """Let whatever connects to SQLite have connections of this database, each for its process."""

    def connect(path: Any, *arguments: Any, **options: Any) -> Any:
        world = database.world
        file = database.file if str(path) == str(database.path) else path
        connection: Any = connect_directly(file, *arguments, factory=Connection, **options)
        connection.database = database
        connection.process = world.task.process
        connection.process.at_end.append(lambda: _end(connection))
        if database.faults.lasts("database"):
            connection.close()
            raise sqlite3.OperationalError("could not connect to server")
        seconds = lambda *_: (EPOCH + world.now + world.database_skew) / 86_400.0  # noqa: E731
        connection.create_function("julianday", -1, seconds)
        return connection

    with mock.patch.object(dbapi2, "connect", connect), mock.patch.object(sqlite3, "connect", connect):
        yield


_shared: dict[str, Any] = {}


@contextmanager
def compiling_once() -> Iterator[None]:
    """Let all engines share what SQLAlchemy has compiled: a process that starts again would spend most of its time on it."""
    plain = product._connect

    def connect(url: str) -> Any:
        engine = plain(url)
        engine.dialect, engine._compiled_cache = _shared.setdefault(
            "compiled", (engine.dialect, engine._compiled_cache)
        )
        return engine

    with mock.patch.object(product, "_connect", connect):
        yield


def _end(connection: Connection) -> None:
    with suppress(sqlite3.Error):
        connection.rollback()
        connection.close()
