"""Holdings: which jobs and uploads are whose. Several callers may hold one job, or have sent one matrix.

Results are shared, since their names say all that is in them; jobs and uploads are their callers' own.
"""

from __future__ import annotations

import hashlib
import math
import time
from functools import partial
from typing import Any

import sqlalchemy as sa

from factorize.api.access.caller import Caller
from factorize.api.access.usage import UsageMeter
from factorize.api.auditing.audit_log import add_row
from factorize.api.jobs.database import holds, insert_into, reading, take_turns, uploads, writing
from factorize.api.jobs.job import Job


class Holdings:
    """Who holds what, in a ledger. Thread-safe.

    Args:
        engine: the ledger's database.
        meter: counts what is begun for a caller.
    """

    def __init__(self, engine: sa.Engine, meter: UsageMeter) -> None:
        self._engine = engine
        self._meter = meter
        self._insert = partial(insert_into, engine)

    def enter(self, caller: Caller, core_seconds: float, connection: sa.Connection, job: Job, claimed: bool) -> None:
        """Have a caller hold a job, at the end of the transaction that claims it; see `Ledger.claim`.

        Args:
            caller: who has asked for it.
            core_seconds: what it is estimated to take.
            connection: in that transaction.
            job: the job.
            claimed: whether it is begun for this caller.

        Raises:
            QuotaExhausted, TooLarge: it is above the caller's quotas, and not begun.
        """
        take_turns(connection)
        if claimed:
            self._meter.charge(connection, caller, job.spec_digest, core_seconds)
        if caller.owner:
            values = {"spec_digest": job.spec_digest, "owner": caller.owner, "since": time.time()}
            self._put(connection, holds, values)
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
        """Take a job from a caller, if others hold it too, and write that down; whether they do."""
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
            caller: who has sent it.
            sha256: its name.
            shape: rows and columns.
            within_spec: whether it came in a spec, whose submission is written down anyway.
        """
        values = {"sha256": sha256, "owner": caller.owner, "bytes": 8 * math.prod(shape), "since": time.time()}
        with writing(self._engine) as connection:
            self._put(connection, uploads, values)
            if not within_spec:
                detail = dict(zip(("rows", "columns"), shape, strict=True))
                add_row(connection, "upload", actor=caller.actor, subject=sha256, detail=detail)

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

    def _put(self, connection: sa.Connection, table: sa.Table, values: dict[str, Any]) -> None:
        connection.execute(self._insert(table).values(**values).on_conflict_do_nothing())
