"""The catalog: which results a store has, newest first, from rows in a database that follow the store.

The store is the truth; rows that are lost are made anew. They repeat what manifests say, and each manifest is read
once. A result is checked only when somebody asks for it. The rows are at most five seconds behind the store.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import sqlalchemy as sa

from factorize.api.access.caller import ANYONE, Caller
from factorize.api.form import form_of
from factorize.api.jobs.database import KEPT, LISTED, REVOKED, insert_into, jobs, reading, results, writing
from factorize.api.jobs.ledger import Ledger, ListQuery, write_cursor
from factorize.encoding import JsonObject
from factorize.errors import CorruptObject, InvalidParameter, NotFound
from factorize.format.labels import describe_spec
from factorize.format.manifest import Manifest
from factorize.storage.records import MANIFESTS, name_in
from factorize.storage.revocation import REVOKED as REVOCATIONS
from factorize.storage.store import Store

Age = tuple[str, str]
"""The time at which a result was stored, to the microsecond, and its spec's digest: the order of the list."""
LOOK_SECONDS, MAX_PAUSE_SECONDS = 5.0, 120.0
"""Seconds between two looks: ten times what the last one took, within these; a process that was stopped took long."""
MAX_READS = 500
"""The most new manifests that one look reads; a page says that it is not whole while there are more."""
MIN_AGE = timedelta(minutes=10)
"""The age below which a result that answers no spec may be one whose entry is about to be published."""
DAMAGED_SECONDS = 3600.0
"""Seconds between two reads of a manifest that is damaged."""
_BATCH_ROWS = 500


class Catalog:
    """The rows of one store's results in a database. Safe for threads, and for many services on one database.

    Args:
        engine: the database, with this release's tables.
        store: the store.

    Attributes:
        whole: whether the rows had all results of the store at the newest look.
    """

    def __init__(self, engine: sa.Engine, store: Store) -> None:
        self._engine, self._store = engine, store
        self._looking = threading.Lock()
        self._next = -float("inf")
        self._damaged: dict[str, float] = {}
        self.whole = True

    def page(self, query: ListQuery) -> list[tuple[Age, dict[str, object]]]:
        """Return the results that answer their spec and that no job has made, newest first, each with its age."""
        self.catch_up()
        column = results.c
        made = sa.exists().where(jobs.c.spec_digest == column.spec_digest)
        wanted = query.newest(results, column.created, column.summary).where(column.standing == LISTED, ~made)
        with reading(self._engine) as connection:
            return [((row.created, row.spec_digest), _entry(row)) for row in connection.execute(wanted)]

    def form(self, key: str) -> str | None:
        """Return the digest of a stored form by its key (`factorize.api.form`), or None."""
        self.catch_up()
        query = sa.select(results.c.digest).where(results.c.form == key, results.c.standing != REVOKED)
        with reading(self._engine) as connection:
            return connection.scalar(query.order_by(results.c.created, results.c.digest).limit(1))

    def catch_up(self) -> None:
        """Bring the rows up to date, unless that was done just now or another thread is at it; reads 500 manifests.

        Raises:
            StoreUnavailable: store or database do not answer.
        """
        if time.monotonic() < self._next or not self._looking.acquire(blocking=False):
            return
        try:
            began = time.monotonic()
            self.whole = self._renew()
            now = time.monotonic()
            pause = min(LOOK_SECONDS * max(1.0, 2 * (now - began)), MAX_PAUSE_SECONDS)
            self._next = now + pause if self.whole else now
        finally:
            self._looking.release()

    def _renew(self) -> bool:
        """Write which results have come, gone or been revoked, and return whether all new ones were read."""
        column, now = results.c, time.monotonic()
        revoked = set(map(name_in, self._store.objects.names(REVOCATIONS)))
        stored = set(map(name_in, self._store.objects.names(MANIFESTS)))
        self._store.check_present()  # else every row would go
        with reading(self._engine) as connection:
            rows = connection.execute(sa.select(column.digest, column.spec_digest, column.standing))
            known = {row.digest: row for row in rows}
        gone = {row.spec_digest for name, row in known.items() if name not in stored}
        ended = [name for name in known.keys() & revoked if known[name].standing != REVOKED]
        new = sorted(name for name in stored - known.keys() if self._damaged.get(name, now) <= now)
        come = [row for digest in new[:MAX_READS] if (row := self._row(digest)) is not None]
        if gone or ended or come:
            with writing(self._engine) as connection:
                for part in _parts(gone):  # other answers of these specs too: one may be listed now, and is read again
                    connection.execute(results.delete().where(column.spec_digest.in_(part)))
                for part in _parts(ended):
                    connection.execute(results.update().where(column.digest.in_(part)).values(standing=REVOKED))
                for part in _parts(come):
                    connection.execute(insert_into(self._engine, results).on_conflict_do_nothing(), part)
        return len(new) <= MAX_READS

    def _row(self, digest: str) -> JsonObject | None:
        """Return the row of a manifest; None if it is damaged, or while its entry may be on its way."""
        try:
            manifest = self._store.index.manifest(digest).manifest()
            row = _row_of(manifest)
            if self._store.revocations.find(digest) is not None:
                return row | {"standing": REVOKED}
            if self._store.digest_of(row["spec_digest"]) == digest:
                return row | {"standing": LISTED}
        except NotFound:
            return None
        except (CorruptObject, InvalidParameter):  # a look does not read a manifest again that is noted here
            self._damaged[digest] = time.monotonic() + DAMAGED_SECONDS
            return None
        young = abs(datetime.now(UTC) - datetime.fromisoformat(manifest.created)) < MIN_AGE  # a clock may be set back
        return None if row["form"] is None and young else row | {"standing": KEPT}


