"""Listeners, coroutines that other threads wake: who follows which job."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Listeners:
    """Coroutines that wait for a change of a job, in any number of event loops."""

    def __init__(self) -> None:
        """Nobody listens yet."""
        self._lock = threading.Lock()
        self._events: dict[str, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}

    @contextmanager
    def listen(self, name: str) -> Iterator[asyncio.Event]:
        """An event that ``wake`` sets; the caller clears it before it looks. In a coroutine only."""
        listener = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._events.setdefault(name, set()).add(listener)
        try:
            yield listener[1]
        finally:
            with self._lock:
                self._events[name].discard(listener)
                if not self._events[name]:
                    del self._events[name]

    def wake(self, name: str) -> None:
        """Wake all who listen to one job. From any thread."""
        with self._lock:
            listeners = list(self._events.get(name, ()))
        for loop, event in listeners:
            with suppress(RuntimeError):  # that loop is closed, and nobody waits there any more
                loop.call_soon_threadsafe(event.set)

    def wake_all(self) -> None:
        """Wake everybody."""
        with self._lock:
            names = list(self._events)
        for name in names:
            self.wake(name)
