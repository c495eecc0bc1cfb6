"""The simulated cluster: services with their real code, stubs of workers and of a scheduler, and the results they know."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

from factorize.api import service as service_module
from factorize.api.access import gate
from factorize.api.jobs import audit_log, dask_cluster, dask_solves, engine, one_solve, solve_job
from factorize.api.service import SolverService
from factorize.api.settings import Settings
from factorize.api.workers import pool
from factorize.api.workers.worker import AnswerLimits, Ending, WorkerEnded
from factorize.encoding import sha256
from factorize.errors import CertificateError, FactorizeError, SolveFailed, StoreUnavailable
from factorize.format.container import Container
from factorize.solvers.problem import Estimate
from factorize.storage import blobs, fsck
from factorize.storage import store as store_module
from factorize.storage.medium import bucket, directory
from factorize.storage.medium.bucket_lock import BucketLock

from .answers import by_file, by_spec, library, spec_of
from .database import Database, compiling_once, connecting
from .medium import ROOT, Cloud, Disk, DiskFiles, Faults, bucket_of
from .world import EPOCH, Process, Violation, World, standing_in

SOLVE_LIMIT_SECONDS, ESTIMATED_SECONDS = 20.0, 4.9
CACHE_BYTES = 40_000
"""Some files, and a manifest or two: small, as the sizes in `simulated` are, so that every branch is reached."""
BUCKET_URL = "s3://bucket/store"
_GARBAGE = b"\x08\0\0\0\0\0\0\0{}      "


class StubWorker:
    """A worker process: takes simulated seconds, and does what the plan wants of the spec's next solve.

    Acts: `crash`, `hang`, `fail`, `memory`, `interrupt`; `garbage` and `swap` write a wrong file; `stale` proves another.
    """

    cluster: Cluster
    pid = 1

    def __init__(self, module: str) -> None:
        self.prover, self.killed = module == pool.PROVER, False

    def start(self) -> None:
        pass

    def kill(self) -> None:
        self.killed = True

    close = kill

    def _work(
        self,
        seconds: float,
        limit: float,
        progress: Callable[[Any], object],
        cancelled: Callable[[], bool],
        most: float = float("inf"),
    ) -> None:
        world = self.cluster.world
        end, began, count = world.now + min(seconds, limit), world.now, 0
        while world.now < end:
            world.park(min(0.4, end - world.now))
            if self.killed or cancelled():
                raise WorkerEnded(Ending.CANCELLED)
            count += 1
            if count > most:
                continue
            progress({"iteration": count, "relative_gap": 0.5, "class_gap": None, "seconds": world.now - began, "phase": None, "seconds_left": None})  # fmt: skip
        if seconds >= limit:
            raise WorkerEnded(Ending.TIMEOUT)

    def ask(
        self,
        question: str,
        request: dict[str, Any],
        limits: AnswerLimits,
        progress: Callable[[Any], object] = lambda _event: None,
    ) -> Any:
        cluster, seconds, cancelled = self.cluster, limits.seconds, limits.cancelled
        path = Path(request["path"])
        luck = cluster.world.task.luck
        if question == "certify":
            self._work(luck.uniform(0.01, 0.3), seconds, lambda _: None, cancelled)
            try:
                name = sha256(cluster.read_file(path))
            except FileNotFoundError:  # a sweep whose clock is years ahead takes what was just written
                raise StoreUnavailable("the draft is gone") from None
            if name not in by_file():
                raise CertificateError("the file is none that can be proved")
            if cluster.stale.pop(str(path), False):
                name = luck.choice(sorted(by_file()))
            return {"digest": by_file()[name].digest, "sha256": name, "release": f"proved {by_file()[name].digest}"}
        known = by_spec()[spec_of(request["spec"]).digest]
        acts = cluster.acts.get(known.spec.digest)
        act = acts.pop(0) if acts else ("well", None)
        if act[1] is not None:
            cluster.faults.fired.add(act[1])
            cluster.world.say(f"{cluster.world.task.process.name}: a solve of {known.spec.digest[:6]} does {act[0]}")
        takes = {"hang": 1e9, "silent": luck.uniform(4.0, 8.0)}.get(act[0], luck.uniform(0.05, 3.0))
        self._work(takes, seconds, progress, cancelled, most=2 if act[0] == "silent" else float("inf"))
        match act[0]:
            case "crash":
                raise WorkerEnded(Ending.CRASHED)
            case "interrupt":
                raise WorkerEnded(Ending.INTERRUPTED)
            case "memory":
                raise WorkerEnded(Ending.OUT_OF_MEMORY)
            case "fail":
                raise SolveFailed("the residual is 3e-4, limit 1e-9")
            case "bug":
                raise ZeroDivisionError
        data = luck.choice(known.files[:2])[1]
        if act[0] == "garbage":
            data = luck.choice((b"", _GARBAGE, data[:-3], data[:40] + b"!" + data[41:]))
        if act[0] == "swap":
            data = luck.choice([file for other in library()[:9] if other is not known for _, file in other.files[:2]])
        cluster.stale[str(path)] = act[0] == "stale"
        try:
            cluster.write_file(path, data)
        except OSError as error:
            raise StoreUnavailable(f"{path.name}: {error}") from None
        return None


class RemoteFuture:
    """What a service has of a task on the scheduler."""

    def __init__(self, process: Process, cancel: Callable[..., None]) -> None:
        self.status, self.calls, self.process = "pending", list[Callable[[Any], object]](), process
        self.cancel = cancel

    def add_done_callback(self, call: Callable[[Any], object]) -> None:
        self.calls.append(call)

    def end(self, status: str) -> None:
        if self.status == "pending" and self.process.alive:
            self.status = status
            world, number = self.process.world, self.process.number
            after = 0.01 if world.inside and world.task.luck.random() < 0.2 else 0.5  # than the last news of it, mostly
            self.process.spawn(f"end{number}", lambda: [call(self) for call in self.calls], after)


@dataclass
class RemoteTask:
    """A task on the scheduler."""

    document: Any
    futures: list[RemoteFuture] = field(default_factory=list)
    worker: Process | None = None
    wanted: bool = True
    deaths: int = 0


class Scheduler:
    """A stub of dask: gives solves to workers elsewhere, notices dead ones late, forgets all when it dies."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.world = cluster, cluster.world
        self.up, self.life, self.started, self.luck = True, 0, 0, random.Random(cluster.world.seed)
        self.tasks: dict[str, RemoteTask] = {}
        self.workers: list[Process] = []
        self.listeners: list[tuple[Process, Callable[[Any], object]]] = []
        for _ in range(2):
            self.start_worker()

    def start_worker(self) -> None:
        self.started += 1
        worker = self.world.process(f"worker{self.started}", f"w{self.started}")
        self.workers.append(worker)
        self.cluster.attend(worker)
        worker.at_end.append(lambda: self.world.at(self.world.now + 2.5, partial(self._notice, worker)))

    def _notice(self, worker: Process) -> None:
        self.workers.remove(worker)
        self.start_worker()
        for key, task in list(self.tasks.items()):
            if task.worker is worker:
                task.deaths += 1
                self.end(key, "error") if task.deaths > 1 else self.place(key, task)

    def die(self) -> None:
        """Forget everything; workers end with their scheduler, and both are there again some seconds later."""
        self.up = False
        for key in list(self.tasks):
            if self.luck.random() < 0.5:
                self.end(key, "lost")
        self.tasks.clear()  # of the others nobody hears any more
        for worker in self.workers:
            self.world.kill(worker)
        self.listeners.clear()
        self.life += 1
        self.world.at(self.world.now + 3.0, lambda: setattr(self, "up", True))

    def submit(self, key: str, document: Any, process: Process) -> RemoteFuture:
        future = RemoteFuture(process, lambda **_: self.end(key, "cancelled"))
        fresh = key not in self.tasks
        task = self.tasks.setdefault(key, RemoteTask(document))
        task.futures.append(future)
        if fresh:
            self.place(key, task)
        return future

    def place(self, key: str, task: RemoteTask) -> None:
        alive = [worker for worker in self.workers if worker.alive]
        task.worker = alive[len(self.tasks) % len(alive)] if alive else self.workers[0]
        if alive:
            task.worker.spawn(f"solve{task.worker.number}", partial(self._solve, key, task, task.worker))

    def _solve(self, key: str, task: RemoteTask, worker: Process) -> None:
        def say(event: dict[str, Any]) -> None:
            text = json.loads(json.dumps(event))
            times = 0 if self.cluster.faults.lasts("news-lost") else 2 if self.cluster.faults.lasts("news-twice") else 1
            for process, listen in self.listeners * times:
                if process.alive:
                    process.spawn(f"news{process.number}", partial(listen, text), self.world.task.luck.uniform(0, 0.5))

        place = SimpleNamespace(
            pair=SimpleNamespace(solver=StubWorker("solver"), prover=StubWorker(pool.PROVER)), release=lambda: None
        )
        one_solve.carry_out(task.document, self.cluster.url, say, place, lambda: not task.wanted)  # type: ignore[arg-type]
        self.end(key, "finished")

    def end(self, key: str, status: str) -> None:
        task = self.tasks.pop(key, None)
        if task is not None:
            task.wanted = False
            for future in task.futures:
                future.end(status)


