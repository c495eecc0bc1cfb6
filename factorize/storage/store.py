"""The store: factorizations by digest, written once, verified on reading; spec digest to digest.

Layout (docs/store.md):

    store.json                                    format and version
    blobs/sha256/ab/<sha256>                      factor files, and users' matrices as raw little-endian float64
    manifests/ab/<digest>.json                    manifests
    specs/ab/<spec_digest>.json                   which digest answers a spec
    families/ab/<family>/<spec_digest>.json       the same entry, to be found from a spec with another tolerance
    revoked/ab/<digest or sha256>.json            results that were taken back, and why
    tmp/  quarantine/                             files on their way in; what fsck took out

A put publishes blob, manifest, family entry and spec entry in this order, each whole or not at all, so whatever is
visible only names what is already there. It holds the store's lock meanwhile, together with other puts; `gc`
holds it alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from factorize.encoding import canonical_json, raw_bytes
from factorize.encoding import sha256 as digest_bytes
from factorize.errors import CorruptObject, InvalidParameter, InvalidWorkload, NotFound, StoreUnavailable
from factorize.factorization import Factorization, from_tensors, load
from factorize.manifest import StoredFile
from factorize.spec import Spec
from factorize.storage.blobs import CACHE_BYTES, CHUNK_BYTES, Blob, Blobs, blob_key, read_chunks
from factorize.storage.files import Files
from factorize.storage.index import Index
from factorize.storage.objects import Directory, Objects, Reader, Staged, make_root
from factorize.storage.records import (
    MANIFESTS,
    SpecEntry,
    manifest_key,
    read_manifest,
    seal,
    user_matrices,
)
from factorize.storage.revocation import Revocation, Revocations, check_reason, revocation_key, same_claim
from factorize.workloads import UserMatrix
from factorize.workloads.matrix import from_array

FORMAT = {"format": "factorize-store", "version": 1}
MARKER = "store.json"
QUARANTINE = "quarantine"

Check = Callable[[Path], Mapping[str, Any]]
"""Looks at a written file from outside (api/proof.py) and returns `digest` and `sha256` of what it has read, with what
it has checked; raises where a claim does not hold."""


class Store:
    """A store on some medium; safe for threads, and for any number of processes on one medium.

    Args:
        objects: the medium.
        url: what it was opened by.
        cache_bytes: memory for verified chunks of blobs.
    """

    def __init__(self, objects: Objects, url: str, *, cache_bytes: int = CACHE_BYTES) -> None:
        self.objects = objects
        self.url = url
        self.blobs = Blobs(objects, cache_bytes=cache_bytes)
        self.revocations = Revocations(objects)
        self.index = Index(objects, self.blobs)

    def put(self, factorization: Factorization, *, check: Check | None = None) -> dict[str, Any]:
        """Store a factorization and return its manifest, with `files`.

        The file is written, synced, read back and compared before it gets its name. Putting the same bytes again
        returns the manifest that is there. Of several answers to one spec the first stays the one that
        `digest_of` names; the others are reached by their own digest. Damaged objects in the way are moved to
        quarantine and replaced.

        Args:
            factorization: what to store.
            check: has the last word on the written file; what it has checked is kept as `files[0].proof`.

        Raises:
            CertificateError: the check refused the file (from `check`).
            CorruptObject: what was read back is not what was written.
            Revoked: these bytes were taken back.
            StoreUnavailable: the medium refused; the store is as before, but for objects that nothing names.
        """
        digest = factorization.digest
        self.revocations.check(digest)
        with self._written(factorization, check) as written, self.objects.lock(MARKER, exclusive=False):
            self._put_matrices(factorization)
            if written is not None:
                staged, file = written
                key = blob_key(file["sha256"])
                self._settle(key, lambda: self.objects.put(key, staged), lambda: self._sound(file["sha256"]))
                manifest = {**_lasting(factorization.manifest), "files": [file], "created": _now()}
                self._publish(manifest_key(digest), seal(manifest), lambda: self._intact(digest))
            self.enter(self._entry_of(digest))
        return self.manifest(digest)

    def revoke(self, digest: str, reason: str) -> list[Revocation]:
        """Take a result back, those that store further matrices beside the same C, and what was rounded from them.

        Nothing is deleted.

        From now on every address of them answers with the reason, and their spec counts as unanswered.

        Args:
            digest: of the result; revoking again changes nothing.
            reason: one line.

        Raises:
            InvalidParameter: no reason.
            NotFound: no such result.
            StoreUnavailable: the medium refused; do it again.
        """
        reason = check_reason(reason)
        shared = same_claim(json.loads(self.index.manifest(digest).text))
        manifests = list(self._manifests())
        wrong = {manifest["digest"] for manifest in manifests if same_claim(manifest) == shared}
        found = []
        for manifest in manifests:
            if manifest["digest"] in wrong or manifest["solver"].get("cast_from") in wrong:
                revocation = self._revocation(manifest, reason)
                self.record(revocation)
                found.append(revocation)
        return found

    def _revocation(self, manifest: Mapping[str, Any], reason: str) -> Revocation:
        """Return the revocation that stands already, or a new one."""
        with suppress(NotFound, CorruptObject):
            return self.revocations.read(revocation_key(manifest["digest"]))
        return Revocation(manifest["digest"], StoredFile.of(manifest).sha256, manifest["spec_digest"], reason, _now())

    def record(self, revocation: Revocation) -> None:
        """Publish a revocation at its two places, unless sound ones are there."""
        for key in revocation.keys:
            self._publish(key, revocation.sealed(), partial(self.revocations.sound, key))

    def find(self, spec: Spec) -> str | None:
        """Return the digest that answers a spec with a named mechanism, or None.

        That is the answer to exactly this spec, else a converged one to the same spec with a smaller tolerance (the
        largest such). Entries that are damaged or name something that is missing or damaged are passed over.
        """
        return self.index.find(spec)

    def digest_of(self, spec_digest: str) -> str | None:
        """Return the digest of the stored answer to exactly this spec, or None if there is no sound one."""
        return self.index.digest_of(spec_digest)

    def manifest(self, digest: str) -> dict[str, Any]:
        """Return a manifest by its digest, or by the digest of a spec that it answers, verified.

        Raises:
            NotFound: neither is known.
            Revoked: it was taken back, and the spec has no other answer.
            CorruptObject: the stored manifest is damaged.
        """
        return json.loads(self.manifest_bytes(digest))

    def manifest_bytes(self, digest: str) -> bytes:
        """Return the canonical JSON of a manifest; see `manifest`."""
        self.revocations.check(digest)
        try:
            return self.index.manifest(digest).text
        except NotFound:
            answer = self.digest_of(digest)
            if answer is None:
                self.revocations.check(self.index.revoked_answer(digest) or digest)
                message = f"no factorization has the digest or spec digest {digest}; solve its spec first"
                raise NotFound(message) from None
            return self.index.manifest(answer).text

    def load(self, digest: str) -> Factorization:
        """Return a factorization by digest or spec digest, users' matrices bound; every byte verified.

        Raises:
            NotFound: the factorization, its file or a user's matrix is missing.
            CorruptObject: something is damaged.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load as read_tensors

        manifest = self.manifest(digest)
        data = b"".join(self.blob(StoredFile.of(manifest).sha256).read())
        try:
            tensors = read_tensors(data)
        except SafetensorError as error:
            raise CorruptObject(f"the file of {manifest['digest']} is not a safetensors file: {error}") from None
        matrices = {sha256: self.matrix(sha256, shape) for sha256, shape in user_matrices(manifest["spec"])}
        return from_tensors(_lasting(manifest), tensors, matrices=matrices)

    def blob(self, sha256: str) -> Blob:
        """Return a blob for verified reading; see `Blobs.open`. Raises Revoked for the file of a revoked result."""
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
        named = from_array(array)
        sha256 = str(named.sha256)
        if self._sound(sha256):
            self.keep(sha256)
        else:
            self._publish(blob_key(sha256), raw_bytes(named.array), lambda: self._sound(sha256))
        return sha256

    def keep(self, sha256: str) -> None:
        """Let the grace of a blob that nothing names yet start anew (`factorize.storage.gc`)."""
        with suppress(NotFound):
            self.objects.refresh(blob_key(sha256))

    def matrix(self, sha256: str, shape: tuple[int, int] | list[int]) -> np.ndarray:
        """Return a user's matrix, verified and read-only.

        Args:
            sha256: its name.
            shape: (m, n).

        Raises:
            NotFound: it was never uploaded.
            InvalidParameter: the blob does not have that many numbers.
            CorruptObject: damaged.
        """
        rows, columns = shape
        blob = self.blob(sha256)
        if blob.size != 8 * rows * columns:
            needed = f"shape {rows} x {columns} takes {8 * rows * columns}"
            raise InvalidParameter(f"the matrix {sha256} has {blob.size} bytes; {needed}", field="shape")
        return np.frombuffer(b"".join(blob.read()), dtype="<f8").reshape(rows, columns)

    def bind(self, spec: Spec) -> Spec:
        """Return a spec with the numbers of its user-supplied matrices, read from the store; see `matrix`."""
        bound: dict[str, Any] = {}
        for name in ("workload", "optimize_for"):
            part = getattr(spec, name)
            if isinstance(part, UserMatrix) and part.sha256 is not None and part.shape is not None:
                bound[name] = part.bind(self.matrix(part.sha256, part.shape))
        return spec.model_copy(update=bound)

    def items(
        self, *, workload: str | None = None, n: int | None = None, after: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Iterate over the sound manifests, by digest; revoked ones are passed over.

        Args:
            workload: only those of this kind of workload.
            n: only those with this many steps.
            after: only those whose digest sorts after this one (where a page ended).
        """
        for manifest in self._manifests(after):
            given = manifest["spec"]["workload"]
            fits = workload in (None, given["kind"]) and n in (None, given.get("n", given.get("shape", [0])[-1]))
            if fits and self.revocations.find(manifest["digest"]) is None:
                yield manifest

    def quarantine(self, key: str) -> None:
        """Move an object out of the way; it is never deleted, and keeps its key below `quarantine/`."""
        with suppress(NotFound):  # somebody else moved it
            self.objects.move(key, f"{QUARANTINE}/{key}.{secrets.token_hex(8)}")

    def check_format(self, *, create: bool) -> None:
        """Compare the marker with this release's format; write it if there is none and `create` is true.

        Raises:
            NotFound: no marker.
            StoreUnavailable: another format.
        """
        try:
            text = self.index.read(MARKER)
        except NotFound:
            if not create:
                raise NotFound(f"there is no store at {self.url}; check the path") from None
            self._publish(MARKER, canonical_json(FORMAT), lambda: True)
            text = self.index.read(MARKER)
        if text != canonical_json(FORMAT):
            raise StoreUnavailable(
                f"{self.url}/{MARKER} is not that of store format {FORMAT['version']}; use the release that wrote it, "
                "or remove that file if it is damaged"
            )

    def enter(self, entry: SpecEntry) -> None:
        """Publish a spec entry at its two places, unless sound ones are there."""
        for key in entry.keys:
            self._publish(key, entry.sealed(), partial(self.index.sound, key))

    def _manifests(self, after: str | None = None) -> Iterator[dict[str, Any]]:
        for entry in self.objects.list(MANIFESTS):
            digest = entry.key.rsplit("/", 1)[-1].removesuffix(".json")
            if after is None or digest > after:
                with suppress(NotFound, CorruptObject, InvalidParameter):
                    yield json.loads(self.index.manifest(digest).text)

    def _entry_of(self, digest: str) -> SpecEntry:
        try:
            return self.index.manifest(digest).entry
        except NotFound:
            raise StoreUnavailable(f"the result {digest} was deleted while it was stored again; try again") from None

    def _intact(self, digest: str) -> bool:
        """Whether manifest and file are there and hash to their names, read anew; a damaged file is moved away."""
        try:
            file = StoredFile.of(read_manifest(self.index.read(manifest_key(digest)), digest))
        except (NotFound, CorruptObject):
            return False
        sound = self._sound(file.sha256)
        if not sound:
            self.quarantine(blob_key(file.sha256))
        return sound

    def _sound(self, sha256: str) -> bool:
        with suppress(NotFound, CorruptObject):
            self.blobs.verify(sha256)
            return True
        return False

    def _put_matrices(self, factorization: Factorization) -> None:
        """Store the user's matrices of a spec, or see that they are there."""
        bound = _bound_matrices(factorization.spec)
        for sha256, shape in user_matrices(factorization.manifest["spec"]):
            if sha256 in bound:
                self.put_matrix(bound[sha256])
            else:
                self.matrix(sha256, shape)

    @contextmanager
    def _written(
        self, factorization: Factorization, check: Check | None
    ) -> Iterator[tuple[Staged, dict[str, Any]] | None]:
        """Write the safetensors file, read it back and have it checked; None if the store has it already.

        With the file comes its entry of the manifest.
        """
        if self._intact(factorization.digest):
            yield None
            return
        plain = copy(factorization)
        plain.manifest = _lasting(factorization.manifest)
        with self.objects.stage() as staged:
            staged.produce(plain.save)
            staged.sync()
            proof = dict(check(staged.path)) if check else {}
            digest = proof.pop("digest") if check else _read_back(staged.path, plain.spec)
            with staged.open() as reader:
                file = _describe(reader)
            if digest != factorization.digest or proof.pop("sha256", file["sha256"]) != file["sha256"]:
                message = f"{staged.path} reads back as another factorization; check memory and disk, and try again"
                raise CorruptObject(message)
            yield staged, file | ({"proof": proof} if proof else {})

    def _publish(self, key: str, data: bytes | memoryview, intact: Callable[[], bool]) -> None:
        with self.objects.stage() as staged:
            staged.write(data)
            self._settle(key, lambda: self.objects.put(key, staged), intact)

    def _settle(self, key: str, put: Callable[[], bool], intact: Callable[[], bool]) -> None:
        """Put an object unless a sound one is there; one that is damaged goes to quarantine first."""
        if put() or intact():
            return
        self.quarantine(key)
        if not put() and not intact():
            raise CorruptObject(f"{key} is damaged and another damaged object took its place; run fsck --repair")


def open_store(
    url: str | os.PathLike[str], *, create: bool = True, cache_bytes: int = CACHE_BYTES, files: Files | None = None
) -> Store:
    """Open a store, and create it if there is none.

    Args:
        url: path of a directory, or its file:// URL.
        create: whether to create a store that does not exist.
        cache_bytes: memory for verified chunks of blobs.
        files: the file operations; tests give others.

    Raises:
        InvalidParameter: not a directory's path or URL.
        NotFound: there is no store, and `create` is false.
        StoreUnavailable: the directory cannot be used, or another release wrote it.
    """
    files = Files() if files is None else files
    root = _root(os.fspath(url))
    if create:
        make_root(files, root)
    store = Store(Directory(root, files), root.as_uri(), cache_bytes=cache_bytes)
    store.check_format(create=create)
    return store


def _root(url: str) -> Path:
    """Return the absolute directory that a path or file:// URL names."""
    scheme, separator, _ = url.partition("://")
    if separator and scheme != "file":
        raise InvalidParameter(
            f"{scheme[:20]}:// is no directory, and object stores are not in this release; give a path or file:// URL",
            field="store",
        )
    path = url
    if separator:
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise InvalidParameter(
                "a store's file:// URL has no host and an absolute path: file:///path", field="store"
            )
        path = unquote(parts.path)
    if not path or "\0" in path:
        raise InvalidParameter(f"{path[:40]!r} is not a directory's path; give one, or a file:// URL", field="store")
    return (Path(path) if separator else Path(path).expanduser()).absolute()


def _bound_matrices(spec: Spec) -> dict[str, np.ndarray]:
    """Return the numbers of the user's matrices that a spec carries with it, by sha256."""
    found = {}
    for part in (spec.workload, spec.optimize_for):
        if isinstance(part, UserMatrix):
            with suppress(InvalidWorkload):  # known by its digest only
                found[str(part.canonical().sha256)] = part.array
    return found


def _read_back(path: Path, spec: Spec) -> str:
    """Return the digest of a written file, compared with its bytes."""
    try:
        return load(path, matrices=_bound_matrices(spec)).digest
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be read back: {error}; check the disk and try again") from error


def _lasting(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest as it stands in the file: without what only the store knows."""
    return {name: value for name, value in manifest.items() if name not in ("files", "created")}


def _describe(reader: Reader) -> dict[str, Any]:
    """Return the manifest's entry of an open file: digests of the whole and of each chunk."""
    whole, chunks = hashlib.sha256(), []
    for chunk in read_chunks(reader):
        whole.update(chunk)
        chunks.append(digest_bytes(chunk))
    return {"sha256": whole.hexdigest(), "bytes": reader.entry.size, "chunk_bytes": CHUNK_BYTES, "chunks": chunks}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
