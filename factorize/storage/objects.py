"""Objects by key: the few operations that a store needs of its medium.

`factorize.storage.medium.directory` and `factorize.storage.medium.bucket` provide them. Another medium provides the
same operations and passes tests/contract/test_store_contract.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

STAGING = "tmp"
Kind = Literal["file", "directory", "symlink", "other"]


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """What a medium knows of an object without reading it.

    Attributes:
        key: path below the root, with slashes.
        size: bytes.
        modified: seconds since 1970.
        kind: `file`, or what stands at an object's place instead.
        version: changes when the object is replaced or written to.
    """

    key: str
    size: int
    modified: float
    kind: Kind
    version: tuple[int, ...]


class Reader(Protocol):
    """An open object."""

    entry: ObjectEntry

    def read(self, size: int, offset: int) -> bytes:
        """Return `size` bytes at an offset, fewer only at the end of the object."""


class Staged(Protocol):
    """A file on its way into a store, private to the one who writes it."""

    path: Path

    def write(self, data: bytes | memoryview) -> None:
        """Create the file with these bytes."""

    def produce(self, write: Callable[[Path], None]) -> None:
        """Let a library write the file by its path."""

    def open(self) -> AbstractContextManager[Reader]:
        """Open the file to read it back."""


class Objects(Protocol):
    """A medium. Every operation raises StoreUnavailable where the medium refuses; nothing was published then."""

    def stage(self) -> AbstractContextManager[Staged]:
        """Return a private temporary file that is removed at the end."""

    def sync_all(self, staged: Sequence[Staged]) -> None:
        """Make files read-only and put them on the medium, which writes its journal once for all of them."""

    def put(self, key: str, staged: Staged) -> bool:
        """Publish a synced file durably; False, and nothing changed, if the key is taken."""

    def open(self, key: str) -> AbstractContextManager[Reader]:
        """Open an object, or raise NotFound; CorruptObject if something else than a file stands there."""

    def status(self, key: str) -> ObjectEntry:
        """Return what is known of an object, or raise NotFound."""

    def list(self, prefix: str = "") -> Iterator[ObjectEntry]:
        """Iterate over everything below a folder (all of it by default), sorted by key."""

    def names(self, prefix: str, after: str = "") -> Iterator[str]:
        """Iterate over the keys below a folder, or those that sort after one, without a look at each object."""

    def move(self, key: str, target: str) -> None:
        """Give an object another key, or raise NotFound."""

    def delete(self, key: str) -> None:
        """Remove an object, or raise NotFound."""

    def refresh(self, key: str) -> None:
        """Make an object count as new, or raise NotFound."""

    def lock(self, key: str, *, exclusive: bool) -> AbstractContextManager[None]:
        """Keep exclusive holders of an object's lock away from each other and from shared ones."""

    def sign(self, key: str, seconds: float) -> str | None:
        """Return a URL by which anybody may read an object for some time; None where the medium has none."""

    def probe(self) -> None:
        """See that the medium keeps the promises above; StoreUnavailable with the one that it breaks."""


def read_object(objects: Objects, key: str) -> bytes:
    """Return all bytes of a small object; raises as `Objects.open` does."""
    with objects.open(key) as reader:
        return reader.read(reader.entry.size, 0)
