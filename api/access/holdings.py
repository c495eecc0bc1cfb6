"""Holdings: which jobs and uploads are whose. Several callers may hold one job, or have sent one matrix.

Results are shared, since their names say all that is in them; jobs and uploads are their callers' own.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from factorize.api.access.caller import Caller
from factorize.api.access.refusals import QuotaExhausted
from factorize.api.auditing.audit_log import add_row
from factorize.api.jobs.database import holds, jobs, reading, uploads, writing

OPEN_JOBS_SECONDS = 10.0
"""When to look again whether one of the open jobs has ended."""


class Holdings:
    """Who holds what, in a ledger. Thread-safe.

    Args:
        engine: the ledger's database.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert
        self._lock = threading.Lock()

    @contextmanager
    def taking(self, caller: Caller, spec_digest: str) -> Iterator[None]:
        """Have a caller hold the job that is submitted inside, unless something is raised there.

        Raises:
            QuotaExhausted: the caller holds as many open jobs as the quota has.
        """
        if not caller.owner:
            yield
            return
        if caller.quotas.open_jobs is None:
            yield
            self._hold(caller, spec_digest)
            return
        with self._lock:  # or two at once would both be the last
            self._check_open(caller, spec_digest)
            yield
            self._hold(caller, spec_digest)

    def _hold(self, caller: Caller, spec_digest: str) -> None:
        with writing(self._engine) as connection:
            self._put(connection, holds, {"spec_digest": spec_digest, "owner": caller.owner, "since": time.time()})

    def _check_open(self, caller: Caller, spec_digest: str) -> None:
        open_jobs = (
            sa.select(sa.func.count())
            .select_from(holds.join(jobs, holds.c.spec_digest == jobs.c.spec_digest))
            .where(holds.c.owner == caller.owner, jobs.c.spec_digest != spec_digest)
            .where(jobs.c.state.in_(("queued", "running")))
        )
        with reading(self._engine) as connection:
            count = int(connection.scalar(open_jobs) or 0)
        limit = caller.quotas.open_jobs
        if limit is not None and count >= limit:
            raise QuotaExhausted(
                f"this key has {count} jobs queued or running, and its limit is {limit}; wait for one, or cancel it",
                OPEN_JOBS_SECONDS,
            )

    def has_job(self, caller: Caller, spec_digest: str) -> bool:
        """Say whether a job is the caller's own."""
        return caller.sees_all or self._has(holds, {"spec_digest": spec_digest, "owner": caller.owner})

    def leave_to_others(self, caller: Caller, spec_digest: str) -> bool:
        """Take a job from a caller, if others hold it too, and write that down; whether they do."""
        of_job, mine = holds.c.spec_digest == spec_digest, holds.c.owner == caller.owner
        with writing(self._engine) as connection:
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

    def _has(self, table: sa.Table, key: dict[str, str]) -> bool:
        with reading(self._engine) as connection:
            return connection.execute(sa.select(sa.literal(1)).select_from(table).filter_by(**key)).first() is not None

    def _put(self, connection: sa.Connection, table: sa.Table, values: dict[str, Any]) -> None:
        connection.execute(self._insert(table).values(**values).on_conflict_do_nothing())
