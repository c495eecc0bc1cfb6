"""The renewal of rows: what one look at a store has found, written in one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from factorize.api.catalog.rows import is_young, row_of
from factorize.api.jobs.database import KEPT, LISTED, REVOKED, jobs, reading, result_folders, results, writing
from factorize.errors import CorruptObject, InvalidParameter, NotFound
from factorize.storage.store import Store

PAST = "g"
"""Sorts after every hexadecimal digit."""
_BATCH = 500


class Budget:
    """What one look may still read and list.

    Args:
        reads: manifests.
        names: names.
    """

    def __init__(self, reads: int = 1 << 62, names: int = 1 << 62) -> None:
        self.reads, self.names = reads, names

    @property
    def spent(self) -> bool:
        """Whether the rest is for another look."""
        return self.reads <= 0 or self.names <= 0


class CatalogRenewal:
    """The changes that one look finds. Not for several threads.

    Args:
        engine: the database.
        store: the store.
        budget: what the look may read and list.
    """

    def __init__(self, engine: sa.Engine, store: Store, budget: Budget) -> None:
        self._engine, self._store, self.budget = engine, store, budget
        self._insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert
        self._new: list[dict[str, Any]] = []
        self._changed: list[tuple[str, str]] = []
        self._gone: list[str] = []
        self._versions: dict[str, str] = {}

    def span(self, low: str, high: str, names: set[str], revoked: set[str]) -> bool:
        """Compare the rows of digests from `low` up to `high` with the names in the store; whether nothing is left.

        Args:
            low: the smallest digest, or its beginning.
            high: beyond the largest.
            names: digests of all manifests in between.
            revoked: names of revocations, others too.
        """
        column = results.c
        query = sa.select(column.digest, column.spec_digest, column.standing)
        with reading(self._engine) as connection:
            found = connection.execute(query.where(column.digest >= low, column.digest < high))
            known = {row.digest: row for row in found}
        self.budget.names -= len(names)
        self._changed += [(name, REVOKED) for name in known.keys() & revoked if known[name].standing != REVOKED]
        gone = known.keys() - names
        self._gone += gone
        if gone:
            self._stand_in({known[digest].spec_digest for digest in gone}, gone)
        return self._enter(sorted(names - known.keys()))

    def keep_version(self, folder: str, version: str) -> None:
        """Keep the version of a folder with the changes that were found in it."""
        self._versions[folder] = version

    def write(self) -> dict[str, str]:
        """Write all changes in one transaction; the versions that are kept from now on."""
        versions, self._versions = self._versions, {}
        if versions or self._new or self._changed or self._gone:
            with writing(self._engine) as connection:
                for part in parts(self._gone):
                    connection.execute(results.delete().where(results.c.digest.in_(part)))
                for digest, standing in self._changed:
                    connection.execute(results.update().where(results.c.digest == digest).values(standing=standing))
                self._write_new(connection)
                for folder, version in versions.items():
                    row = self._insert(result_folders).values(folder=folder, version=version)
                    connection.execute(row.on_conflict_do_update(index_elements=["folder"], set_={"version": version}))
            self._gone, self._changed, self._new = [], [], []
        return versions

    def _write_new(self, connection: sa.Connection) -> None:
        for at in range(0, len(self._new), _BATCH):
            rows = self._new[at : at + _BATCH]
            specs = [row["spec_digest"] for row in rows]
            found = connection.execute(sa.select(jobs.c.spec_digest).where(jobs.c.spec_digest.in_(specs)))
            made = {row.spec_digest for row in found}
            for row in rows:
                if row["standing"] == LISTED and row["spec_digest"] in made:
                    row["standing"] = KEPT
            connection.execute(self._insert(results).on_conflict_do_nothing(), rows)

    def _stand_in(self, specs: set[str], gone: set[str]) -> None:
        """Let another answer stand where one has gone: it may be the one to be listed now."""
        for part in parts(specs):
            with reading(self._engine) as connection:
                found = connection.execute(sa.select(results.c.digest).where(results.c.spec_digest.in_(part)))
                others = [row.digest for row in found if row.digest not in gone]
            rows = (self._row(digest) for digest in others)
            self._changed += [(row["digest"], row["standing"] or KEPT) for row in rows if row is not None]

    def _enter(self, digests: list[str]) -> bool:
        """Take up manifests that are new, as many as the budget allows; whether none is left."""
        allowed = digests[: max(0, self.budget.reads)]
        rows = [row for digest in allowed if (row := self._row(digest)) is not None]
        self._new += [row for row in rows if row["standing"]]
        self.budget.reads -= len(allowed)
        if len(self._new) >= _BATCH:
            self.write()
        return len(allowed) == len(digests) and all(row["standing"] for row in rows)

    def _row(self, digest: str) -> dict[str, Any] | None:
        """Return the row of a manifest, without a standing while its entry may be on its way; None if it is damaged."""
        with suppress(NotFound, CorruptObject, InvalidParameter):
            manifest = json.loads(self._store.index.manifest(digest).text)
            row = row_of(manifest, LISTED)
            if self._store.revocations.find(digest) is not None:
                return row | {"standing": REVOKED}
            if self._store.digest_of(row["spec_digest"]) == digest:
                return row
            return row | {"standing": "" if row["form"] is None and is_young(manifest) else KEPT}
        return None


def parts(values: Iterable[str]) -> Iterator[list[str]]:
    """Cut values into parts that one statement takes."""
    listed = list(values)
    return (listed[at : at + _BATCH] for at in range(0, len(listed), _BATCH))
