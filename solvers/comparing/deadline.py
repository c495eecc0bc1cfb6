"""The deadline of a comparison: each stage ends at a share of the processor seconds that a user gave."""

from factorize.numbers.processor_time import process_seconds
from factorize.privacy.question import WORK

SOLVES, CALIBRATIONS, CLAIMS = 0.8, 0.9, 1.0
"""Shares of the time by which the stages end: searches are stopped then, and nothing of a later stage begins that is
not expected to end by its share."""

LATE_BOUNDS, LATE_CLAIMS, FIRST_CLAIM = 1.6, 1.3, 2.0
"""Later shares, by which these end: bounds of leads in many bins and their claim; claims of rows recommended and of
leads near them; the first claim, or a short one."""
_WORK_PER_SECOND, _MIN_WORK = 6e6, 1 << 23
"""Samples times bins for each second of the whole time, about a third of which tests a claim, and at least."""


class Deadline:
    """Processor seconds that a comparison may take, from now on: of all threads, but not the compiler's.

    The clock decides nothing: on a busy machine the same mechanisms are tried, and the answer comes later.

    Attributes:
        seconds: processor seconds of the whole comparison, or None for no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._began = process_seconds()

    def over(self, share: float, needed: float = 0.0) -> bool:
        """Return whether what takes so many seconds would end after a share of the time."""
        if self.seconds is None:
            return False
        return process_seconds() - self._began + needed > share * self.seconds

    @property
    def work(self) -> int | None:
        """Samples times bins that may test one direction of a claim, a part of the time; None for the usual."""
        most = WORK if self.seconds is None else max(_MIN_WORK, int(min(_WORK_PER_SECOND * self.seconds, WORK)))
        return most if most < WORK else None

    def told(self, what: str) -> str:
        """Return what happened to something that the time did not last for, and the way out."""
        assert self.seconds is not None
        return (
            f"{what}: the time for all, {self.seconds:g} processor seconds, is used up; give more (--seconds "
            f"{6 * self.seconds:g})"
        )
