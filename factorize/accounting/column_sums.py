"""Sums of the columns of |C| over the steps of each bin, from above, a block of rows at a time.

Balls in bins: an example takes part in the steps j, j + b, j + 2b, ... of its bin j. Its largest shift of the output is
m_j = the sum of these columns of |C| (docs/amplification.md). |C| is taken before the sum: the sums of a signed C are
too small. Every entry is rounded up, which is safe: privacy only gets worse as an entry grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from factorize.errors import TooLarge
from factorize.numbers.rounding import UNIT
from factorize.numbers.series import toeplitz_rows
from factorize.numbers.wide import Wide, check_finite
from factorize.structures.base import Matrix, check_dense
from factorize.structures.inverse_banded_toeplitz import ComputedToeplitz
from factorize.structures.kernels import redrawn_columns
from factorize.structures.scaled import ColumnScaled

_ENTRIES = 4096  # up to here computed entries are enclosed one by one
_NUMBERS = 1 << 22  # of one block of rows
_TINY = 1e-290  # covers what underflows in the sums of one entry

RowSource = Callable[[int, int], np.ndarray]


def comb_sums(matrix: Matrix, bins: int) -> np.ndarray | None:
    """Return p_t = |c_t| + |c_{t-b}| + ... from above, shape (n,), if C is Toeplitz; else None.

    Row t of m_j is p_{t-j}: one column tells all bins.
    """
    column = magnitudes_of_column(matrix)
    if column is None:
        return None
    n, epochs = matrix.n, -(-matrix.n // bins)
    padded = np.zeros(epochs * bins)
    padded[:n] = column
    sums = np.cumsum(padded.reshape(epochs, bins), axis=0).ravel()[:n]
    return check_finite(_raised(sums, epochs))


def column_sums(matrix: Matrix, bins: int) -> Iterator[np.ndarray]:
    """Yield rows of the n x b matrix with the columns m_j, from above, from the first row to the last.

    Args:
        matrix: C, of any structure.
        bins: b, 1 to n.

    Raises:
        TooLarge: n is above the limit of a structure whose entries are enclosed one by one.
        CertificateError: doubles do not enclose C.
    """
    for sums in _blocks(matrix, bins):
        yield check_finite(_raised(sums, -(-matrix.n // bins)))


def is_signed(matrix: Matrix) -> bool:
    """Return whether C may have a negative entry (a structure that is not known to be non-negative may)."""
    if isinstance(matrix, ColumnScaled):
        return is_signed(matrix.inner)
    if isinstance(matrix, ComputedToeplitz):
        return False
    if matrix.structure in ("redrawn",):
        return True
    return any(bool((np.asarray(part) < 0).any()) for name, part in matrix.tensors().items() if name != "lag")


def _raised(sums: np.ndarray, terms: int) -> np.ndarray:
    """Return what sums of at most `terms` non-negative doubles stand for, from above."""
    return np.where(sums > 0, sums * (1 + (terms + 4) * UNIT) + _TINY, 0.0)


def _blocks(matrix: Matrix, bins: int) -> Iterator[np.ndarray]:
    if matrix.structure == "banded":
        return _of_bands(cast(Any, matrix).bands, bins)
    if matrix.structure == "redrawn":
        return _of_redrawn(matrix, bins)
    if matrix.structure in ("buffered", "state_space") and not is_signed(matrix):
        return _carried(cast(Any, matrix).arrays, bins)
    return _of_rows(matrix, bins)


def _rows_at_once(width: int, n: int) -> int:
    return max(1, min(n, _NUMBERS // width))


def _of_rows(matrix: Matrix, bins: int) -> Iterator[np.ndarray]:
    n, epochs = matrix.n, -(-matrix.n // bins)
    source, at_once = row_source(matrix), _rows_at_once(n, n)
    for start in range(0, n, at_once):
        stop = min(start + at_once, n)
        padded = np.zeros((stop - start, epochs * bins))
        padded[:, :n] = source(start, stop)
        yield padded.reshape(stop - start, epochs, bins).sum(axis=1)


def row_source(matrix: Matrix) -> RowSource:
    """Return a function from two row numbers to these rows of |C|, from above, shape (stop - start, n)."""
    column = magnitudes_of_column(matrix)
    if column is not None:
        return lambda start, stop: toeplitz_rows(column, start, stop)
    if isinstance(matrix, ColumnScaled):
        inner, scale = row_source(matrix.inner), matrix.scale * (1 + 2 * UNIT)
        return lambda start, stop: inner(start, stop) * scale
    if matrix.structure in ("buffered", "state_space", "redrawn"):
        whole = _entries_above(matrix)
        return lambda start, stop: whole[start:stop]
    if matrix.structure == "dense":
        check_dense(matrix.n)
    return lambda start, stop: np.abs(matrix.rows(start, stop))


def magnitudes_of_column(matrix: Matrix) -> np.ndarray | None:
    """Return the first column of |C| from above, shape (n,), if C is Toeplitz; else None."""
    if isinstance(matrix, ComputedToeplitz):
        return _above(matrix.wide_column())
    column = matrix.coefficients()
    return None if column is None else np.abs(column)


def _above(numbers: Wide) -> np.ndarray:
    sizes = np.abs(numbers.high) + np.abs(numbers.low) + numbers.error
    exact = (numbers.low == 0) & (numbers.error == 0)
    return check_finite(np.where(exact, np.abs(numbers.high), sizes * (1 + 4 * UNIT)))


def _entries_above(matrix: Matrix) -> np.ndarray:
    if matrix.n > _ENTRIES:
        raise TooLarge(
            f"the entries of this signed {matrix.structure} C are enclosed one by one, and n={matrix.n} is above "
            f"{_ENTRIES}; use buffers without negative numbers, a Toeplitz or a banded C, or fewer steps"
        )
    return _above(matrix.enclosed_entries())


def _of_bands(bands: np.ndarray, bins: int) -> Iterator[np.ndarray]:
    n = bands.shape[1]
    at_once = _rows_at_once(bins, n)
    for start in range(0, n, at_once):
        t = np.arange(start, min(start + at_once, n))
        sums = np.zeros((len(t), bins))
        for d, band in enumerate(bands):
            inside = t[t >= d]
            sums[inside - start, (inside - d) % bins] += np.abs(band[inside - d])
        yield sums * (1 + len(bands) * UNIT)


def _carried(arrays: tuple[np.ndarray, ...], bins: int) -> Iterator[np.ndarray]:
    """By the recurrence, in which nothing is subtracted: each entry is a sum of products of few factors per step.

    A product that has passed k steps has lost at most (states + 4) k roundings, so steps x that is what all may lose.
    """
    from factorize.accounting.bin_kernels import carried_sums

    diagonal, transition, inputs, outputs = arrays
    n, groups, size = inputs.shape
    states = np.zeros((bins, groups, size))
    at_once = _rows_at_once(bins, n)
    slack = 1 + (n + 2) * (size + groups * size + 4) * UNIT
    for start in range(0, n, at_once):
        out = np.empty((min(at_once, n - start), bins))
        carried_sums(diagonal, transition, inputs, outputs, start, states, out)
        yield out * slack


def _of_redrawn(matrix: Matrix, bins: int) -> Iterator[np.ndarray]:
    """Sum the computed columns bin by bin; what they are off by is at most a row's norm times the bin's defects."""
    n, parts = matrix.n, cast(Any, matrix).parts
    sums, squares, defects = np.zeros((n, bins)), np.zeros(n), np.zeros(n)
    for block in redrawn_columns.in_blocks(parts):
        sizes = np.abs(block.high) + np.abs(block.low)
        squares += np.einsum("ij,ij->i", sizes, sizes)
        defects[block.starts] = block.defects
        for at, j in enumerate(block.starts):
            sums[:, j % bins] += sizes[:, at]
    factor = redrawn_columns.norm_above(1.0, float(defects @ defects)) * (1 + (n + 8) * UNIT)
    padded = np.zeros(-(-n // bins) * bins)
    padded[:n] = defects
    far = padded.reshape(-1, bins).sum(axis=0) * factor
    yield (sums + np.multiply.outer(np.sqrt(squares), far)) * (1 + (n // bins + 16) * UNIT)
