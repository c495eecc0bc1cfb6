"""The engine's connection to its scheduler, and its renewal."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client

    from factorize.api.jobs.dask_cluster import Embedded, SchedulerClient, WorkerLoad

_log = logging.getLogger(__name__)


class Link:
    """A dask client that is replaced when its scheduler is lost."""

    def __init__(self, where: Embedded | str, listen: Callable[[dict[str, Any]], None]) -> None:
        """Connect. A scheduler that does not answer is no error; ``look_after`` tries again.

        Args:
            where: the cluster in this process, or the address of a scheduler.
            listen: called with each event of a running solve, in a thread of dask's; must not block.
        """
        self.unreadable = ""
        """Why what answers is no scheduler that this release understands; nothing where none answers, or one does."""
        self._connection: SchedulerClient | None = None
        self._where = where
        self._listen = listen
        self._rounds_without = 0
        self._closing: list[threading.Thread] = []
        self._connect()

    @property
    def client(self) -> Client | None:
        """The present client; None where no scheduler answered."""
        connection = self._connection
        return connection.client if connection is not None else None

    @property
    def up(self) -> bool:
        """True while the scheduler answers."""
        connection = self._connection
        return connection is not None and connection.up

    def capacity(self) -> tuple[int, int] | None:
        """Memory and processors of the largest worker; None while no worker is known."""
        from factorize.api.jobs import dask_cluster

        client = self.client
        return dask_cluster.capacity(client) if client is not None and self.up else None

    def worker_loads(self) -> list[WorkerLoad]:
        """Return what each worker does."""
        from factorize.api.jobs import dask_cluster

        client = self.client
        return dask_cluster.worker_loads(client) if client is not None and self.up else []

    def other_workers(self) -> list[str]:
        """Return a sentence for each worker of another release."""
        from factorize.api.jobs import dask_cluster

        client = self.client
        return dask_cluster.other_workers(client) if client is not None and self.up else []

    def look_after(self) -> bool:
        """Replace a client that was without its scheduler for two rounds: it would not come back in time.

        Returns:
            True if the client was replaced, so that its futures mean nothing any more.
        """
        self._rounds_without = 0 if self.up else self._rounds_without + 1
        if self.client is not None and self._rounds_without < 2:
            return False
        self._connect()
        return True

    def close(self) -> None:
        """Disconnect, and wait until the connections that were replaced are closed too."""
        if self._connection is not None:
            self._connection.close()
        for closing in self._closing:
            closing.join()

    def _connect(self) -> None:
        from factorize.api.jobs import dask_cluster

        old, self._connection = self._connection, None
        if old is not None:  # closing waits for the scheduler that is gone
            closing = threading.Thread(target=old.close, name="dask client closing", daemon=True)
            closing.start()
            self._closing = [*(thread for thread in self._closing if thread.is_alive()), closing]
        try:
            self._connection = dask_cluster.SchedulerClient(self._where, self._listen)
            self._rounds_without, self.unreadable = 0, ""
        except OSError as error:
            self.unreadable = str(error) if isinstance(error, dask_cluster.UnreadableScheduler) else ""
            _log.warning("no scheduler answers at %s (%s); trying again", self._where, error)
