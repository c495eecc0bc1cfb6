"""Answers that a worker works out for one request: bounded, ended with the connection, stored nowhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request

from factorize.api.access.caller import ANYONE, Caller
from factorize.api.http.problems import KINDS, ProblemAnswer
from factorize.api.service import SolverService
from factorize.api.workers.ending import Ending, WorkerEnded
from factorize.encoding import canonical_json
from factorize.errors import FactorizeError

Answer = TypeVar("Answer")
_LOOK_SECONDS = 0.2
_LEAST_MB = 1024
_UNKNOWN_MB = 2048  # half of it, where no worker has said what it has


@dataclass(frozen=True)
class ChildQuestion:
    """What is asked of a worker, and how its failures are told.

    Attributes:
        question: which; see api/workers/solver.py.
        document: the request.
        seconds: wall limit.
        remedy: what to do about one that takes too much.
        slug: problem type of a refusal.
        own_slugs: whether refusals keep their own type where it is a client's error.
        memory_mb: what it may take, in units of 2^20 bytes; half of what all solves may, by default.
        threads: that it may use; all of the solves, by default.
        caller: to whom its core-seconds are counted, as they were used.
    """

    question: str
    document: dict[str, Any]
    seconds: float
    remedy: str
    slug: str
    own_slugs: bool = False
    memory_mb: int | None = None
    threads: int | None = None
    caller: Caller = ANYONE

    def ask(
        self, service: SolverService, stop: threading.Event, report: Callable[[dict[str, Any]], None] = lambda _: None
    ) -> bytes:
        """Return the answer as JSON; blocks.

        Args:
            service: for the workers and the limits.
            stop: ends the worker once it is set.
            report: gets progress events.

        Raises:
            ProblemAnswer: there is none.
        """
        try:
            return canonical_json(self.answer(service, stop, report))
        except FactorizeError as error:
            kept = self.own_slugs and error.slug in KINDS and KINDS[error.slug].status < 500
            raise ProblemAnswer(error.slug if kept else self.slug, str(error)) from None

    def answer(
        self, service: SolverService, stop: threading.Event, report: Callable[[dict[str, Any]], None] = lambda _: None
    ) -> Any:
        """Return the answer as plain data; arguments as of `ask`.

        Raises:
            ProblemAnswer: the worker gave none.
            FactorizeError: why there is none.
        """
        threads = self.threads or service.pool.processors
        with service.meter.working(self.caller, threads), service.pool.place() as place:
            try:
                return place.pair.solver.ask(
                    self.question,
                    {**self.document, "store": service.store.url},
                    seconds=min(self.seconds, service.settings.max_solve_seconds),
                    memory_mb=self.memory_mb or max(_LEAST_MB, (service.engine.capacity_mb or _UNKNOWN_MB) // 2),
                    threads=threads,
                    progress=report,
                    cancelled=stop.is_set,
                )
            except WorkerEnded as ended:
                raise self._problem(ended) from None

    def _problem(self, ended: WorkerEnded) -> ProblemAnswer:
        if ended.ending in (Ending.TIMEOUT, Ending.OUT_OF_MEMORY):
            return ProblemAnswer("too-large", f"{ended}; {self.remedy}")
        if ended.ending is Ending.FAILED:
            return ProblemAnswer(self.slug, str(ended))
        return ProblemAnswer("unavailable", str(ended), headers={"Retry-After": "5"})


async def while_connected(request: Request, work: Awaitable[Answer], stop: threading.Event) -> Answer:
    """Wait for an answer, and stop the work when the client has gone."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=_LOOK_SECONDS))[0]:
            if await request.is_disconnected():
                stop.set()
        return task.result()
    finally:
        stop.set()
