"""Solves that one engine has handed on, to its own pool or to dask, and a handle on each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from factorize.api.jobs.job import Job
from factorize.api.jobs.local_solves import LocalSolves
from factorize.api.jobs.solving import Request, WorkerLoad
from factorize.api.workers.pool import Pool

_log = logging.getLogger(__name__)


def rank(job: Job) -> int:
    """What orders the queue, the largest first: priority, and among equals the turns of callers."""
    return (job.priority << 40) - job.turn


@dataclass(frozen=True, slots=True)
class Sent:
    """A job that was submitted, and the future of its solve."""

    job: Job
    future: Any


class Dispatch:
    """The solves that one engine has submitted. Safe for threads; who has to see no change meanwhile holds ``lock``.

    Args:
        store: URL of the store that keeps results.
        pool: workers of this machine.
        scheduler: address of a dask scheduler whose workers solve instead, or None.
        listen: called with each event of a running solve, in any thread; must not block.
        ended: called with task and future when a solve is over, likewise.
    """

    def __init__(
        self,
        *,
        store: str,
        pool: Pool,
        scheduler: str | None,
        listen: Callable[[dict[str, Any]], None],
        ended: Callable[[str, Any], None],
    ) -> None:
        self.lock = threading.RLock()
        self.sent: dict[str, Sent] = {}
        self.stopped = False
        self.here = scheduler is None
        """Whether solves run in workers of this process."""
        self._store, self._scheduler, self._pool = store, scheduler, pool
        self._listen, self._ended = listen, ended
        self._solves: Any = LocalSolves(pool, listen) if scheduler is None else None
        self._capacity: tuple[int, int] | None = self._solves.capacity() if self._solves else None

    def start(self) -> None:
        """Connect to the scheduler, if there is one; one that does not answer yet is no error."""
        if self._scheduler is not None:
            from factorize.api.jobs.dask_solves import DaskSolves

            self._solves = DaskSolves(self._scheduler, self._listen)

    def stop(self) -> bool:
        """Send nothing from now on; False if that was said before."""
        with self.lock:
            before, self.stopped = self.stopped, True
        return not before

    def close(self, release: Callable[[Job], object]) -> None:
        """Kill the workers that solve here, after giving up their jobs; solves elsewhere go on."""
        if self.here:
            for entry in self.sent.values():
                with suppress(Exception):
                    release(entry.job)
        if self._solves is not None:
            self._solves.close()

    @property
    def capacity_mb(self) -> int | None:
        """Largest ``memory_mb`` that a worker can take; None while no worker is known."""
        return None if self._capacity is None else self._capacity[0]

    @property
    def connected(self) -> bool:
        """True where solves can be handed on."""
        return self._solves is not None and bool(self._solves.up)

    @property
    def unreadable(self) -> str:
        """Why what answers at the scheduler's address is none, if something does."""
        return "" if self._solves is None else str(self._solves.unreadable)

    @property
    def loads(self) -> bool:
        """True while the first workers of this machine load code."""
        return self._solves is not None and bool(self._solves.loads)

    def worker_loads(self) -> list[WorkerLoad]:
        """Return what each worker elsewhere does."""
        return [] if self._solves is None else list(self._solves.worker_loads())

    def other_workers(self) -> list[str]:
        """Return a sentence for each worker of another release."""
        return [] if self._solves is None else list(self._solves.other_workers())

    def look_after(self) -> None:
        """Renew a connection that was lost, whose futures then mean nothing, and ask again what workers can take."""
        if self._solves.look_after():
            with self.lock:
                self.sent.clear()
        self._capacity = self._solves.capacity()

    def send(self, job: Job) -> None:
        """Hand a job on. Where that fails the job stays open, and its engine tries again."""
        with self.lock:
            if self.stopped or not self.connected:
                return
            largest_mb, processors = self._capacity or (None, job.threads)
            room = job.memory_mb, min(job.threads, processors)
            if job.suspect:
                if largest_mb is None:
                    return  # no worker is known that it could have for itself
                room = largest_mb, processors
            request = Request(
                job.spec_digest,
                job.spec,
                self._store,
                job.memory_mb,
                job.seconds_limit,
                min(job.threads, processors),
                alone=job.suspect,
                about=job.about(),
            )
            try:
                future = self._solves.submit(request, job.task, rank(job), room)
            except Exception:
                _log.warning("a job could not be submitted; it stays queued", exc_info=True)
                return
            self.sent[job.task] = Sent(job, future)
            future.add_done_callback(partial(self._ended, job.task))

    def get(self, task: str) -> Sent | None:
        """Return what was sent under that name and not dropped."""
        with self.lock:
            return self.sent.get(task)

    def has(self, spec_digest: str) -> bool:
        """Say whether a solve of this spec was sent and not dropped."""
        return bool(self.tasks_of(spec_digest))

    def tasks_of(self, spec_digest: str) -> list[str]:
        """Return the tasks of a spec that were sent and not dropped."""
        with self.lock:
            return [task for task, entry in self.sent.items() if entry.job.spec_digest == spec_digest]

    def drop(self, task: str, *, kill: bool) -> None:
        """Forget a solve, and end it if asked to."""
        with self.lock:
            entry = self.sent.pop(task, None)
        if entry is not None and kill:
            self._solves.cancel(entry.future)

    def outcome(self, entry: Sent) -> Any:
        """Return what the future of a solve says by its end."""
        return self._solves.outcome(entry.future)
