"""The jobs table: what was asked of the service, and how far each solve is.

The ledger is bookkeeping. Whether a factorization exists is decided by the store alone, so a lost ledger
loses the queue and no result. Only processes that serve the API write to it; workers and children never
see the database.

States and who may move between them::

    (nothing), failed, cancelled --claim---> queued
    queued, running --start, progress------> running
    queued, running --finish, fail, cancel-> done, failed, cancelled
    queued, running --adopt, release, died-> queued

A terminal state is left by ``claim`` only. Every change adds one to ``seq``, which never falls back; it is
the id of the server-sent events. ``task`` names one claim and ``owner`` the engine that looks after it: a
message that comes late, from a claim that is over or from an engine that has lost the job, matches neither
and changes nothing.

``lease`` says until when the owner looks after the job, by the database's clock. Owners renew their leases; a job
whose lease has run out is anybody's.

Each change is one guarded statement, so SQLite and PostgreSQL need no other lock.
"""

import json
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Self

import sqlalchemy as sa
from pydantic import AfterValidator, BaseModel, Field

from factorize.api.jobs.audit_log import add_row
from factorize.api.jobs.database import clock, having, holds, insert_into, jobs, open_database, reading, schema, writing
from factorize.api.jobs.solve_job import STATES, JobOrder, SolveJob, State
from factorize.encoding import is_digest
from factorize.errors import InvalidParameter

LEASE_SECONDS = 15.0
_ROUNDING_SECONDS = 0.1  # the rounding of a clock in days
_OPEN = ("queued", "running")
Within = Callable[[sa.Connection, SolveJob, bool], object]
"""A function that goes with a claim, in its transaction."""


def _printable(kind: str) -> str:
    if not kind.isprintable():  # PostgreSQL takes no NUL
        raise ValueError("a kind has printable characters alone")
    return kind


class ListQuery(BaseModel, frozen=True, use_attribute_docstrings=True):
    """The entries of a list of jobs and results that are asked for: the parameters of the address that lists them."""

    state: State | None = None
    """Only jobs in this state."""
    workload: Annotated[str, Field(max_length=64), AfterValidator(_printable)] | None = None
    """Only this kind of workload."""
    cursor: Annotated[str | None, Field(max_length=200)] = None
    """`next` of the page before."""
    limit: Annotated[int, Field(ge=1, le=1000)] = 50
    """Entries per page."""
    search: Annotated[str, Field(max_length=200)] = ""
    """Only specs with these words, or beginnings of digests."""

    def newest(self, table: sa.Table, time: sa.ColumnElement[str], text: sa.ColumnElement[str]) -> sa.Select[Any]:
        """Return the statement of this page of a table of any state, the newest rows first.

        Args:
            table: has the columns `spec_digest`, `digest` and `workload`.
            time: its column with the time by which rows are ordered.
            text: its column with what the specs say.

        Raises:
            InvalidParameter: no list has given the cursor out.
        """
        digest = table.c.spec_digest
        query = sa.select(table).where(*having(self.search, text, digest, table.c.digest))
        if self.workload is not None:
            query = query.where(table.c.workload == self.workload)
        if self.cursor is not None:
            query = query.where(sa.tuple_(time, digest) < sa.tuple_(*map(sa.literal, read_cursor(self.cursor))))
        return query.order_by(time.desc(), digest.desc()).limit(self.limit)


