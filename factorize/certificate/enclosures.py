"""Entries and squared column norms of every structure as wide numbers (see numbers/wide.py)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, cast

import numpy as np

from factorize.errors import CertificateError
from factorize.numbers.series import toeplitz_rows
from factorize.numbers.wide import (
    Wide,
    largest,
    of_constants,
    of_doubles,
    product,
    running_sums,
    squares,
    sum_above,
)
from factorize.structures.base import Matrix
from factorize.structures.inverse_banded_toeplitz import ComputedToeplitz
from factorize.structures.kernels import redrawn_columns
from factorize.structures.scaled import ColumnScaled

_FEW = 64  # columns that are summed one by one; more go all together
_ENTRIES = 4096  # up to here C is enclosed entry by entry where its recurrence does not enclose column norms
_UNIT_IN_LAST_PLACE, _TIGHT = 2.0**-54, 2.0**-40  # errors relative to the largest norm: unseen, and accepted
_COLUMNS = 1 << 14  # at a time: the intermediate arrays stay in the cache


def column_norms(matrix: Matrix) -> Wide:
    """Return the squared norm of each column, shape (n,).

    Raises:
        CertificateError: double precision does not enclose them.
    """
    return _NORMS[matrix.structure](matrix)


def largest_column(matrix: Matrix) -> Fraction:
    """Return the squared norm of the largest column from above; it raises as `column_norms`."""
    column = matrix.coefficients()
    if column is not None:
        return sum_above(squares(column))
    if matrix.structure == "dense":
        return _largest_dense(matrix)
    if isinstance(matrix, ComputedToeplitz):
        wide = matrix.wide_column()
        parts = (wide.take(slice(at, at + _COLUMNS)) for at in range(0, matrix.n, _COLUMNS))
        return sum((sum_above(part.times(part)) for part in parts), Fraction(0))
    return largest(column_norms(matrix))


def _largest_dense(matrix: Matrix) -> Fraction:
    """Only columns that may be the largest are summed again."""
    norms, whole = matrix.column_norms_squared(), matrix.dense()
    close = np.flatnonzero(norms >= norms.max() * (1 - 2 * (matrix.n + 8) * 2.0**-52))
    if len(close) > _FEW:
        return largest(_dense(matrix))
    return max((sum_above(squares(whole[j:, j])) for j in close), default=Fraction(0))


def _dense(matrix: Any) -> Wide:
    total = of_doubles(np.zeros(matrix.n))
    for i, row in enumerate(matrix.dense()):
        sums = total.take(slice(0, i + 1)).plus(squares(row[: i + 1]))
        for whole, part in zip(total, sums, strict=True):
            whole[: i + 1] = part
    return total


def _toeplitz(matrix: Any) -> Wide:
    return running_sums(squares(matrix.coefficients())).take(slice(None, None, -1))


def _computed(matrix: Any) -> Wide:
    column = matrix.wide_column()
    return running_sums(column.times(column)).take(slice(None, None, -1))


def _tree(matrix: Any) -> Wide:
    """Squares of the diagonal, and for each level those of the right sibling's rows, as differences of running sums."""
    forest = matrix.forest
    leaves, n = forest.leaves(), forest.n
    steps = np.arange(n)
    total = squares(forest.nodes[0])
    for level, weights in enumerate(forest.nodes[1:]):
        sums = running_sums(squares(weights))
        left = np.flatnonzero(leaves >> level & 1 == 0)
        parent = steps[left] - leaves[left] + (leaves[left] >> level + 1 << level + 1)
        end = np.minimum(steps[left] - leaves[left] + forest.restart, n)  # of the tree
        first, last = (np.minimum(parent + (size << level), end) - 1 for size in (1, 2))
        minus = Wide(-sums.high[first], -sums.low[first], sums.error[first])
        more = total.take(left).plus(sums.take(last).plus(minus))
        for whole, part in zip(total, more, strict=True):
            whole[left] = part
    return total


def _banded(matrix: Any) -> Wide:
    blocks = []
    for start in range(0, matrix.n, _COLUMNS):
        some = matrix.bands[:, start : start + _COLUMNS]
        total = of_doubles(np.zeros(some.shape[1]))
        for band in some:
            total = total.plus(squares(band))
        blocks.append(total)
    return Wide(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))


