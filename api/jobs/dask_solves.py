"""Solves on a dask cluster, behind the face that an engine knows: the connection to the scheduler, and its renewal."""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from distributed import Future, fire_and_forget

from factorize.api.jobs import dask_cluster
from factorize.api.jobs.dask_cluster import FIELDS, RELEASE
from factorize.api.jobs.one_solve import Missing, WorkerLoad
from factorize.api.jobs.solve_job import SolveEnding, SolveJob
from factorize.api.workers.worker import Ending

_log = logging.getLogger(__name__)


class DaskSolves:
    """Solves handed to a scheduler, by a client that `look_after` connects, and replaces when its scheduler is lost.

    Args:
        scheduler: its address.
        store: URL of the store that keeps results.
        listen: called with each event of a running solve, in a thread of dask's; must not block.
    """

    here = False
    """Whether solves end with this process."""

    def __init__(self, scheduler: str, store: str, listen: Callable[[dict[str, object]], None]) -> None:
        # This says why what answers is no scheduler of this release; it is empty where none answers, or one does.
        self._unreadable = ""
        self._connection: dask_cluster.SchedulerClient | None = None
        self._where, self._store = scheduler, store
        self._listen = listen
        self._rounds_without = 0
        self._closing: list[threading.Thread] = []

    @property
    def up(self) -> bool:
        """True while the scheduler answers."""
        connection = self._connection
        return connection is not None and connection.up

    def rooms(self) -> list[tuple[int, int]]:
        """Return memory in MB and threads of each worker of this release that is known."""
        offers = [worker["resources"] for worker in self._workers().values()]
        return [(int(offer["MB"]), int(offer["CPU"])) for offer in offers if {"MB", "CPU", RELEASE} <= set(offer)]

    def worker_loads(self) -> list[WorkerLoad]:
        """Return what each worker of this release does."""
        return [
            WorkerLoad(
                address, int(worker["metrics"]["task_counts"].get("executing", 0)), int(worker["resources"]["MB"])
            )
            for address, worker in self._workers().items()
            if {"MB", RELEASE} <= set(worker["resources"]) and "task_counts" in worker.get("metrics", {})
        ]

    def missing(self) -> list[Missing]:
        """Return what is wrong with the scheduler, or what keeps solves waiting."""
        if not self.up and self._unreadable:
            return [Missing("engine", "scheduler-unreadable", self._unreadable)]
        if not self.up:
            detail = f"the scheduler {self._where} does not answer; start it, or check its address and certificates"
            return [Missing("engine", "scheduler-gone", detail)]
        strangers = [
            f"the worker {address} runs {_release_of(worker['resources'])} and gets no work, since this service runs "
            f"{RELEASE}; install the same release"
            for address, worker in self._workers().items()
            if RELEASE not in worker["resources"]
        ]
        notes = [Missing("engine", "other-worker", detail) for detail in strangers]
        if not self.rooms():
            notes.append(Missing("engine", "no-workers", "start `factorize worker` of this release"))
        return notes

    def _workers(self) -> Mapping[str, Any]:
        """Return what the scheduler said last of its workers; nothing while none answers."""
        connection = self._connection
        if connection is None or not connection.up:
            return {}
        return connection.client.scheduler_info(n_workers=-1)["workers"]

    def submit(self, job: SolveJob, room: tuple[int, int]) -> Future[Any]:
        """Queue a solve. It goes on when this client dies; the same task is queued once, whoever submits it.

        Args:
            job: the solve; earlier turns come first.
            room: memory in MB and threads to keep free for it.
        """
        assert self._connection is not None
        future = self._connection.client.submit(
            dask_cluster.solve,
            json.dumps({name: getattr(job, name) for name in FIELDS}),
            self._store,
            key=job.task,
            priority=-job.turn,
            resources={"MB": room[0], "CPU": room[1], RELEASE: 1},
            retries=0,
            pure=False,
        )
        fire_and_forget(future)
        return future

    def cancel(self, future: Future[object]) -> None:
        """Ask the scheduler to end a task, whoever else wants it. Where it cannot be asked, nothing happens."""
        with suppress(Exception):
            future.cancel(force=True)

    def outcome(self, future: Future[object]) -> SolveEnding | None:
        """Return how a task ended if no event told of it; None where dask only says that it lost the task.

        ``cancelled`` and ``lost`` are dask's words for its own troubles, a scheduler that died among them. They
        say nothing about a user's wish.
        """
        if future.status == "finished":
            return SolveEnding(Ending.UNHEARD, None, None, 0.0)
        if future.status != "error":
            return None
        message = "the workers of this solve died, or could not run it"
        return SolveEnding(Ending.LOST, None, {"type": "worker_lost", "message": message}, 0.0)

    def look_after(self) -> bool:
        """Connect where there is no client, or one was without its scheduler for two rounds and would not come in time.

        Returns:
            True if there is another client, or none, so that futures mean nothing any more.
        """
        self._rounds_without = 0 if self.up else self._rounds_without + 1
        if self._connection is not None and self._rounds_without < 2:
            return False
        if self._connection is not None:
            _log.warning("the scheduler at %s was lost; connecting to it anew", self._where)
        self._connect()
        return True

    def close(self) -> None:
        """Disconnect, and wait until the connections that were replaced are closed too."""
        if self._connection is not None:
            self._connection.close()
        for closing in self._closing:
            closing.join()

    def _connect(self) -> None:
        old, self._connection = self._connection, None
        if old is not None:  # closing waits for the scheduler that is gone
            closing = threading.Thread(target=old.close, name="dask client closing", daemon=True)
            closing.start()
            self._closing = [*(thread for thread in self._closing if thread.is_alive()), closing]
        try:
            self._connection = dask_cluster.SchedulerClient(self._where, self._listen)
            self._rounds_without, self._unreadable = 0, ""
        except OSError as error:
            self._unreadable = str(error) if isinstance(error, dask_cluster.UnreadableScheduler) else ""
            _log.warning("no scheduler answers at %s (%s); trying again", self._where, error)


def _release_of(resources: Mapping[str, float]) -> str:
    return next((name for name in resources if name.startswith("factorize-")), "no release of factorize")[:50]
