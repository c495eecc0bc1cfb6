"""Deadline of a comparison: each stage ends at a share of the processor seconds that a user gave."""

from __future__ import annotations

from factorize.numbers.processor_time import process_seconds
from factorize.privacy_question import WORK

SOLVES, CALIBRATIONS, CLAIMS = 0.8, 0.9, 1.0
"""Shares of the time by which the stages end: searches are stopped then, and nothing of a later stage begins that is
not expected to end by its share."""

LATE_CLAIMS = 2.5
"""The same of the claims of rows that are recommended, and of leads near them, where one was tested before."""
_WORK_A_SECOND, _LEAST_WORK = 6e6, 1 << 23  # of the whole time: about a third of it tests a claim
_REFERENCES = 0.3  # of the time


class Deadline:
    """Processor seconds that a comparison may take, from now on: of all threads, but not the compiler's.

    The clock decides nothing: on a busy machine the same mechanisms are tried, and the answer comes later.

    Attributes:
        seconds: of the whole comparison, or None for no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._began = process_seconds()

    def over(self, share: float, needed: float = 0.0) -> bool:
        """Return whether what takes so many seconds would end after a share of the time."""
        if self.seconds is None:
            return False
        return process_seconds() - self._began + needed > share * self.seconds

    def bears(self, needed: float) -> bool:
        """Return whether what others are set against may take so many seconds."""
        return self.seconds is None or needed <= _REFERENCES * self.seconds

    @property
    def work(self) -> int | None:
        """Samples times bins that may test one direction of a claim, a part of the time; None for the usual."""
        most = WORK if self.seconds is None else max(_LEAST_WORK, int(_WORK_A_SECOND * self.seconds))
        return most if most < WORK else None

    def told(self, what: str) -> str:
        """Return what happened to something that the time did not last for, and the way out."""
        assert self.seconds is not None
        return (
            f"{what}: the time for all, {self.seconds:g} processor seconds, does not last; give more (--seconds "
            f"{6 * self.seconds:g})"
        )
