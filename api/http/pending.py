"""Pending answers: what a worker is working out for callers that may have left, by the digest of the question.

A client that waits for an answer gets it as soon as it is there. One that would wait too long gets 202 with the address
of the answer, and the work goes on while somebody looks at that address. Each service has its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from threading import Event
from typing import Any

from fastapi import Request

WAIT_SECONDS = 45.0
"""How long a client waits that does not say: proxies cut off after 60 s."""
IDLE_SECONDS = 120.0
"""After which an answer that nobody has looked for is given up, or forgotten where it is a refusal."""
LOOK_SECONDS = 0.2
"""Between two looks at whether a client is still there."""

Document = dict[str, Any]
Work = Callable[[Event, Callable[[Document], object]], Awaitable[bytes]]
"""Works an answer out; gets what stops it and what is told of its progress."""


class PendingAnswer:
    """One answer, worked out once for all who wait for it.

    Args:
        work: see `Work`.
    """

    def __init__(self, work: Work) -> None:
        self.stop = Event()
        self.progress: Document | None = None
        self.task = asyncio.ensure_future(work(self.stop, self._tell))
        self.task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # somebody may look later
        self.waiting = 0
        self.looked = asyncio.get_running_loop().time()

    def _tell(self, progress: Document) -> None:
        self.progress = progress

    async def wait(self, request: Request, seconds: float) -> bytes | None:
        """Return the answer, or None where it takes longer than the client wants to wait.

        Raises:
            FactorizeError, ProblemAnswer: there is none.
        """
        loop = asyncio.get_running_loop()
        end, here = loop.time() + seconds, True
        self.waiting += 1
        try:
            while here and not self.task.done() and loop.time() < end:
                await asyncio.wait({self.task}, timeout=min(LOOK_SECONDS, max(0.0, end - loop.time())))
                here = not await request.is_disconnected()
        finally:
            self.waiting -= 1
            self.looked = loop.time()
        if self.task.done():
            return self.task.result()
        if not here and not self.waiting:
            self.stop.set()
        return None


class PendingAnswers:
    """The pending answers of one service; for one event loop."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, str], PendingAnswer] = {}

    def start(self, owner: str, digest: str, work: Work) -> PendingAnswer:
        """Return the pending answer to a caller's question, begun where there is none."""
        found = self._pending.get((owner, digest))
        if found is None or found.stop.is_set() or found.task.done():
            found = self._pending[owner, digest] = PendingAnswer(work)
            self._look_later(owner, digest, found)
        return found

    def find(self, owner: str, digest: str) -> PendingAnswer | None:
        """Return the pending answer to a caller's question, or None."""
        return self._pending.get((owner, digest))

    async def close(self) -> None:
        """Stop all work and wait for its ends."""
        pending = list(self._pending.values())
        for one in pending:
            one.stop.set()
        await asyncio.gather(*(one.task for one in pending), return_exceptions=True)

    def _look_later(self, owner: str, digest: str, pending: PendingAnswer) -> None:
        loop = asyncio.get_running_loop()

        def look() -> None:
            idle = not pending.waiting and loop.time() - pending.looked >= IDLE_SECONDS
            if idle:
                pending.stop.set()
            if self._pending.get((owner, digest)) is pending:
                if idle:
                    del self._pending[owner, digest]
                else:
                    self._look_later(owner, digest, pending)

        loop.call_later(IDLE_SECONDS / 4, look)
