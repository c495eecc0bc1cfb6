"""Deadline of a stage of a comparison: each has its share of the time, counted from its own beginning."""

from __future__ import annotations

import time

from factorize.solvers.methods.threads import CORES

SOLVES, CALIBRATIONS, CLAIMS = 0.8, 0.1, 0.1
"""Shares of the time in which they begin. What has begun is waited for, so that one of each is made."""

_LONGEST_WAIT = 2.0  # times the seconds, by the clock, however busy the machine is


class Deadline:
    """Time that a stage may take.

    Seconds are those of a quiet machine: processor seconds over the cores, so that what else runs decides little.

    Attributes:
        seconds: of the whole comparison, or None for no limit.
    """

    def __init__(self, seconds: float | None, share: float) -> None:
        self.seconds, self._share = seconds, share
        self._clock, self._processor = time.monotonic(), time.process_time()

    def over(self, needed: float = 0.0) -> bool:
        """Return whether the stage's share leaves no room for what takes so many seconds."""
        if self.seconds is None:
            return False
        clock = time.monotonic() - self._clock
        quiet = (time.process_time() - self._processor) / CORES
        return min(clock, max(quiet, clock / _LONGEST_WAIT)) + needed > self._share * self.seconds

    def told(self, what: str) -> str:
        """Return what happened to something that the time did not last for, and the way out."""
        assert self.seconds is not None
        return (
            f"{what}: the time for all, {self.seconds:g} s, does not last; give more (--seconds {6 * self.seconds:g})"
        )
