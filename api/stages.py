"""The stages of a solve, told as progress: the solver's steps, then the proof of what was written, and the storing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorize.solution import Progress, ProgressCallback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from factorize.storage.incoming import Check


class Stages:
    """Passes a solver's steps on, and says where the solve is after it.

    Args:
        told: gets all progress.
        prove: the check of the written file, for `check`.
    """

    def __init__(self, told: ProgressCallback, prove: Check | None = None) -> None:
        self._told, self._prove = told, prove
        self._began = time.monotonic()
        self._last = Progress(0, None, None, 0.0)
        self._entered = [("solve", time.time())]

    def step(self, progress: Progress) -> None:
        """Pass a solver's step on; the callback of a solve."""
        self._last = progress
        self._told(progress)

    def check(self, path: Path) -> Mapping[str, Any]:
        """Prove the written file; the check of a put, which publishes what passes."""
        self.enter("prove")
        assert self._prove is not None
        found = self._prove(path)
        self.enter("store")
        return found

    def timings(self) -> dict[str, tuple[float, float]]:
        """Return when each stage began and ended, in seconds since 1970; the last ends now."""
        names, begun = zip(*self._entered, strict=True)
        return dict(zip(names, zip(begun, (*begun[1:], time.time()), strict=True), strict=True))

    def enter(self, phase: str) -> None:
        """Begin the next stage: `prove` or `store`."""
        self._entered.append((phase, time.time()))
        passed = time.monotonic() - self._began
        self._told(replace(self._last, phase=phase, seconds=passed, seconds_left=None))
