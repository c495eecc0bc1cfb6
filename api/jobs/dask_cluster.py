"""The dask cluster, and all that touches dask.distributed: cluster in this process, client, the task on a worker.

dask is used as a scheduler of coarse tasks: it places a solve on a worker with enough memory and
processors, orders the queue, notices dead workers and carries a cancel message. It never runs numerical
code itself, since it could not stop it; the task starts a child process (``supervisor``).

A task returns nothing. What happens to its solve, its end too, a worker says as events of plain data, and a service
reads nothing else from a scheduler elsewhere (``dask_plain``).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import dask
from dask.system import CPU_COUNT
from distributed import Client, Future, LocalCluster, Worker, fire_and_forget, get_worker
from distributed.system import MEMORY_LIMIT

from factorize import __version__
from factorize.api.jobs.dask_loop import ClientLoop
from factorize.api.jobs.dask_plain import PREFIX
from factorize.api.jobs.ending import Ending, SolveEnding
from factorize.api.jobs.supervisor import MEBIBYTE, Request, run
from factorize.api.telemetry.log_context import bound
from factorize.api.telemetry.log_lines import adopt_dask
from factorize.storage.medium.scratch_folders import ScratchFolder

CONNECT_SECONDS = 5.0
TOPIC = "factorize-solves"
RELEASE = f"factorize-{__version__}"
"""Resource of workers of this release. What a worker is asked is pickled, and another release may read it otherwise."""
_MANY = 1e6  # solves at a time, which this resource does not limit
PROCESSORS = CPU_COUNT
MEMORY_MB = int(0.8 * MEMORY_LIMIT) // MEBIBYTE

_GONE = frozenset({"cancelled", "released", "forgotten"})
_SETTINGS = {
    "distributed.worker.profile.enabled": False,  # samples every thread 100 times a second
    "distributed.diagnostics.nvml": False,
    "distributed.admin.tick.limit": "30s",  # a busy machine is no news
    "distributed.admin.tick.interval": "1s",  # and need not be looked for 50 times a second
    "distributed.admin.low-level-log-length": 100,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
_log = logging.getLogger(__name__)
_active: set[str] = set()
_own_store: list[str] = []
_near: dict[str, Callable[[dict[str, Any]], None]] = {}
"""Who hears what the solves of a worker in this process say, by its address: not by way of its scheduler."""
_active_changed = threading.Condition()


def configure() -> None:
    """Quieten dask and leave out what a private scheduler does not need. Sends nothing anywhere."""
    dask.config.set(_SETTINGS)
    logging.getLogger("distributed").setLevel(logging.WARNING)
    adopt_dask()


class Embedded:
    """Scheduler and one worker as threads of this process, reachable from nowhere else."""

    def __init__(self, capacity_mb: int, processors: int) -> None:
        """Start both.

        Args:
            capacity_mb: memory that running solves may be admitted with together, in units of 2^20 bytes.
            processors: threads that running solves may be admitted with together.
        """
        configure()
        self._folder = ScratchFolder("engine")
        self.cluster = LocalCluster(
            processes=False,
            n_workers=1,
            threads_per_worker=processors,
            memory_limit=0,
            resources=offer(capacity_mb, processors),
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            local_directory=str(self._folder.path),
            silence_logs=logging.WARNING,
        )
        # dask has no switch for its two web servers; nothing needs them, so their ports are closed again.
        for node in (self.cluster.scheduler, *self.cluster.workers.values()):
            node.loop.add_callback(node.http_server.stop)
        self._addresses = [worker.address for worker in self.cluster.workers.values()]

    def hear(self, listen: Callable[[dict[str, Any]], None]) -> None:
        """Have each event of a running solve told; from the thread of the solve."""
        _near.update(dict.fromkeys(self._addresses, listen))

    def close(self) -> None:
        """Stop the worker, then the scheduler."""
        self.cluster.close()
        for address in self._addresses:
            _near.pop(address, None)
        self._folder.close()


class UnreadableScheduler(OSError):
    """What answers at a scheduler's address cannot be understood: another program, another dask, broken bytes."""


