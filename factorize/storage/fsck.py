"""Checks of a whole store: every byte against its name, and every reference against its target.

Nothing is changed without repair, and nothing but stale temporary files is ever deleted. Repair moves bad objects to
`quarantine/` under their own keys, and writes spec entries anew from the manifests that are left.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from factorize.encoding import DIGEST
from factorize.errors import CorruptObject, NotFound, StoreUnavailable
from factorize.format.manifest import Manifest
from factorize.storage.blobs import Blobs, blob_key
from factorize.storage.medium.location import LEDGER_FILE, MARKER, WITHDRAWN_KEYS
from factorize.storage.objects import QUARANTINE, STAGING, ObjectEntry, is_stale
from factorize.storage.records import (
    FAMILIES,
    MANIFESTS,
    SPECS,
    SpecEntry,
    StoredResult,
    manifest_key,
    name_in,
    read_entry,
    spec_key,
)
from factorize.storage.revocation import REVOKED, Revocation, claim_of, revocation_key
from factorize.storage.store import Store

_BLOBS = "blobs"
_BLOBS_AHEAD = 16  # The blobs that are listed before they are hashed.
_SHARD_PATTERN = r"([0-9a-f]{2})/\1[0-9a-f]{62}"
_LEDGER = re.compile(rf"{re.escape(LEDGER_FILE)}(-wal|-shm|-journal)?")  # The ledger of jobs is no result.
_PLACES = {
    SPECS: re.compile(rf"{SPECS}/{_SHARD_PATTERN}\.json"),
    FAMILIES: re.compile(rf"{FAMILIES}/{_SHARD_PATTERN}/{DIGEST}\.json"),
    MANIFESTS: re.compile(rf"{MANIFESTS}/{_SHARD_PATTERN}\.json"),
    _BLOBS: re.compile(rf"{_BLOBS}/sha256/{_SHARD_PATTERN}"),
    REVOKED: re.compile(rf"{REVOKED}/{_SHARD_PATTERN}\.json"),
}


ERRORS = frozenset({"damaged", "missing", "dangling", "unreadable"})
"""The harmful kinds of findings: something cannot be served, or differs from its name."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        kind: `damaged`: an object does not hash to its name or to its own sha256, does not fit its place, or is no
            file; `missing`: a manifest's file, a user's matrix that its spec names, or a revocation's second record;
            `dangling`: a spec entry names a manifest that is missing or damaged; `unreadable`: permissions or the disk
            prevent reading; `unindexed`: a manifest lacks a spec entry; `revoked`: a result that the operator revoked;
            `orphan`: an object that nothing names, such as a matrix that no spec uses yet, a later answer to a spec, or
            a crash's leftover; `temporary`: a file on its way in, or a crash's leftover of one; `foreign`: a file that
            is not the store's.
        key: key of the object.
        message: text that says what is wrong and what to do.
        action: the repair: `quarantined`, `removed`, `rebuilt`, or None.
    """

    kind: str
    key: str
    message: str
    action: str | None = None

    @property
    def error(self) -> bool:
        """Whether the finding is harmful; see `ERRORS`."""
        return self.kind in ERRORS


@dataclass(frozen=True, slots=True)
class StoreReport:
    """The result of a check.

    Attributes:
        findings: all findings, by key.
        objects: number of blobs, manifests and entries that were read.
        bytes: their bytes.
        seconds: duration of the check.
    """

    findings: tuple[Finding, ...]
    objects: int
    bytes: int
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether no finding is an error that is still there."""
        return not any(finding.error and finding.action is None for finding in self.findings)

    def document(self) -> dict[str, Any]:
        """Return plain JSON data."""
        findings = [{**asdict(finding), "error": finding.error} for finding in self.findings]
        figures = {"objects": self.objects, "bytes": self.bytes, "seconds": self.seconds}
        return {"clean": self.clean, **figures, "findings": findings}


def fsck(store: Store, *, repair: bool = False, progress: Callable[[int, int], None] | None = None) -> StoreReport:
    """Check every object of a store; other processes may go on using it.

    Args:
        store: the store.
        repair: whether to move bad objects to quarantine, write missing spec entries and remove stale temporary files.
        progress: called with the bytes read and the bytes in all.

    Raises:
        StoreUnavailable: the store is away, the medium cannot be listed, or a repair cannot be written.
    """
    started = time.monotonic()
    check = _Check(store, repair, progress or (lambda done, total: None))
    check.run()
    findings = tuple(sorted(check.findings, key=lambda finding: (finding.key, finding.kind)))
    return StoreReport(findings, check.objects, check.bytes, time.monotonic() - started)


