"""One solve for a job, two workers and a publication bounded in memory and time; and what hands solves to the pool."""

import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

from factorize.api.jobs.solve_job import SolveEnding, SolveJob, read_progress
from factorize.api.telemetry import log_about
from factorize.api.workers.pool import SMALL_MB, Pool, Solve, SolvePlace
from factorize.api.workers.publishing import Stages, make_and_store
from factorize.api.workers.worker import AnswerLimits, Ending, WorkerEnded
from factorize.errors import FactorizeError
from factorize.factors.solution import Progress
from factorize.storage.store import Store, open_store

FIRST_SECONDS = 0.1  # no progress is told before this: the end of a small solve comes sooner, and says it too
REPORT_SECONDS = 0.5
SILENT_SECONDS = 1.5  # the last progress is told again after this

Event = dict[str, Any]
_log = logging.getLogger(__name__)


def is_large(job: SolveJob) -> bool:
    """Say whether a solve gets workers of its own: it is large, long, or suspected to end its process."""
    return job.suspect or job.threads > 1 or job.memory_mb > SMALL_MB


class WorkerLoad(NamedTuple):
    """The load of a machine, or of a worker elsewhere as it was seen a few seconds ago.

    Attributes:
        address: the worker's address, or `local`.
        solves: the number of solves that it runs.
        memory_mb: what it offers, in units of 2^20 bytes.
    """

    address: str
    solves: int
    memory_mb: int


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that is missing.

    Args:
        check: `database`, `store` or `engine`.
        state: its name in docs/operating.md.
        detail: what happened, and the way out.
    """

    check: str
    state: str
    detail: str


def carry_out(
    job: SolveJob, store: str, say: Callable[[Event], object], place: SolvePlace, cancelled: Callable[[], bool]
) -> None:
    """Solve, and say `started`, `progress` and `ended` as events of plain data, each with the task.

    Args:
        job: the solve.
        store: URL of the store that keeps the result.
        say: takes an event.
        place: the place whose workers do it.
        cancelled: looked at ten times a second; True ends the solve.
    """

    def tell(event: str, **more: Any) -> None:
        say({"task": job.task, "event": event, **more})

    tell("started")
    with log_about(**job.about()):
        mechanism, pid = json.loads(job.spec)["mechanism"]["kind"], place.pair.solver.pid
        room = {"threads": job.threads, "memory_mb": job.memory_mb}
        _log.info("a solve starts", extra={"about": {"pid": pid, "mechanism": mechanism, **room}})
        reports = _Reports(lambda event: tell("progress", progress=event))
        ended = _solve_and_store(job, store, place, reports, cancelled)
        about = {"ending": ended.ending.name.lower(), "seconds": round(ended.seconds, 3), "digest": ended.digest}
        failure = {} if ended.error is None else {"error": ended.error["message"]}
        _log.info("a solve has ended", extra={"about": {**about, **failure}})
    tell("ended", said=ended.document())


class _Reports:
    """Passes the newest step on: none in the first moment, one each half second, and the last again after silence.

    Args:
        report: gets the newest progress event.
    """

    def __init__(self, report: Callable[[Event], None]) -> None:
        self.newest: Event | None = None
        self._report = report
        self._said: Event | None = None
        self._at = time.monotonic() - REPORT_SECONDS + min(FIRST_SECONDS, REPORT_SECONDS)

    def take(self, progress: Progress) -> None:
        """Remember a step."""
        self.newest = read_progress(vars(progress)) or self.newest

    def look(self) -> None:
        """Report the newest step if it is due."""
        quiet = time.monotonic() - self._at
        if self.newest is None or quiet < REPORT_SECONDS or (self.newest is self._said and quiet < SILENT_SECONDS):
            return
        if self.newest is self._said:  # the worker is inside a long routine
            left = self.newest["seconds_left"]
            left = None if left is None or left <= quiet else left - quiet
            self.newest = {**self.newest, "seconds": self.newest["seconds"] + quiet, "seconds_left": left}
        self._said, self._at = self.newest, time.monotonic()
        self._report(self.newest)


def _solve_and_store(
    job: SolveJob, store: str, place: SolvePlace, reports: _Reports, cancelled: Callable[[], bool]
) -> SolveEnding:
    """Solve and store one spec, and return how it ended; a failure is an outcome and not an exception."""
    began, stages = time.monotonic(), Stages(reports.take)

    def over() -> bool:
        reports.look()
        return cancelled()

    try:
        spec, limits = json.loads(job.spec), AnswerLimits(job.seconds_limit, job.memory_mb, job.threads, over)
        opened = _store(store)
        manifest = make_and_store("solve", {"spec": spec}, place=place, store=opened, stages=stages, limits=limits)
    except FactorizeError as failure:
        ended = failure.ending if isinstance(failure, WorkerEnded) else None
        error = {"type": ended.name.lower() if ended else failure.slug, "message": str(failure)[:2000]}
        return SolveEnding(ended or Ending.FAILED, None, error, time.monotonic() - began)
    except Exception as failure:
        _log.exception("a solve could not be supervised")
        message = f"the solve could not be supervised: {failure!r}"[:2000]
        return SolveEnding(Ending.FAILED, None, {"type": "internal", "message": message}, 0.0)
    seconds = time.monotonic() - began
    return SolveEnding(Ending.DONE, manifest.digest, None, seconds, stages.timings(), reports.newest)


@cache
def _store(url: str) -> Store:
    return open_store(url)


END_SECONDS = 10.0


class LocalSolves:
    """Gives solves to a pool. `DaskSolves` (dask_solves.py) has the same face.

    Args:
        pool: the workers.
        store: URL of the store that keeps results.
        listen: called with each event of a running solve, in a thread of the pool; must not block.
    """

    here = True
    """Whether solves end with this process."""
    up = True

    def __init__(self, pool: Pool, store: str, listen: Callable[[Event], None]) -> None:
        self._pool, self._store, self._listen = pool, store, listen
        self._running: set[Solve] = set()

    def rooms(self) -> list[tuple[int, int]]:
        """Return memory in MB and threads of this machine."""
        return [(self._pool.memory_mb, self._pool.processors)]

    def worker_loads(self) -> list[WorkerLoad]:
        """Return what this machine does."""
        running = sum(future.running() for future in list(self._running))
        return [WorkerLoad("local", running, self._pool.memory_mb)]

    def missing(self) -> list[Missing]:
        """Return what keeps solves waiting."""
        detail = "the first workers load code; that takes some seconds"
        return [Missing("engine", "loading", detail)] if self._pool.loads else []

    def submit(self, job: SolveJob, room: tuple[int, int]) -> Solve:
        """Have a job's spec solved.

        Args:
            job: the job; earlier turns come first.
            room: memory in MB and threads that it takes.
        """
        call = partial(carry_out, job, self._store, self._listen)
        future = self._pool.submit(call, memory_mb=room[0], threads=room[1], rank=-job.turn, fresh=is_large(job))
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
        """End workers that nobody needs; return False, since no future is ever lost."""
        self._pool.end_idle()
        return False

    def close(self) -> None:
        """End what runs, and wait for that."""
        running = [future for future in list(self._running) if not future.cancel()]
        if wait(running, END_SECONDS).not_done:
            _log.error("a worker has not ended within %g s; it ends with this process", END_SECONDS)
