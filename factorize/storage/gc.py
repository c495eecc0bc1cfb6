"""Removal of objects that nothing names, once they are old enough, and of results that the operator deletes.

Nothing that a manifest names is removed unless that manifest goes, too. The sweep holds the store's lock alone, so no
put is between its blob and its manifest meanwhile. A blob may wait for its manifest for longer than one put (a user's
matrix, uploaded before its spec is solved); a grace keeps it, which every use of the blob starts anew.
"""

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from factorize.encoding import check_digest
from factorize.errors import CorruptObject, NotFound, StoreUnavailable
from factorize.storage.blobs import blob_key
from factorize.storage.medium.location import MARKER
from factorize.storage.objects import STAGING, ObjectEntry, is_stale
from factorize.storage.records import (
    MANIFESTS,
    SpecEntry,
    StoredResult,
    answer_order,
    manifest_key,
    name_in,
    read_entry,
)
from factorize.storage.store import Store

GRACE_SECONDS = 7 * 86_400.0
"""The default grace, longer than a job waits and solves while no manifest names its user's matrix."""


@dataclass(frozen=True, slots=True)
class Removal:
    """One object that is removed.

    Attributes:
        kind: `temporary` (a file that a put left behind), `unnamed-blob` (a blob that no manifest names), `entry` (an
            entry of a deleted result), `manifest` (of a deleted result) or `blob` (the file of one).
        key: its key.
        bytes: its size.
    """

    kind: str
    key: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Removed:
    """The removals of a run, or those that it would make.

    Attributes:
        removals: the removals, in their order.
        deleted: digests of the results among them.
        damaged: manifests that cannot be read; while there are any, no unnamed blob goes, since they may name it.
        dry_run: whether nothing was removed.
    """

    removals: tuple[Removal, ...]
    deleted: tuple[str, ...]
    damaged: tuple[str, ...]
    dry_run: bool

    @property
    def bytes(self) -> int:
        """The bytes of all removed objects."""
        return sum(removal.bytes for removal in self.removals)

    def document(self) -> dict[str, Any]:
        """Return plain JSON data."""
        removals = [asdict(removal) for removal in self.removals]
        named = {"deleted": list(self.deleted), "damaged": list(self.damaged)}
        return {"dry_run": self.dry_run, "bytes": self.bytes, **named, "removals": removals}


def gc(
    store: Store,
    *,
    grace_seconds: float = GRACE_SECONDS,
    delete: Collection[str] = (),
    created_before: datetime | None = None,
    dry_run: bool = False,
) -> Removed:
    """Remove objects that nothing names; other processes may go on using the store.

    Args:
        store: the store.
        grace_seconds: age from which temporary files (a day at least) and blobs that no manifest names are removed.
        delete: digests of results to delete, with their files and entries. Their revocations stay.
        created_before: moment (with a time zone) before which stored results are deleted, too.
        dry_run: whether to remove nothing and only report.

    Raises:
        NotFound: a digest to delete is not in the store; nothing was removed.
        StoreUnavailable: the medium refused; the rest is sound, run it again.
    """
    sweep = _Sweep(store, dry_run, time.time() - grace_seconds)
    sweep.read_manifests()  # Most of the work is done without the lock.
    with store.objects.lock(MARKER, exclusive=True) as sweep.confirm:
        sweep.read_manifests()
        sweep.delete(sweep.doomed(delete, created_before))
        sweep.remove_unnamed()
    sweep.confirm = lambda: None
    sweep.remove_temporary()
    return Removed(tuple(sweep.removals), tuple(sweep.deleted), tuple(sorted(sweep.damaged)), dry_run)


