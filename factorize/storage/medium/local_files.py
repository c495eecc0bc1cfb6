"""Files being written and read, with what the file system says turned into the store's errors."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from factorize.errors import CorruptObject, NotFound, StoreError, StoreUnavailable
from factorize.storage.medium.files import Files
from factorize.storage.objects import Kind, ObjectEntry

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_KINDS: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


class StagedFile:
    """A file on its way into a store, private to the one who writes it.

    Args:
        path: where it is, or will be once it is written.
        files: the file operations.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files = files

    def write(self, data: bytes | memoryview) -> None:
        """Create the file with these bytes."""
        rest = memoryview(data).cast("B")
        with reported(self.path), closing(self._files, self._files.create(self.path)) as descriptor:
            while rest:
                rest = rest[self._files.write(descriptor, rest) :]

    def produce(self, write: Callable[[Path], None]) -> None:
        """Let a library write the file by its path."""
        with reported(self.path):
            self._files.produce(self.path, write)

    def open(self) -> AbstractContextManager[FileReader]:
        """Open the file to read it back."""
        return open_file(self._files, self.path, self.path.name)


class FileReader:
    """An open file."""

    def __init__(self, files: Files, path: Path, descriptor: int, entry: ObjectEntry) -> None:
        self.entry = entry
        self._files = files
        self._path = path
        self._descriptor = descriptor

    def read(self, size: int, offset: int) -> bytes:
        """Read until `size` bytes are there or the file ends; one call, and no copy, in the usual case."""
        parts: list[bytes] = []
        missing = size
        with reported(self._path):
            while missing:
                part = self._files.read(self._descriptor, missing, offset + size - missing)
                if not part:
                    break
                parts.append(part)
                missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def open_file(files: Files, path: Path, key: str) -> Iterator[FileReader]:
    """Open a regular file.

    Raises:
        NotFound: there is none.
        CorruptObject: something else stands there.
        StoreUnavailable: it cannot be read.
    """
    with reported(path, NotFound):
        descriptor = files.open(path)
    try:
        with reported(path):
            entry = entry_of(key, files.status(descriptor))
        if entry.kind != "file":
            raise CorruptObject(f"{path} is not a regular file; move it away and run fsck --repair")
        yield FileReader(files, path, descriptor, entry)
    finally:
        with suppress(OSError):  # nothing was written through it
            files.close(descriptor)


@contextmanager
def closing(files: Files, descriptor: int) -> Iterator[int]:
    """Close a descriptor at the end, whatever happened."""
    try:
        yield descriptor
    finally:
        files.close(descriptor)


@contextmanager
def reported(path: Path, absent: type[StoreError] = StoreUnavailable) -> Iterator[None]:
    """Turn what the file system says into one of the store's errors."""
    try:
        yield
    except FileNotFoundError:
        missing = absent(f"{path} does not exist")
        if isinstance(missing, StoreUnavailable):
            missing.state = "store-gone"
        raise missing from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise CorruptObject(f"{path} is a symbolic link, which is not followed; replace it by the file") from None
        state, remedy = _remedy(error.errno)
        raise StoreUnavailable(f"{path}: {error.strerror or error}; {remedy}", state=state) from error


def entry_of(key: str, status: os.stat_result) -> ObjectEntry:
    """Return what a file's status says of an object."""
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
    return ObjectEntry(key, status.st_size, status.st_mtime, kind, version_of(status))


def version_of(status: os.stat_result) -> tuple[int, ...]:
    """Return what changes when a file is replaced or written to."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def _remedy(number: int | None) -> tuple[str, str]:
    """Return the state that an error of the system is, and the way out."""
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "store-full", "nothing was published; free space and try again"
    if number in (errno.EMFILE, errno.ENFILE):
        return "store-unreachable", "raise the limit of open files (ulimit -n) and try again"
    if number in NO_LOCKS:
        remedy = "the file system has no locks, so nothing can be removed safely; stop what writes, or use another"
        return "store-unreachable", remedy
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "check the permissions and that the file system is writable and has hard links, and try again"
        return "store-forbidden", remedy
    return "store-unreachable", "check the disk, run fsck, and try again"
