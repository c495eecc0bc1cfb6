"""Usage of quotas by callers: counted in memory, kept in the ledger once a second.

Several services on one ledger see each other's counts when they write their own, so that together they may let through
what comes within a second; so may the answer that is being sent when a quota of bytes ends.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from factorize.api.access.caller import Caller
from factorize.api.access.refusals import QuotaExhausted
from factorize.api.jobs.database import reading, usage, writing
from factorize.errors import TooLarge

SYNC_SECONDS = 1.0
PERIODS = {"requests_per_minute": 60, "core_seconds_per_day": 86_400, "bytes_per_day": 86_400}
"""Quotas that are counted, by the seconds of a period; periods begin at multiples of them (UTC)."""
_NOUNS = {"requests_per_minute": "requests", "core_seconds_per_day": "core-seconds", "bytes_per_day": "bytes"}
_KEPT_SECONDS = 2 * 86_400


@dataclass(slots=True)
class _Count:
    period: int
    kept: float = 0.0
    new: float = 0.0
    synced: float = -math.inf


class UsageMeter:
    """Counts of quotas. Thread-safe.

    Args:
        engine: the ledger's database.
        clock: seconds since 1970.
    """

    def __init__(self, engine: sa.Engine, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], _Count] = {}

    def add(self, caller: Caller, measure: str, amount: float) -> None:
        """Count what was used, where it is limited."""
        if getattr(caller.quotas, measure) is not None:
            with self._lock:
                self._count(caller.owner, measure).new += amount

    def check(self, caller: Caller, measure: str, amount: float) -> None:
        """Refuse what would go beyond a quota.

        Raises:
            QuotaExhausted: it would.
        """
        limit = getattr(caller.quotas, measure)
        if limit is None:
            return
        with self._lock:
            count = self._count(caller.owner, measure)
            used = count.kept + count.new
        if used + amount > limit:
            raise self._exhausted(measure, limit, count, f"{used:.0f} are used, and this takes {amount:.0f}")

    def check_left(self, caller: Caller) -> None:
        """Refuse work whose price is not known before it ends, where no core-seconds are left of the day's.

        Raises:
            QuotaExhausted: there are none.
        """
        measure, limit = "core_seconds_per_day", caller.quotas.core_seconds_per_day
        if limit is None:
            return
        with self._lock:
            count = self._count(caller.owner, measure)
            used = count.kept + count.new
        if used >= limit:
            raise self._exhausted(measure, limit, count, f"{used:.0f} are used")

    @contextmanager
    def working(self, caller: Caller, threads: int) -> Iterator[None]:
        """Count what is done inside, however it ends: seconds of the clock times the threads set aside for it."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(caller, "core_seconds_per_day", threads * (time.monotonic() - began))

    def _exhausted(self, measure: str, limit: int, count: _Count, used: str) -> QuotaExhausted:
        length = PERIODS[measure]
        seconds = max(1, math.ceil(count.period + length - self._clock()))
        return QuotaExhausted(
            f"this key has {limit} {_NOUNS[measure]} in {length} s, of which {used}; try again in {seconds} s, or ask "
            "the operator for a larger quota",
            seconds,
        )

    def charge(self, caller: Caller, core_seconds: float) -> None:
        """Count work that is begun for a caller, or refuse it; asks the ledger where that has to be.

        Raises:
            QuotaExhausted: it is more than is left of the day's.
        """
        limit = caller.quotas.core_seconds_per_day
        if limit is None or core_seconds <= 0:
            return
        if core_seconds > limit:
            raise TooLarge(
                f"this takes about {core_seconds:.0f} core-seconds, and the key has {limit} in a day; use a smaller n "
                "or a structured mechanism, or ask the operator for a larger quota"
            )
        if self.is_behind(caller):
            self.sync(caller)
        self.check(caller, "core_seconds_per_day", core_seconds)
        self.add(caller, "core_seconds_per_day", core_seconds)

    def is_behind(self, caller: Caller) -> bool:
        """Say whether the ledger has to be asked before the next check."""
        now = time.monotonic()
        with self._lock:
            return any(
                now - self._count(caller.owner, measure).synced > SYNC_SECONDS
                for measure in PERIODS
                if getattr(caller.quotas, measure) is not None
            )

    def sync(self, caller: Caller) -> None:
        """Write what is new of a caller's counts, and read what all services have counted.

        Raises:
            StoreUnavailable: the ledger does not answer; nothing is forgotten.
        """
        measures = [measure for measure in PERIODS if getattr(caller.quotas, measure) is not None]
        for measure in measures:
            self._sync(caller.owner, measure)

    def close(self) -> None:
        """Write what is new of all counts."""
        for owner, measure in list(self._counts):
            self._sync(owner, measure)

    def _sync(self, owner: str, measure: str) -> None:
        with self._lock:
            count = self._count(owner, measure)
            period, new, count.new, count.synced = count.period, count.new, 0.0, time.monotonic()
            count.kept += new  # counts while it is being written
        try:
            total = self._kept(owner, measure, period, new)
        except BaseException:
            with self._lock:
                count.kept -= new
                count.new += new
                count.synced = -math.inf
            raise
        with self._lock:
            if count.period == period:
                count.kept = total

    def _kept(self, owner: str, measure: str, period: int, new: float) -> float:
        key = {"owner": owner, "measure": _NOUNS[measure], "period": period}
        if not new:
            query = sa.select(usage.c.amount).filter_by(**key)
            with reading(self._engine) as connection:
                return float(connection.scalar(query) or 0.0)
        insert = self._insert(usage).values(**key, amount=new)
        added = insert.on_conflict_do_update(
            index_elements=["owner", "measure", "period"], set_={"amount": usage.c.amount + insert.excluded.amount}
        ).returning(usage.c.amount)
        with writing(self._engine) as connection:
            total = float(connection.execute(added).scalar_one())
            if total == new:  # the first of a period takes the old ones away
                connection.execute(usage.delete().where(usage.c.period < period - _KEPT_SECONDS))
        return total

    def _count(self, owner: str, measure: str) -> _Count:
        """The count of the period that runs; what is new of one that is over is dropped with it."""
        length = PERIODS[measure]
        period = int(self._clock() // length) * length
        count = self._counts.get((owner, measure))
        if count is None or count.period != period:
            count = self._counts[owner, measure] = _Count(period)
        return count
