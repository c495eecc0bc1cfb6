"""The jobs that a command looks at: those of a service by its URL, or those of a ledger."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from factorize.encoding import check_digest
from factorize.errors import InvalidParameter, NotFound

if TYPE_CHECKING:
    from factorize.api.jobs.job import Job as LedgerJob
    from factorize.api.jobs.ledger import Ledger
    from factorize.client.service import Service

_LOOK_SECONDS = 0.5
_ENDED = ("done", "failed", "cancelled")

Job = dict[str, Any]
"""A job's document, with what else its source knows of it."""


class JobSource(Protocol):
    """Where jobs are."""

    def page(self, state: str | None, workload: str | None, limit: int) -> list[Job]:
        """Return the newest jobs."""

    def get(self, digest: str) -> Job:
        """Return a job, or raise NotFound."""

    def cancel(self, digest: str) -> Job:
        """End a job and return it."""

    def retry(self, digest: str) -> Job:
        """Queue a job again and return it."""

    def follow(self, digest: str) -> Iterator[Job]:
        """Iterate over a job as it changes, up to its end."""


@contextmanager
def open_jobs(url: str | None, database: str | None, store: str | None) -> Iterator[JobSource]:
    """Open the service of the option, or else the ledger of the options or the settings.

    Raises:
        InvalidParameter: a service and a ledger are named, or there is no ledger.
        ServiceUnreachable, StoreUnavailable: it does not answer.
    """
    if url is not None:
        if database is not None or store is not None:
            message = f"the service {url} knows its own ledger; leave --database and --store out, or --service"
            raise InvalidParameter(message, field="service")
        from factorize.client.service import Service

        yield ServiceJobs(Service(url))
        return
    from factorize.api.jobs.database import existing
    from factorize.api.jobs.ledger import Ledger
    from factorize.api.settings import ledger_url, load_settings

    with Ledger(existing(ledger_url(load_settings(database=database, store=store)))) as ledger:
        yield LedgerJobs(ledger)


class ServiceJobs:
    """The jobs of a service.

    Args:
        service: the service.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def page(self, state: str | None, workload: str | None, limit: int) -> list[Job]:
        """Return the newest jobs; results that no job has made come last."""
        return self._service.jobs(state=state, workload=workload, limit=limit)

    def get(self, digest: str) -> Job:
        """Return a job; that of a result is done."""
        return _as_job(self._service.status(digest))

    def cancel(self, digest: str) -> Job:
        """End a job."""
        return self._service.cancel(digest)

    def retry(self, digest: str) -> Job:
        """Queue a job again."""
        return _as_job(self._service.retry(digest))

    def follow(self, digest: str) -> Iterator[Job]:
        """Ask again and again; a service that is away for a moment is no end."""
        from factorize.client.service import ATTEMPTS
        from factorize.errors import ServiceUnreachable

        failures = 0
        while True:
            try:
                job, failures = self.get(digest), 0
            except ServiceUnreachable:
                failures += 1
                if failures == ATTEMPTS:
                    raise
            else:
                yield job
                if job["state"] in _ENDED:
                    return
            time.sleep(_LOOK_SECONDS)


class LedgerJobs:
    """The jobs of a ledger; services on it notice what is changed here within two seconds, or at once on PostgreSQL.

    Args:
        ledger: the ledger.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def page(self, state: str | None, workload: str | None, limit: int) -> list[Job]:
        """Return the newest jobs."""
        found, _ = self._ledger.page(state=state, workload=workload, limit=limit)
        return [_of_row(job) for job in found]

    def get(self, digest: str) -> Job:
        """Return a job."""
        return _of_row(self._row(digest))

    def cancel(self, digest: str) -> Job:
        """End a job."""
        job = self._ledger.cancel(self._row(digest).spec_digest)
        if job is None:
            raise InvalidParameter(f"the job is {self._row(digest).state} already, so there is nothing to cancel")
        return _of_row(job)

    def retry(self, digest: str) -> Job:
        """Queue a job again, for whichever service takes it up."""
        row = self._row(digest)
        job, mine = self._ledger.claim(row.order())
        if not mine:
            raise InvalidParameter(f"the job is {row.state}; only a failed or cancelled one is tried again")
        return _of_row(job)

    def follow(self, digest: str) -> Iterator[Job]:
        """Look again and again."""
        seq = None
        while True:
            row = self._row(digest)
            if row.seq != seq:
                seq = row.seq
                yield _of_row(row)
            if row.finished:
                return
            time.sleep(_LOOK_SECONDS)

    def _row(self, digest: str) -> LedgerJob:
        job = self._ledger.get(check_digest(digest))
        if job is None:
            raise NotFound(
                f"the ledger has no job of the spec digest {digest}; `factorize jobs list` shows those it has"
            )
        return job


def _of_row(job: LedgerJob) -> Job:
    more = {name: getattr(job, name) for name in ("workload", "digest", "attempts", "deaths", "priority")}
    return {**job.document(), **more}


def _as_job(document: dict[str, Any]) -> Job:
    """Return a job's document as it is, and that of a job that is done in place of a manifest."""
    if "certificate" not in document:
        return document
    names = {"spec_digest": document["spec_digest"], "digest": document["digest"], "state": "done", "error": None}
    times = {"progress": None, "submitted": document.get("created"), "updated": document.get("created")}
    return {**names, **times, "workload": document["spec"]["workload"]["kind"]}
