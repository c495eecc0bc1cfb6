"""Rows of C, C^-1 or B of a factor file on this machine."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from factorize.errors import CorruptObject, InvalidParameter, UnsupportedProblem
from factorize.format.manifest import ENDLESS, steps_of

BLOCK_BYTES = 4 << 20
MATRICES = ("C", "C_inv", "B")


class FileRows:
    """The rows of one matrix of a file, in order; the file is opened when the first row is wanted.

    It needs pydantic, which noise from a file does not; without numba and scipy (the extra `[solve]`) it is slower.

    Args:
        path: a verified file.
        manifest: its manifest.
        matrix: `C`, `C_inv` (the noising matrix) or `B` (the decoder).
        block_bytes: of rows that are computed together.

    Attributes:
        digest: of the factorization.
        shape: (rows, n).

    Raises:
        InvalidParameter: unknown matrix, or a block smaller than 1 byte.
    """

    def __init__(
        self,
        path: Path,
        manifest: dict[str, Any],
        matrix: Literal["C", "C_inv", "B"] = "C_inv",
        *,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        check_request(matrix, block_bytes)
        self._path = path
        self.manifest = manifest
        self.digest = str(manifest["digest"])
        self.matrix = matrix
        self.shape = shape_of(manifest, matrix)
        self._per_block = max(1, block_bytes // (8 * self.shape[1]))

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield every row, read-only, shape (n,), float64."""
        return self.iterate(0)

    def iterate(self, start: int = 0) -> Generator[np.ndarray, None, None]:
        """Yield the rows from `start` on."""
        for block in self.blocks(start):
            yield from block

    def blocks(self, start: int = 0) -> Generator[np.ndarray, None, None]:
        """Yield the rows from `start` on, several at a time.

        Raises:
            InvalidParameter: `start` is outside the matrix.
            CorruptObject: the file has changed.
        """
        from factorize.factor_file import load

        check_start(start, self.shape[0], self.matrix)
        opened = load(self._path)
        if opened.digest != self.digest:
            raise CorruptObject(f"{self._path} now holds {opened.digest}, not {self.digest}; do not use it")
        skipped = start % self._per_block  # as in a stream, a row's bits do not depend on where reading began
        for first in range(start - skipped, self.shape[0], self._per_block):
            block = opened.rows(self.matrix, first, min(first + self._per_block, self.shape[0]))
            block.setflags(write=False)
            yield block[skipped:]
            skipped = 0


def check_request(matrix: str, block_bytes: int) -> None:
    """Refuse an unknown matrix, and blocks of less than a byte."""
    if matrix not in MATRICES:
        raise InvalidParameter(f"matrix {str(matrix)[:20]!r} is not one of {', '.join(MATRICES)}", field="matrix")
    if block_bytes < 1:
        message = f"block_bytes={block_bytes} is below 1; give the bytes of one request"
        raise InvalidParameter(message, field="block_bytes")


def check_start(start: int, rows: int, matrix: str) -> None:
    """Refuse a first row that is outside the matrix."""
    if not 0 <= start <= rows:
        raise InvalidParameter(f"row {start} is outside {matrix}, rows 0:{rows}", field="start")


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
