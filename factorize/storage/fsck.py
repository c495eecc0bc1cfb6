"""Check a whole store: every byte against its name, every name against what it names.

Nothing is changed unless repair is asked for, and nothing but stale temporary files is ever deleted: what is bad moves
to `quarantine/` under its own key, and spec entries are written anew from the manifests that are left.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from factorize.encoding import DIGEST
from factorize.errors import CorruptObject, NotFound, StoreUnavailable
from factorize.format.manifest import StoredFile
from factorize.storage.blobs import Blobs, blob_key
from factorize.storage.findings import Finding, StoreReport, blob_kind
from factorize.storage.medium.location import MARKER
from factorize.storage.objects import STAGING, ObjectEntry
from factorize.storage.publication import QUARANTINE
from factorize.storage.records import (
    FAMILIES,
    MANIFESTS,
    SPECS,
    SpecEntry,
    answer_order,
    manifest_key,
    name_in,
    read_entry,
    read_manifest,
    spec_key,
    user_matrices,
)
from factorize.storage.revocation import REVOKED, Revocation, revocation_key
from factorize.storage.store import Store
from factorize.storage.unfinished import UNFINISHED

GRACE_SECONDS = 86_400.0
"""Age from which a temporary file is not of a writer that still runs."""

_BLOBS = "blobs"
_SHARDED = r"([0-9a-f]{2})/\1[0-9a-f]{62}"
_PLACES = {
    SPECS: re.compile(rf"{SPECS}/{_SHARDED}\.json"),
    FAMILIES: re.compile(rf"{FAMILIES}/{_SHARDED}/{DIGEST}\.json"),
    MANIFESTS: re.compile(rf"{MANIFESTS}/{_SHARDED}\.json"),
    _BLOBS: re.compile(rf"{_BLOBS}/sha256/{_SHARDED}"),
    REVOKED: re.compile(rf"{REVOKED}/{_SHARDED}\.json"),
}


def fsck(
    store: Store,
    *,
    repair: bool = False,
    grace_seconds: float = GRACE_SECONDS,
    progress: Callable[[int, int], None] | None = None,
) -> StoreReport:
    """Check every object of a store; other processes may go on using it.

    Args:
        store: the store.
        repair: move bad objects to quarantine, write missing spec entries, remove stale temporary files.
        grace_seconds: age from which a temporary file is stale.
        progress: called with bytes read and bytes in all.

    Raises:
        StoreUnavailable: the medium cannot be listed, or a repair cannot be written.
    """
    started = time.monotonic()
    check = _Check(store, repair, grace_seconds, progress or (lambda done, total: None))
    check.run()
    findings = tuple(sorted(check.findings, key=lambda finding: (finding.key, finding.kind)))
    return StoreReport(findings, check.objects, check.bytes, time.monotonic() - started)


@dataclass
class _Check:
    """One run.

    An object is sound, `lost` (damaged, or gone since the listing) or `unread`; what could not be read is never moved.
    """

    store: Store
    repair: bool
    grace_seconds: float
    progress: Callable[[int, int], None]
    findings: list[Finding] = field(default_factory=list)
    objects: int = 0
    bytes: int = 0
    total: int = 0
    lost: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)
    entries: dict[str, SpecEntry] = field(default_factory=dict)
    manifests: dict[str, dict[str, Any]] = field(default_factory=dict)
    revoked: set[str] = field(default_factory=set)

    def run(self) -> None:
        # Listed against the order of publication, so that whatever a listed object names was there before.
        listed = {place: list(self._listed(place)) for place in _PLACES}
        self.total = sum(entry.size for entries in listed.values() for entry in entries)
        for entry in listed[MANIFESTS]:
            self._read_manifest(entry)
        self._check_blobs(listed[_BLOBS])
        self._check_manifests({entry.key for entry in listed[_BLOBS]})
        for entry in (*listed[SPECS], *listed[FAMILIES]):
            self._check_entry(entry)
        self._check_revocations(listed[REVOKED])
        self._check_index()
        self._find_orphans(listed[_BLOBS])
        self._check_others()

    def _listed(self, place: str) -> Iterator[ObjectEntry]:
        """The objects at one of the store's places; what else is there is reported."""
        for entry in self.store.objects.list(place):
            if not _PLACES[place].fullmatch(entry.key):
                self._find("foreign", entry.key, "none of the store's objects; move it elsewhere if it is yours")
            elif entry.kind != "file":
                self._find("not-a-file", entry.key, f"a {entry.kind}, which is not followed", self._quarantine)
            else:
                if entry.writable:
                    self._find("writable", entry.key, "an object never changes; make it read-only", self._protect)
                yield entry

    def _read_manifest(self, entry: ObjectEntry) -> None:
        with self._reading(entry, "damaged-manifest"):
            self.manifests[entry.key] = read_manifest(self.store.index.read(entry.key), name_in(entry.key))

    def _check_blobs(self, blobs: list[ObjectEntry]) -> None:
        """Hash every blob, two at a time."""
        files = [StoredFile.of(manifest) for manifest in self.manifests.values()]
        sizes = {blob_key(file.sha256): file.bytes for file in files}
        fresh = Blobs(self.store.objects, cache_bytes=0)
        with ThreadPoolExecutor(2) as pool:
            hashed = [(entry, pool.submit(fresh.verify, name_in(entry.key))) for entry in blobs]
            for entry, future in hashed:
                with self._reading(entry, blob_kind(entry.size, sizes.get(entry.key))):
                    future.result()

    def _check_manifests(self, blobs: set[str]) -> None:
        """See that the file and the users' matrices of each manifest are there and sound."""
        for key, manifest in list(self.manifests.items()):
            file = StoredFile.of(manifest)
            if not self._there(blob_key(file.sha256), blobs):
                del self.manifests[key]
                if not self._exists(key):
                    continue  # the result was deleted since it was read
                self._find("missing-blob", key, f"its file {file.sha256} is missing or damaged", self._quarantine)
            for sha256, _ in user_matrices(manifest["spec"]):
                if not self._there(blob_key(sha256), blobs):
                    self._find("missing-matrix", key, f"the matrix {sha256} is missing or damaged; upload it again")

    def _check_entry(self, found: ObjectEntry) -> None:
        with self._reading(found, "damaged-entry"):
            entry = read_entry(self.store.index.read(found.key), found.key)
            key = manifest_key(entry.digest)
            if key in self.manifests:
                self._compare(found.key, entry, SpecEntry.of(self.manifests[key]))
            elif key in self.lost or not self._exists(key):
                self._find(
                    "dangling-entry", found.key, f"its manifest {entry.digest} is missing or bad", self._quarantine
                )

    def _compare(self, key: str, entry: SpecEntry, own: SpecEntry) -> None:
        if entry == own and key in entry.keys:
            self.entries[key] = entry
        else:
            self._find("wrong-entry", key, f"it is not the entry of its manifest {entry.digest}", self._quarantine)

    def _check_revocations(self, listed: list[ObjectEntry]) -> None:
        """See that every revocation stands whole at its two places; one that is damaged is never taken away."""
        sound: dict[str, Revocation] = {}
        damaged: dict[str, str] = {}
        self.revoked = {entry.key for entry in listed}
        for entry in listed:
            with self._reading(entry, "damaged-revocation"):
                try:
                    sound[entry.key] = self.store.revocations.read(entry.key)
                except CorruptObject as error:
                    damaged[entry.key] = f"{error}; it goes on revoking"
        for revocation in {found.digest: found for found in sound.values()}.values():
            for key in set(revocation.keys) - set(sound) - self.unread:
                kind = "damaged-revocation" if key in damaged else "missing-revocation"
                message = f"the revocation of {revocation.digest} is whole under its other name"
                self._find(kind, key, message, partial(self._record, revocation))
                damaged.pop(key, None)
            self.revoked |= set(revocation.keys)
        for key, message in damaged.items():
            self._find("damaged-revocation", key, f"{message}; revoke the result again")
        for key, manifest in self.manifests.items():
            self._check_revoked(key, manifest, list(sound.values()))

    def _check_revoked(self, key: str, manifest: dict[str, Any], standing: list[Revocation]) -> None:
        """See that a result is revoked if its like is: what is stored meanwhile falls too, unless it crashes first."""
        reaching = next((revocation for revocation in standing if revocation.reaches(manifest)), None)
        if revocation_key(manifest["digest"]) in self.revoked:
            self._find("revoked", key, "kept, and not given out any more")
        elif reaching is not None:
            self.revoked.add(revocation_key(manifest["digest"]))
            message = f"its like {reaching.digest} was revoked"
            self._find("missing-revocation", key, message, partial(self._revoke, manifest, reaching.reason))

    def _check_index(self) -> None:
        """See that every spec that a manifest answers has its two entries; the first answer gets them."""
        answers: dict[str, SpecEntry] = {}
        for manifest in sorted(self.manifests.values(), key=answer_order):
            if revocation_key(manifest["digest"]) not in self.revoked:
                answers.setdefault(manifest["spec_digest"], SpecEntry.of(manifest))
        for spec_digest, first in answers.items():
            named = self.entries.get(spec_key(spec_digest), first)
            for key in set(named.keys) - set(self.entries) - self.unread:
                self._find("unindexed", key, f"missing, for the manifest {named.digest}", partial(self._enter, named))
                self.entries[key] = named

    def _find_orphans(self, blobs: list[ObjectEntry]) -> None:
        named = {manifest_key(entry.digest) for entry in self.entries.values()}
        for key in self.manifests.keys() - named:
            self._find("orphan-manifest", key, "no spec entry names it; it is still found by its digest")
        used = {blob_key(StoredFile.of(manifest).sha256) for manifest in self.manifests.values()}
        for manifest in self.manifests.values():
            used |= {blob_key(sha256) for sha256, _ in user_matrices(manifest["spec"])}
        for entry in blobs:
            if entry.key not in used | self.lost:
                self._find("orphan-blob", entry.key, "no manifest names it")

    def _check_others(self) -> None:
        """Look at what is outside of the four places."""
        oldest = time.time() - self.grace_seconds
        for entry in self.store.objects.list():
            place = entry.key.split("/")[0]
            if place in (*_PLACES, QUARANTINE) or entry.key == MARKER:
                continue
            if place == UNFINISHED:
                self._find("unfinished", entry.key, f"{entry.size} bytes; gc removes it when it is old")
            elif place != STAGING:
                self._find("foreign", entry.key, "none of the store's files; move it elsewhere if it is yours")
            else:
                stale = entry.modified < oldest
                self._find("temporary", entry.key, f"{entry.size} bytes", self._remove if stale else None)

    def _there(self, key: str, blobs: set[str]) -> bool:
        """Whether a blob is there and not known to be bad; one that came since the listing is taken as it is."""
        return key not in self.lost and (key in blobs or self._exists(key))

    def _exists(self, key: str) -> bool:
        found = self._status(key)
        return found is not None and found.kind == "file"

    def _status(self, key: str) -> ObjectEntry | None:
        try:
            return self.store.objects.status(key)
        except NotFound:
            return None

    @contextmanager
    def _reading(self, entry: ObjectEntry, damaged: str) -> Iterator[None]:
        """Count an object, and report what reading it raises."""
        try:
            yield
        except CorruptObject as error:
            self._find(damaged, entry.key, str(error), self._quarantine)
        except StoreUnavailable as error:
            self.unread.add(entry.key)
            self._find("unreadable", entry.key, str(error))
        except NotFound:  # somebody took it away since it was listed
            self.lost.add(entry.key)
        self.objects += 1
        self.bytes += entry.size
        self.progress(self.bytes, self.total)

    def _find(self, kind: str, key: str, message: str, mend: Callable[[str], str] | None = None) -> None:
        if mend == self._quarantine:
            self.lost.add(key)
        action = mend(key) if self.repair and mend is not None else None
        self.findings.append(Finding(kind, key, message, action))

    def _quarantine(self, key: str) -> str:
        self.store.quarantine(key)
        return "quarantined"

    def _protect(self, key: str) -> str:
        self.store.objects.protect(key)
        return "protected"

    def _enter(self, entry: SpecEntry, _key: str) -> str:
        self.store.enter(entry)
        return "rebuilt"

    def _record(self, revocation: Revocation, _key: str) -> str:
        self.store.revocations.record(revocation)
        return "rebuilt"

    def _revoke(self, manifest: dict[str, Any], reason: str, _key: str) -> str:
        self.store.revocations.add(manifest, reason)
        return "rebuilt"

    def _remove(self, key: str) -> str:
        self.store.objects.delete(key)
        return "removed"
