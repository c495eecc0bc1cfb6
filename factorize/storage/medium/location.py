"""The location of a store: a directory, or a bucket and a prefix in it."""

import os
import re
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit, urlunsplit

from factorize.errors import InvalidParameter
from factorize.format.container import local_path

MARKER = "store.json"
LEDGER_FILE = "jobs.sqlite"
WITHDRAWN_KEYS = "withdrawn-keys"
"""The folder with the ids of a service's revoked keys."""
BUCKETS = ("s3", "gs", "az")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_PREFIX = re.compile(r"(/[A-Za-z0-9._=+-]+)*/?")


def in_bucket(url: str) -> bool:
    """Return whether a URL names a bucket, and not a directory."""
    return url.partition("://")[0] in BUCKETS and "://" in url


def bucket_of(url: str) -> str:
    """Return the URL of a bucket and a prefix in it.

    Raises:
        InvalidParameter: the URL has a query, a user or a port, or a name that no bucket has.
    """
    parts = urlsplit(url)
    plain = not parts.query and not parts.fragment and ".." not in parts.path
    if not plain or not _BUCKET.fullmatch(parts.netloc) or not _PREFIX.fullmatch(parts.path):
        raise InvalidParameter(
            f"{parts.scheme}://... does not name a bucket and a prefix; write {parts.scheme}://bucket/prefix, and set "
            "credentials and endpoint in the environment",
            field="store",
        )
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def directory_of(url: str) -> Path:
    """Return the absolute directory that a path or file:// URL names.

    Raises:
        InvalidParameter: the URL names no directory.
    """
    scheme, separator, _ = url.partition("://")
    if separator and scheme != "file":
        raise InvalidParameter(
            f"{scheme[:20]}:// is neither a directory nor a bucket; give a path, or a URL that begins with file, s3, "
            "gs or az",
            field="store",
        )
    parts = urlsplit(url)
    if separator and (parts.netloc not in ("", "localhost") or not parts.path.startswith("/")):
        message = "a store's file:// URL needs an absolute path and no host: file:///path"
        raise InvalidParameter(message, field="store")
    # Names need not be UTF-8, and URLs hold the bytes of names.
    path = os.fsdecode(unquote_to_bytes(os.fsencode(parts.path))) if separator else url
    return local_path(path, field="store").absolute()