def _buffered(matrix: Any) -> Wide:
    """By the recurrence; where that loses much (transitions that grow), from the enclosed entries one by one."""
    from factorize.numbers.wide_kernels import column_norms as recurrence

    diagonal, transition, inputs, outputs = matrix.arrays
    high, low, error = np.empty(matrix.n), np.empty(matrix.n), np.empty(matrix.n)
    enclosed = recurrence(diagonal, transition, inputs, outputs, high, low, error)
    found = [Wide(high, low, error)] if enclosed else []
    if matrix.n <= _ENTRIES and not any(_loose(norms) < _UNIT_IN_LAST_PLACE for norms in found):
        found.append(_by_entries(matrix))
    best = min(found, key=_loose, default=None)
    return _checked(
        best, matrix, f"its transitions grow too much, or its states cancel (entries are used to n={_ENTRIES})"
    )


def _checked(norms: Wide | None, matrix: Matrix, reason: str) -> Wide:
    """Return norms that may be called exact."""
    if norms is None or not _loose(norms) <= _TIGHT:
        raise CertificateError(
            f"the column norms of this {matrix.structure} matrix with n={matrix.n} are not enclosed in doubles: "
            f"{reason}; scale its states, or store the matrix as a dense one"
        )
    return norms


def _by_entries(matrix: Matrix) -> Wide:
    total, found = of_doubles(np.zeros(matrix.n)), entries(matrix)
    for i in range(matrix.n):
        row = found.take(np.array(i))
        total = total.plus(row.times(row))
    return total


def _loose(norms: Wide) -> float:
    """Return how well the largest one is known, relative to it; infinity where it is not."""
    highest = float(norms.high.max())
    share = float(norms.error.max()) / highest if 0 < highest < np.inf else np.inf
    return share if share >= 0 else np.inf


def _redrawn(matrix: Any) -> Wide:
    return _checked(redrawn_columns.column_norms(matrix.parts), matrix, "its inverse is too ill-conditioned")


def _scaled(matrix: Any) -> Wide:
    return column_norms(matrix.inner).times(squares(matrix.scale))


_NORMS: dict[str, Callable[[Any], Wide]] = {
    "dense": _dense,
    "toeplitz": _toeplitz,
    "banded_toeplitz": _toeplitz,
    "banded": _banded,
    "buffered": _buffered,
    "state_space": _buffered,
    "blt": _computed,
    "inverse_banded_toeplitz": _computed,
    "tree": _tree,
    "redrawn": _redrawn,
    "scaled": _scaled,
}


def entries(matrix: Matrix) -> Wide:
    """Return C, shape (n, n): its doubles where they are stored, and enclosed where they are computed."""
    if matrix.structure in ("buffered", "state_space"):
        from factorize.numbers.wide_kernels import fill

        found = Wide(*np.zeros((3, matrix.n, matrix.n)))
        diagonal, transition, inputs, outputs = cast(Any, matrix).arrays
        fill(diagonal, transition, inputs, outputs, found.high, found.low, found.error)
        return found
    if matrix.structure == "redrawn":
        return redrawn_columns.entries(cast(Any, matrix).parts)
    if isinstance(matrix, ComputedToeplitz):
        return Wide(*(toeplitz_rows(part, 0, matrix.n) for part in matrix.wide_column()))
    if isinstance(matrix, ColumnScaled):
        return _scaled_entries(entries(matrix.inner), matrix.scale)
    return of_constants(matrix.dense())


def _scaled_entries(inner: Wide, scale: np.ndarray) -> Wide:
    """Multiply the columns; a few rows at a time, up to their diagonal, so that what is between stays in the cache."""
    n, stored = len(scale), not (inner.low.any() or inner.error.any())
    found, factors = Wide(*np.zeros((3, n, n))), of_constants(scale)
    start = 0
    while start < n:
        stop = min(start + max(1, _COLUMNS // (start + 1)), n, 2 * start + 1)
        block = slice(start, stop), slice(0, stop)
        some = inner.take(*block)
        scaled = product(some.high, scale[:stop]) if stored else some.times(factors.take(slice(0, stop)))
        for whole, part in zip(found, scaled, strict=True):
            whole[block] = part
        start = stop
    return found
