"""Rows of C, C^-1 or B streamed from a service in blocks, the next ones on their way while one is used."""

from __future__ import annotations

import base64
import hashlib
import re
import time
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import Any, Literal

import numpy as np

from factorize.client.connection import TIMEOUT, Connection, Reply
from factorize.client.file_rows import BLOCK_BYTES, FileRows, check_request, check_start, shape_of
from factorize.client.service import PATH, Service, SpecSource
from factorize.errors import InvalidParameter, ServiceError, ServiceUnreachable, StoreError

AHEAD = 2
ATTEMPTS = 3
"""Connections that may fail for one block before the stream gives up."""
_PAUSE = 0.2
_CRC32 = re.compile(r"[0-9a-f]{8}")
_SHA256 = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/]{43}=):")


class RowStream:
    """The rows of one matrix of one factorization, in order, each block checked against a sum sent with it.

    Memory for `ahead` + 1 blocks.

    Args:
        url: of the service.
        source: digest (pin it in training jobs), spec digest or spec; what answers is checked against it.
        matrix: `C`, `C_inv` (the noising matrix) or `B` (the decoder).
        block_bytes: size of one request; 4 MB hides the latency of a local network.
        timeout: seconds without a byte after which a connection counts as broken; the block is asked for again.
        manifest: the checked manifest, where the caller has it already.
        check: what each block is compared with: `crc32` finds accidents, `sha256` any change, at three times the cost.
        ahead: blocks that are read before they are wanted, each on a connection of its own.
        fallback: returns the rows of a file, from where the stream goes on if the service fails for good.

    Attributes:
        manifest: the checked manifest.
        digest: of the factorization; every block is asked for under it, so that no two results can mix.
        shape: (rows, n).

    Raises:
        InvalidParameter: unknown matrix, a block smaller than 1 byte, or nothing ahead.
        CorruptObject, ServiceError, ServiceUnreachable: no valid manifest came.
    """

    def __init__(
        self,
        url: str,
        source: SpecSource,
        matrix: Literal["C", "C_inv", "B"] = "C_inv",
        *,
        block_bytes: int = BLOCK_BYTES,
        timeout: float = TIMEOUT,
        manifest: dict[str, Any] | None = None,
        check: Literal["crc32", "sha256"] = "crc32",
        ahead: int = AHEAD,
        fallback: Callable[[], FileRows] | None = None,
    ) -> None:
        check_request(matrix, block_bytes)
        if ahead < 1:
            raise InvalidParameter(f"ahead={ahead} is below 1; the next block is always read ahead", field="ahead")
        if check not in _SUMS:
            raise InvalidParameter(f"check {str(check)[:20]!r} is not one of {', '.join(_SUMS)}", field="check")
        self._ahead, self._fallback = ahead, fallback
        self._check, self._sum = check, _SUMS[check]
        self._service = Service(url, timeout=timeout)
        self.manifest = manifest if manifest is not None else self._service.manifest(source)
        self.digest = str(self.manifest["digest"])
        self.matrix = matrix
        self.shape = shape_of(self.manifest, matrix)
        self._per_block = max(1, block_bytes // (8 * self.shape[1]))

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield every row, read-only, shape (n,), float64."""
        return self.iterate(0)

    def iterate(self, start: int = 0) -> Generator[np.ndarray, None, None]:
        """Yield the rows from `start` on.

        Raises:
            InvalidParameter: `start` is outside the matrix.
            ServiceError: refused, no checksum or three times a wrong one, or another shape or type than asked for.
            ServiceUnreachable: three connections in a row broke.
        """
        for block in self.blocks(start):
            yield from block

    def blocks(self, start: int = 0) -> Generator[np.ndarray, None, None]:
        """Yield the rows from `start` on, several at a time, while the next blocks are read and checked.

        Requests begin at multiples of the block's rows wherever the stream begins: a service that computes rows may
        round a row differently in another block, and a restarted job has to get the bits that it had.

        Raises:
            FactorizeError: as of `iterate`.
        """
        check_start(start, self.shape[0], self.matrix)
        skipped = start % self._per_block
        position = start - skipped
        try:
            for block in self._stream(position):
                position += len(block)
                yield block[skipped:]
                skipped = 0
            return
        except ServiceError as error:
            rows = self._instead(error)
        yield from rows.blocks(position + skipped)

    def _instead(self, error: ServiceError) -> FileRows:
        """Return the rows of a file, or raise the error that made them necessary."""
        if self._fallback is not None:
            with suppress(ServiceError, StoreError):
                return self._fallback()
        raise error

    def _stream(self, start: int) -> Generator[np.ndarray, None, None]:
        """Yield checked blocks; each worker has a connection, so that one checks a block while another receives."""
        spans = iter(range(start, self.shape[0], self._per_block))
        coming: deque[Future[np.ndarray]] = deque()
        idle: SimpleQueue[Connection] = SimpleQueue()
        with ExitStack() as opened, ThreadPoolExecutor(self._ahead, "factorize-rows") as workers:
            for _ in range(self._ahead):
                idle.put(opened.enter_context(self._service.connect()))

            def ask() -> None:
                first = next(spans, None)
                if first is not None:
                    coming.append(workers.submit(self._checked, idle, first))

            try:
                for _ in range(self._ahead):
                    ask()
                while coming:
                    block = coming.popleft().result()
                    ask()
                    yield block
            finally:
                workers.shutdown(wait=False, cancel_futures=True)

    def _checked(self, idle: SimpleQueue[Connection], first: int) -> np.ndarray:
        """Read a block and check it; wrong bytes are asked for again."""
        connection = idle.get()
        try:
            for _ in range(ATTEMPTS):
                block, stated = self._read(connection, first)
                if self._sum(block) == stated:
                    native = block.astype(np.float64, copy=False)
                    native.setflags(write=False)
                    return native
        finally:
            idle.put(connection)
        raise ServiceError(
            f"rows {first}.. of {self.matrix} did not have the {self._check} that came with them, {ATTEMPTS} times; "
            "something between the service and here changes them"
        )

    def _read(self, connection: Connection, first: int) -> tuple[np.ndarray, bytes]:
        stop = min(first + self._per_block, self.shape[0])
        path = f"{PATH}/{self.digest}/matrices/{self.matrix}?rows={first}:{stop}"
        failures = 0
        while True:
            try:
                reply = connection.send("GET", path)
                answered = reply.header("X-Factorize-Digest") or self.digest
                if answered != self.digest:
                    raise ServiceError(f"asked for rows of {self.digest}; the service sent some of {answered[:64]!r}")
                return _fill(reply, (stop - first, self.shape[1])), _stated_sum(reply, self._check)
            except ServiceUnreachable:
                connection.close()
                failures += 1
                if failures == ATTEMPTS:
                    raise
                time.sleep(_PAUSE * failures)


def _fill(reply: Reply, shape: tuple[int, int]) -> np.ndarray:
    """Read one block of exactly the shape asked for.

    Raises:
        ServiceUnreachable: the body was cut; worth another try.
        ServiceError: the headers state another shape, type or length.
    """
    stated = (reply.header("X-Factorize-Shape") or "", reply.header("X-Factorize-Dtype"))
    size = 8 * shape[0] * shape[1]
    if stated != (f"{shape[0]},{shape[1]}", "float64") or reply.length not in (None, size):
        raise ServiceError(
            f"asked for rows of shape {shape} in float64; the service announced shape {stated[0][:40]!r}, "
            f"dtype {str(stated[1])[:20]!r}, {reply.length} bytes",
            status=reply.status,
        )
    block = np.empty(shape, dtype="<f8")
    buffer = block.reshape(-1).view(np.uint8).data
    filled = 0
    while filled < size:
        count = reply.readinto(buffer[filled:])
        if not count:
            raise ServiceUnreachable(f"the connection was cut {size - filled} bytes before the end of a block of rows")
        filled += count
    if reply.readinto(memoryview(bytearray(1))):
        raise ServiceError(f"more bytes came than {shape} rows have", status=reply.status)
    return block


def _crc32(block: np.ndarray) -> bytes:
    return zlib.crc32(block.reshape(-1).view(np.uint8).data).to_bytes(4, "big")


def _sha256(block: np.ndarray) -> bytes:
    return hashlib.sha256(block.reshape(-1).view(np.uint8).data).digest()


_SUMS: dict[str, Callable[[np.ndarray], bytes]] = {"crc32": _crc32, "sha256": _sha256}


def _stated_sum(reply: Reply, check: str) -> bytes:
    """Return what the service states for the rows it sends: X-Factorize-Crc32, or Repr-Digest (RFC 9530).

    Raises:
        ServiceError: it states nothing of the kind.
    """
    if check == "sha256" and (found := _SHA256.search(reply.header("Repr-Digest") or "")):
        return base64.b64decode(found[1])
    if check == "crc32" and (found := _CRC32.fullmatch(reply.header("X-Factorize-Crc32") or "")):
        return bytes.fromhex(found[0])
    raise ServiceError(f"the rows came without their {check}, so that nothing checks them; update the service")
