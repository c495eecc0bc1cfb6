"""Blobs: factor files, and users' matrices as raw numbers, each under its sha256, which is checked before bytes leave.

The first access to a blob hashes all of it before anything is handed out. Then ranges are read as long as the file is
the one that was hashed: same inode, size and time. A file that was touched is hashed again. Chunks stay in a bounded
cache.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import numpy as np

from factorize.encoding import check_digest, raw_bytes, sha256
from factorize.errors import CorruptObject, InvalidParameter, NotFound, StoreUnavailable
from factorize.factors.factorization import Factorization
from factorize.spec import Spec
from factorize.storage.objects import ObjectEntry, Objects, Reader
from factorize.storage.records import user_matrices
from factorize.workloads.matrix import from_array

CHUNK_BYTES = 1 << 22
CACHE_BYTES = 1 << 28
_MAX_HASHED_BLOBS = 1 << 16  # The most blobs that are remembered as hashed.
_LOCKS = 64  # The number of locks that blobs share by their names.
_TRIES = 3  # The attempts to hash a file that is touched while it is read.

Value = TypeVar("Value")


class Cache(Generic[Value]):
    """The most recently used values, up to a total cost; safe for threads.

    Args:
        limit: largest total cost, in bytes; a value that costs more than that is not kept.
        cost: returns the bytes of one value.
    """

    def __init__(self, limit: int, cost: Callable[[Value], int]) -> None:
        self._limit = limit
        self._cost = cost
        self._total = 0
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Value | None:
        """Return a value, which becomes the most recently used one, or None."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: Value) -> None:
        """Keep a value and drop the least recently used ones."""
        with self._lock:
            self._remove(key)
            cost = self._cost(value)
            if cost <= self._limit:
                self._values[key] = value
                self._total += cost
            while self._total > self._limit:
                self._remove(next(iter(self._values)))

    def drop(self, key: Hashable) -> None:
        """Forget a value."""
        with self._lock:
            self._remove(key)

    def _remove(self, key: Hashable) -> None:
        if key in self._values:
            self._total -= self._cost(self._values.pop(key))


class Blob:
    """One pass over a blob that hashed to its name; its bytes are those of that pass.

    Attributes:
        sha256: its name.
        size: its length in bytes.
        version: version of the file that was read.
    """

    def __init__(self, blobs: Blobs, sha256: str, entry: ObjectEntry) -> None:
        self.sha256, self.size, self.version = sha256, entry.size, entry.version
        self._blobs = blobs

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Iterate over bytes start..stop-1 as read-only views of verified buffers, each at most 4 MiB; no copies.

        Args:
            start: first byte, from 0.
            stop: one past the last byte; the end of the blob by default.

        Raises:
            InvalidParameter: at once, if the range is not within the blob.
            CorruptObject: while iterating, if the file was touched and no longer hashes to its name.
        """
        stop = self.size if stop is None else stop
        if not 0 <= start <= stop <= self.size:
            message = f"bytes {start}:{stop} are outside the blob, which has {self.size} bytes"
            raise InvalidParameter(message, field="range")
        return self._views(start, stop)

    def kept(self, start: int, stop: int) -> memoryview | None:
        """Return the first view of `read` if its bytes are in memory, without reading the medium."""
        chunk = self._blobs.kept(self, start // CHUNK_BYTES)
        return None if chunk is None else _part(chunk, start, stop)

    def _views(self, start: int, stop: int) -> Iterator[memoryview]:
        while start < stop:
            view = _part(self._blobs.chunk(self, start // CHUNK_BYTES), start, stop)
            yield view
            start += len(view)


def _part(chunk: bytes, start: int, stop: int) -> memoryview:
    """Return the part of bytes start..stop-1 of a blob that lies in its chunk with the byte `start`."""
    offset = start % CHUNK_BYTES
    return memoryview(chunk)[offset : offset + stop - start]


class Blobs:
    """The blobs of a store, read with verification; safe for threads.

    Args:
        objects: the medium.
        cache_bytes: memory for verified chunks.
    """

    def __init__(self, objects: Objects, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._objects = objects
        self._cache_bytes = cache_bytes
        self._chunks: Cache[bytes] = Cache(cache_bytes, len)
        self._hashed: Cache[Blob] = Cache(_MAX_HASHED_BLOBS, lambda blob: 1)
        self._damaged: dict[str, tuple[int, ...]] = {}  # the versions that were found damaged, by sha256
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def open(self, sha256: str) -> Blob:
        """Return a blob after hashing it against its name, unless it was hashed before and its file is untouched.

        Raises:
            NotFound: there is no blob of that name.
            CorruptObject: its bytes do not hash to its name.
            StoreUnavailable: it cannot be read.
        """
        version = self._objects.status(blob_key(sha256)).version
        with self._locks[int(sha256[:2], 16) % _LOCKS]:  # One of several threads hashes it.
            blob = self._hashed.get(sha256)
            return blob if blob is not None and blob.version == version else self._hash(sha256)

    def verify(self, sha256: str) -> int:
        """Read a blob anew, hash it against its name and return its size; raises as `open` does."""
        return self._hash(sha256).size

    def sound(self, sha256: str) -> bool:
        """Return whether a blob is there and hashes to its name, by reading it anew."""
        with suppress(NotFound, CorruptObject):
            self.verify(sha256)
            return True
        return False

    def damaged(self, sha256: str, version: tuple[int, ...]) -> bool:
        """Return whether this version of a blob did not hash to its name; another may have replaced it since."""
        return self._damaged.get(sha256) == version

    def kept(self, blob: Blob, index: int) -> bytes | None:
        """Return one chunk of a blob as it was hashed, if it is in memory."""
        return self._chunks.get((blob, index))

    def chunk(self, blob: Blob, index: int) -> bytes:
        """Return one chunk of a blob as it was hashed, from memory or from the medium.

        Raises:
            CorruptObject: the file was touched since, and no longer hashes to its name.
        """
        chunk = self.kept(blob, index)
        if chunk is not None:
            return chunk
        for _ in range(_TRIES):
            with self._objects.open(blob_key(blob.sha256)) as reader:
                chunk, version = _chunk(reader, index), reader.entry.version
            if version == blob.version:
                self._chunks.put((blob, index), chunk)
                return chunk
            blob = self.open(blob.sha256)  # The file was touched.
        message = f"the file of the blob {blob.sha256} keeps changing while it is read; try again"
        raise StoreUnavailable(message)

    def _hash(self, sha256: str) -> Blob:
        """Hash all of a blob, and keep its chunks if they fit."""
        state = hashlib.sha256()
        with self._objects.open(blob_key(sha256)) as reader:
            blob = Blob(self, sha256, reader.entry)
            for index, chunk in enumerate(_chunks(reader)):
                state.update(chunk)
                if blob.size <= self._cache_bytes:
                    self._chunks.put((blob, index), chunk)  # It is out of reach unless the blob hashes to its name.
        if state.hexdigest() != sha256:
            self._hashed.drop(sha256)
            self._damaged[sha256] = blob.version
            raise CorruptObject(
                f"the blob {sha256} is damaged: its {blob.size} bytes hash to {state.hexdigest()}; it is not served, "
                "run fsck --repair and post its spec again"
            )
        self._hashed.put(sha256, blob)
        self._damaged.pop(sha256, None)
        return blob


def blob_key(sha256: str) -> str:
    """Return the key of a blob.

    Raises:
        InvalidParameter: `sha256` is no digest.
    """
    return f"blobs/sha256/{check_digest(sha256)[:2]}/{sha256}"


def describe(reader: Reader) -> dict[str, Any]:
    """Return the manifest's entry of an open file: digests of the whole and of each chunk."""
    whole, chunks = hashlib.sha256(), []
    for chunk in _chunks(reader):
        whole.update(chunk)
        chunks.append(sha256(chunk))
    return {"sha256": whole.hexdigest(), "bytes": reader.entry.size, "chunk_bytes": CHUNK_BYTES, "chunks": chunks}


