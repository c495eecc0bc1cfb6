"""The cache of factor files on this machine, by digest: published whole or not at all, verified on every read."""

import atexit
import errno
import os
import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from factorize.encoding import check_digest
from factorize.errors import CacheUnusable, CorruptObject, InvalidParameter, Revoked, StoreUnavailable
from factorize.format.container import local_path
from factorize.format.files import replace_file
from factorize.format.manifest import Manifest, check_file

VARIABLE = "FACTORIZE_CACHE"
"""The environment variable that names the folder."""


class FactorCache:
    """A folder of factor files, shared by all processes of a machine.

    Layout: `factors/<digest>.safetensors`; `specs/<spec digest>` with the digest of the answer that was given to that
    spec; `revoked/<digest>` with the reason why a file that was here is here no more. Files may be deleted at any time.

    Args:
        folder: by default $FACTORIZE_CACHE, else the platform's folder for caches.
            Where the default cannot be written, a folder of this process takes its place.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = local_path(folder) if folder is not None else default_folder()
        self._named = folder is not None

    def path(self, digest: str) -> Path:
        """Return the path to which the file of a digest is written, and create its folder.

        Raises:
            InvalidParameter: `digest` is no digest.
            StoreUnavailable: the folder that was named cannot be written.
        """
        return self._writable("factors") / f"{check_digest(digest)}.safetensors"

    def find(self, digest: str) -> tuple[Path, Manifest] | None:
        """Return the verified file and its manifest by its digest, or by that of a spec that was asked for before.

        A damaged file is deleted. It counts as missing, as does a file that cannot be read.

        Raises:
            Revoked: this digest was taken back.
        """
        self.check_not_revoked(digest)
        for name in (digest, self._answer(digest)):
            if name is not None:
                path = self.folder / "factors" / f"{check_digest(name)}.safetensors"
                with suppress(OSError):
                    try:
                        return path, check_file(path, name)
                    except CorruptObject:
                        path.unlink(missing_ok=True)
        return None

    def remember(self, spec_digest: str, digest: str) -> None:
        """Note the digest that answered a spec, so that it is found again without the service; warn if that fails."""
        if digest not in (spec_digest, self._answer(spec_digest)):
            try:
                self.publish(self._writable("specs") / check_digest(spec_digest), [check_digest(digest).encode()])
            except StoreUnavailable as error:
                warnings.warn(str(error), CacheUnusable, stacklevel=2)

    def revoke(self, digest: str, reason: str) -> None:
        """Remove the file of a digest, if it is here, for good, and warn; later requests for it get the reason.

        Raises:
            StoreUnavailable: the folder cannot be written.
        """
        path = self.folder / "factors" / f"{check_digest(digest)}.safetensors"
        if path.exists():
            self.publish(self._writable("revoked") / digest, [reason.encode()])
            path.unlink(missing_ok=True)
            message = f"the result {digest} was revoked: {reason}; it was removed from {self.folder}"
            warnings.warn(message, CacheUnusable, stacklevel=2)

    def check_not_revoked(self, digest: str) -> None:
        """Raise Revoked where a digest that was here has been taken back."""
        with suppress(OSError):
            reason = (self.folder / "revoked" / check_digest(digest)).read_text(errors="replace")
            message = f"the result {digest} was revoked: {reason}; solve its spec again, with another release"
            raise Revoked(message, digest=digest, reason=reason)

    def publish(self, target: Path, pieces: Iterable[bytes | memoryview]) -> None:
        """Write a file of the cache; see `replace_file`.

        Raises:
            StoreUnavailable: the folder cannot be written.
        """
        try:
            replace_file(target, pieces)
        except OSError as error:
            raise StoreUnavailable(
                f"{target} cannot be written: {error.strerror}; set {VARIABLE} to a writable folder"
            ) from error

    def _answer(self, spec_digest: str) -> str | None:
        with suppress(OSError, UnicodeDecodeError, InvalidParameter):
            return check_digest((self.folder / "specs" / check_digest(spec_digest)).read_text())
        return None

    def _writable(self, name: str) -> Path:
        folder = self.folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            text = f"{folder} cannot be written: {error.strerror}; set {VARIABLE} to a writable folder"
            if self._named:
                raise StoreUnavailable(text) from error
            warnings.warn(f"{text}. Loaded factors are kept for this process only", CacheUnusable, stacklevel=2)
            self.folder, self._named = _folder_of_this_process(), True
            return self._writable(name)
        return folder


@cache
def _folder_of_this_process() -> Path:
    import shutil  # It loads lzma.
    import tempfile

    folder = tempfile.mkdtemp(prefix="factorize-cache-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def default_folder() -> Path:
    """Return $FACTORIZE_CACHE, else `factorize` in the platform's folder for caches."""
    if named := os.environ.get(VARIABLE):
        return local_path(named)
    home = Path(os.path.expanduser("~"))
    if not home.is_absolute():
        return Path(os.devnull) / "factorize"  # An account without a home cannot write there.
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "factorize"
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if os.path.isabs(named) else home / ".cache") / "factorize"  # XDG ignores a relative path.
