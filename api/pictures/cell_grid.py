"""Cells of a matrix: as many numbers as a picture has, at a price that is known before any row is made."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from factorize.api.results import RowBlocks
from factorize.errors import InvalidParameter, TooLarge
from factorize.factors.factorization import Factorization
from factorize.format.tensors import MatrixName
from factorize.noise.source import source_of

MAX_CELLS = 512
"""The most cells on a side."""
MAX_ENTRIES = 1 << 25
"""The most entries of the rows that are made for one answer: 256 MiB pass, 4 MiB at a time."""
MAX_WORK = float(1 << 36)
"""The most multiplications for one answer: seconds of a processor."""
_LONE_ROW_FACTOR = 4  # a row alone takes this many times as long as one among many, which share what is read


@dataclass(frozen=True, slots=True)
class CellGrid:
    """Rows and columns of a matrix in cells, each of which shows its entry of largest size.

    Args:
        rows: the rows.
        columns: first column and one past the last.
        cells: number of cells down and across.
    """

    rows: RowBlocks
    columns: tuple[int, int]
    cells: tuple[int, int]

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            InvalidParameter: columns outside the matrix, or no cells, or more than rows, columns or 512.
            TooLarge: its rows take too long to make.
        """
        (first, end), (down, across) = self.columns, self.cells
        most = self.rows.shape[1] if not self.rows.factorization.endless else max(self.rows.stop, end)
        if not 0 <= first <= end <= most:
            message = f"columns {first}:{end} are outside the matrix, which has columns 0:{most}"
            raise InvalidParameter(message, field="columns")
        for name, count in (("rows", self.rows.shape[0]), ("columns", end - first)):
            if not count:
                message = f"an empty range of {name} has no cells; ask for one at least"
                raise InvalidParameter(message, field=name)
        limits = min(self.rows.shape[0], MAX_CELLS), min(end - first, MAX_CELLS)
        if not (1 <= down <= limits[0] and 1 <= across <= limits[1]):
            message = f"cells={down}:{across} is outside 1:1 to {limits[0]}:{limits[1]}, the limits for this range"
            raise InvalidParameter(message, field="cells")
        if not self.exact and not self._affordable(2 * down, _LONE_ROW_FACTOR):
            message = (
                f"this needs {2 * down} rows of {self.rows.shape[1]} entries, {2 * down * self._row_work:.2g} "
                f"multiplications; the limits are {MAX_ENTRIES} entries and {MAX_WORK / _LONE_ROW_FACTOR:.2g} "
                "multiplications. Ask for fewer cells down"
            )
            raise TooLarge(message, field="cells")

    @property
    def exact(self) -> bool:
        """Return whether every entry is looked at; else of each cell its first and its last row."""
        return self._affordable(self.rows.shape[0], 1)

    @property
    def note(self) -> str:
        """Return what was left out, for a title."""
        if self.cells == self.rows.shape:
            return ""
        return " (largest entry per cell)" if self.exact else " (largest entry per cell, rows sampled)"

    @property
    def _row_work(self) -> float:
        """Return the multiplications for a row."""
        return self.rows.shape[1] * work_per_entry(self.rows.factorization, self.rows.matrix)

    def _affordable(self, rows: int, factor: int) -> bool:
        return rows * self.rows.shape[1] <= MAX_ENTRIES and rows * factor * self._row_work <= MAX_WORK

    def values(self) -> np.ndarray:
        """Return the cells, shape `cells`; NaN where all of a cell is above the diagonal."""
        down, across = self.cells
        edges = _edges(self.rows.start, self.rows.stop, down)
        columns = _edges(*self.columns, across)
        high, low = np.full(self.cells, -np.inf), np.full(self.cells, np.inf)
        for first, block in self._blocks(edges):
            part = block[:, self.columns[0] : self.columns[1]]
            starts = columns[:-1] - self.columns[0]
            cell = np.searchsorted(edges, np.arange(first, first + len(block)), side="right") - 1
            np.maximum.at(high, cell, np.maximum.reduceat(part, starts, axis=1))
            np.minimum.at(low, cell, np.minimum.reduceat(part, starts, axis=1))
        values, factorization = np.where(high >= -low, high, low), self.rows.factorization
        workload = factorization.spec.workload
        if (
            self.rows.matrix != "B" or factorization.endless or workload.m == workload.n
        ):  # nothing is above the diagonal
            values[columns[None, :-1] >= edges[1:, None]] = np.nan
        return values

    def _blocks(self, edges: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the rows that are looked at, with the number of the first, as many columns as are asked for."""
        runs = [(self.rows.start, self.rows.stop)]
        if not self.exact:
            ends = np.unique(np.concatenate((edges[:-1], edges[1:] - 1)))
            runs = [(int(row), int(row) + 1) for row in ends]
        for start, stop in runs:
            rows = replace(self.rows, start=start, stop=stop)
            wide, first = rows.shape[1], start
            for data in rows.blocks():
                block = np.frombuffer(data, "<f8").reshape(-1, wide)
                if wide < self.columns[1]:  # without end, a row is as long as its number
                    block = np.pad(block, ((0, 0), (0, self.columns[1] - wide)))
                yield first, block
                first += len(block)


def _edges(first: int, end: int, cells: int) -> np.ndarray:
    """Return where cells begin, and the end; shape (cells + 1,)."""
    return first + np.arange(cells + 1) * (end - first) // cells


def whole_matrix(factorization: Factorization, matrix: MatrixName, *, most: int = MAX_CELLS) -> CellGrid:
    """Return the cells of a whole matrix, up to `most` on a side, and fewer down where rows take long to make."""
    rows, n = factorization.shape(matrix)
    affordable = min(MAX_ENTRIES / n, MAX_WORK / (_LONE_ROW_FACTOR * n * work_per_entry(factorization, matrix))) / 2
    down = min(rows, most, max(1, int(affordable)))
    return CellGrid(RowBlocks(factorization, matrix, 0, rows), (0, n), (down, min(n, most)))


def work_per_entry(factorization: Factorization, matrix: MatrixName) -> float:
    """Return about how many multiplications an entry takes: one where entries are stored or are coefficients."""
    if matrix == "C" or factorization.endless or factorization.matrix.coefficients() is not None:
        return 1.0

    return max(1.0, source_of(factorization).cost.flops)
