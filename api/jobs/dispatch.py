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
from factorize.api.jobs.solving import Request

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
        solves: carries them out; not started.
        ended: called with task and future when a solve is over, in any thread; must not block.

    Attributes:
        room: memory in MB and threads of the largest worker; None while no worker is known.
    """

    def __init__(
        self,
        *,
        store: str,
        solves: Any,
        ended: Callable[[str, Any], None],
    ) -> None:
        self.lock = threading.RLock()
        self.sent: dict[str, Sent] = {}
        self.stopped = False
        self._store, self._solves, self._ended = store, solves, ended
        self.room: tuple[int, int] | None = solves.capacity()

    def stop(self) -> bool:
        """Send nothing from now on; False if that was said before."""
        with self.lock:
            before, self.stopped = self.stopped, True
        return not before

    def close(self, release: Callable[[Job], object]) -> None:
        """Kill the workers that solve here, after giving up their jobs; solves elsewhere go on."""
        if self._solves.here:
            for entry in self.sent.values():
                with suppress(Exception):
                    release(entry.job)
        self._solves.close()

    def look_after(self) -> None:
        """Renew a connection that was lost, whose futures then mean nothing, and ask again what workers can take."""
        if self._solves.look_after():
            with self.lock:
                self.sent.clear()
        self.room = self._solves.capacity()

    def send(self, job: Job) -> None:
        """Hand a job on. Where that fails the job stays open, and its engine tries again."""
        with self.lock:
            if self.stopped or not self._solves.up:
                return
            largest_mb, processors = self.room or (None, job.threads)
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

    def drop(self, task: str, *, kill: bool) -> None:
        """Forget a solve, and end it if asked to."""
        with self.lock:
            entry = self.sent.pop(task, None)
        if entry is not None and kill:
            self._solves.cancel(entry.future)
