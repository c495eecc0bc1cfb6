"""Jobs as those who wait for them follow them: each change of a row, by few looks, for thousands at a time."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from factorize.api.jobs.ledger import Ledger
from factorize.api.jobs.solve_job import SolveJob

FIRST_PAUSE, MAX_PAUSE, PAUSE_GROWTH = 0.01, 0.4, 1.1
"""Seconds between the first two looks at a job that is followed, the most between two, and their growth."""
FOLLOWER_PAUSE = 0.001
"""Seconds for each who follows a job: thousands would take a core with looks that see nothing."""


class FollowedJobs:
    """The jobs of a ledger, whichever engine changes them.

    Args:
        ledger: the jobs table.

    Attributes:
        closed: whether an engine of this ends or has ended; nothing is followed then.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self.closed = ledger, False
        self._looks: dict[str, asyncio.Future[SolveJob | None]] = {}
        self._followers: Counter[str] = Counter()  # the followers of each job

    async def changes(self, spec_digest: str, after_seq: int = 0) -> AsyncGenerator[SolveJob | None, None]:
        """Follow a job: what it is now, then each change, up to its end, and None for a look that sees none.

        The row is looked at in pauses that grow to 0.4 seconds, and to a millisecond for each who follows the job,
        whichever engine changes it, so changes that follow each other quickly may be seen as one.

        Args:
            spec_digest: the job; an unknown one has no changes.
            after_seq: number of the last change that the listener has seen.

        Yields:
            The job, with rising ``seq``, or None; the last has ``finished``. Also ends once this is closed.
        """
        pause = FIRST_PAUSE
        self._followers[spec_digest] += 1
        try:
            while not self.closed:
                job = await self._row_of(spec_digest)
                if job is None:
                    return
                yield job if job.seq != after_seq else None  # smaller only after a ledger was lost and begun anew
                after_seq = job.seq
                if job.finished:
                    return
                pause = max(pause, FOLLOWER_PAUSE * self._followers[spec_digest])
                await asyncio.sleep(pause - time.monotonic() % pause)  # all at one beat, who then share a look
                pause = min(MAX_PAUSE, PAUSE_GROWTH * pause)
        finally:
            self._followers -= Counter([spec_digest])

    async def _row_of(self, spec_digest: str) -> SolveJob | None:
        """Return what a job is now. All who ask before a look begins share it, since thousands may follow one job."""

        def begin() -> SolveJob | None:
            self._looks.pop(spec_digest, None)  # whoever asks from now on may know of a later change
            return self._ledger.get(spec_digest)

        look = self._looks.get(spec_digest)
        if look is None or look.done():  # it is of an event loop that has ended
            look = self._looks[spec_digest] = asyncio.ensure_future(asyncio.to_thread(begin))
        return await asyncio.shield(look)

    async def wait(self, spec_digest: str, seconds: float) -> SolveJob | None:
        """Return the job once it has finished, or as it is after ``seconds``; None if there is none."""
        seen = None
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), aclosing(self.changes(spec_digest)) as changes:
                async for job in changes:
                    seen = job or seen
        return seen if seen is not None and seen.finished else await self._row_of(spec_digest)
