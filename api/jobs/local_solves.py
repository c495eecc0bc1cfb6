"""Solves on this machine: the pool of workers behind the face that an engine knows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from typing import Any

from factorize.api.jobs.ending import SolveEnding
from factorize.api.jobs.solving import Request, WorkerLoad, carry_out
from factorize.api.workers.ending import Ending
from factorize.api.workers.pool import Place, Pool, Solve

END_SECONDS = 10.0
_log = logging.getLogger(__name__)


class LocalSolves:
    """Gives solves to a pool. `DaskSolves` (dask_solves.py) has the same face.

    Args:
        pool: the workers.
        listen: called with each event of a running solve, in a thread of the pool; must not block.
    """

    here = True
    """Whether solves end with this process."""
    up = True
    unreadable = ""

    def __init__(self, pool: Pool, listen: Callable[[dict[str, Any]], None]) -> None:
        self._pool, self._listen = pool, listen
        self._running: set[Solve] = set()

    def start(self) -> None:
        """Nothing is to be connected."""

    @property
    def loads(self) -> bool:
        """True while the first workers load code."""
        return self._pool.loads

    def capacity(self) -> tuple[int, int] | None:
        """Return memory in MB and threads of the largest place."""
        return self._pool.memory_mb, self._pool.processors

    def worker_loads(self) -> list[WorkerLoad]:
        """Return what this machine does."""
        running = sum(future.running() for future in list(self._running))
        return [WorkerLoad("local", running, self._pool.memory_mb)]

    def other_workers(self) -> list[str]:
        """Return a sentence for each machine of another release: there is none."""
        return []

    def submit(self, request: Request, task: str, rank: int, room: tuple[int, int]) -> Solve:
        """Have a spec solved.

        Args:
            request: the solve.
            task: name of the claim.
            rank: larger ones first.
            room: memory in MB and threads that it takes.
        """
        call = partial(self._carry_out, request, task)
        future = self._pool.submit(call, memory_mb=room[0], threads=room[1], rank=rank, fresh=request.fresh)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def cancel(self, future: Solve) -> None:
        """End a solve, whether it runs or waits."""
        future.cancel()

    def outcome(self, future: Solve) -> SolveEnding | None:
        """Return what a future says by its own end, of which no event told; None of one that never ran."""
        return None if future.cancelled() else SolveEnding(Ending.UNHEARD, None, None, 0.0)

    def look_after(self) -> bool:
        """End workers that nobody needs; False, since no future is ever lost."""
        self._pool.end_idle()
        return False

    def close(self) -> None:
        """End what runs, and wait for that."""
        running = [future for future in list(self._running) if not future.cancel()]
        if wait(running, END_SECONDS).not_done:
            _log.error("a worker has not ended within %g s; it ends with this process", END_SECONDS)

    def _carry_out(self, request: Request, task: str, place: Place, cancelled: Callable[[], bool]) -> None:
        def say(event: str, **more: Any) -> None:
            self._listen({"task": task, "event": event, **more})

        carry_out(request, place, say=say, cancelled=cancelled)
