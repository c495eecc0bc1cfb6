"""Notices of changed jobs, which PostgreSQL sends to every service on one ledger as soon as they are committed.

One thread holds one connection that listens. While it is `up`, nobody needs to look again and again; when it breaks it
is renewed, and everybody looks once, since notices are not kept for who was away.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

import sqlalchemy as sa

CHANNEL = "factorize_jobs"
_LOOK_SECONDS = 0.5
_RENEW_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Notices:
    """Listens to the changes of a ledger on PostgreSQL.

    Args:
        engine: the database.
        changed: called with the spec digest of a job that has changed, or with None where any may have; in this
            thread, must not block for long.
    """

    def __init__(self, engine: sa.Engine, changed: Callable[[str | None], None]) -> None:
        self._engine = engine
        self._changed = changed
        self._ended = threading.Event()
        self._lost = False
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="factorize-notices", daemon=True)

    @property
    def up(self) -> bool:
        """True while changes are heard of."""
        return self._up.is_set()

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _listen(self) -> None:
        while not self._ended.is_set():
            try:
                with self._engine.connect() as connection:
                    self._hear(connection)
            except sa.exc.SQLAlchemyError as error:
                self._log_loss(error)
            except Exception as error:  # psycopg's own, from the connection below
                self._log_loss(error)
            self._up.clear()
            self._ended.wait(_RENEW_SECONDS)

    def _hear(self, connection: sa.Connection) -> None:
        raw = connection.connection.driver_connection
        assert raw is not None
        try:
            raw.autocommit = True
            raw.execute(f"LISTEN {CHANNEL}")
            self._up.set()
            self._lost = False
            self._changed(None)
            while not self._ended.is_set():
                for notice in raw.notifies(timeout=_LOOK_SECONDS):
                    self._changed(notice.payload)
                    if self._ended.is_set():
                        break
        finally:
            with suppress(Exception):
                connection.invalidate()  # it listens; nobody else may get it from the pool
            with suppress(Exception):
                raw.close()

    def _log_loss(self, error: Exception) -> None:
        """Say once that nothing is heard, until something was heard again."""
        if not self._ended.is_set() and not self._lost:
            self._lost = True
            _log.warning("the job database does not answer (%s); trying again", error)
