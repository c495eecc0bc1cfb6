"""The job engine: submit and cancel. One solve per spec, whatever crashes in between.

The ledger says what was asked, the store says what exists, and the engine makes the second follow the
first. It keeps nothing that cannot be rebuilt: every few seconds, and at every start, it finds jobs that
nobody runs, and marks them as done (the store has the result) or submits them again. A job whose result is stored is
done, whatever its solve said last.

A service that dies is not the fault of the specs that it was solving, nor is a cancel. Only the death of a job's own
child counts against it, or that of a machine on which it ran alone; after two it gets a worker for itself, and after
the third it is given up.

One thread, the engine's own, writes what solves report into the ledger. Requests come in from any thread.
"""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self

from factorize.api.jobs.followed_jobs import FollowedJobs
from factorize.api.jobs.ledger import Ledger, Within
from factorize.api.jobs.one_solve import LocalSolves
from factorize.api.jobs.solve_job import (
    SHARED_DEATHS,
    JobOrder,
    SolveEnding,
    SolveJob,
    has_ended,
    has_fallen,
    new_owner,
    read_progress,
)
from factorize.api.workers.pool import Pool
from factorize.api.workers.worker import Ending
from factorize.errors import StoreUnavailable

MAX_OUTAGES = 10
"""The starts after which a job fails whose child finds no store, though the service does, or whose end is not heard."""
_log = logging.getLogger(__name__)


