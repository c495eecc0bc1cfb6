"""Objects in a bucket of S3, Google Cloud or Azure: published by one conditional request, never overwritten.

A file is staged on this machine's disk and sent under its final name in one request that fails if the name is taken.
A large blob goes in parts instead: its name is the sha256 of its bytes, so another writer of that name writes the same
ones. A bucket shows an object whole or not at all, and from then on to everybody.
"""

import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

from factorize.encoding import DIGEST
from factorize.errors import InvalidParameter, NotFound, StoreUnavailable
from factorize.format.files import Files
from factorize.storage.medium.bucket_calls import BucketCalls, first_line
from factorize.storage.medium.bucket_lock import BucketLock
from factorize.storage.medium.location import MARKER
from factorize.storage.objects import STAGING, Objects, Reader, StagedFile

MAX_WHOLE_BYTES = 1 << 20
"""The largest object that one request describes and returns; larger objects are read in ranges."""
MIN_PARTS_BYTES = 1 << 26
"""The smallest blob that is sent in parts."""
_BLOB = re.compile(rf"blobs/sha256/[0-9a-f]{{2}}/{DIGEST}")
_STAGE = "factorize.stage."
_MAX_UNLOCKED_SECONDS = 60.0
"""The longest time that a new folder may be without its lock."""
CONNECT_SECONDS = 5
REQUEST_SECONDS = 120
RETRY_SECONDS = 30


class Bucket(BucketCalls, Objects):
    """Objects below a prefix of a bucket."""

    @contextmanager
    def stage(self) -> Iterator[StagedFile]:
        """Yield a file in a private folder of this machine, and remove it at the end in any case."""
        try:
            folder = TemporaryDirectory(prefix=_STAGE)
        except OSError as error:
            raise StoreUnavailable(
                f"there is no room for a temporary file: {error}; free space, or set TMPDIR", state="store-full"
            ) from None
        with folder as name, _hold(name):
            yield StagedFile(Path(name) / secrets.token_hex(8), Files())

    def put(self, key: str, staged: StagedFile) -> bool:
        """Send the file under its name, if the name is free."""
        if not _goes_in_parts(key, staged):
            return self.create(key, staged.path)
        with suppress(NotFound):
            self.status(key)
            return False
        self._send_in_parts(key, staged)
        return True

    def replace(self, key: str, staged: StagedFile | None, kept: str) -> None:
        """Copy the object to its other name, and send the file in one request that fails if the object has changed."""
        version = self.get(key, 0)[1]
        self.copy(key, kept)
        if staged is None:
            self.remove(key)
        elif _goes_in_parts(key, staged):
            self._send_in_parts(key, staged)
        else:
            self.write(key, staged.path, version)

    def _send_in_parts(self, key: str, staged: StagedFile) -> None:
        self.upload(key, staged.path)
        if self.status(key).size != staged.path.stat().st_size:
            raise StoreUnavailable(f"the bucket stored only a part of {key}; run fsck and try again")

    @contextmanager
    def open(self, key: str) -> Iterator[Reader]:
        """Open an object; a small one comes with one request, and a larger one in ranges."""
        entry, version, data = self.get(key, MAX_WHOLE_BYTES)

        def read(size: int, offset: int) -> bytes:
            if data is not None:
                return data[offset : offset + size]
            stop = min(offset + size, entry.size)
            return self.read(key, offset, stop, version) if offset < stop else b""

        yield Reader(entry, read)

    def delete(self, key: str) -> None:
        """Remove an object that is there."""
        self.status(key)
        self.remove(key)

    def refresh(self, key: str) -> None:
        """Copy an object to a temporary name and back within the bucket, which sets its time to now."""
        temporary = f"{STAGING}/{secrets.token_hex(8)}"
        self.copy(key, temporary)
        try:
            self.copy(temporary, key)
        finally:
            self.remove(temporary)

    def lock(self, key: str, *, exclusive: bool) -> AbstractContextManager[Callable[[], None]]:
        """Lock something across machines; see `BucketLock`."""
        return BucketLock(self, f"{STAGING}/{'locks' if key == MARKER else 'replacing'}", exclusive=exclusive).hold()

    def probe(self) -> None:
        """Check with a test object that the bucket keeps the promise that a store rests on.

        Raises:
            StoreUnavailable: the bucket cannot be written or read, or overwrites where it should only create.
        """
        key, refused = f"{STAGING}/probe-{secrets.token_hex(8)}", partial(StoreUnavailable, state="store-overwrites")
        try:
            if not self.create(key, b"first"):
                raise refused("the bucket reports that a new random name is taken; use another bucket")
            if self.create(key, b"other") or self.get(key, 5)[2] != b"first":
                raise refused(
                    "the bucket overwrites an object that may only be created (If-None-Match: *), so two writers "
                    "could replace each other's results; use a bucket with conditional writes"
                )
            if self.read(key, 1, 3, {}) != b"ir":
                raise refused("the bucket does not return the bytes of a range; use another bucket")
            if key not in [entry.key for entry in self.list(STAGING)]:
                raise refused("the bucket does not list what was just written; use one that is consistent")
        finally:
            with suppress(StoreUnavailable):
                self.remove(key)


@contextmanager
def _hold(folder: str | Path) -> Iterator[bool]:
    """Lock a folder while it is used, to tell it from those of killed processes, and yield whether that worked."""
    locked, descriptor = False, os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        yield locked
    finally:
        os.close(descriptor)


@cache
def _sweep() -> None:
    """Remove staged files of killed processes on this machine, once in a process."""
    for folder in Path(gettempdir()).glob(f"{_STAGE}*"):
        with suppress(OSError):  # Another account owns it, or swept it.
            if time.time() - folder.stat().st_mtime > _MAX_UNLOCKED_SECONDS:
                with _hold(folder) as unused:
                    if unused:
                        rmtree(folder)


def _goes_in_parts(key: str, staged: StagedFile) -> bool:
    return staged.path.stat().st_size >= MIN_PARTS_BYTES and _BLOB.fullmatch(key) is not None


def connect(url: str) -> Bucket:
    """Return the bucket at a URL, without a request.

    Args:
        url: `s3://bucket/prefix`, `gs://...` or `az://container/prefix`. Credentials and endpoint come from the
            environment, as the provider's own tools read them (`AWS_*`, `GOOGLE_*`, `AZURE_*`).

    Raises:
        InvalidParameter: obstore is not installed, or refuses the URL.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        message = f"a store at {url[:5]}... needs obstore; pip install 'factorize[cloud]'"
        raise InvalidParameter(message, field="store") from None
    plain = any(os.environ.get(name, "").lower() == "true" for name in ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP"))
    timeouts = {"connect_timeout": timedelta(seconds=CONNECT_SECONDS), "timeout": timedelta(seconds=REQUEST_SECONDS)}
    options: Any = {
        "client_options": {"allow_http": plain, **timeouts},
        "retry_config": {"max_retries": 5, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
    }
    if url.startswith("s3://"):
        options["config"] = {"aws_checksum_algorithm": "SHA256"}
    _sweep()
    try:
        return Bucket(from_url(url, **options))
    except (BaseError, ValueError) as error:
        raise InvalidParameter(f"{url} cannot be used: {first_line(error)}", field="store") from None
