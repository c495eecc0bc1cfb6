"""The requests to a bucket, each one call of obstore, whose errors become the store's errors.

They are methods so that a test can hand the store another bucket, which fails or kills the process at the k-th request.
obstore is an extra (`factorize[cloud]`) and is imported with the first bucket.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from factorize.errors import NotFound, StoreUnavailable
from factorize.storage.objects import ObjectEntry

_SKEW = re.compile("RequestTimeTooSkewed|RequestExpired|AuthenticationFailed.*(date|time)", re.IGNORECASE | re.DOTALL)
_REFUSAL = re.compile(r"\b40[13]\b|AccessDenied|PermissionDenied|Unauth")
_SHORTAGE = re.compile(r"\b507\b|InsufficientStorage|QuotaExceeded|StorageFull")
_REMEDIES = (
    (_SKEW, "store-clock", "this machine's clock is wrong; set it, by NTP for example"),
    (re.compile("NoSuchBucket"), "store-gone", "create the bucket, or check its name"),
    (_REFUSAL, "store-forbidden", "check the credentials and the bucket's policy"),
    (_SHORTAGE, "store-full", "nothing was published; free space"),
    (re.compile(""), "store-unreachable", "try again"),
)
"""The messages of providers, with the state and the remedy of each; the first that matches applies."""


Version = dict[str, str]
"""The fields by which a provider tells versions of an object apart: `e_tag`, `version`, or both."""


class BucketCalls:
    """The requests to one bucket, below one prefix. Every method raises StoreUnavailable where the bucket refuses.

    Args:
        store: one of obstore's stores.
    """

    def __init__(self, store: Any) -> None:
        import obstore
        from obstore.exceptions import BaseError

        self._store = store
        self._calls: Any = obstore
        self._errors: tuple[type[Exception], ...] = (BaseError, OSError)

    def create(self, key: str, data: bytes | Path) -> bool:
        """Write an object in one request that succeeds only if the key is free, and return whether it was."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._reported(key):
            try:
                self._calls.put(self._store, key, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
        return True

    def upload(self, key: str, path: Path) -> None:
        """Write a file in parts, over whatever is at the key; readers see it whole or not at all."""
        with self._reported(key):
            self._calls.put(self._store, key, path, use_multipart=True, chunk_size=1 << 24, max_concurrency=4)

    def write(self, key: str, data: bytes | Path, version: Version | None = None) -> None:
        """Write an object over whatever is at the key, or only over this version of it."""
        with self._reported(key):
            self._calls.put(self._store, key, data, mode=version or "overwrite", use_multipart=False)

    def status(self, key: str) -> ObjectEntry:
        """Return the bucket's entry of an object; raise NotFound if there is none."""
        with self._reported(key, NotFound):
            return _entry_of(self._calls.head(self._store, key))

    def get(self, key: str, at_most: int) -> tuple[ObjectEntry, Version, bytes | None]:
        """Return the bucket's entry of an object, its version, and its bytes if there are no more than `at_most`."""
        with self._reported(key, NotFound):
            answer = self._calls.get(self._store, key)
            entry = _entry_of(answer.meta)
            version = {name: answer.meta[name] for name in ("e_tag", "version") if answer.meta.get(name)}
            return entry, version, bytes(answer.bytes()) if entry.size <= at_most else None

    def read(self, key: str, start: int, stop: int, version: Version) -> bytes:
        """Return bytes start..stop-1 of a version."""
        options = {"range": (start, stop)} | ({"if_match": version["e_tag"]} if "e_tag" in version else {})
        with self._reported(key, NotFound):
            return bytes(self._calls.get(self._store, key, options=options).bytes())

    def list(self, prefix: str = "") -> Iterator[ObjectEntry]:
        """List the objects below a folder, page by page; buckets give them by key."""
        with self._reported(prefix):
            for page in self._calls.list(self._store, prefix=prefix or None, chunk_size=1000):
                yield from map(_entry_of, page)

    def copy(self, key: str, target: str) -> None:
        """Copy an object within the bucket, over whatever is at the target."""
        with self._reported(key, NotFound):
            self._calls.copy(self._store, key, target)

    def remove(self, key: str) -> None:
        """Remove an object; it is no error if there is none."""
        with self._reported(key):
            try:
                self._calls.delete(self._store, key)
            except FileNotFoundError:
                return

    def sign(self, key: str, seconds: float) -> str:
        """Return a URL by which anybody may read an object for some time."""
        with self._reported(key):
            return self._calls.sign(self._store, "GET", key, timedelta(seconds=seconds))

    @contextmanager
    def _reported(self, key: str, absent: type[NotFound] | None = None) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            text = str(error)
            if absent is not None and isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text:
                raise absent(f"{key} does not exist") from None
            state, remedy = next((state, way) for pattern, state, way in _REMEDIES if pattern.search(text))
            raise StoreUnavailable(
                f"the bucket does not answer for {key or 'its list'}: {first_line(error)}; {remedy}", state=state
            ) from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]


def _entry_of(meta: dict[str, Any]) -> ObjectEntry:
    """Return the entry of an object from obstore's description: path, size, last_modified, e_tag."""
    modified = meta["last_modified"].timestamp()
    tag = int.from_bytes(hashlib.sha256(str(meta.get("e_tag")).encode()).digest()[:8], "big")
    version = (tag, meta["size"], int(modified * 1000))
    return ObjectEntry(meta["path"], meta["size"], modified, "file", version)
