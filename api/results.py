"""Stored results as the doors hand them out: manifests from memory, rows from factorizations that stay open."""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from factorize.api.workers.publishing import Key, matrices_key, type_key
from factorize.encoding import read_json
from factorize.errors import CorruptObject, InvalidParameter, NotFound, Revoked, TooLarge
from factorize.factorization import Factorization
from factorize.format.names import MATRIX_NAMES, MatrixName
from factorize.spec import Spec
from factorize.storage.blobs import Cache, blob_key
from factorize.storage.records import MAX_RECORD_BYTES
from factorize.storage.store import Store
from factorize.structures.endless import LARGEST_ROW

BLOCK_BYTES = 1 << 22
_DOCUMENT_BYTES = 1 << 26
_LEAST_MB = 512
_EXPANDING = 4  # arrays of a matrix's size that are alive while it is computed, written and read back
Paying = Callable[[], AbstractContextManager[None]]
"""Gives what is entered while something is computed for a caller, and refuses where it may not be."""


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """Consecutive rows of a matrix, in blocks that are made one at a time.

    Args:
        factorization: an open one.
        matrix: which matrix.
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
        return max(1, BLOCK_BYTES // (8 * self.shape[1]))

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

    import_module("scipy.linalg")  # brings a BLAS of its own, which has to be there to be told
    threadpool_limits(1, user_api="blas")


@dataclass(frozen=True, slots=True)
class Result:
    """A stored factorization.

    Args:
        digest: names its bytes.
        spec_digest: names the spec that it answers.
        file: sha256 of its file.
        text: its manifest, canonical JSON.
    """

    digest: str
    spec_digest: str
    file: str
    text: bytes

    def manifest(self) -> dict[str, Any]:
        """Return the manifest."""
        return read_json(self.text, limit=MAX_RECORD_BYTES)


class MakeForm(Protocol):
    """Has one more form of a factorization stored."""

    def __call__(self, digest: str, matrices: Sequence[MatrixName], dtype: str | None, *, memory_mb: int) -> str:
        """Return the digest of the form: with these matrices beside C, or C in another type."""


class Results:
    """What a store holds, for many readers at once. Safe for threads.

    Args:
        store: the store.
        cache_bytes: memory for factorizations that stay open; half as much is used for blocks of rows.
        make: makes further forms of a result.
        stored_form: finds the digest of a form that is stored already; the file may be gone by now.
    """

    def __init__(
        self, store: Store, *, cache_bytes: int, make: MakeForm, stored_form: Callable[[Key], str | None]
    ) -> None:
        self.store = store
        self._make = make
        self._texts: Cache[Result] = Cache(_DOCUMENT_BYTES, lambda result: len(result.text) + 500)
        self._open: Cache[Factorization] = Cache(cache_bytes, _weight)
        self._blocks: Cache[Block] = Cache(cache_bytes // 2, lambda block: len(block.data) + 500)
        self._opening = threading.Lock()
        self._making = threading.Lock()
        self._stored_form = stored_form
        self._forms: dict[Key, str] = {}

    def answer(self, spec: Spec) -> Result | None:
        """Return the result that answers a spec with a named mechanism, if one is stored."""
        known = self._remembered(spec.digest)
        if known is not None:
            return known
        digest = self.store.find(spec)
        return None if digest is None else self._result(digest, spec.digest)

    def named(self, name: str) -> Result | None:
        """Return a result by its digest or spec digest.

        Raises:
            CorruptObject: it is there and damaged.
            Revoked: it was taken back.
        """
        known = self._remembered(name)
        if known is not None:
            return known
        try:
            return self._result(name, name)
        except NotFound:
            return None

    def rows(self, result: Result, matrix: MatrixName, start: int | None, stop: int | None) -> RowBlocks:
        """Return rows of a matrix, all of them by default.

        Raises:
            InvalidParameter: the rows are outside the matrix.
        """
        factorization = self.opened(result)
        if factorization.endless and stop is None:
            message = f"{matrix} has rows without end; give the last one too, such as rows=0:128"
            raise InvalidParameter(message, field="rows")
        last = LARGEST_ROW if factorization.endless else factorization.shape(matrix)[0]
        first, end = start or 0, last if stop is None else stop
        if not 0 <= first <= end <= last:
            message = f"rows {first}:{end} are outside {matrix}, which has rows 0:{last}"
            raise InvalidParameter(message, field="rows")
        return RowBlocks(factorization, matrix, first, end)

    def block(self, rows: RowBlocks) -> Block | None:
        """Return rows that are at most 4 MiB (or one row) with their digest; they are kept for who asks next.

        Rows of an inverse take a solve, and a hash takes as long as sending; many workers ask for the same blocks.

        Returns:
            None where there are more rows than one block holds.
        """
        if rows.stop - rows.start > rows.per_block:
            return None
        key = (rows.factorization.digest, rows.matrix, rows.start, rows.stop)
        found = self._blocks.get(key)
        if found is None:
            data = next(rows.blocks(), memoryview(b""))
            found = Block(data, hashlib.sha256(data).digest(), zlib.crc32(data))
            self._blocks.put(key, found)
        return found

    def expanded(
        self,
        result: Result,
        names: Sequence[MatrixName],
        *,
        limit_mb: int | None,
        dtype: str | None = None,
        paying: Paying = nullcontext,
    ) -> Result:
        """Return the result whose file holds further matrices beside C, in that type.

        It is computed, certified from its own numbers and stored the first time; nothing is cast on the way out.

        Args:
            result: any result of the factorization.
            names: matrices that the file is to hold; those of the result if none is named.
            limit_mb: memory that it may take, in units of 2^20 bytes.
            dtype: of the matrices; that of the result by default.
            paying: gives what is entered while a form is made.

        Raises:
            TooLarge: a matrix without structure does not fit.
            InvalidParameter: the type is unknown, or the result is rounded already.
        """
        matrices = result.manifest()["matrices"]
        names = names or list(matrices)
        if dtype is not None and dtype != matrices["C"]["dtype"]:
            narrow = self._made(result, type_key(result.digest, dtype), ("C",), dtype, limit_mb, paying)
            return self.expanded(narrow, names, limit_mb=limit_mb, paying=paying)
        wanted = tuple(name for name in MATRIX_NAMES if name in names or name == "C")
        if wanted == tuple(name for name in MATRIX_NAMES if name in matrices):
            return result
        return self._made(result, matrices_key(result.manifest(), wanted), wanted, None, limit_mb, paying)

    def _made(
        self,
        result: Result,
        form: Key,
        names: Sequence[MatrixName],
        dtype: str | None,
        limit_mb: int | None,
        paying: Paying,
    ) -> Result:
        """Return the result in another form, made and stored the first time that it is asked for."""
        with self._making:
            found = self._result_if_there(self._forms.get(form) or self._stored_form(form))
            if found is not None:
                return found
            base = self.opened(result)
            memory_mb = _memory(base, names, limit_mb)
            more = [name for name in names if name != "C"]
            with paying():
                digest = self._make(result.digest, more, dtype, memory_mb=memory_mb)
            self._forms[form] = digest
            return self._result(digest, digest)

    def _result_if_there(self, digest: str | None) -> Result | None:
        if digest is None:
            return None
        with suppress(NotFound, CorruptObject, Revoked):
            found = self._result(digest, digest)
            return found if self._is_there(found) else None
        return None

    def _remembered(self, name: str) -> Result | None:
        result = self._texts.get(name)
        return result if result is not None and self._is_there(result) else None

    def _result(self, digest: str, name: str) -> Result:
        text = self.store.manifest_bytes(digest)
        manifest = read_json(text, limit=MAX_RECORD_BYTES)
        result = Result(manifest["digest"], manifest["spec_digest"], manifest["files"][0]["sha256"], text)
        self._texts.put(name, result)
        return result

    def _is_there(self, result: Result) -> bool:
        """Whether the file is still there, neither damaged nor revoked: a manifest alone is no result."""
        with suppress(NotFound, Revoked):
            self.store.revocations.check(result.digest)
            self.store.objects.status(blob_key(result.file))
            return not self.store.blobs.damaged(result.file)
        return False

    def opened(self, result: Result) -> Factorization:
        """Return the factorization of a result; it stays open while there is room.

        Raises:
            CorruptObject: the stored bytes are damaged.
        """
        found = self._open.get(result.digest)
        if found is None:
            with self._opening:
                found = self._open.get(result.digest) or self.store.load(result.digest)
                self._open.put(result.digest, found)
        return found


def _weight(factorization: Factorization) -> int:
    """Memory of an open factorization; structured ones keep coefficients of B and C_inv beside those of C."""
    return 3 * sum(array.nbytes for array in factorization.tensors().values()) + 10_000


def _memory(base: Factorization, names: Sequence[MatrixName], limit_mb: int | None) -> int:
    """Return the memory that a form with these matrices takes, in units of 2^20 bytes.

    Raises:
        TooLarge: it is above the limit.
    """
    if not base.endless and base.matrix.coefficients() is not None:
        return _LEAST_MB + (_EXPANDING * _weight(base) >> 20)
    size = sum(8 * rows * columns for rows, columns in (base.shape(name) for name in names))
    if limit_mb is not None and _EXPANDING * size > limit_mb << 20:
        raise TooLarge(
            f"a file with {', '.join(names)} has {size / 2**30:.1f} GiB and takes {_EXPANDING} times that to make; the "
            f"limit is {limit_mb / 1024:.1f} GiB. Stream the rows instead"
        )
    return _LEAST_MB + (_EXPANDING * (size + _weight(base)) >> 20)
