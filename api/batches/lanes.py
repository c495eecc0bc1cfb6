"""The lanes of a batch: one per core, each with a worker that solves and a worker that proves, and results in groups.

A small spec is solved by one process and its file is checked by another, as everywhere; here both stay for the next
one, so that it costs neither a start of Python. Files that were passed are published in groups
(factorize/storage/group.py). A large spec waits until the lanes are empty, and is solved in this process with all
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
from factorize.storage.group import CheckedFile, Group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from factorize.api.local import PlannedSolve
    from factorize.storage.objects import Staged
    from factorize.storage.store import Store

GROUP_RESULTS = 64
GROUP_BYTES = 64 << 20
GROUP_SECONDS = 2.0
"""A group is published when it has so many results or bytes, or its first result is as old."""
SMALL_SECONDS = 5.0
SMALL_BYTES = 512 << 20
AHEAD = 64
"""Specs that are handed out before they are needed, so that no lane waits while a group is published."""
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


@dataclass(frozen=True)
class Passed:
    """A written file that was checked.

    Attributes:
        number: of its spec.
        file: the file and what was checked.
        size: bytes of it.
        seconds: of the solve and the check.
    """

    number: int
    file: CheckedFile
    size: int
    seconds: float


class Lane:
    """A worker that solves and a worker that proves; they take turns, so that a lane keeps one core busy."""

    def __init__(self) -> None:
        self.solver = Worker(BATCH_SOLVE, "solver")
        self.checker = Worker(BATCH_PROVE, "checker")

    def work(self, one: Numbered, staged: Staged, store: str) -> Passed:
        """Solve a spec into a staged file and have it checked.

        Raises:
            FactorizeError: it has no answer, or one that does not hold; the lane takes the next one all the same.
        """
        began = time.monotonic()
        limit = max(LEAST_SECONDS, _SAFETY * one.seconds)
        path = str(staged.path)
        self.solver.ask({"spec": one.plan.spec.document(), "store": store, "path": path}, seconds=limit)
        answer = self.checker.ask({"path": path, "store": store, "strict": False}, seconds=limit)["answer"]
        refused = answer.pop("refused")
        if answer.pop("failed"):
            raise CertificateError(f"the exact checker refuses the result, nothing is stored: {refused}")
        return Passed(one.number, CheckedFile(staged, answer), staged.path.stat().st_size, time.monotonic() - began)


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
        self._pool = ThreadPoolExecutor(count, "lane")
        self._running: dict[Future[Passed], tuple[int, ExitStack]] = {}
        self._passed: list[tuple[Passed, ExitStack]] = []
        self._oldest = 0.0

    def __enter__(self) -> Self:
        """Nothing is started before it is needed."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Kill what runs, publish what was proved, remove the rest."""
        for lane in self._lanes:
            lane.solver.kill()
            lane.checker.kill()
        self._pool.shutdown(cancel_futures=True)
        for lane in self._lanes:
            lane.solver.close()
            lane.checker.close()
        try:
            self._publish()
        finally:
            for _, files in self._running.values():
                files.close()

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
        self._publish()

    def _hand_out(self, one: Numbered) -> None:
        try:
            keep_matrices(one.plan.spec, self._store)
        except (FactorizeError, OSError) as error:
            self._ended(one.number, error, 0.0)
            return
        files = ExitStack()
        staged = files.enter_context(self._store.objects.stage())
        self._running[self._pool.submit(self._work, one, staged)] = one.number, files

    def _work(self, one: Numbered, staged: Staged) -> Passed:
        with self._lane() as lane:
            return lane.work(one, staged, self._store.url)

    @contextmanager
    def _lane(self) -> Iterator[Lane]:
        lane = self._free.get()
        try:
            yield lane
        finally:
            self._free.put(lane)

    def _collect(self, *, at_once: bool = False) -> None:
        """Take what the lanes have done, after a wait for the first of it, and publish a group that is full or old."""
        done, _ = wait(self._running, 0 if at_once else GROUP_SECONDS / 4, FIRST_COMPLETED)
        for future in done:
            number, files = self._running.pop(future)
            try:
                passed = future.result()
            except (FactorizeError, OSError) as error:
                files.close()
                self._ended(number, error, 0.0)
            else:
                self._oldest = self._oldest if self._passed else time.monotonic()
                self._passed.append((passed, files))
        size = sum(passed.size for passed, _ in self._passed)
        old = time.monotonic() - self._oldest > GROUP_SECONDS
        if self._passed and (len(self._passed) >= GROUP_RESULTS or size >= GROUP_BYTES or old):
            self._publish()

    def _publish(self) -> None:
        """Publish the group; only now are its specs solved."""
        group, self._passed = sorted(self._passed, key=lambda entry: entry[0].number), []
        if not group:
            return
        with ExitStack() as opened:
            for _, files in group:
                opened.push(files)
            outcomes = Group(self._store).publish([passed.file for passed, _ in group])
        for (passed, _), outcome in zip(group, outcomes, strict=True):
            self._ended(passed.number, outcome, passed.seconds)
