"""Publishing of results: one worker solves, another certifies and proves, this process stores."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from factorize.api.workers.pool import SolvePlace
from factorize.api.workers.worker import AnswerLimits
from factorize.encoding import JsonObject
from factorize.factors.solution import Progress, ProgressCallback
from factorize.format.manifest import Manifest
from factorize.storage.store import Store


class Stages:
    """Passes a solver's steps on, and says where the solve is after it.

    Args:
        callback: gets all progress.
    """

    def __init__(self, callback: ProgressCallback) -> None:
        self._callback = callback
        self._began = time.monotonic()
        self._last = Progress(0, None, None, 0.0)
        self._entered = [("solve", time.time())]

    def step(self, progress: Progress) -> None:
        """Pass a solver's step on; the callback of a solve."""
        self._last = progress
        self._callback(progress)

    def timings(self) -> dict[str, tuple[float, float]]:
        """Return when each stage began and ended, in seconds since 1970; the last ends now."""
        names, begun = zip(*self._entered, strict=True)
        return dict(zip(names, zip(begun, (*begun[1:], time.time()), strict=True), strict=True))

    def enter(self, phase: str) -> None:
        """Begin the next stage: `prove` or `store`."""
        self._entered.append((phase, time.time()))
        passed = time.monotonic() - self._began
        self._callback(replace(self._last, phase=phase, seconds=passed, seconds_left=None))


_PROOFS: dict[str, tuple[str, JsonObject]] = {"solve": ("certify", {}), "form": ("check", {"strict": False})}
"""The questions to the prover about what the solver has written: a draft, or a factor file."""


def make_and_store(
    question: str, request: JsonObject, *, place: SolvePlace, store: Store, stages: Stages, limits: AnswerLimits
) -> Manifest:
    """Return the manifest of a result, stored after another process has proved what was written.

    Args:
        question: `solve` or `form`; see `api/questions/registry.py`.
        request: what it is about.
        place: the place whose workers do it; given back before the publication, which waits for a disk.
        store: the store that keeps it.
        stages: told of each step.
        limits: limits of either worker, and the wall limit of both together.

    Raises:
        WorkerEnded: a worker gave no answer.
        FactorizeError: there is no result, or one that does not hold; nothing is stored.
    """
    end = time.monotonic() + limits.seconds
    with store.objects.stage() as staged:
        file, pair = {"path": str(staged.path), "store": store.url}, place.pair

        def left() -> AnswerLimits:
            return replace(limits, seconds=max(0.0, end - time.monotonic()))

        pair.solver.ask(question, {**request, **file}, left(), lambda event: stages.step(step_of(event)))
        stages.enter("prove")
        named, about = _PROOFS[question]
        proof = pair.prover.ask(named, {**about, **file}, left())
        stages.enter("store")
        place.release()
        return store.put_checked(staged, proof)


def step_of(event: Mapping[str, Any]) -> Progress:
    """Return the step that a progress event of a solve tells."""
    return Progress(**{name: event[name] for name in Progress.__dataclass_fields__})