class Ledger:
    """The jobs table on SQLite or PostgreSQL. Thread-safe.

    Attributes:
        engine: the database, for the other tables in it.
    """

    def __init__(self, url: str | Path, *, lease_seconds: float = LEASE_SECONDS) -> None:
        """Open the ledger and create what is missing.

        Args:
            url: SQLAlchemy URL, ``sqlite:////path/jobs.sqlite`` or ``postgresql+psycopg://...``; or a path.
            lease_seconds: seconds without a renewal after which the jobs of an owner are anybody's.

        Raises:
            StoreUnavailable: the database cannot be opened, or was written by another release.
        """
        self.engine = open_database(url)
        self._clock, self._lease_seconds = clock(self.engine), lease_seconds

    def close(self) -> None:
        """Close all connections; those that threads use now, when they are given back."""
        sa.event.listen(self.engine.pool, "checkin", lambda connection, _record: connection and connection.close())
        self.engine.dispose()

    def __enter__(self) -> Self:
        """Use as ``with Ledger(url) as ledger``."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close all connections."""
        self.close()

    # Claims and changes of state

    def claim(
        self, order: JobOrder, *, owner: str = "", stale: bool = False, within: Within = lambda *_: None
    ) -> tuple[SolveJob, bool]:
        """Insert the job, or queue a failed or cancelled one again.

        Callers take turns: a caller's next job comes one turn after the caller's last open one, and not before the
        earliest turn that is open, so that nobody catches up on time spent idle.

        Args:
            order: what is asked.
            owner: id of the engine that will look after the job.
            stale: queue a ``done`` job again too, because the store no longer has its result.
            within: called at the end of the transaction, with the job and whether it was claimed by it; what is raised
                there undoes the claim.

        Returns:
            The job, and True for the one caller who must now submit it.
        """
        now = _now()
        values = {name: getattr(order, name) for name in JobOrder.__dataclass_fields__} | {
            **{"state": "queued", "attempts": 0, "deaths": 0, "progress": None, "error": None, "digest": None},
            **{"owner": owner, "task": _new_task(), "turn": _turn(order), "submitted": now, "updated": now},
            "lease": self._lease,
        }
        first = insert_into(self.engine, jobs).values(**values, seq=1).on_conflict_do_nothing().returning(jobs)
        ended = jobs.c.state.in_(("failed", "cancelled", "done") if stale else ("failed", "cancelled"))
        mine, again = jobs.c.spec_digest == order.spec_digest, jobs.update().values(**values, seq=jobs.c.seq + 1)
        with writing(self.engine) as connection:
            for statement in (first, again.where(mine, ended).returning(jobs)):
                row = connection.execute(statement).one_or_none()
                if row is not None:
                    within(connection, _job(row), True)
                    return _job(row), True
            job = _job(connection.execute(sa.select(jobs).where(mine)).one())
            within(connection, job, False)
            return job, False

    def start(self, job: SolveJob) -> SolveJob | None:
        """Note that a child of this claim was started: running, one attempt more. None if the claim is over."""
        return self._change(job, "running", attempts=jobs.c.attempts + 1)

    def update_progress(self, job: SolveJob, progress: dict[str, object]) -> SolveJob | None:
        """Keep the newest progress event. None if the claim is over."""
        return self._change(job, "running", progress=json.dumps(progress, allow_nan=False))

    def fail(self, job: SolveJob, error: dict[str, str]) -> SolveJob | None:
        """Note that the solve of this claim failed. None if the claim is over."""
        return self._change(job, "failed", error=json.dumps(error))

    def release(self, job: SolveJob) -> SolveJob | None:
        """Hand a job back because the engine ends: queued, and the attempt does not count."""
        attempts = sa.case((jobs.c.state == "running", jobs.c.attempts - 1), else_=jobs.c.attempts)
        return self._change(job, "queued", owner="", attempts=attempts)

    def adopt(self, job: SolveJob, owner: str, *, deaths: int = 0, ended: bool = False) -> SolveJob | None:
        """Take a job over from an engine that is gone (or from oneself).

        Args:
            job: the job.
            owner: id of the engine that takes it.
            deaths: the number of deaths that its last start counts as.
            ended: whether the process of the engine that has it is known to have ended; its lease counts no more.

        Returns:
            The job; None if someone else was faster, or its owner has renewed the lease meanwhile.
        """
        free = () if ended or job.owner in ("", owner) else (sa.not_(self._lasts),)
        values = {"owner": owner, "lease": self._lease, "deaths": jobs.c.deaths + deaths}
        return self._change(job, "queued", *free, **values)

    def died(self, job: SolveJob, *, deaths: int = 1) -> SolveJob | None:
        """Note that the claim's child was killed: queued again, as a task of a new name. None if the claim is over.

        What dask says of the old task may still be on its way, and must not be taken for the new one's end. An attempt
        counts though nothing was heard of its start.
        """
        attempts = sa.case((jobs.c.state == "queued", jobs.c.attempts + 1), else_=jobs.c.attempts)
        return self._change(job, "queued", deaths=jobs.c.deaths + deaths, attempts=attempts, task=_new_task())

    def finish(self, spec_digest: str, digest: str, progress: dict[str, object] | None = None) -> SolveJob | None:
        """Note that the store has the result, whoever put it there: done. None if the job was not open."""
        values = {} if progress is None else {"progress": json.dumps(progress, allow_nan=False)}
        with writing(self.engine) as connection:
            return _moved(connection, spec_digest, "done", digest=digest, error=None, **values)

    def cancel(self, spec_digest: str, actor: str = "factorize") -> SolveJob | None:
        """Note that a user asked for the end. None if the job was not open.

        Args:
            spec_digest: the job.
            actor: the user, for the audit log.
        """
        with writing(self.engine) as connection:
            job = _moved(connection, spec_digest, "cancelled")
            if job is not None:
                add_row(connection, "cancellation", actor=actor, subject=spec_digest)
        return job

    def _change(
        self, job: SolveJob, state: str, *conditions: sa.ColumnElement[bool], **values: object
    ) -> SolveJob | None:
        """Change a job on behalf of one claim and one owner."""
        with writing(self.engine) as connection:
            claim = jobs.c.task == job.task, jobs.c.owner == job.owner
            return _moved(connection, job.spec_digest, state, *claim, *conditions, **values)

    # Reading

    def get(self, spec_digest: str) -> SolveJob | None:
        """Return the job of a spec, or None."""
        with reading(self.engine) as connection:
            row = connection.execute(sa.select(jobs).where(jobs.c.spec_digest == spec_digest)).one_or_none()
        return None if row is None else _job(row)

    def list_unfinished(self) -> list[SolveJob]:
        """Return all queued and running jobs, by turns, then first come first."""
        order = (jobs.c.turn, jobs.c.submitted, jobs.c.spec_digest)
        with reading(self.engine) as connection:
            rows = connection.execute(sa.select(jobs).where(jobs.c.state.in_(_OPEN)).order_by(*order)).all()
        return [_job(row) for row in rows]

    def counts(self) -> dict[str, int]:
        """Return how many jobs there are in each state; every state is present."""
        with reading(self.engine) as connection:
            rows = connection.execute(sa.select(jobs.c.state, sa.func.count()).group_by(jobs.c.state)).all()
        return dict.fromkeys(STATES, 0) | {state: count for state, count in rows}

    def load(self) -> tuple[str | None, int]:
        """Return since when the oldest queued job waits (None without any), and the memory of running jobs, in MiB."""
        oldest = sa.select(sa.func.min(jobs.c.submitted)).where(jobs.c.state == "queued")
        memory = sa.select(sa.func.sum(jobs.c.memory_mb)).where(jobs.c.state == "running")
        with reading(self.engine) as connection:
            return connection.scalar(oldest), int(connection.scalar(memory) or 0)

    def page(self, query: ListQuery, holder: str | None = None) -> list[SolveJob]:
        """Return one page of the list of jobs, newest first.

        Args:
            query: which jobs.
            holder: only jobs that this caller holds.
        """
        wanted = query.newest(jobs, jobs.c.submitted, jobs.c.spec)
        if query.state is not None:
            wanted = wanted.where(jobs.c.state == query.state)
        if holder is not None:
            wanted = wanted.where(jobs.c.spec_digest.in_(sa.select(holds.c.spec_digest).where(holds.c.owner == holder)))
        with reading(self.engine) as connection:
            return [_job(row) for row in connection.execute(wanted)]

    # Leases

    @property
    def _lease(self) -> sa.ColumnElement[float]:
        return self._clock + self._lease_seconds

    def renew(self, owner: str, *, last: bool = False) -> None:
        """Renew the leases of an owner's open jobs, or end them. A row is written where there are none, too.

        Args:
            owner: id of the engine.
            last: whether the engine ends.
        """
        mine = jobs.c.owner == owner, jobs.c.state.in_(_OPEN)
        with writing(self.engine) as connection:
            connection.execute(schema.update().values(renewals=schema.c.renewals + 1))
            connection.execute(jobs.update().where(*mine).values(lease=0.0 if last else self._lease))

    @property
    def _lasts(self) -> sa.ColumnElement[bool]:
        """Return whether a lease lasts; one longer than can be given is from before the clock was set back."""
        return (jobs.c.lease - self._clock).between(0.0, self._lease_seconds + _ROUNDING_SECONDS)

    def living(self) -> set[str]:
        """Return the owners of open jobs whose leases last."""
        owned = jobs.c.state.in_(_OPEN), jobs.c.owner != "", self._lasts
        with reading(self.engine) as connection:
            return set(connection.scalars(sa.select(jobs.c.owner).distinct().where(*owned)))


