"""Usage of quotas: what is open, begun and kept for a caller, asked of the ledger when a quota is checked."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from factorize.api.access.caller import Caller, QuotaExhausted
from factorize.api.jobs.database import REVOKED, charges, holds, jobs, reading, results, uploads, writing
from factorize.errors import TooLarge
from factorize.storage.gc import GRACE_SECONDS

DAY = 86_400
OPEN_JOBS_SECONDS = 10.0
"""When to look again whether one of the open jobs has ended."""
KEPT_BYTES_SECONDS = 3600.0
"""When to look again whether a result was removed."""


class UsageMeter:
    """What callers use of their quotas. Thread-safe, and exact for several services on one ledger.

    Args:
        engine: the ledger's database.
        clock: seconds since 1970.
    """

    def __init__(self, engine: sa.Engine, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._clock = clock

    def charge(self, connection: sa.Connection, caller: Caller, spec_digest: str, core_seconds: float) -> None:
        """Count a job that is begun for a caller, in the transaction that begins it, or refuse it.

        Raises:
            QuotaExhausted: it is one too many, or takes more than is left of the day's.
            TooLarge: it takes more than a day's.
        """
        if not caller.owner:
            return
        self._check_open(connection, caller, spec_digest)
        self._check_kept(connection, caller, 0)
        limit = caller.quotas.core_seconds_per_day
        if limit is not None and core_seconds > limit:
            raise TooLarge(
                f"this takes about {core_seconds:.0f} core-seconds, and the key has {limit} in a day; use a smaller n "
                "or a structured mechanism, or ask the operator for a larger quota"
            )
        self._check_day(connection, caller, core_seconds)
        self._add(connection, caller, core_seconds)

    def check_left(self, caller: Caller) -> None:
        """Refuse work whose price is not known before it ends, where no core-seconds are left of the day's.

        Raises:
            QuotaExhausted: there are none.
        """
        if caller.quotas.core_seconds_per_day is not None:
            with reading(self._engine) as connection:
                self._check_day(connection, caller, 0)

    def check_kept(self, caller: Caller, size: int) -> None:
        """Refuse to keep so many bytes more for a caller.

        Raises:
            QuotaExhausted: they are more than is left.
        """
        with reading(self._engine) as connection:
            self._check_kept(connection, caller, size)

    @contextmanager
    def working(self, caller: Caller, threads: int) -> Iterator[None]:
        """Count what is done inside, however it ends: seconds of the clock times the threads set aside for it."""
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
                f"{caller.name} has {count} jobs queued or running, and the limit is {limit}; wait for one, or "
                "cancel it",
                OPEN_JOBS_SECONDS,
            )

    def _check_day(self, connection: sa.Connection, caller: Caller, core_seconds: float) -> None:
        limit = caller.quotas.core_seconds_per_day
        if limit is None:
            return
        midnight = int(self._clock() // DAY) * DAY
        mine = charges.c.owner == caller.owner, charges.c.began >= midnight
        used = float(connection.scalar(sa.select(sa.func.sum(charges.c.core_seconds)).where(*mine)) or 0.0)
        if used + core_seconds > limit or used >= limit:
            seconds = max(1, math.ceil(midnight + DAY - self._clock()))
            raise QuotaExhausted(
                f"{caller.name} has {limit} core-seconds in a day (UTC), of which {used:.0f} are used, and this takes "
                f"{core_seconds:.0f}; try again in {seconds} s, or ask the operator for a larger quota",
                seconds,
            )

    def _check_kept(self, connection: sa.Connection, caller: Caller, size: int) -> None:
        limit = caller.quotas.kept_bytes
        if limit is None:
            return
        made = sa.select(jobs.c.spec_digest).where(jobs.c.caller == caller.owner)
        stored = sa.select(sa.func.sum(results.c.bytes)).where(
            results.c.spec_digest.in_(made), results.c.standing != REVOKED
        )
        fresh = uploads.c.owner == caller.owner, uploads.c.since > self._clock() - GRACE_SECONDS
        sent = sa.select(sa.func.sum(uploads.c.bytes)).where(*fresh)
        kept = sum(int(connection.scalar(query) or 0) for query in (stored, sent))
        if kept + size > limit or kept >= limit:
            raise QuotaExhausted(
                f"{kept} bytes are kept for {caller.name}, and the limit is {limit}; have the operator remove results "
                "(`factorize gc --delete`), or ask for a larger quota",
                KEPT_BYTES_SECONDS,
            )
