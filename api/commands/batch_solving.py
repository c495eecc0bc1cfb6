"""The solving of a batch: here, through a pool of workers, or by a service.

Here small specs are solved side by side, and a large one alone with all threads. Files that were passed are published
by threads beside the workers, since a publication waits for the disk.

To a service specs are posted as they are read, few are outstanding, and each end is looked up. Nothing is kept between
runs: a spec that the service has solved meanwhile is answered at once when it is posted again.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
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
from factorize.errors import CorruptObject, FactorizeError, ServiceError, ServiceUnreachable, SolveFailed
from factorize.format.manifest import check_manifest

if TYPE_CHECKING:
    import numpy as np

    from factorize.api.local import PlannedSolve
    from factorize.client.service import Service
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


OUTSTANDING = 256
"""Jobs that are waited for at a time: enough for a cluster's workers, little for its queue."""
LOOKED_AT = 16
"""Of them, the oldest that are asked for in each round."""
PATIENCE_SECONDS = 300.0
"""Without an answer of the service, after which a batch ends."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_AWAY = (429, 502, 503, 504)


class RemoteBatch:
    """Posts specs to a service and waits for their ends. For one thread.

    Args:
        service: the service.
        ended: called once for each spec; the seconds are those since it was posted, 0 if it is known.
        outstanding: jobs that are waited for at a time.
    """

    def __init__(self, service: Service, ended: Ended, *, outstanding: int = OUTSTANDING) -> None:
        self._service, self._ended, self._most = service, ended, outstanding
        self._waiting: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._pause = _FIRST_PAUSE

    def solve(self, specs: Iterable[Numbered]) -> None:
        """Have specs solved, in order; few are held at a time.

        Raises:
            ServiceUnreachable: nothing has answered for minutes.
        """
        for one in specs:
            while len(self._waiting) >= self._most:
                self._look()
            self._post(one)
        while self._waiting:
            self._look()

    def _post(self, one: Numbered) -> None:
        try:
            for part in one.plan.spec.user_matrices().values():
                if part.bound:
                    self._patiently(partial(upload, self._service, part.array))
            answer = self._patiently(partial(self._service.post, one.plan.spec))
        except ServiceUnreachable:
            raise
        except FactorizeError as error:
            self._ended(one.number, error, 0.0)
            return
        if not self._over(one.number, answer, 0.0):
            self._waiting[answer["spec_digest"]] = one.number, time.monotonic()

    def _look(self) -> None:
        """Ask for the oldest jobs, and wait longer where nothing has ended."""
        ended = 0
        for spec_digest in list(self._waiting)[:LOOKED_AT]:
            number, begun = self._waiting[spec_digest]
            seconds = time.monotonic() - begun
            try:
                answer = self._patiently(partial(self._service.status, spec_digest))
            except ServiceUnreachable:
                raise
            except FactorizeError as error:
                del self._waiting[spec_digest]
                self._ended(number, error, seconds)
                continue
            if self._over(number, answer, seconds):
                ended += 1
                del self._waiting[spec_digest]
            else:
                self._waiting.move_to_end(spec_digest)
        self._pause = _FIRST_PAUSE if ended else min(2 * self._pause, _LONGEST_PAUSE)
        if not ended:
            time.sleep(self._pause)

    def _over(self, number: int, answer: dict[str, Any], seconds: float) -> bool:
        """Tell the end of a job that has ended; whether it has."""
        if "certificate" in answer:
            self._ended(number, _checked(answer), seconds)
        elif answer.get("state") == "failed":
            error = answer.get("error") or {}
            self._ended(number, SolveFailed(str(error.get("message"))[:2000]), seconds)
        elif answer.get("state") == "cancelled":
            self._ended(number, SolveFailed("somebody cancelled the job; start the batch again to solve it"), seconds)
        else:
            return False
        return True

    def _patiently(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Ask until the service has a place for the request and answers it."""
        end, pause = time.monotonic() + PATIENCE_SECONDS, _FIRST_PAUSE
        while True:
            try:
                return ask()
            except ServiceError as error:
                away = isinstance(error, ServiceUnreachable) or error.status in _AWAY
                if not away or time.monotonic() > end:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _checked(manifest: dict[str, Any]) -> dict[str, Any] | CorruptObject:
    """Return a manifest, or why it is none: it does not hash to its digest."""
    try:
        check_manifest(manifest)
    except CorruptObject as error:
        return error
    return manifest


def upload(service: Service, array: np.ndarray) -> dict[str, Any]:
    """Give a service a matrix that specs name by its sha256.

    Raises:
        ServiceError: it is refused.
        ServiceUnreachable: nothing answered.
    """
    data = array.astype("<f8", order="C").tobytes()
    path = f"/v1/matrices?rows={array.shape[0]}&columns={array.shape[1]}"
    headers = {"Content-Type": "application/octet-stream"}
    with service.connect() as connection:
        return connection.send("POST", path, body=data, headers=headers).document()