class JobEngine(FollowedJobs):
    """Runs the jobs of a ledger, on workers of this machine or of a dask cluster."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        find: Callable[[str], str | None],
        store: str,
        pool: Pool,
        scheduler: str | None = None,
        tick: float = 2.0,
        settled: Callable[[SolveJob, SolveEnding], None] | None = None,
    ) -> None:
        """Describe the engine; ``start`` brings it to life.

        Args:
            ledger: the jobs table. Several engines may share one.
            find: digest of the stored factorization of a spec digest, or None. Asked from the engine's thread
                and from ``submit``.
            store: URL of the store that keeps results.
            pool: workers of this machine, closed by whoever made it.
            scheduler: address of a dask scheduler whose workers solve instead.
            tick: seconds between two rounds of reconciliation.
            settled: told of each end of a solve, in the engine's thread.
        """
        super().__init__(ledger)
        self.id = new_owner()
        self.solves_total = 0
        self.writes = True
        """Whether leases could be renewed at the last attempt."""
        self._waits = self._refused = False
        self._find = find
        self._tick_seconds = tick
        self._settled = settled
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.solves: Any
        """The place that carries solves out: a `LocalSolves` or a `DaskSolves`."""
        if scheduler is None:
            self.solves = LocalSolves(pool, store, self._hear)
        else:
            from factorize.api.jobs.dask_solves import DaskSolves

            self.solves = DaskSolves(scheduler, store, self._hear)
        self.rooms: list[tuple[int, int]] = self.solves.rooms()
        """Memory in MB and threads of each worker."""
        self._lock = threading.RLock()  # guards what is sent
        self._sent: dict[str, tuple[SolveJob, Any]] = {}  # jobs whose solves were submitted, with their futures
        self._thread = threading.Thread(target=self._work, name="factorize-engine", daemon=True)

    # Life

    def start(self) -> Self:
        """Take up what earlier engines left open. Where a scheduler does not answer yet, jobs wait in the ledger."""
        self._thread.start()
        return self

    def close(self) -> None:
        """End the engine.

        What solves here is killed and its jobs are handed back to the ledger, so that the next start takes them up.
        Solves on workers elsewhere go on.
        """
        with self._lock:
            before, self.closed = self.closed, True
        if before:
            return
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:  # a request that still runs may cancel one of them
            sent = [job for job, _ in self._sent.values()] if self.solves.here else []
        for job in sent:
            with suppress(Exception):
                self._ledger.release(job)
        self.solves.close()
        with suppress(Exception):
            self._ledger.renew(self.id, last=True)

    # What the doors ask for

    @property
    def capacity_mb(self) -> int | None:
        """Largest ``memory_mb`` that a worker can take; None while no worker is known."""
        return max(self.rooms)[0] if self.rooms else None

    def notes_on(self, job: SolveJob) -> list[str]:
        """Return why a queued job waits in vain: it was taken while no worker was known, or larger ones have gone."""
        if job.state != "queued" or not self.rooms or self._fits(*self._room_for(job)):
            return []
        needed, largest = job.memory_mb / 1024, max(self.rooms)[0] / 1024
        return [
            f"it waits for a worker with {needed:.1f} GiB, and the largest has {largest:.1f} GiB (capacity_mb); start "
            "a larger one, or cancel the job and use a smaller n or a structured mechanism"
        ]

    def submit(self, order: JobOrder, within: Within = lambda *_: None) -> SolveJob:
        """Have a spec solved, once. Blocks for a few milliseconds.

        Whether the result is stored already is for the caller to ask first. A job that is queued or running
        is returned as it is; one that failed, was cancelled, or whose result is gone from the store starts
        anew.

        Args:
            order: what is asked.
            within: what goes with it in the ledger's transaction; see `Ledger.claim`.
        """
        job = self._ledger.get(order.spec_digest)
        stale = job is not None and job.state == "done" and self._find(order.spec_digest) is None
        with self._lock:
            job, mine = self._ledger.claim(order, owner=self.id, stale=stale, within=within)
            if mine:
                _log.info("a job is queued", extra={"about": job.about()})
                self._send(job)
        return job

    def cancel(self, spec_digest: str, actor: str = "factorize") -> SolveJob | None:
        """End a queued or running job because a user asks for it; `actor` is who, for the audit log.

        Returns:
            The cancelled job; None if there is no such job or it had finished.
        """
        job = self._ledger.cancel(spec_digest, actor)
        if job is not None:
            self._drop(job.task, kill=True)
        return job

    # What is sent

    def _send(self, job: SolveJob) -> None:
        """Have a job solved. Where it cannot be submitted it stays open, and the next round tries again."""
        with self._lock:
            if self.closed or not self.solves.up or not self.rooms:
                return  # what it asks for depends on what the workers have
            room = self._room_for(job)
            try:
                future = self.solves.submit(replace(job, threads=min(job.threads, room[1])), room)
            except Exception:
                _log.warning("a job could not be submitted; it stays queued", exc_info=True)
                return
            self._sent[job.task] = replace(job, memory_mb=room[0], threads=room[1]), future
            future.add_done_callback(lambda ended: self._inbox.put(partial(self._on_end, job, ended)))

    def _room_for(self, job: SolveJob) -> tuple[int, int]:
        """Return memory in MB and threads to keep free for a solve: a whole worker for one that has ended others."""
        largest_mb, processors = max(self.rooms)
        return (largest_mb, processors) if job.suspect else (job.memory_mb, min(job.threads, processors))

    def _fits(self, memory_mb: int, threads: int) -> bool:
        return any(memory_mb <= offered_mb and threads <= processors for offered_mb, processors in self.rooms)

    def _drop(self, task: str, *, kill: bool) -> None:
        """Forget a solve, and end it if asked to."""
        with self._lock:
            _, future = self._sent.pop(task, (None, None))
        if future is not None and kill:
            self.solves.cancel(future)

    # The engine's thread

    def _work(self) -> None:
        next_tick = time.monotonic()
        while True:
            if time.monotonic() >= next_tick:
                self._look()
                next_tick = time.monotonic() + self._tick_seconds
            with suppress(queue.Empty):
                message = self._inbox.get(timeout=max(0.0, next_tick - time.monotonic()))
                if message is None:
                    return
                self._guard(message)

    def _look(self) -> None:
        """Take one round, and say once when ledger and store answer again."""
        self._refused = False
        self._guard(self._tick)
        if self._waits and not self._refused:
            self._waits = False
            _log.warning("ledger and store answer again; the engine goes on")

    def _guard(self, step: Callable[[], None]) -> None:
        try:
            step()
        except StoreUnavailable as error:  # an outage lasts for many rounds, and one line says it
            if not self._waits:
                _log.warning("the engine waits: %s", error)
            self._waits = self._refused = True
        except Exception:
            _log.exception("a step of the engine failed; the next round looks again")

    def _hear(self, event: object) -> None:
        self._inbox.put(partial(self._on_event, event))

    def _on_event(self, event: object) -> None:
        """Note what a running solve has said. On a scheduler elsewhere it may be a stranger that says it."""
        if isinstance(event, dict):
            with self._lock:  # it may be just now that it is sent
                job, _ = self._sent.get(str(event.get("task")), (None, None))
            if job is not None:
                self._heard(job, str(event.get("event")), event)

    def _heard(self, job: SolveJob, kind: str, event: dict[str, object]) -> None:
        ending, progress = SolveEnding.read(event.get("said")), read_progress(event.get("progress"))
        if kind == "ended" and ending is not None:
            self._settle(job, ending)
        elif kind == "started" or (kind == "progress" and progress is not None):
            starts = kind == "started"
            self.solves_total += starts
            changed = self._ledger.start(job) if starts else self._ledger.update_progress(job, progress or {})
            if changed is None:  # the claim is over, so that its job could not be changed
                self._drop(job.task, kill=self.solves.here)

    def _on_end(self, job: SolveJob, future: Any) -> None:
        """Settle a future that is over, of whose solve no end was heard; mostly it was, and nothing is left to do."""
        with self._lock:
            _, known = self._sent.get(job.task, (None, None))
        if known is future:
            self._settle(job, self.solves.outcome(future))

    def _settle(self, job: SolveJob, outcome: SolveEnding | None) -> None:
        """Write the end of a solve, unless it was only lost."""
        try:
            if outcome is not None:
                self._write_end(job, outcome)
        finally:
            self._drop(job.task, kill=outcome is not None and outcome.ending is not Ending.DONE)

    def _write_end(self, job: SolveJob, outcome: SolveEnding) -> None:
        _log.info("a solve is settled", extra={"about": {**job.about(), "ending": outcome.ending.name.lower()}})
        if self._settled is not None:
            self._settled(job, outcome)
        stored = self._find(job.spec_digest)
        if stored is not None:
            self._ledger.finish(job.spec_digest, stored, outcome.progress)
        elif outcome.ending in (Ending.CANCELLED, Ending.INTERRUPTED):
            self._ledger.died(job, deaths=0)
        elif outcome.ending in (Ending.CRASHED, Ending.LOST):
            if job.suspect:
                self._ledger.fail(job, _given_up(outcome.error))
            else:  # a job that was lost with its workers is only suspected, until it runs alone
                self._ledger.died(job, deaths=1 if outcome.ending is Ending.CRASHED else SHARED_DEATHS - job.deaths)
        elif _is_outage(outcome) and job.attempts + 1 < MAX_OUTAGES:
            self._ledger.died(job, deaths=0)  # it is not the spec's fault, and the store answers here again
        else:
            message = (
                f"the store has nothing of it, and the solver said last: {outcome.digest or outcome.ending.value}; "
                "check that workers and service reach the same store and scheduler, and post the spec again"
            )
            self._ledger.fail(job, outcome.error or {"type": "not_stored", "message": message})

    # Reconciliation

    def _tick(self) -> None:
        try:
            self._ledger.renew(self.id)
        except BaseException:
            self.writes = False
            raise
        self.writes = True  # only now: while leases are being renewed, the attempt before counts
        if self.solves.look_after():  # the connection was lost, and what was sent means nothing any more
            with self._lock:
                self._sent.clear()
        self.rooms = self.solves.rooms()
        rows = self._look_after_sent()
        living = {owner for owner in self._ledger.living() if not has_ended(owner)}
        running = Counter(job.owner for job in rows if job.state == "running")
        for job in rows:
            if job.owner == self.id or job.owner not in living:
                alone = self.solves.here and job.state == "running" and running[job.owner] == 1
                self._guard(partial(self._resume, job, fell=alone and has_fallen(job.owner)))

    def _look_after_sent(self) -> list[SolveJob]:
        """Let go of solves whose job is over, in other hands, or too large for the workers; return the open jobs."""
        with self._lock:
            sent = {task: asked for task, (asked, _) in self._sent.items()}
        rows = {job.task: job for job in self._ledger.list_unfinished()}
        for task, asked in sent.items():
            if task not in rows:
                self._drop(task, kill=True)
            elif rows[task].owner != self.id:  # an engine that took us for dead runs it now
                self._drop(task, kill=self.solves.here)
            elif self.rooms and not self._fits(asked.memory_mb, asked.threads) and self._fits(*self._room_for(asked)):
                self._ledger.died(rows[task], deaths=0)  # smaller workers are there now, and it would wait for ever
                self._drop(task, kill=True)
        return list(rows.values())

    def _resume(self, job: SolveJob, *, fell: bool) -> None:
        """Bring an open job that nobody runs to its end.

        Args:
            job: the job.
            fell: its machine went down while it ran there alone.
        """
        ended = has_ended(job.owner)
        with self._lock:
            if job.task in self._sent or not self.solves.up:
                return
            stored = self._find(job.spec_digest)
            if stored is not None:
                self._ledger.finish(job.spec_digest, stored)
            elif fell and job.suspect:
                self._ledger.fail(job, _given_up(None))
            elif (adopted := self._ledger.adopt(job, self.id, deaths=int(fell), ended=ended)) is not None:
                _log.info("a job is taken up", extra={"about": adopted.about()})
                self._send(adopted)


def _is_outage(outcome: SolveEnding) -> bool:
    """Return whether a solve was kept from storing, or its end from being heard, by what is no fault of its spec."""
    return outcome.ending is Ending.UNHEARD or (outcome.error or {}).get("type") == "store-unavailable"


def _given_up(last: dict[str, str] | None) -> dict[str, str]:
    """Return the error of a job that has ended its process too often; `last` is the error that it left, if any."""
    end = "its machine went down" if last is None else last["message"]
    return {
        "type": "gave_up",
        "message": f"the solve ended its process {SHARED_DEATHS + 1} times, the last time on its own worker ({end}). "
        "Post the spec with a smaller n, or again once the cause is removed"[:2000],
    }
