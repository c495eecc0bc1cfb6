"""The work gate: it limits how much work runs at once, for all callers and for each, and answers 429 to more.

A request that costs more than a look into memory takes a place of its kind before it begins. Further requests wait in
line, where callers take turns. A request that would wait too long, or whose caller already has more than a share of
all that is at work, is told at once when to come back. Each key, or each address without keys, may also follow only a
limited number of streams of events at once.
"""

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from factorize.api.http.access import Call
from factorize.api.http.problems import RETRY_SECONDS, ProblemAnswer

_MAX_RETRY_SECONDS = 600
SMALL_SECONDS = 5.0
"""Requests of a kind that are estimated to take no longer go before the others, and may have kept places."""


@dataclass(frozen=True)
class WorkKind:
    """One kind of work.

    Args:
        places: requests that are worked on at once.
        line: requests that may wait for a place.
        seconds: what one is taken to last, until some have been measured.
        kept: places that are kept for requests which are estimated to take `SMALL_SECONDS` or less.
        each: places that one key may have.
    """

    places: int
    line: int
    seconds: float
    kept: int = 0
    each: int = 1 << 30


WORK_KINDS: Mapping[str, WorkKind] = {
    "spec": WorkKind(2, 64, 1.0),
    "rows": WorkKind(4, 1024, 0.05),
    "list": WorkKind(2, 128, 0.1),
    "question": WorkKind(2, 64, 0.2),
    "comparison": WorkKind(3, 32, 30.0, kept=1, each=1),
    "calibration": WorkKind(1, 32, 5.0),
    "file": WorkKind(2, 32, 5.0),
}
"""The kinds of work: long specs, rows, pages of the list, predictions, comparisons, calibrations, forms of a file."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A request in line.

    Args:
        order: the least is next: small ones first, then by how many of the caller's came before, then by arrival.
        owner: the one who asks.
        small: whether it may have a kept place.
        turn: done when it has its place.
    """

    order: tuple[bool, int, int]
    owner: str
    small: bool
    turn: asyncio.Future[None]


class _Places:
    """The places of one kind, and its line."""

    def __init__(self, kind: WorkKind) -> None:
        self.kind = kind
        self.mean_seconds = kind.seconds
        self.at_work: list[_Waiting] = []
        self.line: list[_Waiting] = []
        self._numbers = itertools.count()

    @asynccontextmanager
    async def place(self, owner: str, seconds: float) -> AsyncIterator[None]:
        """Wait for a place, and hold it."""
        small = seconds <= SMALL_SECONDS
        before = sum(one.owner == owner for one in (*self.at_work, *self.line)) if owner else 0
        mine = _Waiting(
            (not small, before, next(self._numbers)), owner, small, asyncio.get_running_loop().create_future()
        )
        self.line.append(mine)
        self._admit()
        try:
            await mine.turn
            began = time.monotonic()
            yield
            self.mean_seconds += (time.monotonic() - began - self.mean_seconds) / 8
        finally:
            for holders in (self.line, self.at_work):
                if mine in holders:
                    holders.remove(mine)
            self._admit()

    def _admit(self) -> None:
        """Give free places to those in line that may have them."""
        for one in sorted(self.line, key=lambda waiting: waiting.order):
            large = sum(not other.small for other in self.at_work)
            own = sum(other.owner == one.owner for other in self.at_work) if one.owner else 0
            fits = one.small or large < self.kind.places - self.kind.kept
            if len(self.at_work) < self.kind.places and fits and own < self.kind.each:
                self.line.remove(one)
                self.at_work.append(one)
                if not one.turn.done():
                    one.turn.set_result(None)


class WorkGate:
    """The places of one service; for one event loop.

    Args:
        most: requests at work at once, those in line included.
        most_each: those of one caller, and as many streams of events.
    """

    def __init__(self, most: int, most_each: int) -> None:
        self._most, self._most_each = most, most_each
        self._places = {name: _Places(kind) for name, kind in WORK_KINDS.items()}
        self._held: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def at_work(self) -> dict[str, tuple[int, int]]:
        """Return for each kind how many are worked on and how many wait."""
        return {name: (len(places.at_work), len(places.line)) for name, places in self._places.items()}

    def check(self, name: str, owner: str) -> None:
        """Refuse one more request, if there is no room for it.

        Args:
            name: a key of `WORK_KINDS`.
            owner: the one who asks; empty where the service has no keys, which counts as one caller without a share.

        Raises:
            ProblemAnswer: 429, with the seconds after which to try again.
        """
        kind, (running, waiting) = WORK_KINDS[name], self.at_work()[name]
        if owner and self._held[owner] >= self._most_each:
            reason = f"{self._most_each} requests of this key are running, the limit per key"
        elif running >= kind.places and waiting >= kind.line:
            reason = f"{running} requests for {name} work are running and {waiting} are waiting, the limit"
        elif sum(self._held.values()) >= self._most:
            reason = f"{self._most} requests are running, the limit of this service"
        else:
            return
        self.refused[name] += 1
        mean = self._places[name].mean_seconds
        seconds = min(max(1, math.ceil(mean * (waiting + 1) / kind.places)), _MAX_RETRY_SECONDS)
        raise ProblemAnswer("busy", f"{reason}; try again after {seconds} s", headers={"Retry-After": str(seconds)})

    @asynccontextmanager
    async def place(self, name: str, owner: str, seconds: float = math.inf) -> AsyncIterator[None]:
        """Wait for a place, and hold it; errors as for `check`.

        Args:
            name: a key of `WORK_KINDS`.
            owner: the one who asks.
            seconds: what it is estimated to take.
        """
        self.check(name, owner)
        with _counted(self._held, owner):
            async with self._places[name].place(owner, seconds):
                yield

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
                f"{self._most_each} streams of this key or address are open, the limit per key and address; close "
                "one, or ask for the job with Prefer: wait"
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
    return call.request.app.state.work_gate


def working(call: Call, name: str, seconds: float = math.inf) -> AbstractAsyncContextManager[None]:
    """Return the place that a call takes; see `WorkGate.place`."""
    return gate_of(call).place(name, call.caller.owner, seconds)


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
