"""The event loop that one dask client runs on, in a thread of its own; its end leaves no thread and no socket open.

dask's own loop thread outlives a client that could not connect, and tornado drops the socket of a connection that was
made in the moment in which its time was up. So the loop is ours, and closes whatever is still registered with it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from tornado.platform.asyncio import AsyncIOLoop

T = TypeVar("T")

_JOIN_SECONDS = 10.0


class ClientLoop:
    """A running loop. Safe for threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="dask client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return what it returns.

        Raises:
            CancelledError: the loop was closed meanwhile.
        """
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Cancel what runs, close every socket, end the thread. Closing twice is no error."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        sockets = AsyncIOLoop(asyncio_loop=self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_cancel_all())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            asyncio.set_event_loop(None)
            sockets.close(all_fds=True)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
