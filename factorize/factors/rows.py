"""Rows of C, C^-1 or B, one after another, read ahead from a file or a service."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import numpy as np

from factorize.errors import InvalidParameter
from factorize.format.manifest import Manifest
from factorize.format.tensors import MatrixName
from factorize.numbers.scalars import whole_number

BLOCK_BYTES = 4 << 20
"""The bytes of rows that are computed, or sent, together."""
MAX_READS = 2
"""The most blocks that are read ahead at the same time."""


class Rows:
    """The rows of one matrix of one factorization; the next two blocks are read while one is used.

    Args:
        manifest: the checked manifest.
        matrix: `C`, `C_inv` (the noising matrix) or `B` (the decoder).
        read: returns rows start..stop-1 of a matrix.
        block_bytes: bytes of rows that are read together; 4 MiB by default.

    Attributes:
        shape: (rows, n).

    Raises:
        InvalidParameter: a block has less than 1 byte.
        UnsupportedProblem: the matrix has rows without end.
    """

    def __init__(
        self,
        manifest: Manifest,
        matrix: MatrixName,
        read: Callable[[MatrixName, int, int], np.ndarray],
        *,
        block_bytes: int | None = None,
    ) -> None:
        self.shape = manifest.shape(matrix)
        self._matrix, self._read = matrix, read
        own = BLOCK_BYTES if block_bytes is None else whole_number("block_bytes", block_bytes)
        self._per_block = max(1, own // (8 * self.shape[1]))

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield every row, read-only, shape (n,), float64."""
        return self.iterate(0)

    def iterate(self, start: int = 0) -> Generator[np.ndarray, None, None]:
        """Yield the rows from `start` on; see `blocks`."""
        for block in self.blocks(start):
            yield from block

    def blocks(self, start: int = 0) -> Generator[np.ndarray, None, None]:
        """Yield the rows from `start` on, several at a time.

        Blocks begin at multiples of their number of rows, wherever reading begins. A row may be rounded differently in
        another block, and a restarted job has to get the same bits.

        Raises:
            InvalidParameter: `start` is outside the matrix.
            CorruptObject: the file has changed.
            ServiceError: the service refused the request.
            ServiceUnreachable: for a minute, connections broke or brought other rows than asked for.
        """
        if not 0 <= start <= self.shape[0]:
            raise InvalidParameter(f"row {start} is outside {self._matrix}, rows 0:{self.shape[0]}", field="start")
        skipped = start % self._per_block
        firsts = range(start - skipped, self.shape[0], self._per_block)
        if not firsts:
            return
        block, left = self._block(firsts[0]), iter(firsts[1:])  # The first block opens the file, once.
        coming: deque[Future[np.ndarray]] = deque()
        with ThreadPoolExecutor(MAX_READS, "factorize-rows") as workers:
            try:
                while True:
                    coming.extend(workers.submit(self._block, first) for first in islice(left, MAX_READS - len(coming)))
                    block.setflags(write=False)
                    yield block[skipped:]
                    if not coming:
                        return
                    block, skipped = coming.popleft().result(), 0
            finally:
                workers.shutdown(wait=False, cancel_futures=True)

    def _block(self, first: int) -> np.ndarray:
        return self._read(self._matrix, first, min(first + self._per_block, self.shape[0]))