class SchedulerClient:
    """A client of a scheduler, and the loop that it runs on where that is not the cluster's own."""

    def __init__(self, where: Embedded | str, listen: Callable[[dict[str, Any]], None]) -> None:
        """Connect.

        Args:
            where: the cluster in this process, or the address of a scheduler.
            listen: called with each event of a running solve, in dask's event loop or the solve's thread; must not
                block.

        Raises:
            UnreadableScheduler: something answers there, and not as a scheduler that this dask understands.
            OSError: no scheduler answers there.
        """
        configure()
        self._loop: ClientLoop | None = None
        if isinstance(where, Embedded):
            where.hear(listen)
            self.client = Client(where.cluster, timeout=CONNECT_SECONDS, set_as_default=False, name="factorize")
        else:
            self._loop = ClientLoop()
            try:
                self.client = self._loop.run(_client_of(where))
            except BaseException:
                self._loop.close()
                raise
            self.client.subscribe_topic(TOPIC, lambda event: listen(event[1]))
        self._stream = self.client.scheduler_comm

    @property
    def up(self) -> bool:
        """True while the scheduler is heard.

        Once it has read what it cannot decode, dask's client calls itself running for ever; the task that reads has
        ended then. A client that has found a scheduler again by itself has a new stream, on which it hears of no solve:
        its topics are the old scheduler's. Task and stream are not quite public; contract tests watch them.
        """
        hearing = self.client._handle_report_task
        hears = hearing is not None and not hearing.done() and self.client.scheduler_comm is self._stream
        return self.client.status == "running" and hears

    def close(self) -> None:
        """Disconnect, also from a scheduler that is gone."""
        with suppress(Exception):
            self.client.close(timeout=2)
        if self._loop is not None:
            self._loop.close()
            self.client.status = "closed"  # or its finalizer would ask a loop that is gone


async def _client_of(address: str) -> Client:
    """Connect on the running loop. dask limits each step but the handshake, which a stopped scheduler never ends."""
    options = {"timeout": CONNECT_SECONDS, "set_as_default": False, "name": "factorize", "asynchronous": True}
    client = Client(PREFIX + address, **options)
    limit = 4 * CONNECT_SECONDS
    try:
        async with asyncio.timeout(limit):
            return await client
    except BaseException as error:
        client.status = "closed"
        if isinstance(error, TimeoutError):
            raise OSError(f"{address} accepts connections and did not answer within {limit:g} s") from None
        if isinstance(error, Exception) and not isinstance(error, OSError):
            raise UnreadableScheduler(unreadable(address, error)) from None
        raise


def unreadable(address: str, error: Exception) -> str:
    """Say that what answers at an address is no scheduler, in a line; dask's own words differ with what it has read."""
    words = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return f"{address} does not answer as a dask scheduler of this release does ({words}); check the address"


def offer(memory_mb: int, processors: int) -> dict[str, float]:
    """Return what a worker offers: memory in MB, threads, and its release, without which it is given nothing."""
    return {"MB": memory_mb, "CPU": processors, RELEASE: _MANY}


class WorkerLoad(NamedTuple):
    """What a worker was seen to do, a few seconds ago.

    Attributes:
        address: of the worker.
        solves: how many it runs.
        memory_mb: what it offers, in units of 2^20 bytes.
    """

    address: str
    solves: int
    memory_mb: int


def worker_loads(client: Client) -> list[WorkerLoad]:
    """Return what each worker of this release does."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return [
        WorkerLoad(address, int(worker["metrics"]["task_counts"].get("executing", 0)), int(worker["resources"]["MB"]))
        for address, worker in workers.items()
        if {"MB", RELEASE} <= set(worker["resources"]) and "task_counts" in worker.get("metrics", {})
    ]


def other_workers(client: Client) -> list[str]:
    """Return a sentence for each worker that offers no solves of this release."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return [
        f"the worker {address} is of {_release_of(worker['resources'])} and is given nothing; this service is of "
        f"{RELEASE}: install the same release"
        for address, worker in workers.items()
        if RELEASE not in worker["resources"]
    ]


def _release_of(resources: Mapping[str, float]) -> str:
    return next((name for name in resources if name.startswith("factorize-")), "no release of factorize")[:50]