class StubClient:
    """`SchedulerClient`, and dask's client in it, of one service and one life of the scheduler."""

    def __init__(self, scheduler: Scheduler, listen: Callable[[Any], object]) -> None:
        if not scheduler.up:
            raise OSError("no scheduler answers")
        self.scheduler, self.life, self.process, self.client = (
            scheduler,
            scheduler.life,
            scheduler.world.task.process,
            self,
        )
        scheduler.listeners.append((self.process, listen))

    @property
    def up(self) -> bool:
        return self.scheduler.up and self.life == self.scheduler.life

    def scheduler_info(self, **_: Any) -> dict[str, Any]:
        offers = {"resources": dask_cluster.offer(1000, 2)}
        return {"workers": {worker.name: offers for worker in self.scheduler.workers if worker.alive}}

    def submit(self, _: Any, document: str, store: str, *, key: str, **__: Any) -> RemoteFuture:
        if self.scheduler.cluster.faults.lasts("submit"):
            raise OSError("the scheduler does not answer")
        return self.scheduler.submit(key, solve_job.SolveJob(**json.loads(document)), self.process)

    def close(self) -> None:
        self.life = -1


class Node:
    """A service that is started again whenever it has ended."""

    def __init__(self, cluster: Cluster, name: str, machine: str) -> None:
        self.cluster, self.name, self.machine, self.generation = cluster, name, machine, 0
        self.service: SolverService | None = None
        self.gate: gate.Gate | None = None
        self.start()

    def start(self) -> None:
        self.generation += 1
        self.service, world = None, self.cluster.world
        self.process = world.process(f"{self.name}.{self.generation}", self.machine)
        self.process.skew = self.cluster.skews.get(self.name, 0.0)
        self.cluster.attend(self.process)
        self.process.at_end.append(lambda: world.at(world.now + 1.0, self.start))
        self.process.spawn("boot", self._boot)

    def _boot(self) -> None:
        cluster, process = self.cluster, self.process
        while True:
            with suppress(FactorizeError):
                service = SolverService(cluster.settings)
                if process.world.task.luck.random() > 0.05:
                    break
                service.close()  # it is told to end before it has started
            process.world.park(1.0)
        service.holdings._clock = cluster.wall
        self.gate = gate.Gate(service.keys(), clock=cluster.wall)
        self.service = service.start()

    def stop(self) -> None:
        """End it as SIGTERM does."""
        service, self.service = self.service, None
        if service is not None:
            for _ in range(2):
                with suppress(StoreUnavailable):
                    service.close()
            self.process.world.kill(self.process)
            self.process.world.park()


