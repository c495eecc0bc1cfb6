"""The lock of a run: one process at a time continues a receipt or a checkpoint, since two would use one noise twice.

It is the kernel's lock on `FILE.lock` beside the continued file, by flock: a record lock would end when its process
closes any descriptor of that file, as after a copy of the folder. It ends with its process, however that ends, and no
fork keeps it. The lock's file names its holder, for the message to the second process.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from factorize.errors import InvalidParameter
from factorize.format.container import local_path

_MAX_HOLDER_BYTES = 300
"""The most bytes of the holder's name in the lock's file: a host's name has at most 253 characters."""
_held: dict[Path, tuple[int, RunLock]] = {}


def _forget() -> None:
    """Close what a fork has inherited, so that a lock ends with the process that took it."""
    while _held:
        os.close(_held.popitem()[1][0])


os.register_at_fork(after_in_child=_forget)


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a run's file, to which no link leads: a file that is replaced replaces the link.

    Raises:
        InvalidParameter: no file can have that name.
    """
    return Path(os.path.realpath(local_path(path)))


class RunLock:
    """The right to continue a run, which is kept until `release` or the end of the process.

    Within one process the lock goes to the last one that takes it, for example when a notebook's cell runs again. So a
    holder also compares the file with its own last write.

    Args:
        path: the file that is continued.
        field: the parameter that named it, for the message.
        alone: whether a second holder in this process is refused, too.

    Raises:
        InvalidParameter: another process has it, or with `alone` this one.
        OSError: the lock's file cannot be made.
    """

    def __init__(self, path: str | os.PathLike[str], *, field: str, alone: bool = False) -> None:
        whole = real_path(path)
        self._path = whole.with_name(whole.name + ".lock")
        known = _held.get(self._path)
        if known is not None and alone:
            raise InvalidParameter(f"this process already continues {whole}; stop that run first", field=field)
        _held[self._path] = (self._take(field) if known is None else known[0], self)

    def release(self) -> None:
        """Let another process go on; nothing happens if another holder in this process has taken it since."""
        descriptor, holder = _held.get(self._path, (-1, None))
        if holder is self:
            del _held[self._path]
            os.close(descriptor)

    def _take(self, field: str) -> int:
        descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, _MAX_HOLDER_BYTES).decode(errors="replace").strip()
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise
            raise InvalidParameter(
                f"{self._path.with_suffix('')} is in use by {holder or 'another process'}, and a second process would "
                "use the noise of the same steps twice; end that process first, or begin a new run with its own seed "
                "and path",
                field=field,
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        return descriptor
