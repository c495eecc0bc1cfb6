"""The file operations of a store, each one system call or the shortest run of them, and atomic writes of files.

They are methods of one object so that a test can hand the store another one that records, fails or kills the process at
the k-th call. This module makes no decisions: `factorize.storage.objects` makes publications atomic.
"""

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from factorize.errors import InvalidParameter
from factorize.format.container import local_path

FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
"""The call that syncs on macOS, where fsync leaves the data in the drive's cache; None elsewhere."""

_OS_ERROR = re.compile(r"(?:os error|code:) (\d+)")  # the second, before safetensors 0.6
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # A FIFO must not block its opener.
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Files:
    """The real file system. Every method raises OSError and nothing else."""

    MAX_SYNCS = 16
    """The most files that are synced at the same time."""

    def make_directory(self, path: Path, mode: int = 0o777) -> None:
        """Create a directory if there is none, with these permissions at most."""
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            if not path.is_dir():
                raise

    def create(self, path: Path) -> int:
        """Create a file that must not exist, for its owner only, and return its descriptor."""
        return os.open(path, _CREATE, 0o600)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of the data and return how many bytes."""
        return os.write(descriptor, data)

    def produce(self, path: Path, write: Callable[[Path], None]) -> None:
        """Let safetensors write a file by its path; its error, which holds the number as text, becomes an OSError."""
        from safetensors import SafetensorError

        try:
            write(path)
        except SafetensorError as error:
            number = _OS_ERROR.search(str(error))
            raise OSError(int(number[1]) if number else errno.EIO, str(error)) from None

    def seal(self, descriptor: int) -> None:
        """Make a file read-only for everybody; the store's root directory decides who may reach it."""
        os.fchmod(descriptor, 0o444)

    def sync(self, descriptor: int) -> None:
        """Put a file's data on the medium."""
        if FULL_SYNC is None:
            os.fsync(descriptor)
        else:
            fcntl.fcntl(descriptor, FULL_SYNC)

    def sync_directory(self, path: Path) -> None:
        """Put a directory's entries on the medium."""
        descriptor = os.open(path, _FOLDER)
        try:
            self.sync(descriptor)
        finally:
            os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; FileExistsError if that name is taken. This is the atomic put-if-absent."""
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Move a file within the file system."""
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        os.unlink(path)

    def lock(self, path: Path, exclusive: bool) -> int:
        """Open a file and wait for a lock on it, which ends with the descriptor or the process."""
        descriptor = os.open(path, _READ)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def refresh(self, path: Path) -> None:
        """Set a file's time to now."""
        os.utime(path, follow_symlinks=False)

    def open(self, path: Path) -> int:
        """Open for reading; a symbolic link is refused (ELOOP)."""
        return os.open(path, _READ)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read at most `size` bytes at an offset."""
        return os.pread(descriptor, size, offset)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def status(self, path: Path | int) -> os.stat_result:
        """Return the status of a path, links not followed, or of a descriptor."""
        return os.fstat(path) if isinstance(path, int) else os.lstat(path)

    def list(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(os.listdir(path))


def check_is_file(target: Path) -> None:
    """Refuse a target that is no file; root could otherwise replace a device, or the link `/dev/stdout`."""
    is_stream = str(target) == "-" or (target.is_symlink() and os.path.abspath(target).startswith(("/dev/", "/proc/")))
    if is_stream or (target.exists() and not target.is_file()):
        what = "a stream" if is_stream else "a folder or a device"
        raise InvalidParameter(f"{target} is {what}; name the file to write", field="to")


@contextmanager
def write_whole(target: Path) -> Iterator[Path]:
    """Yield a temporary path, and then rename the file to the target; file and name are on the disk on return.

    Raises:
        OSError: the file cannot be written; the earlier file is still there.
        InvalidParameter: see `check_is_file`.
    """
    target = local_path(target)
    check_is_file(target)
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part{target.suffix}")
    try:
        yield part
        with part.open("rb") as file:
            Files().sync(file.fileno())
        os.replace(part, target)
    except OSError as error:
        if error.errno:  # a full disk names no file
            error.filename = error.filename or str(target)
        raise
    finally:
        part.unlink(missing_ok=True)
    Files().sync_directory(target.parent)


def replace_file(target: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file; see `write_whole`."""
    with write_whole(target) as part, part.open("xb") as file:
        file.writelines(pieces)
