"""Largest sums over participation patterns, as wide numbers (see numbers/wide.py): what a sensitivity is made of."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from factorize.numbers.wide import Wide, check_finite, largest, of_constants, of_doubles, root_above, sum_above


def best_periodic(norms: Wide, epochs: int) -> Fraction:
    """Return the largest sum over steps {j, j + n / epochs, ...}, from above."""
    rows = Wide(*(part.reshape(epochs, -1) for part in norms))
    total = rows.take(np.array(0))
    for epoch in range(1, epochs):
        total = total.plus(rows.take(np.array(epoch)))
    return largest(total)


def best_separated(norms: Wide, separation: int, most: int) -> Fraction:
    """Return the largest sum of at most `most` numbers whose positions are `separation` or more apart, from above."""
    from factorize.numbers.wide_kernels import best_selection

    high, low, lost = best_selection(check_finite(norms.high), norms.low, separation, most)
    return Fraction(high) + Fraction(low) + Fraction(lost) + most * Fraction(float(norms.error.max()))


def leading_pattern(column: Wide, separation: int, most: int) -> Fraction:
    """Return the squared norm of the sum of columns 0, b, 2b, ... of a Toeplitz matrix, from above."""
    from factorize.numbers.wide_kernels import pattern_sums

    total = of_doubles(np.zeros(len(column.high)))
    pattern_sums(column.high, column.low, column.error, separation, most, total.high, total.low, total.error)
    return sum_above(total.times(total))


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
    # The roundings of three products and of their sum; |lower| <= |columns|, entry by entry. Products underflow too.
    error = 4 * (n + 8) * 2.0**-52 * (tails + tails.T) + n * 2.0**-1000
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

    Best selection within each row of the Gram matrix, then of the rows' values (docs/sensitivity.md); without negative
    entries the columns of a pattern add up to a squared sensitivity.

    Args:
        columns: C, shape (n, n), non-negative.
        separation: smallest distance of two steps.
        most: largest number of steps.
    """
    from factorize.numbers.wide_kernels import best_positions, best_selections

    sizes, n = gram_sizes(of_constants(columns)), columns.shape[1]
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
