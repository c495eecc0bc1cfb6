"""Squared column norms, and sums over patterns, of every structure as wide numbers (see numbers/wide.py)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, cast

import numpy as np

from factorize.numbers.wide import (
    Wide,
    check_finite,
    largest,
    of_doubles,
    product,
    root_above,
    running_sums,
    squares,
    sum_above,
)
from factorize.structures.computed_toeplitz import ComputedToeplitz
from factorize.structures.matrix import ColumnScaled, Matrix
from factorize.workloads.base import toeplitz_rows

_FEW = 64  # columns that are summed one by one; more go all together
_COLUMNS = 1 << 14  # at a time: the intermediate arrays stay in the cache


def column_norms(matrix: Matrix) -> Wide | None:
    """Return the squared norm of each column, shape (n,), or None for a structure without a rule of its own here."""
    rule = _NORMS.get(matrix.structure)
    return None if rule is None else rule(matrix)


def largest_column(matrix: Matrix) -> Fraction | None:
    """Return the squared norm of the largest column from above, or None as `column_norms`."""
    column = matrix.coefficients()
    if column is not None and matrix.structure in _NORMS:
        return sum_above(squares(column))
    if matrix.structure == "dense":
        return _largest_dense(matrix)
    if isinstance(matrix, ComputedToeplitz):
        wide = matrix.wide_column()
        parts = (wide.take(slice(at, at + _COLUMNS)) for at in range(0, matrix.n, _COLUMNS))
        return sum((sum_above(part.times(part)) for part in parts), Fraction(0))
    norms = column_norms(matrix)
    return None if norms is None else largest(norms)


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
    leaves, n = matrix.leaves(), matrix.n
    steps = np.arange(n)
    total = squares(matrix.nodes[0])
    for level, weights in enumerate(matrix.nodes[1:]):
        sums = running_sums(squares(weights))
        left = np.flatnonzero(leaves >> level & 1 == 0)
        parent = steps[left] - leaves[left] + (leaves[left] >> level + 1 << level + 1)
        end = np.minimum(steps[left] - leaves[left] + matrix.restart, n)  # of the tree
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


def _buffered(matrix: Any) -> Wide | None:
    from factorize.structures.wide_recurrences import column_norms as recurrence

    diagonal, transition, inputs, outputs = matrix.arrays
    high, low, error = np.empty(matrix.n), np.empty(matrix.n), np.empty(matrix.n)
    enclosed = recurrence(diagonal, transition, inputs, outputs, high, low, error)
    return Wide(high, low, error) if enclosed else None


def _scaled(matrix: Any) -> Wide | None:
    inner = column_norms(matrix.inner)
    return None if inner is None else inner.times(squares(matrix.scale))


_NORMS: dict[str, Callable[[Any], Wide | None]] = {
    "dense": _dense,
    "toeplitz": _toeplitz,
    "banded_toeplitz": _toeplitz,
    "banded": _banded,
    "buffered": _buffered,
    "state_space": _buffered,
    "blt": _computed,
    "inverse_banded_toeplitz": _computed,
    "tree": _tree,
    "scaled": _scaled,
}


def best_periodic(norms: Wide, epochs: int) -> Fraction:
    """Return the largest sum over steps {j, j + n / epochs, ...}, from above."""
    rows = Wide(*(part.reshape(epochs, -1) for part in norms))
    total = rows.take(np.array(0))
    for epoch in range(1, epochs):
        total = total.plus(rows.take(np.array(epoch)))
    return largest(total)


def best_separated(norms: Wide, separation: int, most: int) -> Fraction:
    """Return the largest sum of at most `most` numbers whose positions are `separation` or more apart, from above."""
    from factorize.structures.wide_recurrences import best_selection

    high, low, lost = best_selection(check_finite(norms.high), norms.low, separation, most)
    return Fraction(high) + Fraction(low) + Fraction(lost) + most * Fraction(float(norms.error.max()))


def leading_pattern(column: Wide, separation: int, most: int) -> Fraction:
    """Return the squared norm of the sum of columns 0, b, 2b, ... of a Toeplitz matrix, from above."""
    from factorize.structures.wide_recurrences import pattern_sums

    total = of_doubles(np.zeros(len(column.high)))
    pattern_sums(column.high, column.low, column.error, separation, most, total.high, total.low, total.error)
    return sum_above(total.times(total))


def entries(matrix: Matrix) -> Wide:
    """Return C, shape (n, n): its doubles where they are stored, and enclosed where they are computed."""
    if matrix.structure in ("buffered", "state_space"):
        from factorize.structures.wide_recurrences import fill

        found = Wide(*np.zeros((3, matrix.n, matrix.n)))
        diagonal, transition, inputs, outputs = cast(Any, matrix).arrays
        fill(diagonal, transition, inputs, outputs, found.high, found.low, found.error)
        return found
    if isinstance(matrix, ComputedToeplitz):
        return Wide(*(toeplitz_rows(part, 0, matrix.n) for part in matrix.wide_column()))
    if isinstance(matrix, ColumnScaled):
        inner = entries(matrix.inner)
        if not (inner.low.any() or inner.error.any()):
            return product(inner.high, matrix.scale)
        return inner.times(_stored(np.broadcast_to(matrix.scale, inner.high.shape)))
    return _stored(matrix.dense())


def _stored(values: np.ndarray) -> Wide:
    """Doubles as they are, with zeros that take no memory."""
    return Wide(values, *np.broadcast_to(0.0, (2, *values.shape)))


def gram_sums(columns: Wide) -> Fraction:
    """Return the sum of |X| over the Gram matrix X of some columns, shape (n, k), from above."""
    return sum_above(gram_sizes(columns))


def gram_sizes(columns: Wide) -> Wide:
    """Return |X| for the Gram matrix X of some columns, shape (n, k).

    The upper bits of the entries are multiplied without rounding: the sums stay below 2^53 of their unit. What is left
    is smaller by 2^-20 and is multiplied in double precision.
    """
    n, magnitude = len(columns.high), np.abs(columns.high)
    bits = (52 - n.bit_length()) // 2
    exponent = int(np.frexp(magnitude.max())[1])
    upper = np.ldexp(np.rint(np.ldexp(columns.high, bits - exponent)), exponent - bits)
    lower = (columns.high - upper) + columns.low
    exact = upper.T @ upper
    if not (lower.any() or columns.error.any()):
        return Wide(np.abs(exact), np.zeros_like(exact), np.zeros_like(exact))
    cross = upper.T @ lower
    rest = cross + cross.T + lower.T @ lower
    sign = np.where(exact + rest < 0, -1.0, 1.0)
    tails = magnitude.T @ np.abs(lower)
    # The roundings of three products and of their sum; |lower| <= |columns|, entry by entry.
    error = 4 * (n + 8) * 2.0**-52 * (tails + tails.T)
    if columns.error.any():
        error = error + around(magnitude + np.abs(columns.low), columns.error)
    return Wide(exact * sign, rest * sign, error)


def around(magnitude: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return at least what errors of the entries of C change in C^T C, entry by entry.

    Args:
        magnitude: |C| without its errors, shape (n, k).
        error: of each entry.
    """
    mixed = magnitude.T @ error
    return np.asarray((mixed + mixed.T + error.T @ error) * (1 + (len(error) + 8) * 2.0**-52))


def around_products(magnitude: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return at least what `around` does, by column sums and largest errors: O(n k) and never a product of matrices."""
    sums, most = magnitude.sum(axis=0), error.max(axis=0)
    mixed = np.multiply.outer(sums, most)
    slack = np.multiply.outer(error.sum(axis=0), most)
    return np.asarray((mixed + mixed.T + slack) * (1 + 2 * (len(error) + 8) * 2.0**-52))


def attained_selection(columns: np.ndarray, separation: int, most: int) -> Fraction | None:
    """Return the two-stage bound of a matrix without negative entries, if a pattern attains it to the last unit.

    Best selection within each row of the Gram matrix, then of the rows' values (mathematics, C.6); without negative
    entries the columns of a pattern add up to a squared sensitivity.

    Args:
        columns: C, shape (n, n), non-negative.
        separation: smallest distance of two steps.
        most: largest number of steps.
    """
    from factorize.structures.wide_recurrences import best_positions, best_selections

    sizes, n = gram_sizes(_stored(columns)), columns.shape[1]
    high, low, lost = np.empty(n), np.empty(n), np.empty(n)
    best_selections(sizes.high, sizes.low, separation, most, high, low, lost)
    rows = Wide(high, low, lost + most * sizes.error.max(axis=1))
    upper = best_separated(rows, separation, most)
    chosen = [best_positions(values, separation, most) for values in (high, np.diagonal(sizes.high).copy())]
    lower = max(_sum_below(columns[:, pattern]) for pattern in (*chosen, np.arange(0, n, separation)[:most]))
    return upper if root_above(upper) <= np.nextafter(root_above(lower), np.inf) else None


def _sum_below(columns: np.ndarray) -> Fraction:
    """Return the squared norm of the sum of some columns, from below."""
    total = of_doubles(np.zeros(len(columns)))
    for column in columns.T:
        total = total.plus(of_doubles(column))
    square = total.times(total)
    above = sum_above(square)
    return above * (1 - Fraction(1, 2**100)) - 2 * sum_above(of_doubles(square.error))
