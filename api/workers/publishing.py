"""From a question to a stored result: one worker writes a factor file, another checks it, this process publishes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from factorize.api.proof import passed
from factorize.api.workers.pool import Place
from factorize.solution import Progress, ProgressCallback
from factorize.storage.store import Store

Document = dict[str, Any]


class Stages:
    """Passes a solver's steps on, and says where the solve is after it.

    Args:
        told: gets all progress.
    """

    def __init__(self, told: ProgressCallback) -> None:
        self._told = told
        self._began = time.monotonic()
        self._last = Progress(0, None, None, 0.0)
        self._entered = [("solve", time.time())]

    def step(self, progress: Progress) -> None:
        """Pass a solver's step on; the callback of a solve."""
        self._last = progress
        self._told(progress)

    def timings(self) -> dict[str, tuple[float, float]]:
        """Return when each stage began and ended, in seconds since 1970; the last ends now."""
        names, begun = zip(*self._entered, strict=True)
        return dict(zip(names, zip(begun, (*begun[1:], time.time()), strict=True), strict=True))

    def enter(self, phase: str) -> None:
        """Begin the next stage: `prove` or `store`."""
        self._entered.append((phase, time.time()))
        passed = time.monotonic() - self._began
        self._told(replace(self._last, phase=phase, seconds=passed, seconds_left=None))


@dataclass(frozen=True)
class Limits:
    """What a question to workers may take.

    Attributes:
        seconds: on the wall, the check included.
        memory_mb: private memory of either worker, in units of 2^20 bytes; 0 for no limit.
        threads: of either.
        about: what a line of the log says of it.
    """

    seconds: float
    memory_mb: int = 0
    threads: int = 1
    about: Mapping[str, str] = field(default_factory=dict)


def published(
    question: str,
    request: Document,
    *,
    place: Place,
    store: Store,
    limits: Limits,
    stages: Stages,
    cancelled: Callable[[], bool] = lambda: False,
) -> Document:
    """Return the manifest of a result, stored after another process has proved what was written.

    Args:
        question: `solve` or `form`; see `solver.py`.
        request: what it is about.
        place: whose workers do it; given back before the publication, which waits for a disk.
        store: where it is kept.
        limits: what it may take.
        stages: told of each step.
        cancelled: looked at often; True ends it.

    Raises:
        WorkerEnded: a worker gave no answer.
        FactorizeError: there is no result, or one that does not hold; nothing is stored.
    """
    end = time.monotonic() + limits.seconds
    with store.objects.stage() as staged:
        path, pair = str(staged.path), place.pair

        def ask(worker: Any, name: str, asked: Document, progress: Callable[[Document], object]) -> Any:
            return worker.ask(
                name,
                {**asked, "path": path, "store": store.url},
                seconds=max(0.0, end - time.monotonic()),
                memory_mb=limits.memory_mb,
                threads=limits.threads,
                progress=progress,
                cancelled=cancelled,
                about=limits.about,
            )

        ask(pair.solver, question, request, lambda event: stages.step(step_of(event)))
        stages.enter("prove")
        proof = passed(ask(pair.prover, "check", {"strict": False}, lambda _event: None))
        stages.enter("store")
        place.release()
        return store.put_checked(staged, proof)


def step_of(event: Mapping[str, Any]) -> Progress:
    """Return the step that a progress event of a solve tells."""
    return Progress(**{name: event[name] for name in Progress.__dataclass_fields__})