class Cluster:
    """Medium, database, services and workers of one run, set up by what the plan draws."""

    def __init__(self, world: World, folder: Path, shape: dict[str, Any]) -> None:
        self.world, self.shape = world, shape
        self.faults = Faults(world)
        self.database = Database(world, self.faults, folder / "jobs.sqlite")
        self.acts: dict[str, list[tuple[str, Any]]] = {}
        self.stale: dict[str, bool] = {}
        self.skews: dict[str, float] = {}
        self.boots: dict[str, int] = {}
        self.stores: dict[Process, Any] = {}
        self.holders: list[tuple[BucketLock, Process]] = []
        self.in_bucket = shape["medium"] == "bucket"
        self.medium: Any = (
            Cloud(world, self.faults, shape.get("broken")) if self.in_bucket else Disk(world, self.faults)
        )  # fmt: skip
        self.url = BUCKET_URL if self.in_bucket else str(ROOT)
        options = {
            "capacity_mb": 200,
            "processors": 2,
            "max_solve_seconds": SOLVE_LIMIT_SECONDS,
            "cache_bytes": CACHE_BYTES,
        }
        scheduler = "tcp://127.0.0.1:8786" if shape["remote"] else None
        self.settings = Settings(store=self.url, database=self.database.url, scheduler=scheduler, **options)
        self.scheduler: Scheduler | None = None
        self.nodes: list[Node] = []
        self.folder = folder

    def start(self) -> None:
        if self.shape["remote"]:
            self.scheduler = Scheduler(self)
        for number in range(self.shape["nodes"]):
            self.nodes.append(Node(self, f"service{number}", f"m{number % self.shape['machines']}"))

    def attend(self, process: Process) -> None:
        if not self.in_bucket:
            process.at_end.append(lambda: self.medium.release(process))

    def wall(self) -> float:
        return EPOCH + self.world.now + (self.world.task.process.skew if self.world.inside else 0.0)

    def files(self) -> DiskFiles:
        return DiskFiles(self.medium, self.world.task.process)

    def own_store(self) -> Any:
        """The store of the process that asks."""
        process = self.world.task.process
        if process not in self.stores:
            self.stores[process] = store_module.open_store(self.url, cache_bytes=CACHE_BYTES)
        return self.stores[process]

    def read_file(self, path: Path) -> bytes:
        if self.in_bucket:
            return path.read_bytes()
        content = self.medium.content(path)
        return bytes(content.cached)

    def write_file(self, path: Path, data: bytes) -> None:
        if self.in_bucket:
            path.write_bytes(data)
        else:
            self.files().produce(path, data)

    def here(self) -> list[str]:
        machine = self.world.task.process.machine if self.world.inside else "hub"
        return [machine, f"boot{self.boots.get(machine, 0)}", "namespace"]

    def has_ended(self, owner: str) -> bool:
        parts = owner.split()
        return parts[:3] == self.here() and not self.world.processes[int(parts[3])].alive

    def number_of_process(self) -> int:
        return self.world.processes.index(self.world.task.process)

    def container(self, source: Any) -> Container:
        return Container(self.read_file(source) if isinstance(source, Path) else source)

    def temporary_directory(self, **options: Any) -> Any:
        if self.faults.lasts("no-room"):
            raise OSError(28, "No space left on device")
        return TemporaryDirectory(dir=self.folder, **options)


