"""Objects in a bucket of S3, Google Cloud or Azure: published by one conditional request, never overwritten.

A file is staged on this machine's disk and sent under its final name in one request that fails if the name is taken.
A large blob goes in parts in place of that: its name is the sha256 of its bytes, so another writer of that name writes
the same ones. A bucket shows an object whole or not at all, and from then on to everybody.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from factorize.encoding import DIGEST
from factorize.errors import NotFound, StoreUnavailable
from factorize.storage.medium.bucket_calls import BucketCalls, Meta
from factorize.storage.medium.bucket_lock import BucketLock
from factorize.storage.medium.files import Files
from factorize.storage.medium.local_files import StagedFile
from factorize.storage.objects import STAGING, ObjectEntry, Reader, Staged

WHOLE_BYTES = 1 << 20
"""Largest object that one request describes and returns; of larger ones, ranges are asked for."""
PARTS_BYTES = 1 << 26
"""Smallest blob that is sent in parts."""
_BLOB = re.compile(rf"blobs/sha256/[0-9a-f]{{2}}/{DIGEST}")


class Bucket:
    """Objects below a prefix of a bucket.

    Args:
        calls: the requests.
    """

    def __init__(self, calls: BucketCalls) -> None:
        self._calls = calls

    @contextmanager
    def stage(self) -> Iterator[StagedFile]:
        """Name a file in a private folder of this machine and remove it at the end, whatever happened."""
        try:
            folder = TemporaryDirectory(prefix="factorize.stage.")
        except OSError as error:
            raise StoreUnavailable(
                f"there is no room for a temporary file: {error}; free space, or set TMPDIR", state="store-full"
            ) from None
        with folder as name:
            yield StagedFile(Path(name) / secrets.token_hex(8), Files())

    def put(self, key: str, staged: Staged) -> bool:
        """Send the file under its name, if that is free."""
        size = os.stat(staged.path).st_size
        if size < PARTS_BYTES or not _BLOB.fullmatch(key):
            return self._calls.create(key, staged.path)
        with suppress(NotFound):
            self._calls.head(key)
            return False
        self._calls.upload(key, staged.path)
        if self._calls.head(key)["size"] != size:
            raise StoreUnavailable(f"the bucket has not kept all of {key}; run fsck and try again")
        return True

    def sync_all(self, staged: Sequence[Staged]) -> None:
        """Do nothing: a bucket has kept an object when it has answered, and `put` waits for that."""

    @contextmanager
    def open(self, key: str) -> Iterator[Reader]:
        """Open an object; a small one comes with one request, of a larger one ranges are asked for."""
        meta, data = self._calls.get(key, WHOLE_BYTES)
        yield BucketReader(self._calls, entry_of(meta), meta.get("e_tag"), data)

    def status(self, key: str) -> ObjectEntry:
        """Ask what the bucket knows of an object."""
        return entry_of(self._calls.head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectEntry]:
        """List the objects below a folder, page by page; buckets give them by key."""
        for page in self._calls.pages(prefix):
            yield from map(entry_of, page)

    def names(self, prefix: str, after: str = "") -> Iterator[str]:
        """List the keys, page by page, from `after` on."""
        for page in self._calls.pages(prefix, after):
            yield from (meta["path"] for meta in page)

    def move(self, key: str, target: str) -> None:
        """Copy, then remove; a crash in between leaves both."""
        self._calls.copy(key, target)
        self._calls.delete(key)

    def delete(self, key: str) -> None:
        """Remove an object that is there."""
        self._calls.head(key)
        self._calls.delete(key)

    def refresh(self, key: str) -> None:
        """Copy an object to a temporary name and back, within the bucket: no byte leaves it, and its time is now."""
        temporary = f"{STAGING}/{secrets.token_hex(8)}"
        self._calls.copy(key, temporary)
        try:
            self._calls.copy(temporary, key)
        finally:
            self._calls.delete(temporary)

    def lock(self, key: str, *, exclusive: bool) -> AbstractContextManager[None]:
        """Lock the store across machines; see `BucketLock`."""
        return BucketLock(self._calls, exclusive=exclusive).held()

    def sign(self, key: str, seconds: float) -> str | None:
        """Return a URL by which anybody may read an object for some time."""
        return self._calls.sign(key, seconds)

    def probe(self) -> None:
        """See that the bucket keeps the promise that a store rests on, with an object of its own.

        Raises:
            StoreUnavailable: it cannot be written or read, or overwrites what it was asked only to create.
        """
        key, refused = f"{STAGING}/probe-{secrets.token_hex(8)}", partial(StoreUnavailable, state="store-overwrites")
        try:
            if not self._calls.create(key, b"first"):
                raise refused("the bucket says that a name of random digits is taken; use another bucket")
            if self._calls.create(key, b"other") or self._calls.get(key, 5)[1] != b"first":
                raise refused(
                    "the bucket overwrites an object that it was asked only to create (If-None-Match: *), so two "
                    "writers could replace each other's results; use a bucket with conditional writes"
                )
            if self._calls.read(key, 1, 3, None) != b"ir":
                raise refused("the bucket does not return the bytes of a range; use another bucket")
            if key not in [entry.key for entry in self.list(STAGING)]:
                raise refused("the bucket does not list what was just written; use one that is consistent")
        finally:
            with suppress(StoreUnavailable):
                self._calls.delete(key)


class BucketReader:
    """An open object of a bucket: all of it, or ranges of one version of it."""

    def __init__(self, calls: BucketCalls, entry: ObjectEntry, tag: str | None, data: bytes | None) -> None:
        self.entry = entry
        self._calls = calls
        self._tag = tag
        self._data = data

    def read(self, size: int, offset: int) -> bytes:
        """Return `size` bytes at an offset, fewer only at the end of the object."""
        if self._data is not None:
            return self._data[offset : offset + size]
        stop = min(offset + size, self.entry.size)
        return self._calls.read(self.entry.key, offset, stop, self._tag) if offset < stop else b""


def entry_of(meta: Meta) -> ObjectEntry:
    """Return what a bucket's description says of an object."""
    modified = meta["last_modified"].timestamp()
    tag = int.from_bytes(hashlib.sha256(str(meta.get("e_tag")).encode()).digest()[:8], "big")
    version = (tag, meta["size"], int(modified * 1000))
    return ObjectEntry(meta["path"], meta["size"], modified, "file", version)
