"""The requests to a bucket, each one call of obstore, with what it answers turned into the store's errors.

They are methods of one object so that a test can hand the store another one that fails or kills the process at the k-th
request. obstore is an extra (`factorize[cloud]`) and is imported with the first bucket.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from factorize.errors import InvalidParameter, NotFound, StoreUnavailable

CONNECT_SECONDS = 5
REQUEST_SECONDS = 120
RETRY_SECONDS = 30
_SKEW = re.compile("RequestTimeTooSkewed|RequestExpired|AuthenticationFailed.*(date|time)", re.IGNORECASE | re.DOTALL)
_REFUSED = re.compile(r"\b40[13]\b|AccessDenied|PermissionDenied|Unauth")
_FULL = re.compile(r"\b507\b|InsufficientStorage|QuotaExceeded|StorageFull")
_REMEDIES = (
    (_SKEW, "store-clock", "this machine's clock is off; set it, by NTP say"),
    (re.compile("NoSuchBucket"), "store-gone", "create the bucket, or check its name"),
    (_REFUSED, "store-forbidden", "check the credentials and the bucket's policy"),
    (_FULL, "store-full", "nothing was published; free space"),
    (re.compile(""), "store-unreachable", "try again"),
)
"""What a provider says, the state that it is, and the way out; the first that fits."""

Meta = dict[str, Any]
"""obstore's description of an object: path, size, last_modified, e_tag, version."""


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
        """Write an object in one request that succeeds only if the key is free; whether it was."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._reported(key):
            try:
                self._calls.put(self._store, key, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
        return True

    def upload(self, key: str, path: Path) -> None:
        """Write a file in parts, whatever stands at the key; seen whole or not at all."""
        with self._reported(key):
            self._calls.put(self._store, key, path, use_multipart=True, chunk_size=1 << 24, max_concurrency=4)

    def write(self, key: str, data: bytes) -> None:
        """Write a small object, whatever stands at the key."""
        with self._reported(key):
            self._calls.put(self._store, key, data, use_multipart=False)

    def head(self, key: str) -> Meta:
        """Describe an object; NotFound if there is none."""
        with self._reported(key, NotFound):
            return self._calls.head(self._store, key)

    def get(self, key: str, at_most: int) -> tuple[Meta, bytes | None]:
        """Describe an object, and return its bytes if there are no more than `at_most`."""
        with self._reported(key, NotFound):
            answer = self._calls.get(self._store, key)
            meta = answer.meta
            return meta, bytes(answer.bytes()) if meta["size"] <= at_most else None

    def read(self, key: str, start: int, stop: int, tag: str | None) -> bytes:
        """Return bytes start..stop-1 of the version with this tag."""
        options: dict[str, Any] = {"range": (start, stop)} | ({"if_match": tag} if tag else {})
        with self._reported(key, NotFound):
            return bytes(self._calls.get(self._store, key, options=options).bytes())

    def pages(self, prefix: str, after: str = "") -> Iterator[Sequence[Meta]]:
        """List everything below a folder, by key, a page at a time; only what sorts after a key, if one is given."""
        with self._reported(prefix):
            yield from self._calls.list(self._store, prefix=prefix or None, offset=after or None, chunk_size=1000)

    def copy(self, key: str, target: str) -> None:
        """Copy an object within the bucket, over whatever stands at the target."""
        with self._reported(key, NotFound):
            self._calls.copy(self._store, key, target)

    def delete(self, key: str) -> None:
        """Remove an object; that there is none is no error."""
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
                f"the bucket does not answer for {key or 'its list'}: {_first_line(error)}; {remedy}", state=state
            ) from None


def connect(url: str) -> BucketCalls:
    """Return the requests to a bucket. Nothing is asked of it yet.

    Args:
        url: `s3://bucket/prefix`, `gs://...` or `az://container/prefix`. Credentials and endpoint come from the
            environment, as the provider's own tools read them (`AWS_*`, `GOOGLE_*`, `AZURE_*`).

    Raises:
        InvalidParameter: obstore is not installed, or refuses the URL.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        message = f"a store at {url[:5]}... needs obstore; pip install 'factorize[cloud]'"
        raise InvalidParameter(message, field="store") from None
    plain = any(os.environ.get(name, "").lower() == "true" for name in ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP"))
    timeouts = {"connect_timeout": timedelta(seconds=CONNECT_SECONDS), "timeout": timedelta(seconds=REQUEST_SECONDS)}
    options: Any = {
        "client_options": {"allow_http": plain, **timeouts},
        "retry_config": {"max_retries": 5, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
    }
    if url.startswith("s3://"):
        options["config"] = {"aws_checksum_algorithm": "SHA256"}
    try:
        return BucketCalls(from_url(url, **options))
    except (BaseError, ValueError) as error:
        raise InvalidParameter(f"{url} cannot be used: {_first_line(error)}", field="store") from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
