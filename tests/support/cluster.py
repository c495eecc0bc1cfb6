"""A cluster of real processes on this machine: PostgreSQL, moto's S3 server, a dask scheduler, workers, services behind a
balancer. `python tests/support/cluster.py` runs one until Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import bucket_server
import postgres_server
from patience import wait_for
from ports import free_ports

ROOT = Path(__file__).parents[2]


class Balancer:
    """Passes each connection on to the next service in turn that accepts it.

    Args:
        ports: where the services are, on loopback.
    """

    def __init__(self, ports: list[int]) -> None:
        self._turns = itertools.cycle(range(len(ports)))
        self._ports = ports
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _start(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    def close(self) -> None:
        """End every connection."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # `close` ends every connection
                await self._pass_on(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            for _ in self._ports:
                try:
                    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._ports[next(self._turns)])
                except OSError:
                    continue
                with contextlib.closing(far_writer):
                    await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
                return


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):  # the same after a reset, or the other side would wait
        if writer.can_write_eof():
            writer.write_eof()


class Cluster:
    """The running parts of a cluster. Those that die are started anew by `start_...`.

    Args:
        folder: for logs and copies.
        stack: ends what was started.
        postgres: a server that runs already; by default one of its own.
        buckets: likewise.
    """

    def __init__(
        self,
        folder: Path,
        stack: ExitStack,
        postgres: postgres_server.PostgresServer | None = None,
        buckets: bucket_server.BucketServer | None = None,
    ) -> None:
        self.folder = folder
        self.stack = stack
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.postgres = postgres or stack.enter_context(postgres_server.running())
        self.buckets = buckets or stack.enter_context(bucket_server.running())
        self.database = self.postgres.database()
        self.store = f"{self.buckets.bucket()}/results"
        self.scheduler_port, *self.service_ports = free_ports(3)
        self.scheduler = f"tcp://127.0.0.1:{self.scheduler_port}"
        stack.callback(self._end)

    def start(self, workers: int = 2) -> str:
        """Start everything, and return the balancer's URL."""
        self.start_scheduler()
        for number in range(workers):
            self.start_worker(number)
        for number in range(2):
            self.start_service(number)
        balancer = Balancer(self.service_ports)
        self.stack.callback(balancer.close)
        for port in (self.scheduler_port, *self.service_ports):
            wait_for(lambda port=port: _accepts(port))
        return f"http://127.0.0.1:{balancer.port}"

    def start_scheduler(self) -> None:
        """Start the scheduler."""
        place = ("--host", "127.0.0.1", "--port", str(self.scheduler_port), "--no-dashboard", "--dashboard-address")
        self._run("scheduler", "distributed.cli.dask_scheduler", *place, "127.0.0.1:0")

    def start_worker(self, number: int) -> None:
        """Start a worker for one solve at a time."""
        given = ("--scheduler", self.scheduler, "--store", self.store, "--processors", "1", "--memory-mb", "2000")
        self._run(f"worker{number}", "factorize.api.cli", "worker", *given)

    def start_service(self, number: int) -> None:
        """Start a service."""
        given = ("--store", self.store, "--database", self.database, "--scheduler", self.scheduler)
        self._run(f"service{number}", "factorize.api.cli", "serve", "--port", str(self.service_ports[number]), *given)

    def log(self, name: str) -> str:
        """Return what a part has said."""
        return (self.folder / f"{name}.log").read_text()

    def _run(self, name: str, module: str, *arguments: str) -> None:
        kept = {n: value for n, value in os.environ.items() if not n.startswith(("FACTORIZE_", "AWS_"))}
        environment = kept | self.buckets.environment | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], env=environment, stdout=log, stderr=log
            )

    def _end(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()


@contextmanager
def running(
    postgres: postgres_server.PostgresServer | None = None, buckets: bucket_server.BucketServer | None = None
) -> Iterator[tuple[Cluster, str]]:
    """Run a cluster, on servers that run already if they are given; give it and its URL."""
    with tempfile.TemporaryDirectory(prefix="factorize-cluster-") as folder, ExitStack() as stack:
        cluster = Cluster(Path(folder), stack, postgres, buckets)
        yield cluster, cluster.start()


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    began = time.monotonic()
    with running() as (parts, address):
        print(
            f"serving {address} after {time.monotonic() - began:.0f} s; logs in {parts.folder}; Ctrl-C ends", flush=True
        )
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
