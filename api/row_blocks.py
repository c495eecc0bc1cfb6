"""Rows of a matrix in blocks, as they are sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import numpy as np

from factorize.factorization import Factorization, MatrixName

BLOCK_BYTES = 1 << 22


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
