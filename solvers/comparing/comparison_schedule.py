"""The schedule of a comparison: which attempts begin, and how long each may take."""

import math
from collections.abc import Callable

from factorize.numbers.processor_time import thread_seconds
from factorize.solvers.comparing.attempts import Attempt, OutOfTime
from factorize.solvers.comparing.candidates import LEAD_TOLERANCE
from factorize.solvers.comparing.deadline import FIRST_CLAIM, SOLVES, Deadline
from factorize.spec import Spec
from factorize.structures.base import Matrix

_MIN_SECONDS, _STEPS_PER_SECOND, _MAX_SECONDS = 8.0, 5000, 200.0
_OPTIMISED_SECONDS = 200.0  # what is optimised for a sampling may take this long
_LEAD_FACTOR, _MIN_LEAD_SECONDS = 3.0, 3.0
"""A lead may take this many times the time for all by its estimate, and at least this long."""
_SECOND_LEAD_SHARE = 0.5  # the lead of a public order may take this part of the time beside one of bins
_LATE_FACTOR = 2.0  # a mechanism whose estimate was too low is stopped at this many times its limit
_EXTRA_SECONDS = 60.0
"""A lead may take this much longer, since busy machines share their caches and nothing stands in for it, and so may the
bound, which all rows are measured against."""
_NEAR_BOUND_SHARE = 0.3
"""The part of the time for a long run in which more is tried beside a lead that is near the bound."""
_BOUND_SECONDS, _CERTIFICATE_SECONDS, _ENTRY_SECONDS = 2e-5, 1e-5, 8e-8
"""The seconds of a bound and of a certificate for each step, measured at 1e5 steps, and for each entry of an array."""


class ComparisonSchedule(Deadline):
    """The times of one comparison.

    Args:
        steps: the steps of the spec, 0 without end.
        seconds: processor seconds for all, or None.
        max_seconds: seconds that a mechanism may take by its estimate; see `compare`.
        claims: seconds at the end that are kept for the claims of rows in bins.
    """

    def __init__(self, steps: int, seconds: float | None, *, max_seconds: float | None, claims: float) -> None:
        super().__init__(seconds)
        self._steps, self._claims = steps, claims
        most = seconds if max_seconds is None else max_seconds
        self._most = min(max(_MIN_SECONDS, steps / _STEPS_PER_SECOND), _MAX_SECONDS) if most is None else most
        self._most_optimised = _OPTIMISED_SECONDS if most is None else most

    def limit(self, attempt: Attempt) -> float:
        """Return the seconds that an attempt may take by its estimate."""
        most = self._most if attempt.sampling is None else self._most_optimised
        if attempt.lead and attempt.sampling is None and self._claims:
            return _SECOND_LEAD_SHARE * most
        if attempt.lead:
            return max(_LEAD_FACTOR * most, _MIN_LEAD_SECONDS)
        return math.inf if attempt.always else most

    def check_estimate(self, attempt: Attempt) -> None:
        """Raise `OutOfTime` where an attempt would take longer than its limit."""
        most = self.limit(attempt)
        if attempt.needed.seconds > most:
            raise OutOfTime(
                f"would take about {attempt.needed.seconds:.3g} s, above max_seconds={most:g}; raise it "
                "(--max-seconds, or --seconds for all), or solve this mechanism by its own spec"
            )

    def check_time_left(self, attempt: Attempt, first: Attempt) -> None:
        """Raise `OutOfTime` where an attempt would end too late, or the lead of its group needs none beside it."""
        if attempt.always:
            return
        if self.over(SOLVES, attempt.needed.seconds + self._claims):
            raise OutOfTime(self.told("was not tried"))
        gap = first.gap if first.lead else None
        if gap is not None and gap <= LEAD_TOLERANCE and self.over(_NEAR_BOUND_SHARE, attempt.needed.seconds):
            assert self.seconds is not None
            raise OutOfTime(
                f"was not tried: the squared error of {first.mechanism['kind']} is {100 * gap:.3g} % above the "
                "certified lower bound, so nothing gains more in a public order; give more time (--seconds "
                f"{6 * self.seconds:g})"
            )

    def check_bound(self) -> None:
        """Raise `OutOfTime` where the bound that all rows are measured against would end too late."""
        if self.over(SOLVES, _BOUND_SECONDS * self._steps):
            raise OutOfTime(self.told("was not tried"))

    def lasts_for_certificate(self, spec: Spec, matrix: Matrix) -> bool:
        """Return whether there is time for one more certificate."""
        return not self.over(FIRST_CLAIM, certificate_seconds(spec, matrix))

    def start_clock(self, attempt: Attempt, *, bound: bool = False) -> Callable[[], None]:
        """Start the clock of an attempt or the bound in this thread; return what raises `OutOfTime` once it is late."""
        # Processor time of this thread: what else the machine does decides nothing.
        began = thread_seconds()
        last = _LATE_FACTOR * self.limit(attempt) + (_EXTRA_SECONDS if attempt.lead or bound else 0.0)

        def check() -> None:
            passed = thread_seconds() - began
            if passed > last:
                raise OutOfTime(f"was stopped after {passed:.3g} s of processor time; raise --max-seconds")
            if not attempt.always and self.over(SOLVES, self._claims):
                raise OutOfTime(self.told(f"was stopped after {passed:.3g} s of processor time"))

        return check


def certificate_seconds(spec: Spec, matrix: Matrix) -> float:
    """Return about how long a certificate takes; columns that overlap and differ are multiplied as an array."""
    separation, most, _ = spec.participation.spread(matrix.n)
    whole = most > 1 and matrix.bandwidth() > separation and not matrix.time_invariant
    return matrix.n * (_CERTIFICATE_SECONDS + _ENTRY_SECONDS * matrix.n * whole)
