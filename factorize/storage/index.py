"""The index from specs to digests: the store's manifests and spec entries, read with verification."""

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from factorize.encoding import canonical_json
from factorize.errors import CorruptObject, InvalidParameter, NotFound, Revoked
from factorize.format.manifest import Manifest, StoredFile
from factorize.spec import Spec, parse_spec
from factorize.storage.blobs import Blobs, Cache, blob_key
from factorize.storage.objects import Objects
from factorize.storage.records import (
    MANIFESTS,
    SPECS,
    SpecEntry,
    family_digest,
    family_folder,
    manifest_key,
    name_in,
    read_entry,
    read_manifest,
    spec_key,
)
from factorize.storage.revocation import Revocations

_RESULT_BYTES = 1200
"""The bytes of a result in memory, besides its manifest's text."""


@dataclass(frozen=True, slots=True)
class Result:
    """A stored factorization, by its verified manifest.

    Attributes:
        text: its manifest, canonical JSON.
        entry: the spec entry that it makes.
        file: its file.
    """

    text: bytes
    entry: SpecEntry
    file: StoredFile

    @property
    def digest(self) -> str:
        """The name of its bytes."""
        return self.entry.digest

    def manifest(self) -> Manifest:
        """Return its manifest."""
        return Manifest(json.loads(self.text))


class Index:
    """The index of a store's factorizations; safe for threads.

    Args:
        objects: the medium.
        blobs: the blobs on it, which remember damaged ones.
        cache_bytes: memory for verified manifests.
    """

    def __init__(self, objects: Objects, blobs: Blobs, *, cache_bytes: int) -> None:
        self._objects = objects
        self._blobs = blobs
        self._revocations = Revocations(objects)
        self._manifests: Cache[Result] = Cache(cache_bytes, lambda found: len(found.text) + _RESULT_BYTES)

    def manifest(self, digest: str) -> Result:
        """Return a manifest, from memory if its file has not been touched since it was verified.

        Raises:
            NotFound: there is no manifest of that digest.
            CorruptObject: the manifest is damaged.
        """
        key = manifest_key(digest)
        version = self._objects.status(key).version
        known = self._manifests.get((digest, version))
        if known is None:
            manifest = self.stored(key)
            known = Result(canonical_json(manifest), SpecEntry.of(manifest), manifest.file)
            self._manifests.put((digest, version), known)
        return known

    def manifests(self) -> Iterator[Manifest]:
        """Iterate over the sound manifests by digest, with the revoked ones."""
        for key in self._objects.names(MANIFESTS):
            with suppress(NotFound, CorruptObject, InvalidParameter):
                yield self.manifest(name_in(key)).manifest()

    def mentioning(self, digests: Collection[str]) -> Iterator[Manifest]:
        """Iterate over the sound manifests whose text has one of some digests, with the revoked ones.

        Others are not decoded, and none stays in memory.
        """
        texts = [digest.encode("ascii") for digest in digests]
        for key in self._objects.names(MANIFESTS):
            with suppress(NotFound, CorruptObject, InvalidParameter):
                manifest = self._objects.content(key)
                if any(text in manifest for text in texts):
                    yield read_manifest(manifest, name_in(key))

    def beginning(self, text: str) -> list[str]:
        """Return the digests of manifests and specs that begin with a text of two characters or more, sorted."""
        folders = (f"{top}/{text[:2]}" for top in (MANIFESTS, SPECS))
        names = {name_in(key) for folder in folders for key in self._objects.names(folder)}
        return sorted(name for name in names if name.startswith(text))

    def entry(self, key: str) -> SpecEntry | None:
        """Return the spec entry at a key, or None if the entry or its result is missing, damaged or revoked."""
        try:
            return self.require(key)
        except (NotFound, CorruptObject, Revoked):
            return None

    def require(self, key: str) -> SpecEntry:
        """Return the spec entry at a key after checking that its result can be given out.

        Raises:
            NotFound: the entry, its manifest or the file is missing.
            CorruptObject: one of them is damaged.
            Revoked: the result was taken back.
        """
        with _named(f"the entry {key}"):
            entry = read_entry(self._objects.content(key), key)
        self._revocations.check(entry.digest)
        with _named(f"the manifest {entry.digest}"):
            manifest = self.manifest(entry.digest)
        with _named(f"the file {manifest.file.sha256}"):
            found, stated = self._objects.status(blob_key(manifest.file.sha256)), manifest.file.bytes
        if found.size != stated or self._blobs.damaged(manifest.file.sha256, found.version):
            message = f"the file {manifest.file.sha256} is damaged ({found.size} bytes, and {stated} were stored)"
            raise CorruptObject(message)
        if key not in entry.keys or entry != manifest.entry:
            raise CorruptObject(f"{key} is not the entry of the manifest {entry.digest}")
        return entry

    def sound(self, key: str) -> bool:
        """Return whether there is a sound spec entry at a key."""
        return self.entry(key) is not None

    def digest_of(self, spec_digest: str) -> str | None:
        """Return the digest that answers exactly this spec, or None."""
        entry = self.entry(spec_key(spec_digest))
        return None if entry is None else entry.digest

    def revoked_answer(self, spec_digest: str) -> str | None:
        """Return the digest that a spec's entry names if that result was revoked, or None."""
        try:
            entry = read_entry(self._objects.content(spec_key(spec_digest)), spec_digest)
        except (NotFound, CorruptObject):
            return None
        return None if self._revocations.find(entry.digest) is None else entry.digest

    def find(self, spec: Spec) -> str | None:
        """Return the digest that answers this spec or a tighter one; see `Store.find`."""
        exact = self.digest_of(spec.digest)
        if exact is not None:
            return exact
        folder = family_folder(family_digest(parse_spec(spec).document()))
        entries = (self.entry(listed.key) for listed in self._objects.list(folder))
        tighter = [entry for entry in entries if entry and entry.converged and entry.tolerance < spec.tolerance]
        return max(tighter, key=lambda entry: entry.tolerance).digest if tighter else None

    def stored(self, key: str) -> Manifest:
        """Return the manifest at a key, read anew and verified; see `manifest`."""
        return read_manifest(self._objects.content(key), name_in(key))


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Name a missing object by its key in the store, so that callers over HTTP see no path."""
    try:
        yield
    except NotFound:
        raise NotFound(f"{what} is missing") from None
