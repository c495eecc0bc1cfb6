"""Objects in a directory: files below a root, published by a hard link.

A publication writes a file in `tmp/`, syncs it, links it to its final name (which fails if the name is taken, so
nothing is ever overwritten), and syncs the folder with any new folders above it. A reader sees the whole object or
none, also after a crash.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from factorize.errors import NotFound
from factorize.format.files import Files
from factorize.storage.objects import (
    NO_LOCKS,
    STAGING,
    ObjectEntry,
    Objects,
    Reader,
    StagedFile,
    closing,
    entry_of,
    open_file,
    reported,
)

MAX_KNOWN_FOLDERS = 4096
"""The most folders that are remembered: 1,024 of a store, and one for each family, which could fill the memory."""

Value = TypeVar("Value")


class Directory(Objects):
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
    def stage(self) -> Iterator[StagedFile]:
        """Yield a file in `tmp/`, and remove it at the end in any case."""
        path = self.root / STAGING / f"{os.getpid()}-{secrets.token_hex(8)}"
        with reported(path.parent):
            self._files.make_directory(path.parent)  # Nothing is lost with it, so it needs no sync.
        try:
            yield StagedFile(path, self._files)
        finally:
            with suppress(OSError):
                self._files.unlink(path)

    def sync_all(self, staged: Sequence[StagedFile]) -> None:
        """Make the files read-only and sync them, several at a time.

        A file system writes its journal for all waiting calls, so many together take as long as a few. (One
        `syncfs` would be faster still, but some file systems and older kernels do not report its errors.)
        """
        with reported(self.root / STAGING), ThreadPoolExecutor(self._files.MAX_SYNCS, "sync") as pool:
            for _ in pool.map(self._seal, [one.path for one in staged]):
                pass

    def _seal(self, path: Path) -> None:
        with closing(self._files, self._files.open(path)) as descriptor:
            self._files.seal(descriptor)
            self._files.sync(descriptor)

    def put(self, key: str, staged: StagedFile) -> bool:
        """Link the file to its name and sync the folder."""
        target = self.root / key
        with reported(self.root):
            created = self._into(target.parent, partial(self._link, staged.path, target))
            self._settle(target.parent)
        return created

    def replace(self, key: str, staged: StagedFile | None, kept: str) -> None:
        """Link the object to its other name and rename the file over it; without a file, rename the object."""
        path, other = self.root / key, self.root / kept
        linked = staged is not None and self.status(key).kind != "directory"
        with reported(path, NotFound):
            self._into(other.parent, partial(self._files.link if linked else self._files.rename, path, other))
            self._settle(other.parent)
            if staged is not None:
                self._files.rename(staged.path, path)
            self._files.sync_directory(path.parent)

    def open(self, key: str) -> AbstractContextManager[Reader]:
        """Open a regular file below the root."""
        return open_file(self._files, self.root / key, key)

    def status(self, key: str) -> ObjectEntry:
        """Look at a path, symbolic links not followed."""
        path = self.root / key
        with reported(path, NotFound):
            return entry_of(key, self._files.status(path))

    def list(self, prefix: str = "") -> Iterator[ObjectEntry]:
        """Walk the folder; a folder that does not exist is empty, and one that cannot be read is an error."""
        path = self.root / prefix
        with reported(path):
            try:
                names = self._files.list(path)
            except FileNotFoundError:
                return
        for name in names:
            key = f"{prefix}/{name}" if prefix else name
            try:
                entry = self.status(key)
            except NotFound:
                continue  # It was removed after the listing.
            if entry.kind == "directory":
                yield from self.list(key)
            else:
                yield entry

    def names(self, prefix: str) -> Iterator[str]:
        """Walk the folder; a name with a suffix belongs to no folder."""
        path = self.root / prefix
        with reported(path):
            try:
                names = self._files.list(path)
            except (FileNotFoundError, NotADirectoryError):
                return
        for name in names:
            key = f"{prefix}/{name}"
            yield from [key] if "." in name else self.names(key)

    def delete(self, key: str) -> None:
        """Unlink the file, then sync the folder."""
        path = self.root / key
        with reported(path, NotFound):
            self._files.unlink(path)
            self._files.sync_directory(path.parent)

    def refresh(self, key: str) -> None:
        """Set the file's time to now."""
        path = self.root / key
        with reported(path, NotFound):
            self._files.refresh(path)

    def make_durable(self, key: str) -> None:
        """Sync the folder, which the process that made the name may not have done yet."""
        with reported(self.root):
            self._settle((self.root / key).parent)

    @contextmanager
    def lock(self, key: str, *, exclusive: bool) -> Iterator[Callable[[], None]]:
        """Lock a file, across processes and threads; where the file system has no locks, shared holders go on."""
        path = self.root / key
        descriptor = None
        with reported(path):
            try:
                descriptor = self._files.lock(path, exclusive)
            except OSError as error:
                if exclusive or error.errno not in NO_LOCKS:
                    raise
        try:
            yield lambda: None  # The system keeps a lock while its holder lives.
        finally:
            if descriptor is not None:
                with suppress(OSError):  # The lock is released all the same.
                    self._files.close(descriptor)

    def _link(self, source: Path, target: Path) -> bool:
        """Link a file to its name, and return whether the name was free."""
        try:
            self._files.link(source, target)
        except FileExistsError:
            return False
        return True

    def _into(self, folder: Path, name: Callable[[], Value]) -> Value:
        """Name a file in a folder, which is made anew if somebody removed it; call `_settle` next."""
        self._folder(folder)
        try:
            return name()
        except FileNotFoundError:
            self._durable = {self.root}
            self._folder(folder)
            return name()

    def _folder(self, path: Path) -> None:
        """Create a folder and its parents, unless they are known to survive a crash."""
        if path not in self._durable:
            self._folder(path.parent)
            self._files.make_directory(path)

    def _settle(self, folder: Path) -> None:
        """Put the names in a folder on the medium, and the folder itself, once per folder and process.

        Another process may have made a name or a folder and not synced it yet, so these are synced, too.
        """
        new, above = [], folder
        while above not in self._durable:
            new.append(above)
            above = above.parent
        for path in sorted({folder, *(path.parent for path in new)}):
            self._files.sync_directory(path)
        if len(self._durable) > MAX_KNOWN_FOLDERS:
            self._durable = {self.root}
        self._durable.update(new)


def make_root(files: Files, root: Path) -> None:
    """Create a store's root and its missing parents durably; only its owner can enter a new root.

    Raises:
        StoreUnavailable: the root cannot be created.
    """
    with reported(root):
        missing = [path for path in (root, *root.parents) if not path.is_dir()]
        for path in reversed(missing):
            files.make_directory(path, 0o700 if path == root else 0o777)
            files.sync_directory(path.parent)