class WatchedLock(BucketLock):
    """A bucket's lock that sees that nobody holds it together with somebody who holds it alone."""

    cluster: Cluster

    @contextmanager
    def hold(self) -> Iterator[Callable[[], None]]:
        cluster, me = self.cluster, self.cluster.world.task.process
        with super().hold() as confirm:
            others = [one for one, process in cluster.holders if process.alive and one._key in cluster.medium.objects]
            others = [one for one in others if one._folder == self._folder and self._key in cluster.medium.objects]
            if any(self._exclusive or other._exclusive for other in others):
                raise Violation(f"{self._key} is held beside {others[0]._key}")
            cluster.holders.append((self, me))
            try:
                yield confirm
            finally:
                cluster.holders.remove((self, me))


@contextmanager
def simulated(cluster: Cluster) -> Iterator[None]:
    """Let the product's modules live in a cluster's world."""
    world = cluster.world
    StubWorker.cluster = WatchedLock.cluster = cluster
    numbers = SimpleNamespace(getpid=cluster.number_of_process)
    patches: list[tuple[Any, str, Any]] = [
        (pool, "Worker", StubWorker),
        (store_module, "Files", cluster.files),
        (store_module, "connect", lambda url: bucket_of(cluster.medium, world.task.process)),
        (store_module, "Container", cluster.container),
        (bucket, "BucketLock", WatchedLock),
        (bucket, "TemporaryDirectory", cluster.temporary_directory),
        (directory, "os", numbers),
        (solve_job, "os", numbers),
        (solve_job, "_here", cluster.here),
        (solve_job, "_started", lambda number: "0"),
        (engine, "has_ended", cluster.has_ended),
        (dask_cluster, "SchedulerClient", lambda address, listen: StubClient(cluster.scheduler, listen)),
        (dask_solves, "fire_and_forget", lambda future: None),
        (one_solve, "_store", lambda url: cluster.own_store()),
        (service_module, "record_job", lambda *_: None),
        (service_module.solvers, "estimate", lambda spec: Estimate(ESTIMATED_SECONDS, 60 << 20)),
        (audit_log, "about", lambda: {}),
        (fsck, "_BLOBS_AHEAD", 3),
        (blobs, "CHUNK_BYTES", 700),
        (bucket, "MIN_PARTS_BYTES", 1450),
        (directory, "MAX_KNOWN_FOLDERS", 12),
        (bucket, "MAX_WHOLE_BYTES", 1450),
    ]
    with ExitStack() as stack:
        stack.enter_context(standing_in(world))
        stack.enter_context(connecting(cluster.database))
        stack.enter_context(compiling_once())
        for owner, name, value in patches:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield
