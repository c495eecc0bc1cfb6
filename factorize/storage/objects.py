"""Objects by key: the few operations that a store needs of its medium, and the directory that provides them.

Another medium (an object store) provides the same operations and passes tests/test_store_contract.py.

A publication in a directory is: write a file in `tmp/`, sync it, link it to its final name (which fails if the name is
taken, so nothing is ever overwritten), sync the folder. A reader sees the whole object or none, after a crash too.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from factorize.errors import CorruptObject, NotFound, StoreError, StoreUnavailable
from factorize.storage.files import Files

STAGING = "tmp"
Kind = Literal["file", "directory", "symlink", "other"]
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_KINDS: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


@dataclass(frozen=True, slots=True)
class Entry:
    """What a medium knows of an object without reading it.

    Attributes:
        key: path below the root, with slashes.
        size: bytes.
        modified: seconds since 1970.
        kind: `file`, or what stands at an object's place instead.
        writable: whether somebody may write to it.
        version: changes when the object is replaced or written to.
    """

    key: str
    size: int
    modified: float
    kind: Kind
    writable: bool
    version: tuple[int, ...]


class Reader(Protocol):
    """An open object."""

    entry: Entry

    def read(self, size: int, offset: int) -> bytes:
        """Return `size` bytes at an offset, fewer only at the end of the object."""


class Objects(Protocol):
    """A medium. Every operation raises StoreUnavailable where the medium refuses; nothing was published then."""

    def stage(self) -> AbstractContextManager[Staged]:
        """Return a private temporary file that is removed at the end."""

    def put(self, key: str, staged: Staged) -> bool:
        """Publish a staged file durably; False, and nothing changed, if the key is taken."""

    def open(self, key: str) -> AbstractContextManager[Reader]:
        """Open an object, or raise NotFound; CorruptObject if something else than a file stands there."""

    def status(self, key: str) -> Entry:
        """Return what is known of an object, or raise NotFound."""

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Iterate over everything below a folder (all of it by default), sorted by key."""

    def move(self, key: str, target: str) -> None:
        """Give an object another key, or raise NotFound."""

    def delete(self, key: str) -> None:
        """Remove an object, or raise NotFound."""

    def protect(self, key: str) -> None:
        """Make an object read-only."""

    def refresh(self, key: str) -> None:
        """Make an object count as new, or raise NotFound."""

    def lock(self, key: str, *, exclusive: bool) -> AbstractContextManager[None]:
        """Keep exclusive holders of an object's lock away from each other and from shared ones."""


class Directory:
    """Objects as files below a root directory.

    Args:
        root: an existing directory on a file system with hard links.
        files: the file operations; tests give others.
    """

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self.root = root
        self._files = Files() if files is None else files
        self._durable: set[Path] = {root}

    @contextmanager
    def stage(self) -> Iterator[Staged]:
        """Name a file in `tmp/` and remove it at the end, whatever happened."""
        path = self.root / STAGING / f"{os.getpid()}-{secrets.token_hex(8)}"
        with _reported(path.parent):
            self._folder(path.parent)
        try:
            yield Staged(path, self._files)
        finally:
            with suppress(OSError):
                self._files.unlink(path)

    def put(self, key: str, staged: Staged) -> bool:
        """Sync the file, link it to its name, sync the folder."""
        target = self.root / key
        staged.sync()
        with _reported(target):
            self._folder(target.parent)
            try:
                self._files.link(staged.path, target)
                created = True
            except FileExistsError:
                created = False
            except FileNotFoundError:
                self._durable = {self.root}  # a folder was removed behind our back; the next try makes it anew
                raise
            # Also when another process made the name: it may not have come to its own sync yet.
            self._files.sync_directory(target.parent)
        return created

    def open(self, key: str) -> AbstractContextManager[FileReader]:
        """Open a regular file below the root."""
        return open_file(self._files, self.root / key, key)

    def status(self, key: str) -> Entry:
        """Look at a path, symbolic links not followed."""
        path = self.root / key
        with _reported(path, NotFound):
            return _entry(key, self._files.status(path))

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Walk the folder; a folder that does not exist is empty, and one that cannot be read is an error."""
        path = self.root / prefix
        with _reported(path):
            try:
                names = self._files.list(path)
            except FileNotFoundError:
                return
        for name in names:
            key = f"{prefix}/{name}" if prefix else name
            try:
                entry = self.status(key)
            except NotFound:
                continue  # removed since it was listed
            if entry.kind == "directory":
                yield from self.list(key)
            else:
                yield entry

    def move(self, key: str, target: str) -> None:
        """Rename, then sync both folders."""
        source, destination = self.root / key, self.root / target
        with _reported(source, NotFound):
            self._folder(destination.parent)
            self._files.rename(source, destination)
            self._files.sync_directory(destination.parent)
            self._files.sync_directory(source.parent)

    def delete(self, key: str) -> None:
        """Unlink, then sync the folder."""
        path = self.root / key
        with _reported(path, NotFound):
            self._files.unlink(path)
            self._files.sync_directory(path.parent)

    def protect(self, key: str) -> None:
        """Make a file read-only."""
        path = self.root / key
        with _reported(path, NotFound), _closing(self._files, self._files.open(path)) as descriptor:
            self._files.seal(descriptor)

    def refresh(self, key: str) -> None:
        """Set the file's time to now."""
        path = self.root / key
        with _reported(path, NotFound):
            self._files.refresh(path)

    @contextmanager
    def lock(self, key: str, *, exclusive: bool) -> Iterator[None]:
        """Lock a file, across processes and threads; where the file system has no locks, shared holders go on."""
        path = self.root / key
        descriptor = None
        with _reported(path):
            try:
                descriptor = self._files.lock(path, exclusive)
            except OSError as error:
                if exclusive or error.errno not in _NO_LOCKS:
                    raise
        try:
            yield
        finally:
            if descriptor is not None:
                with suppress(OSError):  # it is let go of all the same
                    self._files.close(descriptor)

    def _folder(self, path: Path) -> None:
        """Create a folder and its parents so that a crash cannot lose them, once per folder and process."""
        if path not in self._durable:
            self._folder(path.parent)
            self._files.make_directory(path)
            self._files.sync_directory(path.parent)
            self._durable.add(path)


def make_root(files: Files, root: Path) -> None:
    """Create a store's root and its missing parents, durably; the root is for its owner only, whatever is in it.

    Raises:
        StoreUnavailable: it cannot be created.
    """
    with _reported(root):
        missing = [path for path in (root, *root.parents) if not path.is_dir()]
        for path in reversed(missing):
            files.make_directory(path)
            files.sync_directory(path.parent)
        if missing:
            files.restrict(root)


class Staged:
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
        with _reported(self.path), _closing(self._files, self._files.create(self.path)) as descriptor:
            while rest:
                rest = rest[self._files.write(descriptor, rest) :]

    def produce(self, write: Callable[[Path], None]) -> None:
        """Let a library write the file by its path."""
        with _reported(self.path):
            self._files.produce(self.path, write)

    def open(self) -> AbstractContextManager[FileReader]:
        """Open the file to read it back."""
        return open_file(self._files, self.path, self.path.name)

    def sync(self) -> None:
        """Make the file read-only and put it on the medium."""
        with _reported(self.path), _closing(self._files, self._files.open(self.path)) as descriptor:
            self._files.seal(descriptor)
            self._files.sync(descriptor)


class FileReader:
    """An open file."""

    def __init__(self, files: Files, path: Path, descriptor: int, entry: Entry) -> None:
        self.entry = entry
        self._files = files
        self._path = path
        self._descriptor = descriptor

    def read(self, size: int, offset: int) -> bytes:
        """Read until `size` bytes are there or the file ends; one call, and no copy, in the usual case."""
        parts: list[bytes] = []
        missing = size
        with _reported(self._path):
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
    with _reported(path, NotFound):
        descriptor = files.open(path)
    try:
        with _reported(path):
            entry = _entry(key, files.status(descriptor))
        if entry.kind != "file":
            raise CorruptObject(f"{path} is not a regular file; move it away and run fsck --repair")
        yield FileReader(files, path, descriptor, entry)
    finally:
        with suppress(OSError):  # nothing was written through it
            files.close(descriptor)


@contextmanager
def _closing(files: Files, descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        files.close(descriptor)


@contextmanager
def _reported(path: Path, absent: type[StoreError] = StoreUnavailable) -> Iterator[None]:
    """Turn what the file system says into one of the store's errors."""
    try:
        yield
    except FileNotFoundError:
        raise absent(f"{path} does not exist") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise CorruptObject(f"{path} is a symbolic link, which is not followed; replace it by the file") from None
        raise StoreUnavailable(f"{path}: {error.strerror or error}; {_remedy(error.errno)}") from error


def _entry(key: str, status: os.stat_result) -> Entry:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
    version = (status.st_ino, status.st_size, status.st_mtime_ns)
    return Entry(key, status.st_size, status.st_mtime, kind, bool(status.st_mode & 0o222), version)


def _remedy(number: int | None) -> str:
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "nothing was published; free space and try again"
    if number in (errno.EMFILE, errno.ENFILE):
        return "raise the limit of open files (ulimit -n) and try again"
    if number in _NO_LOCKS:
        return "the file system has no locks, so nothing can be removed safely; stop what writes, or use another"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "check the permissions and that the file system is writable and has hard links, and try again"
    return "check the disk, run fsck, and try again"