@dataclass
class _Check:
    """One run of the check.

    An object is sound, `lost` (damaged, or gone since the listing) or `unread`; an unread object is never moved.
    Manifests are read one at a time, before the blobs and entries that belong to them. Objects that came after the
    listing are looked up on the medium.
    """

    store: Store
    repair: bool
    progress: Callable[[int, int], None]
    findings: list[Finding] = field(default_factory=list)
    objects: int = 0
    bytes: int = 0
    total: int = 0
    lost: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)
    revoked: set[str] = field(default_factory=set)
    fallen: set[str] = field(default_factory=set)
    claims: dict[tuple[str, str], Revocation] = field(default_factory=dict)
    bases: dict[str, Revocation] = field(default_factory=dict)
    results: dict[str, StoredResult] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)
    by_family: dict[str, str] = field(default_factory=dict)
    by_spec: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        self.store.check_present()
        self.total = sum(entry.size for place in _PLACES for entry in self.store.objects.list(place))
        self._check_revocations()
        for entry in self._list(MANIFESTS):
            self._read_manifest(entry)
        self._check_blobs()
        self._check_files()
        for place in (SPECS, FAMILIES):
            for entry in self._list(place):
                self._check_entry(entry)
        self._check_index()
        self._check_others()

    def _list(self, place: str) -> Iterator[ObjectEntry]:
        """List the objects at one of the store's places, and report anything else there."""
        for entry in self.store.objects.list(place):
            if not _PLACES[place].fullmatch(entry.key):
                self._find("foreign", entry.key, "not one of the store's objects; move it elsewhere if it is yours")
            elif not entry.is_file and place != REVOKED:
                self._find("damaged", entry.key, f"a {entry.kind}, which is not followed", "quarantined")
            else:
                yield entry

    def _check_revocations(self) -> None:
        """Check that every revocation is whole at its two places; a damaged one is never taken away."""
        sound: dict[str, Revocation] = {}
        damaged: set[str] = set()
        for entry in self._list(REVOKED):
            self.revoked.add(entry.key)
            with self._reading(entry):
                try:
                    sound[entry.key] = self.store.revocations.read(entry.key)
                except CorruptObject:
                    damaged.add(entry.key)
        for revocation in {one.digest: one for one in sound.values()}.values():
            for key in set(revocation.keys) - set(sound) - self.unread:
                kind = "damaged" if key in damaged else "missing"
                message = f"the revocation of {revocation.digest} is undamaged under its other name"
                self._find(kind, key, message, "rebuilt", partial(self.store.revocations.record, revocation))
                damaged.discard(key)
            self.revoked |= set(revocation.keys)
            self.claims[revocation.claim] = self.bases[revocation.digest] = revocation
        for key in damaged:
            self._find("damaged", key, "all its records are damaged, but it stays in force: revoke the result again")

    def _read_manifest(self, entry: ObjectEntry) -> None:
        with self._reading(entry):
            manifest = self.store.index.stored(entry.key)
            digest, result = manifest.digest, StoredResult.of(manifest)
            if self._is_revoked(entry.key, manifest):
                self.fallen.add(digest)
            self.results[digest] = result
            self.awaited.update(result.blobs)

    def _is_revoked(self, key: str, manifest: Manifest) -> bool:
        """Return whether a result is revoked; one stored meanwhile is revoked now if a result with its claim is."""
        own = revocation_key(manifest.digest)
        if own in self.revoked:
            self._find("revoked", key, "kept, but no longer served")
            return True
        like = self.claims.get(claim_of(manifest)) or self.bases.get(manifest.cast_from or "")
        if like is not None and not self._exists(own):
            message = f"{like.digest}, which it repeats or rounds, was revoked"
            self._find("missing", key, message, "rebuilt", partial(self.store.revocations.add, manifest, like.reason))
        return like is not None

    def _check_blobs(self) -> None:
        """Hash every blob, two at a time; those that stay `awaited` are missing or damaged."""
        fresh = Blobs(self.store.objects, cache_bytes=0)
        hashed: deque[tuple[ObjectEntry, Future[int]]] = deque()
        unnamed: list[str] = []

        def settle() -> None:
            entry, size = hashed.popleft()
            name = name_in(entry.key)
            with self._reading(entry):
                size.result()
                if name not in self.awaited:
                    unnamed.append(entry.key)
                self.awaited.discard(name)

        with ThreadPoolExecutor(2) as pool:
            for entry in self._list(_BLOBS):
                hashed.append((entry, pool.submit(fresh.verify, name_in(entry.key))))
                if len(hashed) == _BLOBS_AHEAD:
                    settle()
            while hashed:
                settle()
        for key in unnamed:
            self._find("orphan", key, "no manifest names it")

    def _check_files(self) -> None:
        """Check that the file and the users' matrices of each manifest are there and sound."""
        dropped: set[str] = set()
        for digest, result in list(self.results.items()):
            key = manifest_key(digest)
            if not self._there(result.file):
                dropped.update(result.blobs)
                del self.results[digest]
                if not self._exists(key):
                    continue  # The result was deleted meanwhile.
                self._find("missing", key, f"its file {result.file} is missing or damaged", "quarantined")
            for sha256 in result.matrices:
                if not self._there(sha256):
                    self._find("missing", key, f"the matrix {sha256} is missing or damaged; upload it again")
        if dropped:
            dropped -= {name for result in self.results.values() for name in result.blobs}
        for sha256 in dropped:
            if self._there(sha256):
                self._find("orphan", blob_key(sha256), "no manifest names it")

    def _check_entry(self, found: ObjectEntry) -> None:
        with self._reading(found):
            entry = read_entry(self.store.objects.content(found.key), found.key)
            result = self.results.get(entry.digest)
            if result is not None:
                self._compare(found.key, entry, result)
                return
            manifest = manifest_key(entry.digest)
            gone = manifest in self.lost or not self._exists(manifest)
            if gone and self._exists(found.key):  # Else both were deleted meanwhile.
                message = f"its manifest {entry.digest} is missing or damaged"
                self._find("dangling", found.key, message, "quarantined")

    def _compare(self, key: str, entry: SpecEntry, result: StoredResult) -> None:
        if hash(entry) != result.entry or key not in entry.keys:
            self._find("damaged", key, f"it is not the entry of its manifest {entry.digest}", "quarantined")
            return
        by_place = self.by_spec if key == spec_key(entry.spec_digest) else self.by_family
        by_place[result.spec_digest] = entry.digest

    def _check_index(self) -> None:
        """Check that every spec that a manifest answers has its two entries, which the first answer gets."""
        first: dict[str, tuple[bool, str, int, str]] = {}
        for digest, result in self.results.items():
            if digest not in self.fallen:
                first[result.spec_digest] = min(first.get(result.spec_digest, result.order), result.order)
        for spec_digest, order in first.items():
            if spec_digest not in self.by_family or spec_digest not in self.by_spec:
                self._find_unindexed(spec_digest, self.by_spec.get(spec_digest, order[-1]))
        for digest, result in self.results.items():
            if digest not in (self.by_spec.get(result.spec_digest), self.by_family.get(result.spec_digest)):
                key = manifest_key(digest)
                self._find("orphan", key, "no spec entry names it; it is still found by its digest")

    def _find_unindexed(self, spec_digest: str, digest: str) -> None:
        """Report the missing entries of a spec that a result answers."""
        with suppress(NotFound):  # It was deleted meanwhile.
            entry = SpecEntry.of(self.store.index.stored(manifest_key(digest)))
            for key, by_place in zip(entry.keys, (self.by_family, self.by_spec), strict=True):
                if spec_digest not in by_place and key not in self.unread:
                    message, mend = f"missing, for the manifest {digest}", partial(self._enter, entry)
                    self._find("unindexed", key, message, "rebuilt", mend)
                    by_place[spec_digest] = digest

    def _enter(self, entry: SpecEntry) -> None:
        """Publish an entry under a lock, so that nobody deletes its manifest meanwhile."""
        with self.store.objects.lock(MARKER, exclusive=False):
            if self._exists(manifest_key(entry.digest)):
                self.store.enter(entry)

    def _check_others(self) -> None:
        """Report objects outside of the store's places."""
        for entry in self.store.objects.list():
            place = entry.key.split("/")[0]
            known = place in (*_PLACES, QUARANTINE, WITHDRAWN_KEYS) or entry.key == MARKER
            if known or _LEDGER.fullmatch(entry.key):
                continue
            if place != STAGING:
                self._find("foreign", entry.key, "not one of the store's files; move it elsewhere if it is yours")
            else:
                remove = partial(self.store.objects.delete, entry.key) if is_stale(entry) else None
                self._find("temporary", entry.key, f"{entry.size} bytes", "removed", remove)

    def _there(self, sha256: str) -> bool:
        """Return whether a blob is there and not known to be bad; one that came after the listing counts as sound."""
        key = blob_key(sha256)
        return sha256 not in self.awaited or (key not in self.lost and self._exists(key))

    def _exists(self, key: str) -> bool:
        with suppress(NotFound):
            return self.store.objects.status(key).is_file
        return False

    def _take_out(self, key: str) -> bool:
        """Move an object away, unless a put has mended it meanwhile, and return whether it went."""
        store, place = self.store, key.split("/")[0]
        checks = {_BLOBS: store.blobs.sound, MANIFESTS: store.intact}
        with store.objects.lock(MARKER, exclusive=True) as confirm:
            sound = checks[place](name_in(key)) if place in checks else store.index.sound(key)
            if not sound:
                confirm()
                with suppress(NotFound):  # Somebody else took it out.
                    store.objects.quarantine(key)
        return not sound

    @contextmanager
    def _reading(self, entry: ObjectEntry) -> Iterator[None]:
        """Count an object, and report the errors of reading it."""
        try:
            yield
        except CorruptObject as error:
            self._find("damaged", entry.key, str(error), "quarantined")
        except StoreUnavailable as error:
            self.unread.add(entry.key)
            self._find("unreadable", entry.key, str(error))
        except NotFound:  # Somebody took it away after the listing.
            self.lost.add(entry.key)
        self.objects += 1
        self.bytes += entry.size
        self.progress(self.bytes, self.total)

    def _find(
        self, kind: str, key: str, message: str, action: str | None = None, mend: Callable[[], object] | None = None
    ) -> None:
        """Report a finding, and mend it where repair is asked for and `mend` is given."""
        mended = self.repair and (mend is not None or action == "quarantined")
        if action == "quarantined":
            if mended and not self._take_out(key):
                return
            self.lost.add(key)
        elif mended and mend is not None:
            mend()
        self.findings.append(Finding(kind, key, message, action if mended else None))
