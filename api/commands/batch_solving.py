"""The solving of a batch: here, through a pool of workers, or by a service. Each spec is a future of one or the other.

On this machine small specs are solved side by side, and a large one alone with all threads. Threads beside the workers
publish the files that have passed the proof, since a publication waits for the disk.

A service gets specs as they are read, a limited number at a time. Nothing is kept between runs: the service answers at
once when a spec that it has solved meanwhile is posted again.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial

from factorize.api.commands.batch_report import Item
from factorize.api.local import keep_matrices
from factorize.api.terminal.progress import Display
from factorize.api.workers.pool import SMALL_MB, SMALL_SECONDS, Pool, SolvePlace, wall_limit
from factorize.api.workers.publishing import Stages, make_and_store
from factorize.api.workers.worker import PROVER, SOLVER, AnswerLimits
from factorize.client.service import Service, check_answers
from factorize.errors import Cancelled, FactorizeError, ServiceUnreachable
from factorize.format.manifest import Manifest
from factorize.spec import Spec
from factorize.storage.store import Store

MAX_SPECS_AHEAD = 64
"""The specs that are handed out before they are needed, so that no lane waits."""
MAX_SPECS_OPEN = 256
"""The most jobs of a service that a batch waits for at a time: enough for a cluster's workers, little for its queue."""
PATIENCE_SECONDS = 300.0
"""Seconds without an answer of the service after which a batch ends."""
MAX_PAUSE_SECONDS = 5.0
"""The most seconds between two looks at a job of a service."""
Outcome = tuple[Manifest, float]
"""A manifest, and the seconds until it was there; None where it was known."""
Ended = Callable[["Item", "Manifest | Exception", float], None]
"""A function that is told an item, its manifest or why there is none, and the seconds."""


class LocalLanes:
    """Lanes that solve specs with a pool of workers and store the proved results.

    Args:
        store: the store that keeps results.
        shown: shows the progress of a large spec.
        processors: threads of all specs that are solved at a time; by default all.
        solver: module of the workers that solve.

    Attributes:
        most: specs that are handed out at a time.
    """

    def __init__(self, store: Store, shown: Display, *, processors: int | None = None, solver: str = SOLVER) -> None:
        self._store, self._shown = store, shown
        self._pool = Pool(processors=processors, modules=(solver, PROVER))
        self.most = self._pool.processors + MAX_SPECS_AHEAD

    def submit(self, item: Item, spec: Spec) -> Future[Outcome]:
        """Have a spec solved."""
        small = item.seconds < SMALL_SECONDS and item.bytes < SMALL_MB << 20
        memory_mb, threads = min(item.bytes >> 20, self._pool.memory_mb), 1 if small else self._pool.processors
        call = partial(self._work, item, spec, threads, small)
        return self._pool.submit(call, memory_mb=memory_mb, threads=threads, fresh=not small)

    def close(self) -> None:
        """Kill what runs."""
        self._pool.close()

    def _work(
        self, item: Item, spec: Spec, threads: int, small: bool, place: SolvePlace, cancelled: Callable[[], bool]
    ) -> Outcome:
        """Solve and store one spec; its workers are free for another while the result is published."""
        began = time.monotonic()
        keep_matrices(spec, self._store)
        if not small:
            self._shown.start(item.label)
        manifest = make_and_store(
            "solve",
            {"spec": spec.document()},
            place=place,
            store=self._store,
            stages=Stages((lambda _step: None) if small else self._shown.report),
            # A large one is watched, and may take days.
            limits=AnswerLimits(wall_limit(item.seconds) if small else math.inf, threads=threads, cancelled=cancelled),
        )
        return manifest, time.monotonic() - began


class RemoteLanes:
    """Posts specs to a service and looks at their jobs until they end, each in a thread that mostly sleeps.

    Args:
        url: URL of the service.
        _shown: shows nothing.
        most: jobs that are waited for at a time.
    """

    def __init__(self, url: str, _shown: object = None, *, most: int = MAX_SPECS_OPEN) -> None:
        self._service = Service(url, pause=MAX_PAUSE_SECONDS, patience=PATIENCE_SECONDS, sleep=self._sleep)
        self.most = most
        self._threads, self._stop = ThreadPoolExecutor(most, "batch"), threading.Event()

    def submit(self, _item: Item, spec: Spec) -> Future[Outcome]:
        """Have a spec solved."""
        return self._threads.submit(self._work, spec)

    def close(self) -> None:
        """Wait for nothing more; jobs go on at the service."""
        self._stop.set()
        self._threads.shutdown(cancel_futures=True)

    def _work(self, spec: Spec) -> Outcome:
        began, service = time.monotonic(), self._service
        answer, seconds = service.patiently(partial(service.post, spec)), 0.0
        if "certificate" not in answer:
            answer = service.wait(answer["spec_digest"])
            seconds = time.monotonic() - began
        manifest = Manifest.check(answer)
        check_answers(manifest, spec)
        return manifest, seconds

    def _sleep(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Cancelled("the batch has ended")


def solve_all(specs: Iterable[tuple[Item, Spec]], lanes: LocalLanes | RemoteLanes, ended: Ended) -> None:
    """Have specs solved, in order; few are held at a time. The lanes are closed then, also where this ends early.

    Args:
        specs: what is to be solved.
        lanes: the lanes that solve.
        ended: called in this thread, once for each spec whose end is certain.

    Raises:
        ServiceUnreachable: nothing has answered for minutes.
    """
    running: dict[Future[Outcome], Item] = {}

    def collect(seconds: float | None = None) -> None:
        for future in wait(running, seconds, FIRST_COMPLETED).done:
            item = running.pop(future)
            try:
                outcome = future.result()
            except ServiceUnreachable:
                raise
            except (FactorizeError, OSError) as error:
                ended(item, error, 0.0)
            else:
                ended(item, *outcome)

    try:
        for item, spec in specs:
            while len(running) >= lanes.most:
                collect()
            running[lanes.submit(item, spec)] = item
            collect(0)
        while running:
            collect()
    finally:
        lanes.close()
        for future, item in running.items():  # they were stored before the end
            if future.done() and not future.cancelled() and future.exception() is None:
                ended(item, *future.result())
