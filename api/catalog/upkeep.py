"""The upkeep of a catalog: its rows follow the store, whoever writes to that.

A manifest is read once, when its name is first seen. In a directory, a folder's own version says whether a name in it
has come or gone, so that a look at an unchanged store is one status of each of 512 folders. A bucket has no such
versions: a small one is listed at each look, a large one every five minutes by a thread. A look reads a few hundred new
manifests at most, and leaves the rest to the thread.
"""

from __future__ import annotations

import threading
import time

import sqlalchemy as sa

from factorize.api.catalog.renewal import PAST, Budget, CatalogRenewal
from factorize.api.jobs.database import reading, result_folders, results
from factorize.errors import StoreUnavailable
from factorize.storage.records import MANIFESTS, name_in
from factorize.storage.revocation import REVOKED as REVOCATIONS
from factorize.storage.store import Store

FOLDERS = tuple(f"{number:02x}" for number in range(256))
READS = 500
"""New manifests that a look reads itself; more are left to the thread."""
NAMES = 20_000
"""Names that a look lists itself."""
SMALL_BUCKET = 1_000
"""Results in a bucket that is listed at each look."""
SWEEP_SECONDS = 300.0
"""Between two lists of a larger bucket."""
_SETTLED = 2.0  # seconds after which a further change of a folder is certain to give it another version
_PAUSE = 0.01  # seconds in which others may look
_OUTAGE = 5.0  # seconds before a store or database that does not answer is asked again
_ABSENT = str((None, None))


class Upkeep:
    """Brings the rows of a catalog up to date. Safe for threads, and for many services on one database.

    Args:
        engine: the database.
        store: the store.

    Attributes:
        whole: whether the newest look has seen all of the store.
    """

    def __init__(self, engine: sa.Engine, store: Store) -> None:
        self.whole = True
        self._engine = engine
        self._store = store
        keys = [f"{top}/{folder}" for top in (MANIFESTS, REVOCATIONS) for folder in FOLDERS]
        self._watch = store.objects.watch(*keys)
        self._versions: dict[str, str] | None = None
        self._swept = -SWEEP_SECONDS
        self._working = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """End the thread."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def catch_up(self, *, whole: bool = False) -> None:
        """Bring the rows up to date, or as far as that is quickly done, and leave the rest to a thread.

        Args:
            whole: whether to wait until all is done.

        Raises:
            StoreUnavailable: store or database do not answer.
        """
        budget = Budget() if whole else Budget(READS, NAMES)
        with self._working:
            idle = self._thread is None or not self._thread.is_alive()
            if self._watch is not None:
                done = self._look(budget)
            elif whole:
                done = self._sweep()
            else:
                done = not idle or self._list(budget)
            self.whole = done and (idle or self._watch is not None)
            if not done and idle and not self._ending.is_set():
                self._thread = threading.Thread(target=self._rest, name="factorize-catalog", daemon=True)
                self._thread.start()

    def _rest(self) -> None:
        """Do what a look has left, in small pieces, so that looks come in between."""
        done = False
        while not done and not self._ending.is_set():
            try:
                if self._watch is None:
                    done = self._sweep()
                else:
                    with self._working:
                        done = self._look(Budget(READS, NAMES))
                pause = _PAUSE
            except StoreUnavailable:
                pause = _OUTAGE
            self._ending.wait(0.0 if done else pause)

    def _look(self, budget: Budget) -> bool:
        """Renew the folders of a directory that have changed; whether none is left."""
        assert self._watch is not None
        began, seen = time.time(), self._watch()
        versions = self._known_versions()
        renewal = CatalogRenewal(self._engine, self._store, budget)
        for at, folder in enumerate(FOLDERS):
            found = seen[at], seen[at + len(FOLDERS)]
            said = str(found)
            if versions.get(folder, _ABSENT) == said:
                continue
            if budget.spent or self._ending.is_set():
                versions.update(renewal.write())
                return False
            names, revoked = (self._names(f"{top}/{folder}") for top in (MANIFESTS, REVOCATIONS))
            whole = renewal.span(folder, folder + PAST, names, revoked)
            if whole and all(part is None or part[-1] / 1e9 < began - _SETTLED for part in found):
                renewal.keep_version(folder, said)
        versions.update(renewal.write())
        return True

    def _known_versions(self) -> dict[str, str]:
        if self._versions is None:
            with reading(self._engine) as connection:
                self._versions = {row.folder: row.version for row in connection.execute(sa.select(result_folders))}
        return self._versions

    def _list(self, budget: Budget) -> bool:
        """List a small bucket; whether nothing is left for the thread."""
        if time.monotonic() - self._swept < SWEEP_SECONDS and self._count() > SMALL_BUCKET:
            return True
        names: set[str] = set()
        for key in self._store.objects.names(MANIFESTS):
            names.add(name_in(key))
            if len(names) > SMALL_BUCKET:
                return False
        renewal = CatalogRenewal(self._engine, self._store, budget)
        renewal.span("", PAST, names, self._names(REVOCATIONS))
        renewal.write()
        return not budget.spent

    def _sweep(self) -> bool:
        """List a large bucket folder by folder; whether it came to the end."""
        began = time.monotonic()
        revoked = self._names(REVOCATIONS)
        for folder in FOLDERS:
            renewal = CatalogRenewal(self._engine, self._store, Budget())
            renewal.span(folder, folder + PAST, self._names(f"{MANIFESTS}/{folder}"), revoked)
            renewal.write()
            if self._ending.is_set():
                return False
        self._swept = began
        return True

    def _count(self) -> int:
        with reading(self._engine) as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(results)) or 0

    def _names(self, folder: str) -> set[str]:
        return {name_in(key) for key in self._store.objects.names(folder)}
