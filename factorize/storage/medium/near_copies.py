"""Copies of a bucket's blobs on this machine's disk, up to a total size; those used last stay.

A copy is no truth: whoever reads it hashes it as if it came from the bucket, and `forget`s one that does not fit.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from factorize.errors import CorruptObject, NotFound, StoreUnavailable
from factorize.storage.medium.files import Files
from factorize.storage.medium.local_files import open_file
from factorize.storage.objects import ObjectEntry, Reader

_PIECE = 1 << 24


class NearCopies:
    """A folder of copies, which several processes may share.

    Args:
        folder: where; created with the first copy.
        limit: largest total size, in bytes; a blob that is larger is not kept.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit

    @contextmanager
    def open(self, entry: ObjectEntry, far: Reader) -> Iterator[Reader]:
        """Open the copy of an object, which is made first if there is none; where that fails, the object itself.

        Args:
            entry: the object, in the version that the bucket has.
            far: reads it from the bucket.
        """
        path = self._path(entry.key)
        kept = entry.size <= self._limit and (self._is_copy(path, entry) or self._copied(path, entry, far))
        with ExitStack() as stack:
            reader = far
            if kept:
                with suppress(
                    NotFound, CorruptObject, StoreUnavailable, OSError
                ):  # another process may have removed it
                    reader = _Near(entry, stack.enter_context(open_file(Files(), path, entry.key)))
                    os.utime(path)  # used now
            yield reader

    def forget(self, key: str) -> bool:
        """Remove a copy; whether there was one."""
        try:
            self._path(key).unlink()
        except OSError:
            return False
        return True

    def _path(self, key: str) -> Path:
        return self._folder / key.rpartition("/")[2]

    def _is_copy(self, path: Path, entry: ObjectEntry) -> bool:
        """Whether there is a file of that size; its name is the sha256 of what it should hold."""
        try:
            return path.stat().st_size == entry.size
        except OSError:
            return False

    def _copied(self, path: Path, entry: ObjectEntry, far: Reader) -> bool:
        """Whether the copy could be made; a full disk is no reason not to answer."""
        temporary = self._folder / f"{os.getpid()}-{secrets.token_hex(8)}.part"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room(entry.size)
            with open(temporary, "xb") as file:
                for start in range(0, entry.size, _PIECE):
                    file.write(far.read(min(_PIECE, entry.size - start), start))
            os.replace(temporary, path)
        except OSError:
            return False
        finally:
            with suppress(OSError):
                temporary.unlink()
        return True

    def _make_room(self, size: int) -> None:
        """Remove the copies that were not used for longest."""
        found = []
        for path in self._folder.iterdir():
            with suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        total = size + sum(size for _, size, _ in found)
        for _, freed, path in sorted(found):
            if total <= self._limit:
                return
            with suppress(OSError):
                path.unlink()
            total -= freed


class _Near:
    """A copy that stands for the object: it has the object's entry."""

    def __init__(self, entry: ObjectEntry, reader: Reader) -> None:
        self.entry = entry
        self._reader = reader

    def read(self, size: int, offset: int) -> bytes:
        return self._reader.read(size, offset)
