"""The simulated world: one clock, processes whose threads take turns, and what stands in for `time`, `threading`, `queue`.

A thread of the product is a greenlet here. It gives way at each request to the medium or the database, at each lock that
is taken and whenever it waits, for a time that is drawn from the seed, its own name and how often it gave way. So one
integer replays a run, and an operation that is left out of a plan changes little of the rest.
"""

from __future__ import annotations

import heapq
import queue
import random
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent import futures
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest import mock

from greenlet import getcurrent, greenlet

EPOCH = 1_800_000_000.0
STEP_SECONDS = 0.002
MAX_STEPS = 400_000
MAX_PAUSE_SECONDS = 100.0
"""Longer than any lease lasts, and short beside the time within which all has to end."""


class Killed(BaseException):
    """The process of this thread has ended, as by `kill -9`: nothing that it does from now on has an effect."""


class Violation(AssertionError):
    """An invariant does not hold."""


class Process:
    """A simulated process: its threads, and a wall clock that may be wrong."""

    def __init__(self, world: World, name: str, machine: str) -> None:
        self.world, self.name, self.machine = world, name, machine
        self.alive, self.stopped_until, self.skew = True, 0.0, 0.0
        self.tasks: list[Task] = []
        self.at_end: list[Callable[[], object]] = []
        self.number = 0

    def spawn(self, name: str, call: Callable[[], object], after: float = 0.0) -> Task:
        self.number += 1
        task = Task(self, f"{self.name}/{name}", call)
        self.tasks.append(task)
        self.world.wake(task, after)
        return task