def _parts(values: Iterable[object]) -> Iterator[list[Any]]:
    """Cut values into parts that one statement takes."""
    rest = iter(values)
    return iter(lambda: list(islice(rest, _BATCH_ROWS)), [])


def _row_of(manifest: Manifest) -> JsonObject:
    """Return the row of a result, without its standing; times are such that texts sort as they do."""
    created = datetime.fromisoformat(manifest.created).astimezone(UTC)
    return {
        "digest": manifest.digest,
        "spec_digest": manifest.spec_digest,
        "workload": manifest.spec["workload"]["kind"],
        "created": created.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "submitted": manifest.created,
        "bytes": manifest.file.bytes,
        "form": form_of(manifest),
        "summary": describe_spec(manifest.spec),
    }


def _entry(row: Any) -> dict[str, object]:
    """Return the entry of a list that a row makes."""
    stored = {name: getattr(row, name) for name in ("spec_digest", "submitted", "workload", "digest", "summary")}
    return {**stored, "state": "done", "progress": None, "error": None, "updated": row.submitted}


def list_items(
    catalog: Catalog, ledger: Ledger, query: ListQuery, caller: Caller = ANYONE
) -> tuple[list[JsonObject], str | None]:
    """Return a page of a service's list, newest first, and the cursor of the next.

    It has the caller's jobs, and stored results that no job has made.

    Raises:
        InvalidParameter: a cursor that is not ours.
    """
    one_more = query.model_copy(update={"limit": query.limit + 1})
    aged = []
    for job in ledger.page(one_more, None if caller.sees_all else caller.owner):
        more = {"workload": job.workload, "digest": job.digest, "summary": describe_spec(json.loads(job.spec))}
        aged.append(((job.submitted, job.spec_digest), job.document() | more))
    aged += catalog.page(one_more) if query.state in (None, "done") else []
    aged.sort(key=lambda one: one[0], reverse=True)
    following = write_cursor(*aged[query.limit - 1][0]) if len(aged) > query.limit else None
    return [entry for _, entry in aged[: query.limit]], following
