"""The store: factorizations by digest, written once, verified on reading, and found by the digest of their spec.

Layout (docs/store.md):

    store.json                                    format and version
    blobs/sha256/ab/<sha256>                      factor files, and users' matrices as raw little-endian float64
    manifests/ab/<digest>.json                    manifests
    specs/ab/<spec_digest>.json                   which digest answers a spec
    families/ab/<family>/<spec_digest>.json       the same entry, to be found from a spec with another tolerance
    revoked/ab/<digest or sha256>.json            results that were taken back, and why
    tmp/  quarantine/                             files on their way in; objects that fsck took out

A put publishes blob, manifest and the two spec entries in this order, each whole or not at all, so visible objects
only name objects that are already there. All four are synced before the first gets its name. A put holds the store's
lock meanwhile, together with other puts; `gc` holds it alone.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from factorize.encoding import canonical_json
from factorize.errors import CorruptObject, NotFound, StoreUnavailable
from factorize.factors.factor_file import from_container, read_back
from factorize.factors.factorization import Factorization
from factorize.format.container import Container, path_text
from factorize.format.files import Files
from factorize.format.manifest import Manifest
from factorize.spec import Spec
from factorize.storage.blobs import CACHE_BYTES, Blob, Blobs, Matrices, blob_key, bound_matrices, describe
from factorize.storage.index import Index, Result
from factorize.storage.medium.bucket import connect
from factorize.storage.medium.directory import Directory, make_root
from factorize.storage.medium.location import MARKER, bucket_of, directory_of, in_bucket
from factorize.storage.objects import Objects, StagedFile, reported
from factorize.storage.records import SpecEntry, lasting, manifest_key, now, seal, spec_key
from factorize.storage.revocation import Revocation, Revocations, check_reason

_FORMAT = canonical_json({"format": "factorize-store", "version": 1})
_FOUND_AGAIN = "this solve has found it again, so use a later release or another mechanism"

Check = Callable[[Path], Mapping[str, Any]]
"""A check of a written file (`factorize.api.proof`), which returns `digest` and `sha256` of the bytes that it read with
its findings, and raises where a claim does not hold."""


class Store:
    """A store on some medium; safe for threads, and for any number of processes on one medium.

    Args:
        objects: the medium.
        url: URL that it was opened by.
        cache_bytes: memory for verified chunks of blobs; an eighth as much is used for manifests.
    """

    def __init__(self, objects: Objects, url: str, *, cache_bytes: int = CACHE_BYTES) -> None:
        self.objects = objects
        self.url = url
        self.blobs = Blobs(objects, cache_bytes=cache_bytes)
        self.revocations = Revocations(objects)
        self.matrices = Matrices(objects, self.blobs)
        self.index = Index(objects, self.blobs, cache_bytes=cache_bytes // 8)

    def put(self, factorization: Factorization, *, check: Check | None = None) -> Manifest:
        """Store a factorization and return its manifest, with `files`.

        The file is written, read back, compared and synced before it gets its name. Putting the same bytes again
        returns the manifest that is there. `digest_of` names the first of several
        answers to one spec; the others are reached by their own digest. Damaged objects in the way are moved to
        quarantine and replaced.

        Args:
            factorization: the factorization to store.
            check: the last check of the written file; its findings are kept as `files[0].proof`.

        Raises:
            CertificateError: the check refused the file (from `check`).
            CorruptObject: the bytes that were read back differ from those written.
            Revoked: these bytes were taken back, or others with the same C for the same spec.
            StoreUnavailable: the medium refused; the store is unchanged, except for objects that nothing names.
        """
        digest = factorization.digest
        revocation = self.revocations.reaching(factorization.manifest)
        if revocation is not None:
            raise revocation.error(_FOUND_AGAIN)
        if self.intact(digest):
            with self.objects.lock(MARKER, exclusive=False):
                self.matrices.put_those_of(factorization)
                entry = self._entry_of(digest)
                for key in (manifest_key(digest), blob_key(self.manifest(digest).file.sha256)):
                    self.objects.make_durable(key)  # The put that made it may not have synced it yet.
                self.fall_with_others(factorization.manifest)
                self.enter(entry)
            return self.manifest(digest)
        plain = copy(factorization)
        plain.manifest = lasting(factorization.manifest)
        with self.objects.stage() as staged:
            staged.produce(plain.save)
            proof = (check or partial(read_back, matrices=bound_matrices(plain.spec)))(staged.path)
            if proof["digest"] != digest:
                message = f"{staged.path} reads back as another factorization; check memory and disk, and try again"
                raise CorruptObject(message)
            return self.put_checked(staged, proof, factorization)

    def put_checked(
        self, staged: StagedFile, proof: Mapping[str, object], factorization: Factorization | None = None
    ) -> Manifest:
        """Publish a checked factor file from `tmp/` and return its manifest, as `put` does.

        Args:
            staged: the file.
            proof: the checker's answer: `digest` and `sha256` of the bytes that it read, and its findings.
            factorization: the factorization in the file, with numbers of users' matrices that the store may lack.

        Raises:
            CorruptObject: the bytes are not those that were checked.
            NotFound: the numbers of a user's matrix are gone.
            Revoked, StoreUnavailable: see `put`.
        """
        with staged.open() as reader:
            file = describe(reader)
        proof = dict(proof)
        with reported(staged.path):  # A sweep with a fast clock may have taken it.
            inner = Manifest.read(Container(staged.path))
        if (proof.pop("sha256"), proof.pop("digest")) != (file["sha256"], inner.digest):
            raise CorruptObject(f"{staged.path} changed after it was checked; check memory and disk, and try again")
        revocation = self.revocations.reaching(inner)
        if revocation is not None:
            raise revocation.error(_FOUND_AGAIN)
        with self.objects.lock(MARKER, exclusive=False):
            if factorization is None:
                self.matrices.named_by(inner.spec)
            else:
                self.matrices.put_those_of(factorization)
            stated = {"proof": proof} if proof else {}
            manifest = Manifest({**inner, "files": [{**file, **stated}], "created": now()})
            digest, name = inner.digest, file["sha256"]
            record = manifest_key(digest), seal(manifest), lambda: self.intact(digest)
            records = [record, *SpecEntry.of(inner).records(self.index.sound)]
            with self.objects.stage_all(records, beside=[staged]) as (own, *entries):
                self.objects.settle(blob_key(name), staged, lambda: self.blobs.sound(name))
                mine = self.objects.settle(*own)
                self.fall_with_others(manifest)
                for entry in entries:
                    self.objects.settle(*entry)
            self.revocations.check(digest)
            return Manifest(json.loads(canonical_json(manifest))) if mine else self.manifest(digest)

    def revoke(
        self, digest: str, reason: str, *, on_each: Callable[[Revocation], object] = lambda revocation: None
    ) -> list[Revocation]:
        """Revoke a result, those that store further matrices beside the same C, and those rounded from any of them.

        Nothing is deleted. Once a revocation is stored, every address of its result answers with the reason, and the
        spec counts as unanswered. The named result is revoked before any other manifest is read; the others are
        searched one manifest at a time.

        Args:
            digest: digest of the result; revoking it again changes nothing.
            reason: the reason, in one line.
            on_each: called with each revocation as soon as it is durable, the named result's first.

        Returns:
            The revocations, the named result's first.

        Raises:
            InvalidParameter: there is no reason.
            NotFound: there is no such result.
            StoreUnavailable: the medium refused; finished revocations stay. Do it again for the rest.
        """
        reason = check_reason(reason)
        standing: dict[str, Revocation] = {}

        def stand(manifest: Manifest) -> None:
            revocation = standing[manifest.digest] = self.revocations.add(manifest, reason)
            on_each(revocation)

        named = self.index.manifest(digest).manifest()
        stand(named)
        revoked_before = 0
        while revoked_before < len(standing):  # The next look finds results rounded from those found late.
            revoked_before = len(standing)
            for manifest in self.index.mentioning({named.spec_digest, *standing}):
                is_new = manifest.digest not in standing
                if is_new and any(revocation.reaches(manifest) for revocation in standing.values()):
                    stand(manifest)
        return list(standing.values())

    def find(self, spec: Spec) -> str | None:
        """Return the digest that answers a spec with a named mechanism, or None.

        It is the answer to exactly this spec, else a converged one to the same spec with a smaller tolerance (the
        largest such). Entries that are damaged, or whose result is missing or damaged, are skipped.
        """
        return self.index.find(spec)

    def digest_of(self, spec_digest: str) -> str | None:
        """Return the digest of the stored answer to exactly this spec, or None if there is no sound one."""
        return self.index.digest_of(spec_digest)

    def durable_answer(self, spec_digest: str) -> str | None:
        """Return what `digest_of` does after making it safe from power loss, as its put may not be done yet.

        Raises:
            StoreUnavailable: the medium refused.
        """
        digest = self.digest_of(spec_digest)
        if digest is not None:
            self.objects.make_durable(spec_key(spec_digest))
        return digest

    def check_answer(self, spec_digest: str) -> None:
        """Raise an error where the stored answer to a spec cannot be given out.

        Raises:
            NotFound: entry, manifest or file is missing.
            CorruptObject: one of them is damaged.
            Revoked: it was taken back.
        """
        self.index.require(spec_key(spec_digest))

    def manifest(self, digest: str) -> Manifest:
        """Return a manifest by its digest, or by the digest of a spec that it answers, verified.

        Raises:
            NotFound: neither is known.
            Revoked: the result was taken back, and the spec has no other answer.
            CorruptObject: the stored manifest is damaged.
        """
        return self.result(digest).manifest()

    def result(self, digest: str) -> Result:
        """Return a stored factorization by its manifest; see `manifest`."""
        self.revocations.check(digest)
        try:
            return self.index.manifest(digest)
        except NotFound:
            answer = self.digest_of(digest)
            if answer is None:
                self.revocations.check(self.index.revoked_answer(digest) or digest)
                self.check_present()
                message = f"no factorization has the digest or spec digest {digest}; solve its spec first"
                raise NotFound(message) from None
            return self.index.manifest(answer)

    def load(self, digest: str) -> Factorization:
        """Return a factorization by digest or spec digest, with users' matrices bound and every byte verified.

        Raises:
            NotFound: the factorization, its file or a user's matrix is missing.
            CorruptObject: something is damaged.
        """
        manifest = self.manifest(digest)
        container = Container(b"".join(self.blob(manifest.file.sha256).read()))
        loaded = from_container(container, matrices=self.matrices.named_by(manifest.spec))
        if loaded.digest != manifest.digest:
            raise CorruptObject(f"the file of {manifest.digest} contains {loaded.digest}; run fsck --repair")
        return loaded

    def blob(self, sha256: str) -> Blob:
        """Return a blob for verified reading; see `Blobs.open`. Raise Revoked for the file of a revoked result."""
        self.revocations.check(sha256)
        return self.blobs.open(sha256)

    def put_matrix(self, array: np.ndarray) -> str:
        """Store a user's workload matrix and return the sha256 that names it in a spec.

        Args:
            array: shape (m, n); -0.0 is stored as 0.0.

        Raises:
            InvalidWorkload: the numbers cannot be a workload.
            StoreUnavailable: the medium refused.
        """
        with self.objects.lock(MARKER, exclusive=False):
            return self.matrices.put(array)

    def keep(self, sha256: str) -> None:
        """Start the grace of a blob that nothing names yet anew (`factorize.storage.gc`)."""
        with self.objects.lock(MARKER, exclusive=False):
            self.matrices.keep(sha256)

    def items(self, *, workload: str | None = None, n: int | None = None) -> Iterator[Manifest]:
        """Iterate over the sound manifests by digest, without revoked ones.

        Args:
            workload: selects this kind of workload.
            n: selects this number of steps.
        """
        for manifest in self.index.manifests():
            fits = workload in (None, manifest.spec["workload"]["kind"]) and n in (None, manifest.steps)
            if fits and self.revocations.find(manifest.digest) is None:
                yield manifest

    def check_format(self, *, create: bool) -> None:
        """Compare the store's marker with this release's format; write it if there is none and `create` is true.

        Raises:
            NotFound: there is no marker.
            StoreUnavailable: the store has another format.
        """
        try:
            text = self.objects.content(MARKER)
        except NotFound:
            if not create:
                raise NotFound(f"there is no store at {self.url}; check the path") from None
            self.objects.probe()
            self.objects.publish((MARKER, _FORMAT, lambda: True))
            text = self.objects.content(MARKER)
        if text != _FORMAT:
            raise StoreUnavailable(
                f"{self.url}/{MARKER} does not name store format 1; use the release that wrote it, or remove that "
                "file if it is damaged"
            )

    def check_writable(self) -> None:
        """Write a file, as every put does, and remove it: before work whose result could not be kept.

        Raises:
            StoreUnavailable: the medium takes no file, or breaks a promise.
        """
        self.objects.probe()
        with self.objects.stage() as staged:
            staged.write(b"ready")

    def check_present(self) -> None:
        """Raise StoreUnavailable where the store is away, its disk unmounted, say, so that its folders look empty."""
        try:
            self.objects.status(MARKER)
        except NotFound:
            message = f"{self.url} no longer has {MARKER}; mount its disk again, or check the path"
            raise StoreUnavailable(message, state="store-gone") from None

    def enter(self, entry: SpecEntry) -> None:
        """Publish a spec entry at its two places, unless sound ones are there."""
        self.objects.publish(*entry.records(self.index.sound))

    def fall_with_others(self, manifest: Manifest) -> None:
        """Revoke a new result if one with its claim was revoked meanwhile by somebody who could not see it yet.

        Args:
            manifest: a manifest of its digest; the stored one may name another file.
        """
        revocation = self.revocations.reaching(manifest)
        if revocation is not None:
            standing = self.index.manifest(manifest.digest).manifest()
            self.revocations.add(standing, revocation.reason)

    def _entry_of(self, digest: str) -> SpecEntry:
        try:
            return self.index.manifest(digest).entry
        except NotFound:
            raise StoreUnavailable(f"the result {digest} was deleted while it was stored again; try again") from None

    def intact(self, digest: str) -> bool:
        """Return whether manifest and file are there and hash to their names, by reading them anew."""
        try:
            sha256 = self.index.stored(manifest_key(digest)).file.sha256
        except (NotFound, CorruptObject):
            return False
        return self.blobs.sound(sha256)


def open_store(
    url: str | os.PathLike[str], *, create: bool = True, cache_bytes: int = CACHE_BYTES, files: Files | None = None
) -> Store:
    """Open a store, and create it if there is none.

    Args:
        url: path of a directory, its file:// URL, or the URL of a bucket (`s3://`, `gs://`, `az://`).
        create: whether to create a store that does not exist.
        cache_bytes: memory for verified chunks of blobs.
        files: the file operations; tests give others.

    Raises:
        InvalidParameter: the URL names neither a directory nor a bucket.
        NotFound: there is no store, and `create` is false.
        StoreUnavailable: the medium cannot be used, or another release wrote it.
    """
    text = path_text(url, field="store")
    if in_bucket(text):
        store = Store(connect(bucket_of(text)), text, cache_bytes=cache_bytes)
    else:
        files = Files() if files is None else files
        root = directory_of(text)
        if create:
            make_root(files, root)
        store = Store(Directory(root, files), root.as_uri(), cache_bytes=cache_bytes)
    store.check_format(create=create)
    return store
