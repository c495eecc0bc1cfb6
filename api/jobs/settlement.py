"""Settlement: what the end of a solve means for its job, and which ends count against the spec.

What is stored is done, whatever the solve said last. Only the death of a job's own child counts against it; after the
third it is given up. A solve that was cancelled, or lost with its workers, says nothing of its spec.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from factorize.api.jobs.ending import SolveEnding
from factorize.api.jobs.job import ALONE_AFTER, Job
from factorize.api.jobs.ledger import Ledger
from factorize.api.workers.ending import Ending

OUTAGES = 10
"""Starts after which a job whose child finds no store is failed, though the service finds it."""
_log = logging.getLogger(__name__)


class Settlement:
    """Writes the ends of solves into the ledger."""

    def __init__(
        self, ledger: Ledger, find: Callable[[str], str | None], settled: Callable[[Job, SolveEnding], None] | None
    ) -> None:
        """Take the ledger, who knows what is stored, and who is told of each end (api/jobs/engine.py)."""
        self._ledger = ledger
        self._find = find
        self._settled = settled

    def settle(self, job: Job, outcome: SolveEnding) -> None:
        """Write the end of a solve."""
        self._count(job, outcome)
        stored = self._find(job.spec_digest)
        if stored is not None:
            self._ledger.finish(job.spec_digest, stored, outcome.progress)
        elif outcome.ending in (Ending.CANCELLED, Ending.INTERRUPTED, Ending.UNHEARD):
            self._ledger.died(job, deaths=0)
        elif outcome.ending in (Ending.CRASHED, Ending.LOST):
            self._bury(job, outcome)
        elif (outcome.error or {}).get("type") == "store-unavailable" and job.attempts + 1 < OUTAGES:
            self._ledger.died(job, deaths=0)  # an outage is not the spec's fault, and the store answers here again
        else:
            self._ledger.fail(job, outcome.error or _not_stored(outcome))

    def _count(self, job: Job, outcome: SolveEnding) -> None:
        _log.info("a solve is settled", extra={"about": {**job.about(), "ending": outcome.ending.name.lower()}})
        if self._settled is not None:
            self._settled(job, outcome)

    def give_up(self, job: Job, last: dict[str, str] | None = None) -> None:
        """Fail a job that has ended its process too often; ``last`` is the error of the last time, if it left one."""
        self._ledger.fail(job, _given_up(last))

    def _bury(self, job: Job, outcome: SolveEnding) -> None:
        """Count the death of a child; one that was lost with its workers is only suspected, until it runs alone."""
        if job.suspect:
            self.give_up(job, outcome.error)
        else:
            self._ledger.died(job, deaths=1 if outcome.ending is Ending.CRASHED else ALONE_AFTER - job.deaths)


def _given_up(last: dict[str, str] | None) -> dict[str, str]:
    end = "its machine went down" if last is None else last["message"]
    return {
        "type": "gave_up",
        "message": f"the solve has ended its process {ALONE_AFTER + 1} times, the last time with a worker to itself "
        f"({end}). Post the spec with a smaller n, or again if the cause is mended"[:2000],
    }


def _not_stored(outcome: SolveEnding) -> dict[str, str]:
    return {
        "type": "not_stored",
        "message": f"the solver says that it stored {outcome.digest}, and the store does not have it; check "
        "that workers and service use the same store, and post the spec again",
    }
