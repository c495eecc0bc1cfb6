"""Verified reading: a byte leaves only from a buffer that was hashed.

The first access to a blob hashes all of it against its name before anything is handed out. What is kept of that pass is
the state of sha256 before each chunk and the digest after it, so that one chunk that is read again later can be checked
alone, and the whole costs one sha256 over the file. Chunks stay in a bounded cache, already verified and immutable.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from factorize.encoding import check_digest
from factorize.errors import CorruptObject, InvalidParameter, NotFound
from factorize.storage.objects import Objects, Reader

if TYPE_CHECKING:
    from hashlib import _Hash

CHUNK_BYTES = 1 << 22
CACHE_BYTES = 1 << 28
_RECORD_BYTES = 1 << 24
_STATE_BYTES = 512  # what one sha256 state and its digest take in memory, roughly

Value = TypeVar("Value")


class Cache(Generic[Value]):
    """The values used last, up to a total cost; safe for threads.

    Args:
        limit: largest total cost, in bytes; a value that costs more than that is not kept.
        cost: bytes of one value.
    """

    def __init__(self, limit: int, cost: Callable[[Value], int]) -> None:
        self._limit = limit
        self._cost = cost
        self._total = 0
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Value | None:
        """Return a value, which becomes the one used last, or None."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: Value) -> None:
        """Keep a value and drop those that were not used for longest."""
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


@dataclass(frozen=True, eq=False, slots=True)
class Record:
    """What one pass over a blob leaves behind.

    Attributes:
        token: stands for this pass in the cache of chunks.
        size: bytes.
        version: of the file that was read.
        states: sha256 of everything before each chunk, unfinished.
        digests: sha256 of everything up to the end of each chunk.
    """

    token: object
    size: int
    version: tuple[int, ...]
    states: tuple[_Hash, ...]
    digests: tuple[bytes, ...]


