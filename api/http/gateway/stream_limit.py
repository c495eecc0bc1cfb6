"""The limit of streams: so many events may each key, or each address without keys, follow at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from factorize.api.http.problems import ProblemAnswer

RETRY_SECONDS = 5


class StreamLimit:
    """The streams of one service; for one event loop.

    Args:
        most_each: streams of one key, or of one address.
    """

    def __init__(self, most_each: int) -> None:
        self._most_each = most_each
        self._open: Counter[str] = Counter()

    @contextmanager
    def held(self, owner: str) -> Iterator[None]:
        """Hold a place.

        Raises:
            ProblemAnswer: 429, all of this owner's are taken.
        """
        if self._open[owner] >= self._most_each:
            detail = (
                f"{self._most_each} streams of this key or address are open, the limit for each; close one, or ask for "
                "the job with Prefer: wait instead"
            )
            raise ProblemAnswer("busy", detail, headers={"Retry-After": str(RETRY_SECONDS)})
        self._open[owner] += 1
        try:
            yield
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]


class EventStream(StreamingResponse):
    """Server-sent events that hold a place of their owner while they are sent.

    Args:
        frames: the events.
        limit: gives the place.
    """

    def __init__(self, frames: AsyncIterator[bytes], limit: StreamLimit) -> None:
        super().__init__(frames, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, or raise where there is no place."""
        owner = getattr(scope["state"].get("caller"), "owner", "") or (scope.get("client") or ("",))[0]
        with self._limit.held(owner):
            await super().__call__(scope, receive, send)