def _moved(
    connection: sa.Connection, spec_digest: str, state: str, *claim: sa.ColumnElement[bool], **values: object
) -> SolveJob | None:
    """Move an open job to a state, of any owner or of one claim and its owner; None if there is no such job."""
    fixed = {"state": state, "seq": jobs.c.seq + 1, "updated": _now()}
    where = jobs.c.spec_digest == spec_digest, jobs.c.state.in_(_OPEN), *claim
    row = connection.execute(jobs.update().where(*where).values(**values, **fixed).returning(jobs)).one_or_none()
    return None if row is None else _job(row)


def _turn(order: JobOrder) -> sa.ScalarSelect[int]:
    """Return the turn of a job that is queued now, as a part of the statement that queues it."""
    column = jobs.alias().c
    first = sa.func.min(column.turn)
    own = sa.func.coalesce(sa.func.max(sa.case((column.caller == order.caller, column.turn + 1))), 0)
    others = column.state.in_(_OPEN), column.spec_digest != order.spec_digest
    return sa.select(sa.case((first > own, first), else_=own)).where(*others).scalar_subquery()


def _job(row: sa.Row[object]) -> SolveJob:
    values = {name: row._mapping[name] for name in SolveJob.__dataclass_fields__}
    for name in ("progress", "error"):
        values[name] = None if values[name] is None else json.loads(values[name])
    return SolveJob(**values)


def _new_task() -> str:
    """Return a name with 128 random bits: who could guess one could answer for a worker of a cluster."""
    return secrets.token_hex(16)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def write_cursor(submitted: str, spec_digest: str) -> str:
    """Return the cursor of a list that goes on after this entry."""
    return f"{submitted}_{spec_digest}"


def read_cursor(cursor: str) -> tuple[str, str]:
    """Return the entry after which a list goes on: when it was submitted, and its spec digest.

    Raises:
        InvalidParameter: no list has given this cursor out.
    """
    time, _, digest = cursor.partition("_")
    if not (time.isascii() and time.isprintable() and is_digest(digest)):
        message = "the list did not give out this cursor; take it from 'next', or leave it out"
        raise InvalidParameter(message, field="cursor")
    return time, digest