class Task:
    """A thread of a process."""

    def __init__(self, process: Process, name: str, call: Callable[[], object]) -> None:
        self.process, self.name, self.ticket, self.done = process, name, 0, False
        self.luck = random.Random(f"{process.world.seed} {name}")
        self.waiters: list[Task] = []
        self.failure: BaseException | None = None
        self.greenlet = greenlet(lambda: self._run(call), parent=process.world.hub)
        self.greenlet.task = self

    def _run(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Killed:
            pass
        except BaseException as error:
            self.failure = error
            self.process.world.failures.append(error)
        finally:
            self.done = True
            for waiter in self.waiters:
                self.process.world.wake(waiter)


class World:
    """Clock and scheduler of one run."""

    def __init__(self, seed: int) -> None:
        self.seed, self.now, self.steps = seed, 0.0, 0
        self.hub: Any = getcurrent()
        self.heap: list[tuple[float, int, Any, int]] = []
        self.count = 0
        self.failures: list[BaseException] = []
        self.processes: list[Process] = []
        self.database_skew = 0.0
        self.slow: Callable[[], float] = lambda: 1.0
        self.log: list[str] = []
        self.tokens = random.Random(f"{seed} tokens")

    def process(self, name: str, machine: str = "m0") -> Process:
        self.processes.append(Process(self, name, machine))
        return self.processes[-1]

    def say(self, text: str) -> None:
        self.log.append(f"{self.now:9.3f} {text}")

    @property
    def task(self) -> Task:
        return getcurrent().task

    @property
    def inside(self) -> bool:
        return hasattr(getcurrent(), "task")

    def wake(self, task: Task, after: float = 0.0) -> None:
        task.ticket += 1
        self.at(self.now + after, task, task.ticket)

    def at(self, moment: float, what: Task | Callable[[], object], ticket: int = 0) -> None:
        """Go on with a thread at a moment, if it has not been woken otherwise since, or call something."""
        self.count += 1
        heapq.heappush(self.heap, (moment, self.count, what, ticket))

    def check_alive(self) -> None:
        if self.inside and not self.task.process.alive:
            raise Killed

    def park(self, seconds: float | None = None) -> None:
        """Wait until somebody wakes this thread, or for so long."""
        self.check_alive()
        if seconds is None:
            self.task.ticket += 1
        else:
            self.wake(self.task, max(0.0, seconds))
        self.hub.switch()
        self.check_alive()

    def step(self, scale: float = 1.0) -> None:
        """Give way to others for a short while."""
        if self.inside:
            luck = self.task.luck
            pause = luck.expovariate(1.0) * STEP_SECONDS * scale * self.slow()
            self.park(min(pause * (100.0 if luck.random() < 0.01 else 1.0), MAX_PAUSE_SECONDS))

    def kill(self, process: Process) -> None:
        """End a process; called by the hub, or by one of its own threads, which goes on to raise `Killed`."""
        if process.alive:
            process.alive = False
            self.at(self.now, lambda: self._bury(process))

    def _bury(self, process: Process) -> None:
        for task in process.tasks:
            if not task.done:
                task.ticket += 1
                if task.greenlet:
                    task.greenlet.throw(Killed)
                task.done = True
        for end in process.at_end:
            end()

    def run(self, until: Callable[[], bool], latest: float) -> bool:
        """Run until something is so; whether it came before the latest moment."""
        while self.heap:
            if until():
                return True
            if self.now > latest:
                return False
            moment, _, what, ticket = heapq.heappop(self.heap)
            if not isinstance(what, Task):
                self.now = max(self.now, moment)
                what()
            elif what.ticket == ticket and not what.done:
                if what.process.stopped_until > moment:
                    self.at(what.process.stopped_until, what, ticket)
                    continue
                self.now = max(self.now, moment)
                self.steps += 1
                if self.steps > MAX_STEPS:
                    raise Violation(f"{MAX_STEPS} steps, and no end; {what.name} is one that goes on")
                what.greenlet.switch()
            for error in self.failures:
                raise error
        return until()


class Event:
    """`threading.Event`."""

    def __init__(self, world: World) -> None:
        self.world, self.flag = world, False
        self.waiters: list[Task] = []

    def set(self) -> None:
        self.flag = True
        waiters, self.waiters = self.waiters, []
        for task in waiters:
            if task.process.alive:
                self.world.wake(task)

    def is_set(self) -> bool:
        return self.flag

    def wait(self, timeout: float | None = None) -> bool:
        if not self.flag:
            self.waiters.append(self.world.task)
            self.world.park(timeout)
        return self.flag


class Lock:
    """A lock of a process's threads, taken again by its holder if it is reentrant."""

    def __init__(self, world: World, reentrant: bool = False) -> None:
        self.free, self.reentrant, self.holder, self.depth = Event(world), reentrant, None, 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me: Any = getcurrent()
        while self.holder is not None and not (self.reentrant and self.holder is me):
            if not blocking:
                return False
            self.free.flag = False
            self.free.wait()
        self.holder, self.depth = me, self.depth + 1
        return True

    def release(self) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.holder = None
            self.free.set()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class SimpleQueue:
    """`queue.SimpleQueue`."""

    def __init__(self, world: World) -> None:
        self.entries, self.arrived = list[Any](), Event(world)

    def put(self, entry: Any) -> None:
        self.entries.append(entry)
        self.arrived.set()

    def get(self, timeout: float) -> Any:
        if not self.entries:
            self.arrived.flag = False
            self.arrived.wait(timeout)
        if not self.entries:
            raise queue.Empty
        return self.entries.pop(0)


class Thread:
    """`threading.Thread`."""

    def __init__(
        self, world: World, *, target: Callable[..., object], args: Iterable[Any] = (), name: str = "thread", **_: Any
    ) -> None:
        self.world, self.call, self.name, self.task = world, lambda: target(*args), name, None

    def start(self) -> None:
        process = self.world.task.process
        self.task = process.spawn(f"{self.name}{process.number}", self.call)

    def is_alive(self) -> bool:
        return self.task is not None and not self.task.done

    def join(self, timeout: float | None = None) -> None:
        while self.is_alive():
            self.task.waiters.append(self.world.task)
            self.world.park()


class SimFuture(futures.Future[Any]):
    """A future whose answer is waited for on the simulated clock."""

    world: World

    def result(self, timeout: float | None = None) -> Any:
        task = self.world.task
        while not self.done():
            self.add_done_callback(lambda _: self.world.wake(task) if task.process.alive else None)
            self.world.park()
        return super().result()


class Executor(futures.Executor):
    """`ThreadPoolExecutor`: each call has a thread of its own."""

    def __init__(self, world: World, *_: Any) -> None:
        self.world = world
        self.running: list[SimFuture] = []

    def submit(self, call: Callable[..., Any], *args: Any) -> SimFuture:
        future = SimFuture()
        future.world = self.world
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                answer = call(*args)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(answer)

        process = self.world.task.process
        process.spawn(f"pool{process.number}", run)
        self.running = [one for one in self.running if not one.done()] + [future]
        return future

    def shutdown(self, wait: bool = True, **_: Any) -> None:
        for future in self.running if wait else ():
            with suppress(Exception):
                future.result()


def drive(coroutine: Any) -> Any:
    """Run a coroutine whose waits are this world's, and return its answer."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a coroutine waits for something real")


def stand_ins(world: World) -> dict[str, Any]:
    """Return, by the names that modules of the product give to them, what stands in for clocks, threads and chance."""

    class Now(datetime):
        @classmethod
        def now(cls, zone: Any = None) -> datetime:
            return datetime.fromtimestamp(wall(), zone or UTC)

    def wall() -> float:
        return EPOCH + world.now + (world.task.process.skew if world.inside else 0.0)

    @asynccontextmanager
    async def timeout(seconds: float) -> AsyncIterator[None]:
        thread = world.task.greenlet
        thread.deadline = world.now + seconds
        try:
            yield
        finally:
            del thread.deadline

    async def sleep(seconds: float) -> None:
        end = getattr(world.task.greenlet, "deadline", float("inf"))
        world.park(min(seconds, end - world.now))
        if world.now >= end:
            raise TimeoutError

    async def to_thread(call: Callable[..., Any], *args: Any, **_: Any) -> Any:
        return call(*args)

    def wait(running: list[futures.Future[Any]], seconds: float) -> Any:
        end = world.now + seconds
        while world.now < end and not all(future.done() for future in running):
            world.park(0.1)
        return SimpleNamespace(not_done=[future for future in running if not future.done()])

    def token(size: int) -> str:
        return world.tokens.randbytes(size).hex()

    class Threading(SimpleNamespace):
        def __getattr__(self, name: str) -> Any:
            return getattr(threading, name)

    return {
        "time": SimpleNamespace(time=wall, monotonic=lambda: EPOCH / 3 + world.now, sleep=lambda s: world.park(s)),
        "threading": Threading(
            Lock=lambda: Lock(world),
            RLock=lambda: Lock(world, reentrant=True),
            Event=lambda: Event(world),
            Thread=lambda **options: Thread(world, **options),
        ),
        "queue": SimpleNamespace(SimpleQueue=lambda: SimpleQueue(world), Empty=queue.Empty),
        "secrets": SimpleNamespace(token_hex=token, randbelow=world.tokens.randrange),
        "asyncio": SimpleNamespace(
            to_thread=to_thread,
            sleep=sleep,
            timeout=timeout,
            ensure_future=lambda begun: begun,  # it is awaited before anybody else has a turn
            shield=lambda begun: begun,
        ),
        "ThreadPoolExecutor": lambda *options: Executor(world, *options),
        "datetime": Now,
        "wait": wait,
        "run_sync": to_thread,
        "CapacityLimiter": lambda count: None,
    }


ROOMS = ("factorize.api", "factorize.storage")


@contextmanager
def standing_in(world: World) -> Iterator[None]:
    """Let modules of the service and the store find the simulated world under the names of the real one."""
    ours = stand_ins(world)
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith(ROOMS):
                for attribute in ours.keys() & vars(module).keys():
                    stack.enter_context(mock.patch.object(module, attribute, ours[attribute]))
        yield
