"""Rows of C, C^-1 or B, in order: of a factor file on this machine, or streamed from a service."""

from __future__ import annotations

import re
import time
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Literal

import numpy as np

from factorize.client.connection import TIMEOUT, Reply
from factorize.client.service import PATH, Service, SpecSource
from factorize.errors import InvalidParameter, ServiceError, ServiceUnreachable, UnsupportedProblem
from factorize.format.manifest import ENDLESS, steps_of
from factorize.format.views import ViewedFactors

BLOCK_BYTES = 4 << 20
MatrixName = Literal["C", "C_inv", "B"]
MATRICES: tuple[MatrixName, ...] = ("C", "C_inv", "B")
AHEAD = 2
"""Blocks that a stream asks for before they are wanted."""
ATTEMPTS = 3
"""Requests that may fail for one block before a stream gives up."""
_PAUSE = 0.2
_CRC32 = re.compile(r"[0-9a-f]{8}")


class Rows(ABC):
    """The rows of one matrix of one factorization.

    Args:
        manifest: checked.
        matrix: `C`, `C_inv` (the noising matrix) or `B` (the decoder).
        block_bytes: of rows that are computed, or sent, together.

    Attributes:
        digest: of the factorization.
        shape: (rows, n).

    Raises:
        InvalidParameter: unknown matrix, or a block smaller than 1 byte.
    """

    def __init__(self, manifest: dict[str, Any], matrix: MatrixName, block_bytes: int) -> None:
        if matrix not in MATRICES:
            raise InvalidParameter(f"matrix {str(matrix)[:20]!r} is not one of {', '.join(MATRICES)}", field="matrix")
        if block_bytes < 1:
            message = f"block_bytes={block_bytes} is below 1; give the bytes of one request"
            raise InvalidParameter(message, field="block_bytes")
        self.manifest, self.matrix = manifest, matrix
        self.digest = str(manifest["digest"])
        self.shape = shape_of(manifest, matrix)
        self._per_block = max(1, block_bytes // (8 * self.shape[1]))

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield every row, read-only, shape (n,), float64."""
        return self.iterate(0)

    def iterate(self, start: int = 0) -> Generator[np.ndarray, None, None]:
        """Yield the rows from `start` on; see `blocks`."""
        for block in self.blocks(start):
            yield from block

    def blocks(self, start: int = 0) -> Generator[np.ndarray, None, None]:
        """Yield the rows from `start` on, several at a time.

        Blocks begin at multiples of their rows wherever reading begins: a row may be rounded differently in another
        block, and a restarted job has to get the bits that it had.

        Raises:
            InvalidParameter: `start` is outside the matrix.
            CorruptObject: the file has changed.
            ServiceError: refused, no checksum or three times a wrong one, or another shape or type than asked for.
            ServiceUnreachable: three connections in a row broke.
        """
        if not 0 <= start <= self.shape[0]:
            raise InvalidParameter(f"row {start} is outside {self.matrix}, rows 0:{self.shape[0]}", field="start")
        skipped = start % self._per_block
        for block in self._aligned(range(start - skipped, self.shape[0], self._per_block)):
            block.setflags(write=False)
            yield block[skipped:]
            skipped = 0

    @abstractmethod
    def _aligned(self, firsts: range) -> Iterator[np.ndarray]:
        """Yield the blocks that begin at these rows."""


class FileRows(Rows):
    """The rows of one matrix of a file, which is opened when the first row is wanted.

    It needs pydantic, which noise from a file does not; without numba and scipy (the extra `[solve]`) it is slower.

    Args:
        factors: of the file.
        matrix: see `Rows`.
        block_bytes: see `Rows`.
    """

    def __init__(self, factors: ViewedFactors, matrix: MatrixName = "C_inv", *, block_bytes: int = BLOCK_BYTES) -> None:
        super().__init__(factors.manifest, matrix, block_bytes)
        self._factors = factors

    def _aligned(self, firsts: range) -> Iterator[np.ndarray]:
        opened = self._factors.opened()
        for first in firsts:
            yield opened.rows(self.matrix, first, min(first + self._per_block, self.shape[0]))


class RowStream(Rows):
    """The rows of one matrix from a service, each block compared with the CRC-32 sent with it.

    The next two blocks are received while one is used.

    Args:
        url: of the service.
        source: digest (pin it in training jobs), spec digest or spec; what answers is checked against it.
        matrix: see `Rows`.
        block_bytes: size of one request; 4 MB hides the latency of a local network.
        timeout: seconds without a byte after which a connection counts as broken; the block is asked for again.
        manifest: the checked manifest, where the caller has it already.

    Raises:
        InvalidParameter: see `Rows`.
        CorruptObject, ServiceError, ServiceUnreachable: no valid manifest came.
    """

    def __init__(
        self,
        url: str,
        source: SpecSource,
        matrix: MatrixName = "C_inv",
        *,
        block_bytes: int = BLOCK_BYTES,
        timeout: float = TIMEOUT,
        manifest: dict[str, Any] | None = None,
    ) -> None:
        self._service = Service(url, timeout=timeout)
        super().__init__(manifest or self._service.manifest(source), matrix, block_bytes)

    def _aligned(self, firsts: range) -> Iterator[np.ndarray]:
        left = iter(firsts)
        with ThreadPoolExecutor(AHEAD, "factorize-rows") as workers:
            coming = deque(workers.submit(self._checked, first) for first in islice(left, AHEAD))
            try:
                while coming:
                    block = coming.popleft().result()
                    coming.extend(workers.submit(self._checked, first) for first in islice(left, 1))
                    yield block
            finally:
                workers.shutdown(wait=False, cancel_futures=True)

    def _checked(self, first: int) -> np.ndarray:
        """Read a block and check it; broken and wrong ones are asked for again."""
        for failures in range(1, ATTEMPTS + 1):
            try:
                block, stated = self._read(first, min(first + self._per_block, self.shape[0]))
            except ServiceUnreachable:
                if failures == ATTEMPTS:
                    raise
                time.sleep(_PAUSE * failures)
                continue
            if zlib.crc32(block.reshape(-1).view(np.uint8).data) == stated:
                return block.astype(np.float64, copy=False)
        raise ServiceError(
            f"rows {first}.. of {self.matrix} did not have the crc32 that came with them, {ATTEMPTS} times; "
            "something between the service and here changes them"
        )

    def _read(self, first: int, stop: int) -> tuple[np.ndarray, int]:
        path = f"{PATH}/{self.digest}/matrices/{self.matrix}?rows={first}:{stop}"
        with self._service.connect() as connection:
            reply = connection.send("GET", path)
            answered = reply.header("X-Factorize-Digest") or self.digest
            if answered != self.digest:
                raise ServiceError(f"asked for rows of {self.digest}; the service sent some of {answered[:64]!r}")
            stated = reply.header("X-Factorize-Crc32") or ""
            if not _CRC32.fullmatch(stated):
                raise ServiceError("the rows came without their crc32, so that nothing checks them; update the service")
            return _filled(reply, (stop - first, self.shape[1])), int(stated, 16)


def _filled(reply: Reply, shape: tuple[int, int]) -> np.ndarray:
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


def shape_of(manifest: dict[str, Any], matrix: str) -> tuple[int, int]:
    """Return the shape of a matrix: n x n, or for the decoder as many rows as the workload has outputs.

    Raises:
        UnsupportedProblem: the matrix has rows without end.
    """
    n = steps_of(manifest)
    if n == ENDLESS:
        raise UnsupportedProblem(
            f"{matrix} has rows without end, which cannot be gone through; take noise(), or a range of rows from "
            "factorize.load(path).rows or the service",
            field="matrix",
        )
    rows = manifest["spec"]["workload"].get("shape", [n])[0] if matrix == "B" else n
    return rows, n
