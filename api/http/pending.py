"""Pending answers, by the digest of the question: a worker works them out even if the caller has left.

A client that waits for an answer gets it as soon as it is there. One that would wait too long gets 202 with the address
of the answer, and the work goes on while somebody looks at that address. From then on the ledger has the answer, too,
so that another service can give it out.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Event

from anyio.to_thread import run_sync
from fastapi import Request

from factorize.api.http.problems import ProblemAnswer, problem_of
from factorize.api.jobs.long_answers import LongAnswer, LongAnswers
from factorize.encoding import JsonObject, canonical_json
from factorize.errors import FactorizeError, StoreUnavailable

WAIT_SECONDS = 45.0
"""Seconds that a client waits which does not say how long: proxies cut off after 60 s."""
IDLE_SECONDS = 120.0
"""Seconds after which an answer that nobody has looked for is given up, or forgotten where it is a refusal."""
TELL_SECONDS = 2.0
"""Seconds between two words to the ledger about an answer whose address was given out."""
LOOK_SECONDS = 0.2
"""Seconds between two looks at whether a client is still there."""

REFUSAL = "refused "
"""The beginning of what the ledger has of an answer that is a refusal; answers are JSON."""

Work = Callable[[Event, Callable[[JsonObject], object]], Awaitable[bytes]]
"""A function that works an answer out; it gets what stops it and what is told of its progress."""


class PendingAnswer:
    """One answer, worked out once for all who wait for it.

    Args:
        work: see `Work`.
    """

    def __init__(self, work: Work) -> None:
        self.stop = Event()
        self.progress: JsonObject | None = None
        self.task = asyncio.ensure_future(work(self.stop, self._tell))
        self.task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # somebody may look later
        self.waiting = 0
        self.given_out = False
        """Whether a client has the address, and asks for it, maybe elsewhere."""
        self.looked = asyncio.get_running_loop().time()

    def _tell(self, progress: JsonObject) -> None:
        self.progress = progress

    @property
    def news(self) -> LongAnswer:
        """Return how far the answer is, for the ledger, and the answer or the refusal at the end."""
        progress = None if self.progress is None else canonical_json(self.progress).decode("ascii")
        if not self.task.done() or self.task.cancelled():
            return LongAnswer(progress, None)
        error = self.task.exception()
        if error is None:
            return LongAnswer(progress, self.task.result().decode("ascii"))
        problem = error if isinstance(error, ProblemAnswer) else ProblemAnswer("internal")
        problem = problem_of(error) if isinstance(error, FactorizeError) else problem
        return LongAnswer(progress, REFUSAL + canonical_json([problem.slug, problem.detail, problem.extra]).decode())

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
    """The pending answers of one service; for one event loop.

    Args:
        elsewhere: those of the ledger.
    """

    def __init__(self, elsewhere: LongAnswers) -> None:
        self.elsewhere = elsewhere
        self._pending: dict[tuple[str, str], PendingAnswer] = {}
        self._followed = set[asyncio.Task[None]]()

    def start(self, owner: str, digest: str, work: Work) -> PendingAnswer:
        """Return the pending answer to a caller's question, begun where there is none."""
        found = self.find(owner, digest)
        if found is None or found.task.done():
            found = self._pending[owner, digest] = PendingAnswer(work)
            following = asyncio.ensure_future(self._follow(owner, digest, found))
            self._followed.add(following)
            following.add_done_callback(self._followed.discard)
        return found

    def find(self, owner: str, digest: str) -> PendingAnswer | None:
        """Return the pending answer to a caller's question, unless somebody ended it, or None."""
        found = self._pending.get((owner, digest))
        return None if found is None or found.stop.is_set() else found

    async def give_out(self, owner: str, digest: str, pending: PendingAnswer) -> None:
        """Have the ledger know of an answer from now on, whose address a client is about to get."""
        if not pending.given_out:
            pending.given_out = True
            with suppress(StoreUnavailable):
                await run_sync(self.elsewhere.begin, owner, digest)

    async def close(self) -> None:
        """Stop all work and wait for its ends."""
        pending = list(self._pending.values())
        for one in pending:
            one.stop.set()
        for following in self._followed:
            following.cancel()
        await asyncio.gather(*(one.task for one in pending), *self._followed, return_exceptions=True)

    async def _follow(self, owner: str, digest: str, pending: PendingAnswer) -> None:
        """Tell the ledger of an answer until it is told; give up and forget an answer that nobody has looked for."""
        loop, told = asyncio.get_running_loop(), False
        while self._pending.get((owner, digest)) is pending:
            pause = min(TELL_SECONDS, IDLE_SECONDS / 4)
            await (asyncio.sleep(pause) if pending.task.done() else asyncio.wait({pending.task}, timeout=pause))
            if pending.given_out and not told:
                ended = pending.task.done()
                with suppress(StoreUnavailable):
                    looked = await run_sync(self.elsewhere.tell, owner, digest, pending.news)
                    told = ended
                    if looked is None:
                        pending.stop.set()
                    else:
                        pending.looked = max(pending.looked, loop.time() - looked)
            if not pending.waiting and loop.time() - pending.looked >= IDLE_SECONDS:
                if pending.given_out and not pending.task.done():
                    with suppress(StoreUnavailable):
                        await run_sync(self.elsewhere.stop, owner, digest)
                pending.stop.set()
                if self._pending.get((owner, digest)) is pending:
                    del self._pending[owner, digest]
