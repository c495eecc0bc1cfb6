"""The catalog: which results a store has, newest first, from rows that follow the store.

The store is the truth; the rows can be lost and are then made anew. They say what manifests say. Whether a result is
whole is seen when it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from factorize.api.catalog.rows import entry_of_row, key_name
from factorize.api.catalog.upkeep import Upkeep
from factorize.api.jobs.database import KEPT, LISTED, REVOKED, SCHEMA_VERSION, jobs, open_database, reading, results
from factorize.encoding import sha256
from factorize.storage.store import Store

Age = tuple[str, str]
"""When a result was stored, to the microsecond, and its spec's digest: the order of the list."""


class Catalog:
    """The rows of one store's results in a database. Safe for threads.

    Args:
        engine: the database, with this release's tables.
        store: the store.
    """

    def __init__(self, engine: sa.Engine, store: Store) -> None:
        self._engine = engine
        self._upkeep = Upkeep(engine, store)

    @property
    def whole(self) -> bool:
        """Whether the rows had all results of the store at the newest look; else a thread still reads the others."""
        return self._upkeep.whole

    def close(self) -> None:
        """End what follows the store."""
        self._upkeep.close()

    def catch_up(self) -> None:
        """Bring the rows up to date."""
        self._upkeep.catch_up()

    def page(self, *, workload: str | None, before: Age | None, limit: int) -> list[tuple[Age, dict[str, Any]]]:
        """Return the results that answer their spec and that no job has made, newest first, each with its age.

        Args:
            workload: only those of this kind of workload.
            before: only those that are older than this.
            limit: how many at most.
        """
        self._upkeep.catch_up()
        column = results.c
        made = sa.exists().where(jobs.c.spec_digest == column.spec_digest)
        query = sa.select(results).where(column.standing == LISTED, ~made)
        if workload is not None:
            query = query.where(column.workload == workload)
        if before is not None:
            query = query.where(sa.tuple_(column.created, column.spec_digest) < sa.tuple_(*map(sa.literal, before)))
        query = query.order_by(column.created.desc(), column.spec_digest.desc()).limit(limit)
        with reading(self._engine) as connection:
            return [((row.created, row.spec_digest), entry_of_row(row)) for row in connection.execute(query)]

    def newest(self, *, workload: str | None, n: int | None, limit: int) -> tuple[int, list[str]]:
        """Return how many results there are that were not taken back, and the digests of the newest.

        Args:
            workload: only those of this kind of workload.
            n: only those with this many steps.
            limit: how many digests at most.
        """
        self._upkeep.catch_up(whole=True)
        column = results.c
        fits: list[sa.ColumnElement[bool]] = [column.standing.in_((LISTED, KEPT))]
        fits += [] if workload is None else [column.workload == workload]
        fits += [] if n is None else [column.n == n]
        order = (column.created.desc(), column.digest.desc())
        with reading(self._engine) as connection:
            count = connection.scalar(sa.select(sa.func.count()).select_from(results).where(*fits)) or 0
            found = connection.execute(sa.select(column.digest).where(*fits).order_by(*order).limit(limit))
            return count, [row.digest for row in found]

    def form(self, key: tuple[str, tuple[str, ...]]) -> str | None:
        """Return the digest of a stored form (`factorize.api.stored_forms`), or None if none is known."""
        self._upkeep.catch_up()
        query = sa.select(results.c.digest).where(results.c.form == key_name(key), results.c.standing != REVOKED)
        with reading(self._engine) as connection:
            return connection.scalar(query.order_by(results.c.created, results.c.digest).limit(1))


@contextmanager
def user_catalog(store: Store) -> Iterator[Catalog]:
    """Give the catalog that a user keeps of a store in the cache folder; it is made where there is none.

    Raises:
        StoreUnavailable: the folder cannot be written.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "factorize" / "catalogs"
    engine = open_database(f"sqlite:///{base / sha256(store.url.encode())[:32]}-{SCHEMA_VERSION}.sqlite")
    catalog = Catalog(engine, store)
    try:
        yield catalog
    finally:
        catalog.close()
        engine.dispose()
