"""The list of a service: a caller's jobs, and stored results that no job of it has made."""

from __future__ import annotations

import json
from typing import Any

from factorize.api.access.caller import ANYONE, Caller
from factorize.api.catalog import Catalog
from factorize.api.jobs.job import Job
from factorize.api.jobs.ledger import Ledger, read_cursor, write_cursor
from factorize.format.labels import describe_spec


class Listing:
    """Pages of what a ledger and a store hold.

    Args:
        catalog: of the results.
        ledger: with the jobs.
    """

    def __init__(self, catalog: Catalog, ledger: Ledger) -> None:
        self._catalog, self._ledger = catalog, ledger

    def page(
        self, *, state: str | None, workload: str | None, cursor: str | None, limit: int, caller: Caller = ANYONE
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return one page, the newest first, and the cursor of the next: jobs, and stored results that no job has made.

        Raises:
            InvalidParameter: unknown state, a cursor that is not ours, or a limit out of range.
        """
        holder = None if caller.sees_all else caller.owner
        jobs, following = self._ledger.page(state=state, workload=workload, cursor=cursor, limit=limit, holder=holder)
        aged = [((job.submitted, job.spec_digest), _entry_of_job(job)) for job in jobs]
        if state in (None, "done"):
            before = None if cursor is None else read_cursor(cursor)
            aged += self._catalog.page(workload=workload, before=before, limit=limit + 1)
        aged.sort(key=lambda one: one[0], reverse=True)
        more = following is not None or len(aged) > limit
        return [entry for _, entry in aged[:limit]], write_cursor(*aged[limit - 1][0]) if more else None


def _entry_of_job(job: Job) -> dict[str, Any]:
    """Return a job's entry: its document, its spec in one line, its workload, the digest of its result."""
    summary = describe_spec(json.loads(job.spec))
    return {**job.document(), "workload": job.workload, "digest": job.digest, "summary": summary}
