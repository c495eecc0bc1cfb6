"""Objects by key: the few operations that a store needs from its medium, and the files that every medium stages.

`factorize.storage.medium.directory` and `factorize.storage.medium.bucket` provide the operations. Another medium
provides the same and passes tests/contract/test_store_contract.py.
"""

import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from factorize.errors import CorruptObject, NotFound, StoreError, StoreUnavailable
from factorize.format.files import Files

STAGING = "tmp"
QUARANTINE = "quarantine"
TEMPORARY_SECONDS = 86_400.0
"""The age from which a file below `tmp/` belongs to no running put."""
Kind = Literal["file", "directory", "symlink", "other"]
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_REMEDIES = (
    ((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "store-full", "nothing was published; free space and try again"),
    ((errno.EMFILE, errno.ENFILE), "store-unreachable", "raise the limit of open files (ulimit -n) and try again"),
    ((errno.ENAMETOOLONG,), "store-unreachable", "name a folder with a shorter path"),
    ((errno.ENOTDIR, errno.EEXIST), "store-unreachable", "a file is in the way; name a folder"),
    (
        NO_LOCKS,
        "store-unreachable",
        "the file system has no file locks, so nothing can be removed safely; stop all writers, or use another file "
        "system",
    ),
    (
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "store-forbidden",
        "check the permissions and that the file system is writable and has hard links, and try again",
    ),
)
"""The errors of the system, with the state and the remedy of each."""
_KINDS: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """The entry of an object, which a medium knows without reading it.

    Attributes:
        key: path below the root, with slashes.
        size: length in bytes.
        modified: seconds since 1970.
        kind: `file`, or the kind of the entry in an object's place.
        version: value that changes when the object is replaced or written to.
    """

    key: str
    size: int
    modified: float
    kind: Kind
    version: tuple[int, ...]

    @property
    def is_file(self) -> bool:
        """Whether it is a file, and no link or folder in its place."""
        return self.kind == "file"


class Reader(NamedTuple):
    """An open object.

    Attributes:
        entry: entry of the object.
        read: returns a number of bytes at an offset, fewer only at the end of the object.
    """

    entry: ObjectEntry
    read: Callable[[int, int], bytes]


class StagedFile:
    """A file on its way into a store, private to its writer.

    Args:
        path: its path, also before it is written.
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

    def open(self) -> AbstractContextManager[Reader]:
        """Open the file to read it back."""
        return open_file(self._files, self.path, self.path.name)


Record = tuple[str, bytes | memoryview, Callable[[], bool]]
"""A key, the bytes that get it, and a check of the object there, which is called only if there is one."""
Step = tuple[str, StagedFile, Callable[[], bool]]
"""A record whose bytes are in a file."""


class Objects(Protocol):
    """A medium. Every operation raises StoreUnavailable where the medium refuses, and has then published nothing.

    An object is published under its final name once; only a damaged one is replaced, in one step. Threads and any
    number of processes may use one medium.
    """

    def stage(self) -> AbstractContextManager[StagedFile]:
        """Return a private temporary file that is removed at the end."""

    def sync_all(self, staged: Sequence[StagedFile]) -> None:
        """Make files read-only and sync them together; this does nothing where `put` waits for the sync."""
        return

    def put(self, key: str, staged: StagedFile) -> bool:
        """Publish a synced file durably; return False and change nothing if the key is taken."""

    def replace(self, key: str, staged: StagedFile | None, kept: str) -> None:
        """Give an object another key, and its own to a file or to nothing, durably in one step, or raise NotFound."""

    def open(self, key: str) -> AbstractContextManager[Reader]:
        """Open an object; raise NotFound, or CorruptObject if it is no file."""

    def status(self, key: str) -> ObjectEntry:
        """Return the entry of an object, or raise NotFound."""

    def list(self, prefix: str = "") -> Iterator[ObjectEntry]:
        """Iterate over everything below a folder (all of it by default), sorted by key."""

    def names(self, prefix: str) -> Iterator[str]:
        """Iterate over the keys below a folder, without a costly look at each object."""
        return (entry.key for entry in self.list(prefix))

    def delete(self, key: str) -> None:
        """Remove an object, or raise NotFound."""

    def refresh(self, key: str) -> None:
        """Make an object count as new, or raise NotFound."""

    def make_durable(self, key: str) -> None:
        """Make a visible object outlive a crash, whoever published it; this does nothing where all objects do."""
        return

    def lock(self, key: str, *, exclusive: bool) -> AbstractContextManager[Callable[[], None]]:
        """Keep exclusive holders of a lock away from each other and from shared ones.

        Args:
            key: an existing object or folder; a holder of the store's marker may lock `tmp`, too.
            exclusive: whether nobody else may hold it.

        Returns:
            A context with a function to call before each removal; it raises StoreUnavailable if the lock may be lost.
        """

    def sign(self, key: str, seconds: float) -> str | None:
        """Return a URL by which anybody may read an object for some time; None where the medium has none."""
        return None

    def probe(self) -> None:
        """Check that the medium keeps the promises above, where the operations themselves would not show a breach.

        Raises:
            StoreUnavailable: the medium breaks a promise, which the message names.
        """
        return

    def content(self, key: str) -> bytes:
        """Return all bytes of a small object, or raise as `open` does."""
        with self.open(key) as reader:
            return reader.read(reader.entry.size, 0)

    def publish(self, *records: Record) -> None:
        """Write objects and give them their names; see `settle`."""
        with self.stage_all(records) as steps:
            for step in steps:
                self.settle(*step)

    @contextmanager
    def stage_all(self, records: Iterable[Record], beside: Sequence[StagedFile] = ()) -> Iterator[Sequence[Step]]:
        """Write objects that have no name yet, and sync them together.

        Args:
            records: the objects.
            beside: files that were written before, and are synced with them.
        """
        with ExitStack() as opened:
            steps = []
            for key, data, intact in records:
                steps.append((key, opened.enter_context(self.stage()), intact))
                steps[-1][1].write(data)
            self.sync_all([*beside, *(file for _, file, _ in steps)])
            yield steps

    def settle(self, key: str, staged: StagedFile, intact: Callable[[], bool]) -> bool:
        """Give a synced file its name unless a sound object has it; a damaged one is kept below `quarantine/`.

        Args:
            key: the name.
            staged: the file, on the medium already (`sync_all`).
            intact: checks the object at the key; called only if there is one.

        Returns:
            Whether this file has the name.

        Raises:
            StoreUnavailable: the medium refused.
        """
        if self.put(key, staged):
            return True
        if intact():
            return False
        # The lock ensures that the damaged object is replaced, and nothing newer.
        with self.lock(STAGING, exclusive=True) as confirm:
            if self.put(key, staged):
                return True
            if intact():
                return False
            confirm()
            self.quarantine(key, staged)
        return True

    def quarantine(self, key: str, staged: StagedFile | None = None) -> None:
        """Take an object out of its place, for another or for nothing, and keep it under its key below `quarantine/`.

        The caller holds a lock that has kept puts from replacing the object since it was found damaged.
        """
        self.replace(key, staged, f"{QUARANTINE}/{key}.{secrets.token_hex(8)}")


@contextmanager
def open_file(files: Files, path: Path, key: str) -> Iterator[Reader]:
    """Open a regular file.

    Raises:
        NotFound: there is no such file.
        CorruptObject: the path is no regular file.
        StoreUnavailable: the file cannot be read.
    """

    def read(size: int, offset: int) -> bytes:
        """Read `size` bytes or up to the end of the file, usually in one call and without a copy."""
        data = b""
        with reported(path):
            while len(data) < size and (part := files.read(descriptor, size - len(data), offset + len(data))):
                data = data + part if data else part
        return data

    with reported(path, NotFound):
        descriptor = files.open(path)
    try:
        with reported(path):
            entry = entry_of(key, files.status(descriptor))
        if not entry.is_file:
            raise CorruptObject(f"{path} is not a regular file; move it away and run fsck --repair")
        yield Reader(entry, read)
    finally:
        with suppress(OSError):  # Nothing was written through it.
            files.close(descriptor)


@contextmanager
def closing(files: Files, descriptor: int) -> Iterator[int]:
    """Close a descriptor at the end in any case."""
    try:
        yield descriptor
    finally:
        files.close(descriptor)


@contextmanager
def reported(path: Path, absent: type[StoreError] = StoreUnavailable) -> Iterator[None]:
    """Turn errors of the file system into the store's errors."""
    try:
        yield
    except FileNotFoundError:
        missing = partial(StoreUnavailable, state="store-gone") if absent is StoreUnavailable else absent
        raise missing(f"{path} does not exist") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise CorruptObject(f"{path} is a symbolic link, which is not followed; replace it by the file") from None
        known = ((state, remedy) for numbers, state, remedy in _REMEDIES if error.errno in numbers)
        state, remedy = next(known, ("store-unreachable", "check the disk, run fsck, and try again"))
        raise StoreUnavailable(f"{path}: {error.strerror or error}; {remedy}", state=state) from error


def entry_of(key: str, status: os.stat_result) -> ObjectEntry:
    """Return the entry of an object from its file's status."""
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
    version = status.st_ino, status.st_size, status.st_mtime_ns
    return ObjectEntry(key, status.st_size, status.st_mtime, kind, version)


def is_stale(temporary: ObjectEntry) -> bool:
    """Return whether a file below `tmp/` belongs to nobody any more; lock markers there are for waiters to judge."""
    return temporary.key.count("/") == 1 and temporary.modified < time.time() - TEMPORARY_SECONDS
