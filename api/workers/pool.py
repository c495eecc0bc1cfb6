"""The pool: pairs of workers that stay, and places for calls that fit into memory and processors.

A pair is a solver and a prover, two processes. Small questions share pairs, one question at a time. A large question
gets a pair of its own, which ends with it.
"""

import itertools
import os
import threading
import time
from bisect import insort
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from factorize.api.workers.worker import PROVER, SOLVER, AnswerLimits, Worker
from factorize.api.workers.worker_process import MAX_BYTES
from factorize.errors import FactorizeError
from factorize.solvers.problem import machine_memory
from factorize.storage.store import open_store

SMALL_SECONDS, SMALL_MB = 5.0, MAX_BYTES >> 20
"""The estimates of what shares a pair of workers; a pair that then holds more is replaced."""
MIN_LIMIT_SECONDS, LIMIT_FACTOR = 600.0, 4.0
"""The wall limit of a solve: this long, or this many times its estimate, which a busy machine exceeds."""
PUBLISHERS = 8
"""The threads beside those of places, for what has given its place back and waits for a disk."""
IDLE_SECONDS = 120.0
_WARM_LIMITS = AnswerLimits(seconds=120.0)
"""Limits of each question of a warm-up: a solver that never answers must not keep calls from a pair of their own."""
_WARM_MECHANISMS: tuple[dict[str, str], ...] = (
    {"kind": "dense"},
    {"kind": "square_root"},
    {"kind": "tree", "decoder": "online"},
)
"""The mechanisms whose solves have both processes load nearly all that small specs need."""


class WorkerPair:
    """A solver and a prover.

    Args:
        modules: the modules of the two.
    """

    def __init__(self, modules: tuple[str, str]) -> None:
        self.solver, self.prover = Worker(modules[0]), Worker(modules[1])
        self.used = time.monotonic()

    def start(self) -> None:
        """Start both processes, which import what they need meanwhile."""
        self.solver.start()
        self.prover.start()

    def warm_up(self) -> None:
        """Solve and check tiny specs."""
        self.start()
        with suppress(FactorizeError, OSError), TemporaryDirectory(prefix="factorize.warm.") as folder:
            about = {"path": f"{folder}/file", "store": open_store(f"{folder}/store").url}
            for mechanism in _WARM_MECHANISMS:
                spec = {"workload": {"kind": "prefix", "n": 12}, "mechanism": mechanism}
                self.solver.ask("solve", {**about, "spec": spec}, _WARM_LIMITS)
                self.prover.ask("certify", about, _WARM_LIMITS)

    def kill(self) -> None:
        """End both, whatever they do."""
        self.solver.kill()
        self.prover.kill()

    def close(self) -> None:
        """Kill both and wait for their ends."""
        self.kill()
        self.solver.close()
        self.prover.close()


class SolvePlace(NamedTuple):
    """The place of a call: a pair of workers, and mostly memory and threads, until it gives all of it back.

    Attributes:
        pair: the workers.
        release: gives it back; a second time does nothing.
    """

    pair: WorkerPair
    release: Callable[[], None]


class Solve(Future[Any]):
    """A call that was submitted. `cancel` also tells one that runs to stop.

    Args:
        call: gets its place, and what says whether it was cancelled.
        order: its place among those that wait, of which the least comes first.
        room: memory in units of 2^20 bytes, and threads.
        fresh: whether its workers are its own.
    """

    def __init__(
        self,
        call: Callable[[SolvePlace, Callable[[], bool]], object],
        order: tuple[int, int],
        room: tuple[int, int],
        fresh: bool,
    ) -> None:
        super().__init__()
        self.stop = threading.Event()
        self.call, self.order, self.room, self.fresh = call, order, room, fresh

    def cancel(self) -> bool:
        """Keep it from running; return whether it never will."""
        self.stop.set()
        return super().cancel()


