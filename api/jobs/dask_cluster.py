"""The dask cluster, and all that touches dask.distributed: the client of a scheduler, and the task on a worker.

dask is used as a scheduler of coarse tasks: it places a solve on a worker with enough memory and processors, orders the
queue, notices dead workers and carries a cancel message. It never runs numerical code itself, since it could not stop
it; the task has two workers of a pool do it (`one_solve.py`).

A task takes JSON and returns nothing. A worker reports what happens to its solve, its end included, as events of plain
data, and a service reads nothing else from a scheduler. A pickle runs code when it is opened, and dask opens pickles in
results, errors, events and types of tasks. So a service reads a scheduler's messages itself: names, numbers, text,
lists and mappings pass, and each bytes object becomes None before any code of dask sees it.
"""

import asyncio
import json
import logging
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from ssl import SSLError
from typing import Any

import dask
import msgpack
from distributed import Client, Worker, get_worker
from distributed.comm import tcp
from distributed.comm.core import CommClosedError
from distributed.comm.registry import backends
from distributed.protocol.utils import host_array
from tornado.iostream import StreamClosedError
from tornado.platform.asyncio import AsyncIOLoop

from factorize import __version__
from factorize.api.jobs.one_solve import carry_out, is_large
from factorize.api.jobs.solve_job import SolveJob
from factorize.api.telemetry import adopt_dask
from factorize.api.workers.pool import Pool

