"""Solves that one engine has handed on, to its own pool or to dask, and what their ends mean for their jobs.

What is stored is done, whatever the solve said last. Only the death of a job's own child counts against it; after the
third it is given up. A solve that was cancelled, or lost with its workers, says nothing of its spec.

Which engines are alive is judged without comparing clocks: every engine moves a number in its row of the ledger.
Another engine counts as dead when its process is gone (told at once, on the same machine) or when its number has stood
still for long enough on the clock of whoever looks.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from factorize.api.jobs.job import ALONE_AFTER, EngineRow, Job, SolveEnding
from factorize.api.jobs.ledger import Ledger
from factorize.api.jobs.solving import Request
from factorize.api.workers.ending import Ending

_log = logging.getLogger(__name__)


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
                future = self._solves.submit(request, job.task, -job.turn, room)
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


OUTAGES = 10
"""Starts after which a job whose child finds no store is failed, though the service finds it."""


@dataclass(frozen=True)
class Settlement:
    """Writes the ends of solves into the ledger.

    Args:
        ledger: the ledger.
        find: knows what is stored (api/jobs/engine.py).
        settled: told of each end.
    """

    ledger: Ledger
    find: Callable[[str], str | None]
    settled: Callable[[Job, SolveEnding], None] | None

    def settle(self, job: Job, outcome: SolveEnding) -> None:
        """Write the end of a solve."""
        _log.info("a solve is settled", extra={"about": {**job.about(), "ending": outcome.ending.name.lower()}})
        if self.settled is not None:
            self.settled(job, outcome)
        stored = self.find(job.spec_digest)
        if stored is not None:
            self.ledger.finish(job.spec_digest, stored, outcome.progress)
        elif outcome.ending in (Ending.CANCELLED, Ending.INTERRUPTED, Ending.UNHEARD):
            self.ledger.died(job, deaths=0)
        elif outcome.ending in (Ending.CRASHED, Ending.LOST):
            self._bury(job, outcome)
        elif (outcome.error or {}).get("type") == "store-unavailable" and job.attempts + 1 < OUTAGES:
            self.ledger.died(job, deaths=0)  # an outage is not the spec's fault, and the store answers here again
        else:
            self.ledger.fail(job, outcome.error or _not_stored(outcome))

    def give_up(self, job: Job, last: dict[str, str] | None = None) -> None:
        """Fail a job that has ended its process too often; ``last`` is the error of the last time, if it left one."""
        self.ledger.fail(job, _given_up(last))

    def _bury(self, job: Job, outcome: SolveEnding) -> None:
        """Count the death of a child; one that was lost with its workers is only suspected, until it runs alone."""
        if job.suspect:
            self.give_up(job, outcome.error)
        else:
            self.ledger.died(job, deaths=1 if outcome.ending is Ending.CRASHED else ALONE_AFTER - job.deaths)


def _given_up(last: dict[str, str] | None) -> dict[str, str]:
    end = "its machine went down" if last is None else last["message"]
    return {
        "type": "gave_up",
        "message": f"the solve has ended its process {ALONE_AFTER + 1} times, the last time with a worker to itself "
        f"({end}). Post the spec with a smaller n, or again if the cause is mended"[:2000],
    }


def _not_stored(outcome: SolveEnding) -> dict[str, str]:
    return {
        "type": "not_stored",
        "message": f"the solver says that it stored {outcome.digest}, and the store does not have it; check "
        "that workers and service use the same store, and post the spec again",
    }


_CLOCK_SECONDS = 5.0
"""That a machine's clock may have been set by since an engine announced itself."""


class Presence:
    """One engine's sign of life, and its view of the others."""

    def __init__(self, ledger: Ledger, engine_id: str, patience: float) -> None:
        """Announce the engine.

        Args:
            ledger: where engines meet.
            engine_id: the engine that looks.
            patience: seconds without a sign of life after which another engine counts as dead.
        """
        self._ledger = ledger
        self._patience = patience
        self._me = EngineRow(engine_id, host_name(), os.getpid(), time.time(), 0)
        self._seen: dict[str, tuple[int, float]] = {}
        self.fallen: frozenset[str] = frozenset()
        ledger.announce(self._me)

    def beat(self) -> None:
        """Give a sign of life; announce again if the others have given us up."""
        if not self._ledger.beat(self._me.id):
            self._ledger.announce(self._me)

    def end(self) -> None:
        """Leave."""
        self._ledger.forget(self._me.id)

    def living(self) -> set[str]:
        """Ids of the engines that are alive, this one among them; the dead are removed from the ledger.

        Those among the dead whose machine has been started anew since are `fallen` until the next look.
        """
        engines = self._ledger.engines().values()
        dead = {engine.id for engine in engines if self._is_dead(engine)}
        self.fallen = frozenset(e.id for e in engines if e.id in dead and _has_restarted(e.host, self._me.host))
        for engine_id in dead:
            self._ledger.forget(engine_id)
        return {engine.id for engine in engines} - dead | {self._me.id}

    def _is_dead(self, engine: EngineRow) -> bool:
        if engine.id == self._me.id:
            return False
        if engine.host == self._me.host and not _is_running(engine):
            return True
        now = time.monotonic()
        beat, since = self._seen.get(engine.id, (None, now))
        if beat != engine.beat:
            self._seen[engine.id] = (engine.beat, now)
            return False
        return now - since > self._patience


def host_name() -> str:
    """A name for the set of processes whose numbers mean the same: one boot of one machine or container."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # Linux only
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _has_restarted(before: str, now: str) -> bool:
    """Whether two names that `host_name` made are those of one machine, in two runs of it."""
    one, other = before.split(), now.split()
    return len(one) == len(other) == 3 and one[0] == other[0] and one[1] != other[1]


def _is_running(engine: EngineRow) -> bool:
    """True if the process that announced itself still runs, and is not a later one with its number."""
    import psutil

    try:
        process = psutil.Process(engine.pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() < engine.started + _CLOCK_SECONDS
    except psutil.NoSuchProcess:
        return False
