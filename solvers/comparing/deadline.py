"""Deadline of a comparison: each stage ends at a share of the time that a user gave."""

from __future__ import annotations

import time

from factorize.solvers.methods.threads import CORES

SOLVES, CALIBRATIONS, CLAIMS = 0.8, 0.9, 1.0
"""Shares of the time by which the stages end: searches are stopped then, and nothing of a later stage begins that is
not expected to end by its share."""

_LONGEST_WAIT = 2.0  # times the seconds, by the clock, however busy the machine is
_BUSY = 0.7  # of the cores, on a quiet machine: threads wait for the interpreter's lock


class Deadline:
    """Time that a comparison may take, from now on.

    Seconds are those of a quiet machine: processor seconds over the cores that a comparison keeps busy, so that what
    else runs decides little.

    Attributes:
        seconds: of the whole comparison, or None for no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._clock, self._processor = time.monotonic(), time.process_time()

    def over(self, share: float, needed: float = 0.0) -> bool:
        """Return whether what takes so many seconds would end after a share of the time."""
        if self.seconds is None:
            return False
        clock = time.monotonic() - self._clock
        quiet = (time.process_time() - self._processor) / max(1.0, _BUSY * CORES)
        return min(clock, max(quiet, clock / _LONGEST_WAIT)) + needed > share * self.seconds

    def told(self, what: str) -> str:
        """Return what happened to something that the time did not last for, and the way out."""
        assert self.seconds is not None
        return (
            f"{what}: the time for all, {self.seconds:g} s, does not last; give more (--seconds {6 * self.seconds:g})"
        )