class Blob:
    """A blob whose bytes were hashed against its name.

    Attributes:
        sha256: its name.
        size: bytes.
    """

    def __init__(self, blobs: Blobs, sha256: str, record: Record) -> None:
        self.sha256 = sha256
        self.size = record.size
        self._blobs = blobs
        self._record = record

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Iterate over bytes start..stop-1 as read-only views of verified buffers, each at most 4 MiB; no copies.

        Args:
            start: first byte, from 0.
            stop: one past the last byte; the end of the blob by default.

        Raises:
            InvalidParameter: at once, if the range is not within the blob.
            CorruptObject: while iterating, before the first byte of a chunk that no longer hashes to what it was.
        """
        stop = self.size if stop is None else stop
        if not 0 <= start <= stop <= self.size:
            message = f"bytes {start}:{stop} are outside the blob, which has {self.size} bytes"
            raise InvalidParameter(message, field="range")
        return self._views(start, stop)

    def _views(self, start: int, stop: int) -> Iterator[memoryview]:
        while start < stop:
            index, offset = divmod(start, CHUNK_BYTES)
            chunk = memoryview(self._blobs.chunk(self.sha256, self._record, index))
            yield chunk[offset : min(CHUNK_BYTES, offset + stop - start)]
            start += CHUNK_BYTES - offset


class Blobs:
    """The blobs of a store, read with verification; safe for threads.

    Args:
        objects: the medium.
        cache_bytes: memory for chunks that were verified.
    """

    def __init__(self, objects: Objects, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._objects = objects
        self._cache_bytes = cache_bytes
        self._chunks: Cache[bytes] = Cache(cache_bytes, len)
        self._records: Cache[Record] = Cache(_RECORD_BYTES, lambda record: _STATE_BYTES * len(record.states))
        self._pending: dict[str, Future[Record]] = {}
        self._damaged: set[str] = set()
        self._lock = threading.Lock()

    def open(self, sha256: str) -> Blob:
        """Return a blob, hashed against its name now unless it was before and its file has not been touched since.

        Raises:
            NotFound: no blob of that name.
            CorruptObject: its bytes do not hash to its name.
            StoreUnavailable: it cannot be read.
        """
        version = self._objects.status(blob_key(sha256)).version
        record = self._record(sha256, version) or self._verified_once(sha256, version)
        return Blob(self, sha256, record)

    def verify(self, sha256: str) -> int:
        """Read a blob anew, hash it against its name and return its size; raises as `open` does."""
        return self._pass(sha256).size

    def sound(self, sha256: str) -> bool:
        """Whether a blob is there and hashes to its name, read anew."""
        with suppress(NotFound, CorruptObject):
            self.verify(sha256)
            return True
        return False

    def damaged(self, sha256: str) -> bool:
        """Whether the last look at this blob found that it does not hash to its name."""
        return sha256 in self._damaged

    def chunk(self, sha256: str, record: Record, index: int) -> bytes:
        """Return one verified chunk, from memory or from the medium.

        Raises:
            CorruptObject: the chunk is not the one that was hashed.
        """
        chunk = self._chunks.get((record.token, index))
        if chunk is None:
            chunk = self._same_chunk(sha256, record, index)
            if chunk is None:
                raise self._found_damage(sha256, f"chunk {index} has changed since it was verified")
            self._chunks.put((record.token, index), chunk)
        return chunk

    def _same_chunk(self, sha256: str, record: Record, index: int) -> bytes | None:
        """Read one chunk; None if it is not the one that was hashed."""
        with self._objects.open(blob_key(sha256)) as reader:
            chunk = reader.read(_length(record.size, index), index * CHUNK_BYTES)
        state = record.states[index].copy()
        state.update(chunk)
        return chunk if state.digest() == record.digests[index] else None

    def _record(self, sha256: str, version: tuple[int, ...]) -> Record | None:
        record = self._records.get(sha256)
        return record if record is not None and record.version == version else None

    def _verified_once(self, sha256: str, version: tuple[int, ...]) -> Record:
        """Hash a blob, or wait for the thread that is at it."""
        with self._lock:
            record = self._record(sha256, version)
            if record is not None:
                return record  # that thread has just finished
            pending = self._pending.get(sha256)
            if pending is None:
                mine = self._pending[sha256] = Future()
        if pending is not None:
            return pending.result()
        try:
            record = self._pass(sha256)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(record)
        finally:
            with self._lock:
                del self._pending[sha256]
        return record

    def _pass(self, sha256: str) -> Record:
        """Hash all of a blob; keep its record, and its chunks if they fit."""
        token, states, digests = object(), [], []
        state = hashlib.sha256()
        with self._objects.open(blob_key(sha256)) as reader:
            keep = reader.entry.size <= self._cache_bytes
            for index, chunk in enumerate(read_chunks(reader)):
                states.append(state.copy())
                state.update(chunk)
                digests.append(state.digest())
                if keep:
                    self._chunks.put((token, index), chunk)  # out of reach until a record has the token
        if state.hexdigest() != sha256:
            raise self._found_damage(sha256, f"its {reader.entry.size} bytes hash to {state.hexdigest()}")
        record = Record(token, reader.entry.size, reader.entry.version, tuple(states), tuple(digests))
        self._records.put(sha256, record)
        self._damaged.discard(sha256)
        return record

    def _found_damage(self, sha256: str, what: str) -> CorruptObject:
        self._records.drop(sha256)
        self._damaged.add(sha256)
        return CorruptObject(
            f"the blob {sha256} is damaged: {what}; it is not served, run fsck --repair and post its spec again"
        )


def blob_key(sha256: str) -> str:
    """Return the key of a blob.

    Raises:
        InvalidParameter: not a digest.
    """
    return f"blobs/sha256/{check_digest(sha256)[:2]}/{sha256}"


def read_chunks(reader: Reader) -> Iterator[bytes]:
    """Iterate over an open object in chunks of 4 MiB, each read while the one before it is being used.

    A file that shrinks meanwhile yields short chunks; the digest is what tells.
    """
    size = reader.entry.size
    if size <= CHUNK_BYTES:
        yield reader.read(size, 0)
        return
    with ThreadPoolExecutor(1, "read-ahead") as pool:
        coming = pool.submit(reader.read, CHUNK_BYTES, 0)
        for index in range(1, _count(size)):
            chunk = coming.result()
            coming = pool.submit(reader.read, _length(size, index), index * CHUNK_BYTES)
            yield chunk
        yield coming.result()


def _count(size: int) -> int:
    return -(-size // CHUNK_BYTES)


def _length(size: int, index: int) -> int:
    return min(CHUNK_BYTES, size - index * CHUNK_BYTES)
