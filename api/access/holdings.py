"""Holdings: which jobs and uploads are whose, and what callers use of their quotas, asked of the ledger.

Several callers may hold one job, or have sent one matrix. Results are shared, since their names say all that is in
them; jobs and uploads are their callers' own.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from factorize.api.access.caller import Caller, QuotaExhausted
from factorize.api.jobs.audit_log import add_row
from factorize.api.jobs.database import (
    REVOKED,
    charges,
    forms,
    holds,
    insert_into,
    jobs,
    reading,
    results,
    take_turns,
    uploads,
    writing,
)
from factorize.api.jobs.solve_job import SolveJob
from factorize.errors import TooLarge
from factorize.storage.gc import GRACE_SECONDS

DAY = 86_400
OPEN_JOBS_SECONDS = 10.0
"""Seconds until the next look whether one of the open jobs has ended."""
KEPT_BYTES_SECONDS = 3600.0
"""Seconds until the next look whether a result was removed."""


class Holdings:
    """The holdings of callers, and their use of quotas. Thread-safe, and exact for several services on one ledger.

    Args:
        engine: the ledger's database.
        clock: seconds since 1970.
    """

    def __init__(self, engine: sa.Engine, clock: Callable[[], float] = time.time) -> None:
        self._engine, self._clock = engine, clock

    def check_left(self, caller: Caller, core_seconds: float = 0.0) -> None:
        """Refuse work that takes more than is left of the day's core-seconds, or any where none are left.

        Args:
            caller: the one who asks for it.
            core_seconds: what it is estimated to take; 0 where that is not known before it ends.

        Raises:
            QuotaExhausted: there are not as many.
            TooLarge: a whole day has not as many.
        """
        if caller.quotas.core_seconds_per_day is not None:
            with reading(self._engine) as connection:
                self._check_day(connection, caller, core_seconds)

    def check_kept(self, caller: Caller, size: int) -> None:
        """Refuse to keep so many bytes more for a caller.

        Raises:
            QuotaExhausted: they are more than is left.
        """
        with reading(self._engine) as connection:
            self._check_kept(connection, caller, size)

    @contextmanager
    def working(self, caller: Caller, threads: int) -> Iterator[None]:
        """Charge the work of the block, however it ends: seconds of the clock times the threads set aside for it."""
        began = time.monotonic()
        try:
            yield
        finally:
            if caller.owner:
                with writing(self._engine) as connection:
                    self._add(connection, caller, threads * (time.monotonic() - began))

    def _add(self, connection: sa.Connection, caller: Caller, core_seconds: float) -> None:
        now, mine = self._clock(), charges.c.owner == caller.owner
        connection.execute(charges.delete().where(mine, charges.c.began < now - 2 * DAY))
        connection.execute(charges.insert().values(owner=caller.owner, began=now, core_seconds=core_seconds))

    def _check_open(self, connection: sa.Connection, caller: Caller, spec_digest: str) -> None:
        limit = caller.quotas.open_jobs
        if limit is None:
            return
        count = connection.scalar(
            sa.select(sa.func.count())
            .select_from(holds.join(jobs, holds.c.spec_digest == jobs.c.spec_digest))
            .where(holds.c.owner == caller.owner, jobs.c.spec_digest != spec_digest)
            .where(jobs.c.state.in_(("queued", "running")))
        )
        if int(count or 0) >= limit:
            raise QuotaExhausted(
                f"{caller.name} has {count} queued or running of {limit} jobs at most; wait for one, or cancel it",
                OPEN_JOBS_SECONDS,
            )

    def _check_day(self, connection: sa.Connection, caller: Caller, core_seconds: float) -> None:
        limit = caller.quotas.core_seconds_per_day
        if limit is None:
            return
        if core_seconds > limit:
            raise TooLarge(
                f"this takes about {core_seconds:.0f} core-seconds, and the key may use {limit} in a day; use a "
                "smaller n, a structured mechanism or fewer seconds, or ask the operator for a larger quota"
            )
        midnight = int(self._clock() // DAY) * DAY
        mine = charges.c.owner == caller.owner, charges.c.began >= midnight
        used = float(connection.scalar(sa.select(sa.func.sum(charges.c.core_seconds)).where(*mine)) or 0.0)
        if used + core_seconds > limit or used >= limit:
            seconds = max(1, math.ceil(midnight + DAY - self._clock()))
            takes = f", and this takes {core_seconds:.0f}" if core_seconds else ""
            raise QuotaExhausted(
                f"{caller.name} may use {limit} core-seconds in a day (UTC) and has used {used:.0f}{takes}; try again "
                f"in {seconds} s, or ask the operator for a larger quota",
                seconds,
            )

    def _check_kept(self, connection: sa.Connection, caller: Caller, size: int) -> None:
        limit = caller.quotas.kept_bytes
        if limit is None:
            return
        made = sa.select(jobs.c.spec_digest).where(jobs.c.caller == caller.owner)
        asked = sa.select(forms.c.digest).where(forms.c.owner == caller.owner)
        solved = sa.and_(results.c.spec_digest.in_(made), results.c.form.is_(None))
        stored = sa.select(sa.func.sum(results.c.bytes)).where(
            sa.or_(solved, results.c.digest.in_(asked)), results.c.standing != REVOKED
        )
        fresh = uploads.c.owner == caller.owner, uploads.c.since > self._clock() - GRACE_SECONDS
        sent = sa.select(sa.func.sum(uploads.c.bytes)).where(*fresh)
        kept = sum(int(connection.scalar(query) or 0) for query in (stored, sent))
        if kept + size > limit or kept >= limit:
            raise QuotaExhausted(
                f"{kept} bytes are stored for {caller.name}, and the limit is {limit}; ask the operator to remove "
                "results (`factorize gc --delete`) or to raise the limit",
                KEPT_BYTES_SECONDS,
            )

    def enter(
        self, caller: Caller, core_seconds: float, connection: sa.Connection, job: SolveJob, claimed: bool
    ) -> None:
        """Have a caller hold a job, at the end of the transaction that claims it; see `Ledger.claim`.

        Args:
            caller: the one who has asked for it.
            core_seconds: what it is estimated to take.
            connection: a connection in that transaction.
            job: the job.
            claimed: whether it is begun for this caller.

        Raises:
            QuotaExhausted, TooLarge: it is above the caller's quotas, and not begun.
        """
        take_turns(connection)
        if claimed and caller.owner:
            self._check_open(connection, caller, job.spec_digest)
            self._check_kept(connection, caller, 0)
            self._check_day(connection, caller, core_seconds)
            self._add(connection, caller, core_seconds)
        if caller.owner:
            self._put(connection, holds, spec_digest=job.spec_digest, owner=caller.owner)
        if not job.finished:
            detail = {"workload": job.workload}
            add_row(connection, "submission", actor=caller.actor, subject=job.spec_digest, detail=detail)

    def has_job(self, caller: Caller, spec_digest: str) -> bool:
        """Say whether a job is the caller's own."""
        if caller.sees_all:
            return True
        mine = sa.select(holds.c.owner).filter_by(spec_digest=spec_digest, owner=caller.owner)
        with reading(self._engine) as connection:
            return connection.execute(mine).first() is not None

    def leave_to_others(self, caller: Caller, spec_digest: str) -> bool:
        """Take a job from a caller, if others hold it too, and write that down; return whether they do."""
        of_job, mine = holds.c.spec_digest == spec_digest, holds.c.owner == caller.owner
        with writing(self._engine) as connection:
            take_turns(connection)
            others = connection.scalar(sa.select(sa.func.count()).select_from(holds).where(of_job, ~mine))
            if others:
                connection.execute(holds.delete().where(of_job, mine))
                add_row(connection, "cancellation", actor=caller.actor, subject=spec_digest)
            return bool(others)

    def keep_upload(self, caller: Caller, sha256: str, shape: tuple[int, ...], *, within_spec: bool = False) -> None:
        """Note who has sent a matrix of doubles; without keys, it is everybody's.

        Args:
            caller: the one who has sent it.
            sha256: its name.
            shape: rows and columns.
            within_spec: whether it came in a spec, whose submission is written down anyway.
        """
        with writing(self._engine) as connection:
            self._put(connection, uploads, sha256=sha256, owner=caller.owner, bytes=8 * math.prod(shape))
            if not within_spec:
                detail = dict(zip(("rows", "columns"), shape, strict=True))
                add_row(connection, "upload", actor=caller.actor, subject=sha256, detail=detail)

    def keep_form(self, caller: Caller, digest: str) -> None:
        """Note who has had a further form of a result made."""
        if caller.owner:
            with writing(self._engine) as connection:
                self._put(connection, forms, digest=digest, owner=caller.owner)

    def upload_for(self, caller: Caller, sha256: str) -> str:
        """Return the name by which to look for a matrix or a file; one that nothing has, if it is an upload of others.

        So looking for what others have sent takes what looking for nothing takes.
        """
        if caller.sees_all:
            return sha256
        with reading(self._engine) as connection:
            owners = set(connection.scalars(sa.select(uploads.c.owner).where(uploads.c.sha256 == sha256)))
        absent = hashlib.sha256(f"no upload {sha256}".encode()).hexdigest()
        return sha256 if not owners or owners & {"", caller.owner} else absent

    def _put(self, connection: sa.Connection, table: sa.Table, **values: Any) -> None:
        row = insert_into(self._engine, table).values(**values, since=self._clock())
        connection.execute(row.on_conflict_do_nothing())