PREFIX = "plain-"
"""The prefix of `tcp://` or `tls://`: dask reads such an address with the classes below."""
MAX_MESSAGE_BYTES = 1 << 28
"""The most bytes of a message; the largest that is read is the list of workers, some kilobytes each."""
_DROPPED_KEYS = frozenset({"__Serialized__", "__Pickled__"})
"""The keys of what stands for a frame that is dropped."""
_WORD = struct.Struct("<Q")
CONNECT_SECONDS = 5.0
_JOIN_SECONDS = 10.0
TOPIC = "factorize-solves"
RELEASE = f"factorize-{__version__}"
"""The resource of workers of this release: another may read what it is asked otherwise."""
FIELDS = "spec_digest spec workload memory_mb seconds_limit threads request_id client_request_id task deaths".split()
"""The fields of a job that a worker is told."""
_MAX_SOLVES = 1e6  # solves at a time, which this resource does not limit
_GONE_STATES = frozenset({"cancelled", "released", "forgotten"})
_SETTINGS = {
    "distributed.worker.profile.enabled": False,  # samples every thread 100 times a second
    "distributed.diagnostics.nvml": False,
    "distributed.admin.tick.limit": "30s",  # a busy machine is no news
    "distributed.admin.tick.interval": "1s",  # and need not be looked for 50 times a second
    "distributed.admin.low-level-log-length": 100,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
_own_store: list[str] = []


def plain(value: object) -> Any:
    """Return a decoded message without its bytes, of types that dask opens no pickle in."""
    if isinstance(value, dict):
        if not _DROPPED_KEYS.isdisjoint(value):
            return None
        return {plain(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(plain(entry) for entry in value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else None


class _Reading:
    """The reading of a message: a count of frames, their lengths, and the frames, the first of which is msgpack."""

    stream: Any
    abort: Any  # a class of dask's
    _closed: bool

    async def read(self, deserializers: object = None) -> Any:
        """Return the next message as plain data; the frames after the first, which hold pickles, are dropped."""
        if self.stream is None:
            raise CommClosedError
        try:
            (length,) = _WORD.unpack(await self.stream.read_bytes(_WORD.size))
            data = await self._bytes(length)
            start = _WORD.size * (1 + _WORD.unpack_from(data)[0])
            if start > len(data):
                raise ValueError(f"{start // _WORD.size - 1} frames in {len(data)} bytes")
            lengths = [length for (length,) in _WORD.iter_unpack(data[_WORD.size : start])]
            data += await self._bytes(start + sum(lengths) - len(data))
        except (StreamClosedError, SSLError) as error:
            self.stream, self._closed = None, True
            raise CommClosedError(f"the scheduler has closed the connection: {error}") from error
        except BaseException:
            self.abort()
            raise
        frame = data[start : start + lengths[0]] if lengths else b""
        return plain(msgpack.unpackb(frame, use_list=False, strict_map_key=False, raw=False))

    async def _bytes(self, count: int) -> bytes:
        if not 0 <= count <= MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {count} bytes, and the limit is {MAX_MESSAGE_BYTES}")
        return bytes(await self.stream.read_bytes(count)) if count else b""


for _scheme, _comm, _connector, _backend in (
    ("tcp", tcp.TCP, tcp.TCPConnector, tcp.TCPBackend),
    ("tls", tcp.TLS, tcp.TLSConnector, tcp.TLSBackend),
):
    _plain = type(_connector.__name__, (_connector,), {"comm_class": type(_comm.__name__, (_Reading, _comm), {})})
    backends[f"{PREFIX}{_scheme}"] = type(_backend.__name__, (_backend,), {"_connector_class": _plain})()


def _bounded_array(size: int) -> object:
    """Make room for a frame that is announced to a worker, which gets specs, and none of a result's size."""
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"a frame of {size} bytes, and the limit is {MAX_MESSAGE_BYTES}")
    return host_array(size)


def configure() -> None:
    """Quieten dask, bound what it reads, and leave out what is not needed. Sends nothing anywhere."""
    dask.config.set(_SETTINGS)
    tcp.host_array = _bounded_array  # type: ignore[attr-defined, assignment]
    logging.getLogger("distributed").setLevel(logging.WARNING)
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # it tells of a lost scheduler by a traceback
    adopt_dask()


class UnreadableScheduler(OSError):
    """What answers at a scheduler's address cannot be understood: another program, another dask, broken bytes."""


class SchedulerClient:
    """A client of a scheduler, on an event loop in a thread of its own; its end leaves no thread and no socket open.

    dask's own loop thread outlives a client that could not connect, and tornado drops the socket of a connection that
    was made in the moment in which its time was up. So the loop is ours, and closes whatever is still registered with
    it. Safe for threads.

    Args:
        address: the scheduler's address.
        listen: called with each event of a running solve, in dask's event loop; must not block.

    Raises:
        UnreadableScheduler: something answers there, and not as a scheduler that this dask understands.
        OSError: no scheduler answers there.
    """

    def __init__(self, address: str, listen: Callable[[dict[str, object]], None]) -> None:
        configure()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="dask client", daemon=True)
        self._thread.start()
        try:
            self.client = asyncio.run_coroutine_threadsafe(_client_of(address), self._loop).result()
        except BaseException:
            self._end()
            raise
        self.client.subscribe_topic(TOPIC, lambda event: listen(event[1]))
        self._stream = self.client.scheduler_comm

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        sockets = AsyncIOLoop(asyncio_loop=self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_cancel_all())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            asyncio.set_event_loop(None)
            sockets.close(all_fds=True)

    def _end(self) -> None:
        """Cancel what runs, close every socket, end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_JOIN_SECONDS)

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
        self._end()
        self.client.status = "closed"  # or its finalizer would ask a loop that is gone


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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
    """Say in a line that an address answers, and not as a scheduler; dask's own words differ with what it has read."""
    words = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return f"{address} does not answer as a dask scheduler of this release does ({words}); check the address"


def offer(memory_mb: int, processors: int) -> dict[str, float]:
    """Return what a worker offers: memory in MB, threads, and its release, without which it is given nothing."""
    return {"MB": memory_mb, "CPU": processors, RELEASE: _MAX_SOLVES}


def solve(document: str, store: str) -> None:
    """Have two processes of this worker's pool do one solve, and forward what is said.

    Args:
        document: the `FIELDS` of a job, as JSON.
        store: URL of the store, unless this machine has one of its own.
    """
    worker, job = get_worker(), SolveJob(**json.loads(document))
    with pool().place(fresh=is_large(job)) as place:
        own, say = _own_store[0] if _own_store else store, partial(worker.log_event, TOPIC)
        carry_out(job, own, say, place, lambda: not is_wanted(worker, job.task))


@cache
def pool() -> Pool:
    """Return the workers of this process; dask says how many solves they have."""
    return Pool()


def solve_into(store: str) -> None:
    """Let the solves of this process write to the store by the URL that it has on this machine."""
    _own_store[:] = [store]


def is_wanted(worker: Worker, task: str) -> bool:
    """Return False once the scheduler has cancelled a task that this worker runs, or the worker closes.

    ``worker.state.tasks`` is dask's own record of its cancel message and not quite public; a contract test
    watches it.
    """
    state = worker.state.tasks.get(task)
    return state is not None and state.state not in _GONE_STATES and worker.status.name in {"running", "paused"}
