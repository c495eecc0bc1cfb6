"""The lanes of a batch: one per core, each with a worker that solves and a worker that proves.

A small spec is solved by one process and its file is checked by another, as everywhere; here both stay for the next
one, so that it costs neither a start of Python. Files that were passed are published by threads beside the lanes, since
a publication waits for the disk. A large spec waits until the lanes are empty, and is solved in this process with all
threads, as `factorize solve` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from factorize.api.batches.worker import Worker
from factorize.api.isolated import BATCH_PROVE, BATCH_SOLVE
from factorize.api.local import keep_matrices
from factorize.errors import CertificateError, FactorizeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from factorize.api.local import PlannedSolve
    from factorize.storage.objects import Staged
    from factorize.storage.store import Store

PUBLISHERS = 8
"""Threads that publish, beside those that wait for a lane."""
SMALL_SECONDS = 5.0
SMALL_BYTES = 512 << 20
AHEAD = 64
"""Specs that are handed out before they are needed, so that no lane waits."""
LEAST_SECONDS = 600.0
_SAFETY = 4.0  # limit over estimate

Ended = Callable[[int, "dict[str, Any] | Exception", float], None]
"""Is told the number of a spec, its manifest or why there is none, and how many seconds it has taken."""


@dataclass(frozen=True)
class Numbered:
    """A spec to be solved.

    Attributes:
        number: what `Ended` is told.
        plan: the spec.
        seconds: estimate.
        bytes: estimate.
    """

    number: int
    plan: PlannedSolve
    seconds: float
    bytes: int

    @property
    def small(self) -> bool:
        """Whether it goes into a lane."""
        return self.seconds < SMALL_SECONDS and self.bytes < SMALL_BYTES


class Lane:
    """A worker that solves and a worker that proves; they take turns, so that a lane keeps one core busy."""

    def __init__(self) -> None:
        self.solver = Worker(BATCH_SOLVE, "solver")
        self.checker = Worker(BATCH_PROVE, "checker")

    def work(self, one: Numbered, staged: Staged, store: str) -> dict[str, Any]:
        """Solve a spec into a staged file, have it checked, and return what was checked.

        Raises:
            FactorizeError: it has no answer, or one that does not hold; the lane takes the next one all the same.
        """
        limit = max(LEAST_SECONDS, _SAFETY * one.seconds)
        path = str(staged.path)
        self.solver.ask({"spec": one.plan.spec.document(), "store": store, "path": path}, seconds=limit)
        answer = self.checker.ask({"path": path, "store": store, "strict": False}, seconds=limit)["answer"]
        refused = answer.pop("refused")
        if answer.pop("failed"):
            raise CertificateError(f"the exact checker refuses the result, nothing is stored: {refused}")
        return dict(answer)


class BatchLanes:
    """Solves specs and stores what was proved; use as a context, whose end kills the workers.

    Args:
        store: where results are kept.
        count: lanes, one per core.
        ended: called in the thread that calls `solve`, once for each spec, when its end is certain.
    """

    def __init__(self, store: Store, count: int, ended: Ended) -> None:
        self._store, self._ended = store, ended
        self._lanes = [Lane() for _ in range(count)]
        self._free: SimpleQueue[Lane] = SimpleQueue()
        for lane in self._lanes:
            self._free.put(lane)
        self._pool = ThreadPoolExecutor(count + PUBLISHERS, "lane")
        self._running: dict[Future[tuple[dict[str, Any], float]], tuple[int, ExitStack]] = {}

    def __enter__(self) -> Self:
        """Nothing is started before it is needed."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Kill what runs, say what was published, remove the rest."""
        for lane in self._lanes:
            lane.solver.kill()
            lane.checker.kill()
        self._pool.shutdown(cancel_futures=True)
        for lane in self._lanes:
            lane.solver.close()
            lane.checker.close()
        for _, files in self._running.values():
            files.close()
        for future, (number, _) in self._running.items():
            if not future.cancelled() and future.exception() is None:
                self._ended(number, *future.result())

    def solve(self, specs: Iterable[Numbered], large: Callable[[Numbered], None]) -> None:
        """Solve specs in order; few are held at a time.

        Args:
            specs: what is to be solved.
            large: solves what is not small in this thread, and says itself how it ended; no lane runs meanwhile.
        """
        for one in specs:
            if not one.small:
                self._finish()
                large(one)
                continue
            while len(self._running) >= len(self._lanes) + AHEAD:
                self._collect()
            self._hand_out(one)
            self._collect(at_once=True)
        self._finish()

    def _finish(self) -> None:
        while self._running:
            self._collect()

    def _hand_out(self, one: Numbered) -> None:
        try:
            keep_matrices(one.plan.spec, self._store)
        except (FactorizeError, OSError) as error:
            self._ended(one.number, error, 0.0)
            return
        files = ExitStack()
        staged = files.enter_context(self._store.objects.stage())
        self._running[self._pool.submit(self._work, one, staged)] = one.number, files

    def _work(self, one: Numbered, staged: Staged) -> tuple[dict[str, Any], float]:
        """Solve and store one spec; the lane is free for another while the result is published."""
        with self._lane() as lane:
            began = time.monotonic()
            proof = lane.work(one, staged, self._store.url)
            seconds = time.monotonic() - began
        return self._store.put_checked(staged, proof), seconds

    @contextmanager
    def _lane(self) -> Iterator[Lane]:
        lane = self._free.get()
        try:
            yield lane
        finally:
            self._free.put(lane)

    def _collect(self, *, at_once: bool = False) -> None:
        """Say how specs have ended, after a wait for the first of them."""
        done, _ = wait(self._running, 0 if at_once else None, FIRST_COMPLETED)
        for future in done:
            number, files = self._running.pop(future)
            files.close()
            try:
                manifest, seconds = future.result()
            except (FactorizeError, OSError) as error:
                self._ended(number, error, 0.0)
            else:
                self._ended(number, manifest, seconds)
