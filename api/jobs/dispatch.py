"""Solves handed to dask.distributed: the connection, the room that workers have, a handle on each solve."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from factorize.api.jobs.dask_link import Link
from factorize.api.jobs.job import Job
from factorize.api.jobs.supervisor import Request
from factorize.api.processes.nursery import NURSERY_OF_THIS_PROCESS

if TYPE_CHECKING:
    from distributed import Future

    from factorize.api.jobs.dask_cluster import Embedded, WorkerLoad

_log = logging.getLogger(__name__)


def rank(job: Job) -> int:
    """What dask orders the queue by, the largest first: priority, and among equals the turns of callers."""
    return (job.priority << 40) - job.turn


@dataclass(frozen=True, slots=True)
class Sent:
    """A job that was submitted, and dask's handle on it."""

    job: Job
    future: Future[Any]


class Dispatch:
    """The solves that one engine has submitted. Safe for threads; who has to see no change meanwhile holds ``lock``."""

    def __init__(
        self,
        *,
        store: str,
        scheduler: str | None,
        capacity: tuple[int | None, int | None],
        command: tuple[str, ...] | None,
        forked: bool,
        listen: Callable[[dict[str, Any]], None],
        ended: Callable[[str, Future[Any]], None],
    ) -> None:
        """Describe where solves run; ``start`` connects.

        Args:
            store: URL of the store, handed to the child process.
            scheduler: address of a dask scheduler; None runs scheduler and worker in this process.
            capacity: memory in MB and threads for all running solves of the in-process worker; by default what
                the machine or the container has.
            command: command line of the child process, or None for this Python's.
            forked: whether children may be forked from the nursery.
            listen: called with each event of a running solve, in a thread of dask's; must not block.
            ended: called with task and future when a solve is over, likewise.
        """
        self.lock = threading.RLock()
        self.sent: dict[str, Sent] = {}
        self.embedded: Embedded | None = None
        self.stopped = False
        self._store, self._scheduler, self._command = store, scheduler, command
        self._capacity, self._forked = capacity, forked
        self._listen, self._ended = listen, ended
        self._link: Link | None = None

    def start(self) -> None:
        """Start the cluster or connect to the scheduler; one that does not answer yet is no error."""
        from factorize.api.jobs import dask_cluster

        if self._scheduler is None:
            memory, processors = self._capacity
            self._capacity = (memory or dask_cluster.MEMORY_MB, processors or dask_cluster.PROCESSORS)
            self.embedded = dask_cluster.Embedded(*self._capacity)
            NURSERY_OF_THIS_PROCESS.hold()
        where = self.embedded or self._scheduler
        assert where is not None
        self._link = Link(where, self._listen)

    def stop(self) -> bool:
        """Send nothing from now on; False if that was said before."""
        with self.lock:
            before, self.stopped = self.stopped, True
        return not before

    def hand_back(self, release: Callable[[Job], object]) -> None:
        """Kill the in-process worker's children, after giving up their jobs. Solves on remote workers go on."""
        from factorize.api.jobs import dask_cluster

        if self.embedded is None:
            return
        for entry in self.sent.values():
            with suppress(Exception):
                release(entry.job)
            dask_cluster.cancel(entry.future)
        if not dask_cluster.wait_until_ended(set(self.sent), timeout=10):
            _log.error("a child process has not ended within 10 s; its guard ends it with this process")

    def close(self) -> None:
        """Disconnect, and end the in-process cluster."""
        if self._link is not None:
            self._link.close()
        if self.embedded is not None:
            self.embedded.close()
            NURSERY_OF_THIS_PROCESS.release()

    @property
    def capacity_mb(self) -> int | None:
        """Largest ``memory_mb`` that a worker can take; None while no worker is known."""
        return self._capacity[0]

    @property
    def connected(self) -> bool:
        """True while the scheduler answers."""
        return self._link is not None and self._link.up

    @property
    def unreadable(self) -> str:
        """Why what answers at the scheduler's address is none, if something does."""
        return "" if self._link is None else self._link.unreadable

    @property
    def loads(self) -> bool:
        """True while the process from which children of the in-process worker are forked loads code."""
        return self.embedded is not None and self._forked and NURSERY_OF_THIS_PROCESS.loads

    def worker_loads(self) -> list[WorkerLoad]:
        """Return what each worker does."""
        return [] if self._link is None else self._link.worker_loads()

    def other_workers(self) -> list[str]:
        """Return a sentence for each worker of another release."""
        return [] if self._link is None or self.embedded is not None else self._link.other_workers()

    def look_after(self) -> None:
        """Renew a connection that was lost, whose futures then mean nothing, and ask again what workers can take."""
        assert self._link is not None
        if self._link.look_after():
            with self.lock:
                self.sent.clear()
        if self.embedded is None:
            self._capacity = self._link.capacity() or (None, None)

    def send(self, job: Job) -> None:
        """Give a job to dask. Where that fails the job stays open, and its engine tries again."""
        from factorize.api.jobs import dask_cluster

        with self.lock:
            client = self._link.client if self._link is not None and self._link.up else None
            if self.stopped or client is None:
                return
            largest_mb, processors = self._capacity
            threads = min(job.threads, processors or job.threads)
            room = None
            if job.suspect:
                if largest_mb is None or processors is None:
                    return  # no worker is known that it could have for itself
                room = (largest_mb, processors)
            limits = (job.memory_mb, job.seconds_limit, threads)
            where = (self._store, *limits, self._command)
            request = Request(
                job.spec_digest,
                job.spec,
                *where,
                forked=self._forked,
                about=job.about(),
            )
            try:
                future = dask_cluster.submit(client, job.task, request, rank(job), room)
            except Exception:
                _log.warning("a job could not be submitted; it stays queued", exc_info=True)
                return
            self.sent[job.task] = Sent(job, future)
            dask_cluster.when_ended(future, partial(self._ended, job.task))

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
        from factorize.api.jobs import dask_cluster

        with self.lock:
            entry = self.sent.pop(task, None)
        if entry is not None and kill:
            dask_cluster.cancel(entry.future)