@dataclass
class _Sweep:
    """One run of the removal."""

    store: Store
    dry_run: bool
    oldest: float
    results: dict[str, StoredResult] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    removals: list[Removal] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    confirm: Callable[[], None] = lambda: None

    def read_manifests(self) -> None:
        """Read manifests that are new since the last look, one at a time, and forget those that are gone."""
        keys = {entry.key for entry in self.store.objects.list(MANIFESTS)}
        self.damaged = set()
        for key in self.results.keys() - keys:
            del self.results[key]
        for key in keys - self.results.keys():
            try:
                result = StoredResult.of(self.store.index.stored(key))
                _created(result)
                self.results[key] = result
            except NotFound:
                continue
            except (CorruptObject, StoreUnavailable, ValueError):
                self.damaged.add(key)

    def doomed(self, delete: Collection[str], created_before: datetime | None) -> list[str]:
        """Return the keys of the manifests to delete."""
        named = [manifest_key(check_digest(digest)) for digest in dict.fromkeys(delete)]
        missing = [key for key in named if key not in self.results]
        if missing:
            raise NotFound(f"there is no result at {missing[0]}, or it is damaged; nothing was removed")
        if created_before is None:
            return named
        old = [key for key, result in self.results.items() if _created(result) < created_before]
        return list(dict.fromkeys(named + sorted(old)))

    def delete(self, keys: list[str]) -> None:
        """Delete results: entries, then manifest, then file, so that nothing ever names a missing object."""
        for key in keys:
            entry = SpecEntry.of(self.store.index.stored(key))
            for place in entry.keys:
                self._remove_entry(place, entry.digest)
        deleted = [self.results.pop(key) for key in keys]
        for key in keys:
            self._remove("manifest", key)
            self.deleted.append(name_in(key))
        named = self._named()
        for result in deleted:
            if result.file not in named:
                self._remove("blob", blob_key(result.file))
        self._answer_again({result.spec_digest for result in deleted})

    def remove_unnamed(self) -> None:
        """Remove old blobs that no manifest names, unless a manifest is damaged and may name them."""
        if self.damaged:
            return
        gone, named = {removal.key for removal in self.removals}, self._named()
        for entry in self.store.objects.list("blobs"):
            name = name_in(entry.key)
            spared = entry.key in gone or (name in named and entry.key == blob_key(name))
            if not spared and entry.is_file and entry.modified < self.oldest:
                self._remove("unnamed-blob", entry.key, entry)

    def remove_temporary(self) -> None:
        """Remove old temporary files; the file of a running put is young, whatever the grace."""
        for entry in self.store.objects.list(STAGING):
            if entry.modified < self.oldest and is_stale(entry):
                self._remove("temporary", entry.key, entry)

    def _named(self) -> set[str]:
        return {sha256 for result in self.results.values() for sha256 in result.blobs}

    def _remove_entry(self, key: str, digest: str) -> None:
        with suppress(NotFound, CorruptObject):
            if read_entry(self.store.objects.content(key), key).digest == digest:
                self._remove("entry", key)

    def _answer_again(self, spec_digests: set[str]) -> None:
        """Give specs that lost their answer the first of the remaining answers."""
        if self.dry_run:
            return
        left = [key for key, result in self.results.items() if result.spec_digest in spec_digests]
        answers: dict[str, SpecEntry] = {}
        for manifest in sorted(map(self.store.index.stored, left), key=answer_order):
            if self.store.revocations.reaching(manifest) is None:
                answers.setdefault(manifest.spec_digest, SpecEntry.of(manifest))
        for entry in answers.values():
            self.confirm()
            self.store.enter(entry)

    def _remove(self, kind: str, key: str, entry: ObjectEntry | None = None) -> None:
        with suppress(NotFound):
            size = (entry or self.store.objects.status(key)).size
            if not self.dry_run:
                self.confirm()
                self.store.objects.delete(key)
            self.removals.append(Removal(kind, key, size))


def _created(result: StoredResult) -> datetime:
    """Return when a result was stored.

    Raises:
        ValueError: its manifest has no such time.
    """
    return datetime.fromisoformat(result.order[1])