class Pool:
    """Pairs of workers and places for calls. Safe for threads; nothing is started before it is needed.

    Args:
        memory_mb: memory for all running calls, in units of 2^20 bytes; by default 80 % of what this process may use.
        processors: threads of all running calls; by default those of this process.
        modules: the modules of solver and prover.
    """

    def __init__(
        self, memory_mb: int | None = None, processors: int | None = None, modules: tuple[str, str] = (SOLVER, PROVER)
    ) -> None:
        self.memory_mb = memory_mb or int(0.8 * machine_memory()) >> 20
        self.processors = processors or machine_processors()
        self._modules = modules
        self._free_mb, self._free_threads = self.memory_mb, self.processors
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._waiting: list[Solve] = []
        self._pairs: set[WorkerPair] = set()
        self._idle: list[WorkerPair] = []
        self._warming: threading.Thread | None = None
        self._threads = ThreadPoolExecutor(self.processors + PUBLISHERS, "pool")
        self._closed = False

    @property
    def loads(self) -> bool:
        """True while a pair is warmed up and no other is there."""
        warming = self._warming
        return warming is not None and warming.is_alive() and len(self._pairs) == 1

    def warm_up(self) -> None:
        """Have a pair made ready; does not wait for it."""
        with self._lock:
            if not self._closed and self._warming is None:
                self._warming = threading.Thread(target=self._warm, name="warming", daemon=True)
                self._warming.start()

    def submit(
        self,
        call: Callable[[SolvePlace, Callable[[], bool]], object],
        *,
        memory_mb: int,
        threads: int = 1,
        rank: int = 0,
        fresh: bool = False,
    ) -> Solve:
        """Have a call made in a thread as soon as it has a place.

        Args:
            call: gets its place, and what says whether it was cancelled.
            memory_mb: what it is admitted with, in units of 2^20 bytes.
            threads: likewise.
            rank: larger ones come first, among equals the first; one that does not fit lets others pass.
            fresh: whether its workers are its own.
        """
        with self._lock:
            solve = Solve(call, (-rank, next(self._numbers)), (memory_mb, threads), fresh)
            insort(self._waiting, solve, key=lambda one: one.order)
            self._admit()
        return solve

    @contextmanager
    def place(self, *, fresh: bool = False, room: tuple[int, int] = (0, 0)) -> Iterator[SolvePlace]:
        """Give a pair of workers at once; the pool sets no memory or threads aside for it.

        Args:
            fresh: whether its workers are its own.
            room: memory and threads that a call was admitted with; they are given back with the pair.
        """
        with ExitStack() as held:
            pair = self._take(fresh)
            held.callback(self._give_back, pair, fresh, room)
            yield SolvePlace(pair, held.close)

    def end_idle(self) -> None:
        """End pairs that nobody has needed for minutes, all but one."""
        with self._lock:
            late = time.monotonic() - IDLE_SECONDS
            old = [pair for pair in self._idle[:-1] if pair.used < late]
            self._idle = [pair for pair in self._idle if pair not in old]
        self._close(old)

    def close(self) -> None:
        """Kill all workers, and wait for the calls that had them."""
        with self._lock:
            self._closed = True
            for solve in self._waiting:
                solve.cancel()
            self._waiting.clear()
            pairs = list(self._pairs)
        for pair in pairs:
            pair.kill()
        self._threads.shutdown()
        if self._warming is not None:
            self._warming.join()
        self._close(pairs)

    def _admit(self) -> None:
        """Start what fits."""
        for solve in list(self._waiting):
            memory_mb, threads = solve.room
            if memory_mb <= self._free_mb and threads <= self._free_threads:
                self._waiting.remove(solve)
                if solve.set_running_or_notify_cancel():
                    self._free_mb -= memory_mb
                    self._free_threads -= threads
                    self._threads.submit(self._run, solve)

    def _run(self, solve: Solve) -> None:
        try:
            with self.place(fresh=solve.fresh, room=solve.room) as place:
                answer = solve.call(place, solve.stop.is_set)
        except BaseException as error:
            solve.set_exception(error)
        else:
            solve.set_result(answer)

    def _take(self, fresh: bool) -> WorkerPair:
        warming = self._warming
        if warming is not None and not fresh and not self._idle:
            warming.join()  # no sooner would another be there
        with self._lock:
            if self._idle and not fresh:
                return self._idle.pop()
            pair = WorkerPair(self._modules)
            self._pairs.add(pair)
            if self._closed:
                pair.kill()
        with suppress(FactorizeError, OSError):  # whoever asks it hears why
            pair.start()
        return pair

    def _give_back(self, pair: WorkerPair, fresh: bool, room: tuple[int, int] = (0, 0)) -> None:
        with self._lock:
            keep = not fresh and not self._closed
            if keep:
                pair.used = time.monotonic()
                self._idle.append(pair)
        if not keep:
            self._close([pair])
        with self._lock:
            self._free_mb += room[0]
            self._free_threads += room[1]
            self._admit()

    def _warm(self) -> None:
        pair = self._take(fresh=True)
        pair.warm_up()
        self._give_back(pair, fresh=False)

    def _close(self, pairs: list[WorkerPair]) -> None:
        for pair in pairs:
            pair.close()
        with self._lock:
            self._pairs.difference_update(pairs)


def machine_processors() -> int:
    """Return the processors that this process may use, within the quota of its control group."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, -(-int(quota) // int(period)))
    return max(1, count)


def wall_limit(seconds: float) -> float:
    """Return the seconds after which a solve is ended that was estimated to take so many."""
    return max(MIN_LIMIT_SECONDS, LIMIT_FACTOR * seconds)
