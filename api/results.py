"""Stored results as the doors hand them out, and rows from factorizations that stay open."""

import hashlib
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import numpy as np

from factorize.errors import CorruptObject, InvalidParameter, NotFound, Revoked
from factorize.factors.factorization import Factorization
from factorize.format.tensors import MatrixName
from factorize.spec import Spec
from factorize.storage.blobs import Cache, blob_key
from factorize.storage.index import Result
from factorize.storage.store import Store
from factorize.structures.endless import MAX_ROWS

BLOCK_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """Consecutive rows of a matrix, in blocks that are made one at a time.

    Args:
        factorization: an open one.
        matrix: name of the matrix.
        start: first row.
        stop: one past the last row.
    """

    factorization: Factorization
    matrix: MatrixName
    start: int
    stop: int

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        columns = self.stop if self.factorization.endless else self.factorization.shape(self.matrix)[1]
        return self.stop - self.start, columns

    @property
    def per_block(self) -> int:
        """Rows in 4 MiB, at least one."""
        return max(1, BLOCK_BYTES // (8 * max(self.shape[1], 1)))

    def blocks(self) -> Iterator[memoryview]:
        """Iterate over the rows as little-endian float64 in C order, at most 4 MiB (or one row) at a time."""
        step = self.per_block
        _use_one_thread()
        for first in range(self.start, self.stop, step):
            block = self.factorization.rows(self.matrix, first, min(first + step, self.stop))
            if block.shape[1] < self.shape[1]:  # without end, a row is as long as its number
                block = np.pad(block, ((0, 0), (0, self.shape[1] - block.shape[1])))
            yield block.astype("<f8", order="C", copy=False).reshape(-1).view("u1").data


@dataclass(frozen=True, slots=True)
class Block:
    """Rows as they are sent.

    Args:
        data: little-endian float64 in C order.
        sha256: of these bytes.
        crc32: of these bytes.
    """

    data: memoryview
    sha256: bytes
    crc32: int


@cache
def _use_one_thread() -> None:
    """Let this process multiply on one thread from now on.

    Readers are served side by side, and the products of one block are so small that on a busy machine threads wait for
    each other most of the time: 30 times as long as one thread alone at n = 4096. Solves have their own processes.
    """
    from threadpoolctl import threadpool_limits

    import_module("scipy.linalg")  # it brings a BLAS of its own, which has to be there to be told
    threadpool_limits(1, user_api="blas")


class Results:
    """The results of a store, for many readers at once. Safe for threads.

    Args:
        store: the store.
        cache_bytes: memory for factorizations that stay open; half as much is used for blocks of rows.
    """

    def __init__(self, store: Store, *, cache_bytes: int) -> None:
        self.store = store
        self._open: Cache[Factorization] = Cache(cache_bytes, weight)
        self._blocks: Cache[Block] = Cache(cache_bytes // 2, lambda block: len(block.data) + 500)
        self._opening = threading.Lock()

    def answer(self, spec: Spec) -> Result | None:
        """Return the result that answers a spec with a named mechanism, if one is stored."""
        digest = self.store.find(spec)
        return None if digest is None else self.store.result(digest)

    def find(self, name: str) -> Result | None:
        """Return a result by its digest or spec digest.

        Raises:
            CorruptObject: it is there and damaged.
            Revoked: it was taken back.
        """
        with suppress(NotFound):
            return self.store.result(name)
        return None

    def whole(self, digest: str) -> Result | None:
        """Return a result whose manifest and file are both there and sound, or None."""
        with suppress(NotFound, CorruptObject, Revoked):
            result = self.store.result(digest)
            version = self.store.objects.status(blob_key(result.file.sha256)).version
            return None if self.store.blobs.damaged(result.file.sha256, version) else result
        return None

    def rows(self, result: Result, matrix: MatrixName, start: int | None, stop: int | None) -> RowBlocks:
        """Return rows of a matrix, all of them by default.

        Raises:
            InvalidParameter: the rows are outside the matrix.
        """
        factorization = self.open(result)
        if factorization.endless and stop is None:
            message = f"{matrix} has infinitely many rows; give the last one too, such as rows=0:128"
            raise InvalidParameter(message, field="rows")
        last = MAX_ROWS if factorization.endless else factorization.shape(matrix)[0]
        first, end = start or 0, last if stop is None else stop
        if not 0 <= first <= end <= last:
            message = f"rows {first}:{end} are outside {matrix}, which has rows 0:{last}"
            raise InvalidParameter(message, field="rows")
        return RowBlocks(factorization, matrix, first, end)

    def block(self, rows: RowBlocks) -> Block | None:
        """Return rows that are at most 4 MiB (or one row) with their digest, and keep them for the next caller.

        Rows of an inverse take a solve, and a hash takes as long as sending; many workers ask for the same blocks.

        Returns:
            None where there are more rows than one block holds.
        """
        if rows.stop - rows.start > rows.per_block:
            return None
        key = (rows.factorization.digest, rows.matrix, rows.start, rows.stop)
        block = self._blocks.get(key)
        if block is None:
            data = next(rows.blocks(), memoryview(b""))
            block = Block(data, hashlib.sha256(data).digest(), zlib.crc32(data))
            self._blocks.put(key, block)
        return block

    def open(self, result: Result) -> Factorization:
        """Return the factorization of a result; it stays open while there is room.

        Raises:
            CorruptObject: the stored bytes are damaged.
        """
        factorization = self._open.get(result.digest)
        if factorization is None:
            with self._opening:
                factorization = self._open.get(result.digest) or self.store.load(result.digest)
                self._open.put(result.digest, factorization)
        return factorization


def weight(factorization: Factorization) -> int:
    """Return the memory of an open factorization; structured ones keep coefficients of B and C_inv beside C's."""
    return 3 * sum(array.nbytes for array in factorization.tensors().values()) + 10_000