def _chunks(reader: Reader) -> Iterator[bytes]:
    """Iterate over an open object in chunks of 4 MiB; the digest shows if a file shrinks meanwhile."""
    return (_chunk(reader, index) for index in range(max(1, -(-reader.entry.size // CHUNK_BYTES))))


def _chunk(reader: Reader, index: int) -> bytes:
    return reader.read(min(CHUNK_BYTES, reader.entry.size - index * CHUNK_BYTES), index * CHUNK_BYTES)


class Matrices:
    """The matrices of users in a store.

    Args:
        objects: the medium.
        blobs: the blobs on it.
    """

    def __init__(self, objects: Objects, blobs: Blobs) -> None:
        self._objects = objects
        self._blobs = blobs

    def put(self, array: np.ndarray) -> str:
        """Store a matrix and return its sha256; see `Store.put_matrix`."""
        named = from_array(array)
        sha256 = str(named.sha256)
        if self._blobs.sound(sha256):
            self.keep(sha256)
        else:
            self._objects.publish((blob_key(sha256), raw_bytes(named.array), lambda: self._blobs.sound(sha256)))
        return sha256

    def put_those_of(self, factorization: Factorization) -> None:
        """Store the matrices that a factorization's spec names, or check that they are there.

        Raises:
            NotFound: one of them has no numbers, here or in the store.
        """
        bound = bound_matrices(factorization.spec)
        for name, shape in user_matrices(factorization.manifest.spec):
            if name in bound:
                self.put(bound[name])
            else:
                self.read(name, shape)

    def keep(self, sha256: str) -> None:
        """Start the grace of a blob that nothing names yet anew (`factorize.storage.gc`)."""
        with suppress(NotFound):
            self._objects.refresh(blob_key(sha256))

    def read(self, sha256: str, shape: Sequence[int]) -> np.ndarray:
        """Return a user's matrix, verified and read-only.

        Args:
            sha256: its name.
            shape: (m, n).

        Raises:
            NotFound: the matrix was never uploaded.
            InvalidParameter: the blob does not have m n numbers.
            CorruptObject: the blob is damaged.
        """
        rows, columns = shape
        blob = self._blobs.open(sha256)
        if blob.size != 8 * rows * columns:
            needed = (
                f"but shape {rows} x {columns} needs {8 * rows * columns}; give the shape that it was uploaded with"
            )
            raise InvalidParameter(f"the matrix {sha256} has {blob.size} bytes, {needed}", field="shape")
        return np.frombuffer(b"".join(blob.read()), dtype="<f8").reshape(rows, columns)

    def bind(self, spec: Spec) -> Spec:
        """Return a spec with the numbers of its users' matrices, read where it lacks them."""
        arrays = {}
        for part in spec.user_matrices().values():
            if part.sha256 is not None and part.shape is not None and not part.bound:
                arrays[part.sha256] = self.read(part.sha256, part.shape)
        return spec.bind(arrays)

    def named_by(self, document: Mapping[str, object]) -> dict[str, np.ndarray]:
        """Return the matrices that a canonical spec document names, by sha256; see `read`."""
        return {name: self.read(name, shape) for name, shape in user_matrices(document)}


def bound_matrices(spec: Spec) -> dict[str, np.ndarray]:
    """Return the numbers of the users' matrices that a spec carries with it, by sha256."""
    parts = spec.user_matrices().values()
    return {str(part.canonical().sha256): part.array for part in parts if part.bound}