def capacity(client: Client) -> tuple[int, int] | None:
    """Memory and processors of the largest worker of this release, or None while there is none."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    offers = [worker["resources"] for worker in workers if {"MB", "CPU", RELEASE} <= set(worker["resources"])]
    return max(((int(offer["MB"]), int(offer["CPU"])) for offer in offers), default=None)


def submit(
    client: Client, task: str, request: Request, priority: int, room: tuple[int, int] | None = None
) -> Future[Any]:
    """Queue a solve. It goes on when this client dies; the same task is queued once, whoever submits it.

    Args:
        client: the connection.
        task: name of the claim.
        request: what to solve.
        priority: larger runs first.
        room: memory in MB and threads to keep free for it, where that is more than it needs.
    """
    memory_mb, threads = room or (request.memory_mb, request.threads)
    future = client.submit(
        solve,
        request,
        task,
        key=task,
        priority=priority,
        resources={"MB": memory_mb, "CPU": threads, RELEASE: 1},
        retries=0,
        pure=False,
    )
    fire_and_forget(future)
    return future


def when_ended(future: Future[Any], call: Callable[[Future[Any]], None]) -> None:
    """Call with the future when its task is over; from a thread of dask's."""
    future.add_done_callback(call)


def cancel(future: Future[Any]) -> None:
    """Ask the scheduler to end a task, whoever else wants it. Where it cannot be asked, nothing happens."""
    with suppress(Exception):
        future.cancel(force=True)


def outcome(future: Future[Any]) -> SolveEnding | None:
    """What a task says by its own end, of which no event told; None where dask only says that it lost it.

    ``cancelled`` and ``lost`` are dask's words for its own troubles, a scheduler that died among them. They
    say nothing about a user's wish.
    """
    if future.status == "finished":
        return SolveEnding(Ending.UNHEARD, None, None, 0.0)
    if future.status != "error":
        return None
    message = "the workers that were given the solve died, or could not run it"
    return SolveEnding(Ending.LOST, None, {"type": "worker_lost", "message": message}, 0.0)


def solve(request: Request, task: str) -> None:
    """What a worker does for one solve: supervise the child, forward what it says."""
    worker = get_worker()
    if _own_store:
        request = replace(request, store=_own_store[0])

    def say(event: str, **more: Any) -> None:
        near, said = _near.get(worker.address), {"task": task, "event": event, **more}
        if near is None:
            worker.log_event(TOPIC, said)
        else:
            near(said)

    with _active_changed:
        _active.add(task)
    try:
        say("started")
        with bound(**request.about):
            _log.info("a solve starts", extra={"about": {"threads": request.threads, "memory_mb": request.memory_mb}})
            ended = _supervised(request, say, lambda: not is_wanted(worker, task))
            _log.info("a solve has ended", extra={"about": _end_of(ended)})
        say("ended", said=ended.document())
    finally:
        with _active_changed:
            _active.discard(task)
            _active_changed.notify_all()


def _supervised(request: Request, say: Callable[..., None], cancelled: Callable[[], bool]) -> SolveEnding:
    try:
        return run(
            request,
            report=lambda progress: say("progress", progress=progress),
            cancelled=cancelled,
            stored=lambda said: say("stored", said=said.document()),
        )
    except Exception as error:
        _log.exception("a solve could not be supervised")
        message = f"the solve could not be supervised: {error!r}"[:2000]
        return SolveEnding(Ending.FAILED, None, {"type": "internal", "message": message}, 0.0)


def _end_of(ended: SolveEnding) -> dict[str, Any]:
    """What a line of the log says of it."""
    error = {} if ended.error is None else {"error": ended.error["message"]}
    return {"ending": ended.ending.name.lower(), "seconds": round(ended.seconds, 3), "digest": ended.digest, **error}


def solve_into(store: str) -> None:
    """Let the solves of this process write to the store by the URL that it has on this machine."""
    _own_store[:] = [store]


def is_wanted(worker: Worker, task: str) -> bool:
    """False once the scheduler has cancelled a task that this worker runs, or the worker closes.

    ``worker.state.tasks`` is dask's own record of its cancel message and not quite public; a contract test
    watches it.
    """
    state = worker.state.tasks.get(task)
    return state is not None and state.state not in _GONE and worker.status.name in {"running", "paused"}


def wait_until_ended(tasks: set[str], timeout: float) -> bool:
    """Wait for solves that run in this process; False if some still run after ``timeout`` seconds."""
    with _active_changed:
        return _active_changed.wait_for(lambda: not tasks & _active, timeout)
