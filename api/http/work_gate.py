"""The work gate: at most so much work at once for all callers and for each, and an honest 429 for more.

Requests that cost more than a look into memory take a place of their kind before they begin. Who finds no place waits
in line; who would wait too long, or holds more than a share of all that is at work, is told at once when to come back.
So many streams of events may each key, or each address without keys, follow at once.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass

from anyio import CapacityLimiter
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from factorize.api.http.access import Call
from factorize.api.http.problems import ProblemAnswer

_LONGEST_RETRY = 600
RETRY_SECONDS = 5


@dataclass(frozen=True)
class WorkKind:
    """One kind of work.

    Args:
        places: requests that are worked on at once.
        line: requests that may wait for a place.
        seconds: what one is taken to last, until some have been measured.
    """

    places: int
    line: int
    seconds: float


WORK_KINDS: Mapping[str, WorkKind] = {
    "spec": WorkKind(2, 64, 1.0),
    "rows": WorkKind(4, 1024, 0.05),
    "list": WorkKind(2, 128, 0.1),
    "question": WorkKind(2, 64, 0.2),
    "comparison": WorkKind(1, 8, 30.0),
    "calibration": WorkKind(1, 32, 5.0),
    "file": WorkKind(2, 32, 5.0),
}
"""Long specs, rows of matrices, pages of the list, predictions, comparisons, calibrations, further forms of a file."""


class WorkGate:
    """The places of one service; for one event loop.

    Args:
        most: requests at work at once, those in line included.
        most_each: those of one caller, and as many streams of events.
    """

    def __init__(self, most: int, most_each: int) -> None:
        self._most, self._most_each = most, most_each
        self._places = {name: CapacityLimiter(kind.places) for name, kind in WORK_KINDS.items()}
        self._means = {name: kind.seconds for name, kind in WORK_KINDS.items()}
        self._held: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def at_work(self) -> dict[str, tuple[int, int]]:
        """Return for each kind how many are worked on and how many wait."""
        counts = {name: places.statistics() for name, places in self._places.items()}
        return {name: (count.borrowed_tokens, count.tasks_waiting) for name, count in counts.items()}

    def check(self, name: str, owner: str) -> None:
        """Refuse one more request, if there is no room for it.

        Args:
            name: a key of `WORK_KINDS`.
            owner: who asks; empty where the service has no keys, which counts as one caller without a share.

        Raises:
            ProblemAnswer: 429, with the seconds after which to try again.
        """
        kind, (running, waiting) = WORK_KINDS[name], self.at_work()[name]
        if owner and self._held[owner] >= self._most_each:
            reason = f"{self._most_each} requests of this key are at work, the limit for each"
        elif running >= kind.places and waiting >= kind.line:
            reason = f"{running} requests for {name} work are at work and {waiting} wait, which is the limit"
        elif sum(self._held.values()) >= self._most:
            reason = f"{self._most} requests are at work, the limit of this service"
        else:
            return
        self.refused[name] += 1
        seconds = min(max(1, math.ceil(self._means[name] * (waiting + 1) / kind.places)), _LONGEST_RETRY)
        raise ProblemAnswer("busy", f"{reason}; try again after {seconds} s", headers={"Retry-After": str(seconds)})

    @asynccontextmanager
    async def place(self, name: str, owner: str) -> AsyncIterator[None]:
        """Wait for a place, and hold it; arguments and errors as for `check`."""
        self.check(name, owner)
        with _counted(self._held, owner):
            async with self._places[name]:
                began = time.monotonic()
                try:
                    yield
                finally:
                    self._means[name] += (time.monotonic() - began - self._means[name]) / 8

    @contextmanager
    def stream(self, owner: str) -> Iterator[None]:
        """Hold a place for a stream of events.

        Args:
            owner: key, or address of a caller without one.

        Raises:
            ProblemAnswer: 429, all of this owner's are taken.
        """
        if self._streams[owner] >= self._most_each:
            detail = (
                f"{self._most_each} streams of this key or address are open, the limit for each; close one, or ask for "
                "the job with Prefer: wait instead"
            )
            raise ProblemAnswer("busy", detail, headers={"Retry-After": str(RETRY_SECONDS)})
        with _counted(self._streams, owner):
            yield


@contextmanager
def _counted(counts: Counter[str], owner: str) -> Iterator[None]:
    counts[owner] += 1
    try:
        yield
    finally:
        counts[owner] -= 1
        if not counts[owner]:
            del counts[owner]


def gate_of(call: Call) -> WorkGate:
    """Return the gate of the running service."""
    gate: WorkGate = call.request.app.state.work_gate
    return gate


def working(call: Call, name: str) -> AbstractAsyncContextManager[None]:
    """Return the place that a call takes; see `WorkGate.place`."""
    return gate_of(call).place(name, call.caller.owner)


class EventStream(StreamingResponse):
    """Server-sent events that hold a place of their owner while they are sent.

    Args:
        frames: the events.
        call: asks for them.
    """

    def __init__(self, frames: AsyncIterable[bytes] | Iterable[bytes], call: Call) -> None:
        super().__init__(frames, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._place = gate_of(call).stream(call.caller.owner or call.caller.address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, or raise where there is no place."""
        with self._place:
            await super().__call__(scope, receive, send)
