"""Listeners, coroutines that other threads wake: who follows which job."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from factorize.api.jobs.job import Job


class Listener:
    """One coroutine that waits for a change of a job. In its event loop only."""

    def __init__(self) -> None:
        """Nothing has changed yet."""
        self._changed = asyncio.Event()
        self._news: Job | None = None

    async def wait(self, seconds: float) -> None:
        """Wait for a change, or so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def take(self, after_seq: int) -> Job | None:
        """Return the job as it was last told, if that is newer; None where the ledger has to be asked."""
        self._changed.clear()
        news, self._news = self._news, None
        return news if news is not None and news.seq > after_seq else None

    def tell(self, job: Job | None) -> None:
        """Say that the job has changed, and to what, if that is known."""
        self._news = job
        self._changed.set()


class Listeners:
    """Coroutines that wait for a change of a job, in any number of event loops."""

    def __init__(self) -> None:
        """Nobody listens yet."""
        self._lock = threading.Lock()
        self._known: dict[str, set[tuple[asyncio.AbstractEventLoop, Listener]]] = {}

    @contextmanager
    def listen(self, name: str) -> Iterator[Listener]:
        """Give a listener that ``wake`` tells; whoever waits takes what it was told first. In a coroutine only."""
        listener = (asyncio.get_running_loop(), Listener())
        with self._lock:
            self._known.setdefault(name, set()).add(listener)
        try:
            yield listener[1]
        finally:
            with self._lock:
                self._known[name].discard(listener)
                if not self._known[name]:
                    del self._known[name]

    def wake(self, name: str, job: Job | None = None) -> None:
        """Wake all who listen to one job. From any thread.

        Args:
            name: the job's.
            job: what the ledger holds now, so that nobody has to read it.
        """
        with self._lock:
            listeners = list(self._known.get(name, ()))
        for loop, listener in listeners:
            with suppress(RuntimeError):  # that loop is closed, and nobody waits there any more
                loop.call_soon_threadsafe(listener.tell, job)

    def wake_all(self) -> None:
        """Wake everybody."""
        with self._lock:
            names = list(self._known)
        for name in names:
            self.wake(name)
