"""The location of a store, and the marker that says of which format it is."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from factorize.encoding import canonical_json
from factorize.errors import InvalidParameter, NotFound, StoreUnavailable
from factorize.storage.objects import Objects, read_object
from factorize.storage.publication import Publisher

MARKER = "store.json"
FORMAT = {"format": "factorize-store", "version": 1}


def directory_of(url: str) -> Path:
    """Return the absolute directory that a path or file:// URL names.

    Raises:
        InvalidParameter: it names none, or an object store.
    """
    scheme, separator, _ = url.partition("://")
    if separator and scheme != "file":
        raise InvalidParameter(
            f"{scheme[:20]}:// is no directory, and object stores are not in this release; give a path or file:// URL",
            field="store",
        )
    path = _path_of(url) if separator else url
    if not path or "\0" in path:
        raise InvalidParameter(f"{path[:40]!r} is not a directory's path; give one, or a file:// URL", field="store")
    return (Path(path) if separator else Path(path).expanduser()).absolute()


def _path_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        message = "a store's file:// URL has no host and an absolute path: file:///path"
        raise InvalidParameter(message, field="store")
    return unquote(parts.path)


def check_format(objects: Objects, url: str, *, create: bool) -> None:
    """Compare a store's marker with this release's format; write it if there is none and `create` is true.

    Args:
        objects: the medium.
        url: what the store is called in messages.
        create: whether a missing marker is written.

    Raises:
        NotFound: no marker.
        StoreUnavailable: another format.
    """
    try:
        text = read_object(objects, MARKER)
    except NotFound:
        if not create:
            raise NotFound(f"there is no store at {url}; check the path") from None
        Publisher(objects).publish(MARKER, canonical_json(FORMAT), lambda: True)
        text = read_object(objects, MARKER)
    if text != canonical_json(FORMAT):
        raise StoreUnavailable(
            f"{url}/{MARKER} is not that of store format {FORMAT['version']}; use the release that wrote it, "
            "or remove that file if it is damaged"
        )
