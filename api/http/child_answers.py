"""Answers that a child process works out for one request: bounded, ended with the connection, stored nowhere."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from factorize.api.access.caller import ANYONE, Caller
from factorize.api.http.problems import KINDS, ProblemAnswer
from factorize.api.jobs import supervisor
from factorize.api.jobs.ending import Ending, SolveEnding
from factorize.api.service import SolverService
from factorize.encoding import sha256
from factorize.storage.medium.scratch_folders import ScratchFolder

_LOOK_SECONDS = 0.2
_LEAST_MB = 1024
_UNKNOWN_MB = 2048  # half of it, where no worker has said what it has


@dataclass(frozen=True)
class ChildQuestion:
    """What is asked of a child, and how its failures are told.

    Attributes:
        module: which child; see api/isolated.py.
        document: the request; where to write the answer is added.
        seconds: wall limit.
        noun: what the answer is, for messages.
        remedy: what to do about one that takes too much.
        slug: problem type of a refusal.
        own_slugs: whether refusals keep their own type where it is a client's error.
        memory_mb: what it may take, in units of 2^20 bytes; half of what all solves may, by default.
        threads: that it may use; all of the solves, by default.
        caller: to whom its core-seconds are counted, as they were used.
    """

    module: str
    document: dict[str, Any]
    seconds: float
    noun: str
    remedy: str
    slug: str
    own_slugs: bool = False
    memory_mb: int | None = None
    threads: int | None = None
    caller: Caller = ANYONE

    def ask(
        self, service: SolverService, stop: threading.Event, report: Callable[[dict[str, Any]], None] = lambda _: None
    ) -> bytes:
        """Return what the child has written; blocks.

        Args:
            service: for the store and the limits.
            stop: ends the child once it is set.
            report: gets progress events.

        Raises:
            Problem: it has written nothing.
        """
        threads = self.threads or service.settings.processors or 1
        with (
            ScratchFolder("answer") as folder,
            service.meter.working(self.caller, threads),
        ):
            path = folder.path / "answer.json"
            outcome = supervisor.run(
                supervisor.Request(
                    spec_digest="0" * 64,
                    spec=json.dumps({**self.document, "to": str(path)}),
                    store=service.results.store.url,
                    memory_mb=self.memory_mb or max(_LEAST_MB, (service.engine.capacity_mb or _UNKNOWN_MB) // 2),
                    seconds_limit=min(self.seconds, service.settings.max_solve_seconds),
                    threads=threads,
                    module=self.module,
                    forked=service.settings.fork_children,
                ),
                report=report,
                cancelled=stop.is_set,
            )
            if outcome.ending is not Ending.DONE:
                raise self._problem(outcome)
            answer = path.read_bytes()
        if sha256(answer) != outcome.digest:
            raise ProblemAnswer("unavailable", f"the {self.noun} was damaged on its way; post the request again")
        return answer

    def _problem(self, outcome: SolveEnding) -> ProblemAnswer:
        error = outcome.error or {}
        message = error.get("message", outcome.ending.value)
        if outcome.ending in (Ending.TIMEOUT, Ending.OUT_OF_MEMORY):
            return ProblemAnswer("too-large", f"{message}; {self.remedy}")
        if outcome.ending is Ending.FAILED:
            own = error.get("type", "")
            kept = self.own_slugs and own in KINDS and KINDS[own].status < 500
            return ProblemAnswer(own if kept else self.slug, message)
        return ProblemAnswer("unavailable", message, headers={"Retry-After": "5"})


async def while_connected(request: Request, work: Awaitable[bytes], stop: threading.Event) -> bytes:
    """Wait for an answer, and stop the work when the client has gone."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=_LOOK_SECONDS))[0]:
            if await request.is_disconnected():
                stop.set()
        return task.result()
    finally:
        stop.set()
