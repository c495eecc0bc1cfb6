"""Scratch folders: of one process, in the directory for temporary files, and removed also where the process was killed.

The owner holds a lock on its folder, which ends with the process however that ends. The first folder that a process
makes removes those of this user that nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

_PREFIX = "factorize."
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Taken(Exception):
    """A folder is another's, or gone."""


class ScratchFolder:
    """A new folder that only this user may enter; close it, or use it in a `with` statement.

    Args:
        kind: word in its name that says what it is for.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, kind: str) -> None:
        _sweep(tempfile.gettempdir())
        while True:
            self._folder = tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{kind}.")
            with suppress(_Taken):
                self._held = _lock(self._folder.name)
                return
            self._folder.cleanup()  # another process sweeps at this very moment, and this was not locked yet

    @property
    def path(self) -> Path:
        """Where it is."""
        return Path(self._folder.name)

    def close(self) -> None:
        """Remove it and all that is in it; a second time does nothing.

        Raises:
            OSError: something in it cannot be removed.
        """
        held, self._held = self._held, -1
        if held < 0:
            return
        try:
            self._folder.cleanup()
        finally:
            os.close(held)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove it, whatever happened."""
        self.close()


@cache
def _sweep(directory: str) -> None:
    """Remove the folders of killed processes of this user; what cannot be removed stays."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                _remove_left(entry)


def _remove_left(entry: os.DirEntry[str]) -> None:
    with suppress(OSError, _Taken):
        if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
            held = _lock(entry.path, must=True)
            shutil.rmtree(entry.path, ignore_errors=True)
            os.close(held)


def _lock(path: str, *, must: bool = False) -> int:
    """Return a descriptor that holds the lock of a folder.

    Args:
        path: of the folder.
        must: whether a file system that locks no folders, such as NFS, is an error; nothing is swept there.

    Raises:
        _Taken: another process holds it, or has removed it.
        OSError: it cannot be opened, or not be locked though it must.
    """
    try:
        held = os.open(path, _OPEN)
    except FileNotFoundError:
        raise _Taken from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(held), os.stat(path)):
            return held
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        if not must:
            return held
        os.close(held)
        raise
    os.close(held)
    raise _Taken
