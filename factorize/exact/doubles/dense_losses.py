"""Losses of a whole C in doubles: B = A N for a guess N of C^-1, and how far its rows are from those of A C^-1.

With R = B C - A, A C^-1 = B - R C^-1, so that row i of B is off by at most |R_i| |C^-1|; and with D = N C - I, |C^-1|
is at most |N| / (1 - |D|). R and D are products in doubles beside the bound of what was rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.pairs import in_pairs
from factorize.exact.doubles.roundings import (
    ROOT_OF_TINY,
    SLACK,
    TINY,
    finite,
    gamma,
    norm_of,
    row_norms,
)
from factorize.exact.doubles.triangles import blocks_of, roundings_of, times_lower
from factorize.exact.doubles.workload_rows import WorkloadRows
from factorize.exact.losses.variances import Ends, weighed
from factorize.exact.spec import Weighing


class DenseLosses(NamedTuple):
    """Losses at sensitivity 1, and the largest entry of |B C - A| for the B that was made here, from above."""

    ends: Ends
    residual: float


class RowBlock(NamedTuple):
    """Rows start..stop-1 of the decoder, of which only the first columns are not 0."""

    start: int
    stop: int
    rows: np.ndarray


def decoder_blocks(workload: WorkloadRows, inverse: np.ndarray) -> Iterator[RowBlock]:
    """Yield B = A N, block by block."""
    states: dict[int, np.ndarray] = {}
    with np.errstate(all="ignore"):
        for start, stop in blocks_of(workload.rows):
            width = stop if workload.triangular else workload.columns
            yield RowBlock(start, stop, workload.applied(inverse, start, stop, states)[:, :width])


class References:
    """Rows less those that they refer to, of blocks that come in order.

    Args:
        weighing: of the objective.
    """

    def __init__(self, weighing: Weighing) -> None:
        self._before, self._tau = np.array(weighing.references), weighing.tau
        self._kept: dict[int, np.ndarray] = {}

    def subtracted(self, block: RowBlock) -> tuple[np.ndarray, np.ndarray]:
        """Return the differences, and the row that each row refers to (-1 for none)."""
        before = self._before[block.start : block.stop]
        out = block.rows.copy()
        for reference in np.unique(before[before >= 0]).tolist():
            row = block.rows[reference - block.start] if reference >= block.start else self._kept[reference]
            mine = before == reference
            out[np.ix_(mine, np.arange(len(row)))] -= row
        if self._tau is not None:
            last = block.stop // self._tau * self._tau - 1
            if last >= block.start:
                self._kept = {last: block.rows[last - block.start].copy()}
        return out, before


def enclosed_losses(
    array: np.ndarray, inverse: np.ndarray, workload: WorkloadRows, weighing: Weighing, roundings: int = 0
) -> DenseLosses:
    """Return the losses.

    Args:
        array: C, shape (n, n).
        inverse: any lower-triangular N near C^-1.
        workload: A, shape (m, n).
        weighing: of the objective, for m rows.
        roundings: how often each entry of the array was rounded, which counts as a rounding of each product.

    Raises:
        NotEnclosed: C is too ill-conditioned for doubles, or numbers leave their range.
    """
    with np.errstate(all="ignore"):
        lengths, references = row_norms(array), References(weighing)
        differences = Differences(len(array)) if workload.of_ones else None
        norms, since = np.zeros((2, workload.rows)), np.zeros((2, workload.rows))
        away, residual = np.zeros(workload.rows), 0.0
        blocks = decoder_blocks(workload, inverse)
        measured = in_pairs(lambda one: _residual(one, array, lengths, workload, roundings), blocks, len(array))
        for block, (off, largest) in measured:
            own = slice(block.start, block.stop)
            residual, away[own], norms[:, own] = max(residual, largest), off, _norms_around(block.rows)
            if differences is not None:
                differences.add(block)
            if weighing.tau is not None:
                since[:, own] = _norms_around(references.subtracted(block)[0])
        norm = (
            inverse_norm(array, inverse, lengths, roundings) if differences is None else differences.inverse_norm(away)
        )
        errors = away * norm * (1 + SLACK)
        ends, ends_since = _around(norms, errors), None
        if weighing.tau is not None:
            before = np.array(weighing.references)
            beside = np.where(before >= 0, errors[np.maximum(before, 0)], 0.0)
            ends_since = _around(since, (errors + beside) * (1 + SLACK))
        finite(norm, residual, float(ends.sum()), 0.0 if ends_since is None else float(ends_since.sum()))
    return DenseLosses(weighed(ends, weighing, ends_since), residual)


class Differences:
    """Rows of A^-1 B for prefix sums A: those of B less the ones before them. They are C^-1 but for what B is off by.

    Args:
        n: side.
    """

    def __init__(self, n: int) -> None:
        self._sums, self._columns, self._norms = (np.zeros(n) for _ in range(3))
        self._before = np.zeros(0)

    def add(self, block: RowBlock) -> None:
        """Look at the next rows of B."""
        sizes = block.rows.copy()
        sizes[1:] -= block.rows[:-1]
        sizes[0, : len(self._before)] -= self._before
        self._before = block.rows[-1].copy()
        self._norms[block.start : block.stop] = row_norms(sizes)
        np.abs(sizes, out=sizes)
        self._sums[block.start : block.stop] = sizes.sum(axis=1)
        self._columns[: sizes.shape[1]] += sizes.sum(axis=0)

    def inverse_norm(self, away: np.ndarray) -> float:
        """Return at least the spectral norm of C^-1.

        Args:
            away: at least the norms of the rows of B C - A.

        Raises:
            NotEnclosed: B is too far from A C^-1.
        """
        return _norm_with_defect(self._sums, self._columns, self._norms, 2 * norm_of(away) * (1 + SLACK))


def inverse_norm(array: np.ndarray, inverse: np.ndarray, lengths: np.ndarray, roundings: int = 0) -> float:
    """Return at least the spectral norm of C^-1.

    Args:
        array: C.
        inverse: N.
        lengths: at least the norms of the rows of C.
        roundings: see `enclosed_losses`.

    Raises:
        NotEnclosed: N is too far from C^-1.
    """
    n = len(array)
    defects, sums, columns, norms = (np.zeros(n) for _ in range(4))

    def defects_of(block: tuple[int, int]) -> np.ndarray:
        start, stop = block
        rows = inverse[start:stop, :stop]
        image = times_lower(rows, array[:stop, :stop])
        image[np.arange(stop - start), np.arange(start, stop)] -= 1.0
        return np.asarray(row_norms(image) * (1 + SLACK) + _rounded(np.abs(rows), lengths[:stop], roundings))

    for (start, stop), found in in_pairs(defects_of, blocks_of(n), n):
        rows = inverse[start:stop, :stop]
        sizes = np.abs(rows)
        defects[start:stop] = found
        sums[start:stop] = sizes.sum(axis=1)
        columns[:stop] += sizes.sum(axis=0)
        norms[start:stop] = row_norms(rows)
    return _norm_with_defect(sums, columns, norms, norm_of(defects))


def _norm_with_defect(sums: np.ndarray, columns: np.ndarray, norms: np.ndarray, defect: float) -> float:
    """Return at least |N| / (1 - |D|), where N C = I + D.

    Args:
        sums: of the magnitudes of the rows of N.
        columns: of those of its columns.
        norms: of its rows.
        defect: at least |D|.

    Raises:
        NotEnclosed: N is too far from C^-1.
    """
    if not defect < 0.5:
        raise NotEnclosed("C is too ill-conditioned: the norm of its inverse cannot be bounded in doubles")
    most = min(math.sqrt(float(sums.max()) * float(columns.max())), norm_of(norms))
    return most * (1 + gamma(4 * len(sums))) / (1 - defect) * (1 + SLACK)


def _rounded(sizes: np.ndarray, lengths: np.ndarray, roundings: int = 0) -> np.ndarray:
    """What rows of a product with C are off by, as norms: gamma times |row| times the norms of the rows of C."""
    terms = sizes.shape[1]
    most = (sizes @ lengths) * (1 + gamma(terms))
    return np.asarray(gamma(roundings_of(terms) + roundings + 1) * most * (1 + SLACK) + terms * terms * TINY)


def _residual(
    block: RowBlock, array: np.ndarray, lengths: np.ndarray, workload: WorkloadRows, roundings: int = 0
) -> tuple[np.ndarray, float]:
    """Norms of the rows of B C - A from above, and its largest entry."""
    start, stop, rows = block
    width = rows.shape[1]
    wanted = workload.row_block(start, stop)
    image = times_lower(rows, array[:width, :width])
    image -= wanted.values[:, :width]
    off = _rounded(np.abs(rows), lengths[:width], roundings) + row_norms(wanted.errors) * (1 + SLACK)
    away = row_norms(image) * (1 + SLACK) + off
    return away, float((np.abs(image).max(axis=1) * (1 + SLACK) + off).max())


def _norms_around(rows: np.ndarray) -> np.ndarray:
    """Ends of the norms of rows, shape (2, rows)."""
    high = row_norms(rows)
    return np.stack([high * (1 - 2 * gamma(rows.shape[1] + 8)) - 2 * ROOT_OF_TINY, high])


def _around(norms: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Ends of the squared norms of rows that are off by at most some norm, shape (2, rows).

    Args:
        norms: ends of the norms of the rows as they are, shape (2, rows).
        errors: at least the norms of what they are off by.
    """
    ends = np.maximum(norms[0] - errors * (1 + SLACK), 0.0), (norms[1] + errors) * (1 + SLACK)
    return np.stack([ends[0] * ends[0] * (1 - SLACK), ends[1] * ends[1] * (1 + SLACK)])
