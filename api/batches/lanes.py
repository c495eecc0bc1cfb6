"""The lanes of a batch: specs through a pool of workers, small ones side by side, a large one alone with all threads.

Files that were passed are published by threads beside the workers, since a publication waits for the disk.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from factorize.api.local import keep_matrices
from factorize.api.workers.pool import SMALL_MB, SMALL_SECONDS, Place, Pool
from factorize.api.workers.publishing import Limits, Stages, published
from factorize.api.workers.worker import PROVER, SOLVER
from factorize.errors import FactorizeError

if TYPE_CHECKING:
    from factorize.api.local import PlannedSolve
    from factorize.solution import ProgressCallback
    from factorize.storage.store import Store

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
        """Whether others are solved beside it."""
        return self.seconds < SMALL_SECONDS and self.bytes < SMALL_MB << 20


class BatchLanes:
    """Solves specs and stores what was proved; use as a context, whose end kills the workers.

    Args:
        store: where results are kept.
        ended: called in the thread that calls `solve`, once for each spec, when its end is certain.
        watch: called in another thread with the number of a large spec that begins, returns what gets its progress.
        processors: threads of all specs that are solved at a time; by default all.
        solver: module of the workers that solve.
    """

    def __init__(
        self,
        store: Store,
        ended: Ended,
        *,
        watch: Callable[[int], ProgressCallback] = lambda _number: lambda _step: None,
        processors: int | None = None,
        solver: str = SOLVER,
    ) -> None:
        self._store, self._ended, self._watch = store, ended, watch
        self._pool = Pool(processors=processors, modules=(solver, PROVER))
        self._running: dict[Future[Any], int] = {}

    def __enter__(self) -> Self:
        """Nothing is started before it is needed."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Kill what runs, and say what was published."""
        self._pool.close()
        for future, number in self._running.items():
            if not future.cancelled() and future.exception() is None:
                self._ended(number, *future.result())

    def solve(self, specs: Iterable[Numbered]) -> None:
        """Solve specs; few are held at a time."""
        for one in specs:
            while len(self._running) >= self._pool.processors + AHEAD:
                self._collect()
            self._hand_out(one)
            self._collect(at_once=True)
        while self._running:
            self._collect()

    def _hand_out(self, one: Numbered) -> None:
        try:
            keep_matrices(one.plan.spec, self._store)
        except (FactorizeError, OSError) as error:
            self._ended(one.number, error, 0.0)
            return
        memory_mb = min(one.bytes >> 20, self._pool.memory_mb)
        threads = 1 if one.small else self._pool.processors
        call = partial(self._work, one, threads)
        future = self._pool.submit(call, memory_mb=memory_mb, threads=threads, fresh=not one.small)
        self._running[future] = one.number

    def _work(
        self, one: Numbered, threads: int, place: Place, cancelled: Callable[[], bool]
    ) -> tuple[dict[str, Any], float]:
        """Solve and store one spec; its workers are free for another while the result is published."""
        began = time.monotonic()
        seconds = max(LEAST_SECONDS, _SAFETY * one.seconds) if one.small else math.inf
        manifest = published(
            "solve",
            {"spec": one.plan.spec.document()},
            place=place,
            store=self._store,
            limits=Limits(seconds, threads=threads),
            stages=Stages((lambda _step: None) if one.small else self._watch(one.number)),
            cancelled=cancelled,
        )
        return manifest, time.monotonic() - began

    def _collect(self, *, at_once: bool = False) -> None:
        """Say how specs have ended, after a wait for the first of them."""
        done, _ = wait(self._running, 0 if at_once else None, FIRST_COMPLETED)
        for future in done:
            number = self._running.pop(future)
            try:
                manifest, seconds = future.result()
            except (FactorizeError, OSError) as error:
                self._ended(number, error, 0.0)
            else:
                self._ended(number, manifest, seconds)
