"""Compiled recurrences behind the log-determinants of workloads with few states. Imported on first use.

The process is y_i = read_i . u_i + through_i w_i, u_{i+1} = follow_i u_i + feed_i w_i, u_0 = 0, with w white: y = F w.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from factorize.numbers.compiling import assign
from factorize.numbers.double_double import add, multiply, reciprocal, root

INFLATION = 2.0**-44
"""Above the rounding of a step of `reach`: (q^2 + 3) 2^-53 of the product of two sizes per entry, times q in all."""

_NOTHING = 1e-260  # squares of rows that are dropped, since their squares would lose digits to underflow


@numba.njit(cache=True, nogil=True)
def _reflect(high, low, row, first, rows, columns):
    """Turn row `row` onto its entry `first` by a reflection of the columns, applied to the rows below as well."""
    square, square_low = 0.0, 0.0
    for k in range(first, columns):
        term, term_low = multiply(high[row, k], low[row, k], high[row, k], low[row, k])
        square, square_low = add(square, square_low, term, term_low)
    if square <= _NOTHING:
        return
    size, size_low = root(square, square_low)
    sign = -1.0 if high[row, first] < 0.0 else 1.0
    lead, lead_low = add(high[row, first], low[row, first], sign * size, sign * size_low)
    scale, scale_low = multiply(size, size_low, sign * lead, sign * lead_low)
    scale, scale_low = reciprocal(scale, scale_low)
    high[row, first], low[row, first] = lead, lead_low
    for a in range(row + 1, rows):
        dot, dot_low = 0.0, 0.0
        for k in range(first, columns):
            term, term_low = multiply(high[a, k], low[a, k], high[row, k], low[row, k])
            dot, dot_low = add(dot, dot_low, term, term_low)
        dot, dot_low = multiply(dot, dot_low, -scale, -scale_low)
        for k in range(first, columns):
            term, term_low = multiply(dot, dot_low, high[row, k], low[row, k])
            high[a, k], low[a, k] = add(high[a, k], low[a, k], term, term_low)
    high[row, first], low[row, first] = size, size_low
    if sign > 0.0:
        for a in range(row + 1, rows):
            high[a, first], low[a, first] = -high[a, first], -low[a, first]
    for k in range(first + 1, columns):
        high[row, k], low[row, k] = 0.0, 0.0


@numba.njit(cache=True, nogil=True)
def log_determinant(coefficients, coefficients_low, shift):
    """Return log det(I + shift F F^T), by a Kalman filter in square-root form; q states, O(n q^3).

    Row 0 of `coefficients[i]`, shape (q + 1, q + 1), is (read, through), the others (follow, feed). The covariance of
    u_i given y_0 .. y_{i-1} observed with precision `shift` is R R^T, R of shape (q, q + 1). Reflections make

        M = [read R, through; follow R, feed]  into  [a, 0; b, R'],

    a^2 being the variance of y_i; the next R is [b / sqrt(1 + shift a^2), R'], and log(1 + shift a^2) is added.
    """
    n, rows, _ = coefficients.shape
    q = rows - 1
    columns = q + 2
    high, low = np.zeros((rows, columns)), np.zeros((rows, columns))
    factor, factor_low = np.zeros((q, q + 1)), np.zeros((q, q + 1))
    total, compensation = 0.0, 0.0
    for i in range(n):
        for a in range(rows):
            high[a, 0], low[a, 0] = coefficients[i, a, q], coefficients_low[i, a, q]
            for k in range(q + 1):
                entry, entry_low = 0.0, 0.0
                for b in range(q):
                    value, value_low = coefficients[i, a, b], coefficients_low[i, a, b]
                    if value != 0.0 and k <= b + 1:
                        term, term_low = multiply(value, value_low, factor[b, k], factor_low[b, k])
                        entry, entry_low = add(entry, entry_low, term, term_low)
                high[a, k + 1], low[a, k + 1] = entry, entry_low
        for row in range(rows):
            _reflect(high, low, row, row, rows, columns)
        variance, variance_low = multiply(high[0, 0], low[0, 0], high[0, 0], low[0, 0])
        seen, seen_low = multiply(variance, variance_low, shift, 0.0)
        whole, whole_low = add(seen, seen_low, 1.0, 0.0)
        whole, whole_low = root(whole, whole_low)
        shrink, shrink_low = reciprocal(whole, whole_low)
        for a in range(q):
            factor[a, 0], factor_low[a, 0] = multiply(high[a + 1, 0], low[a + 1, 0], shrink, shrink_low)
            for k in range(1, a + 2):
                factor[a, k], factor_low[a, k] = high[a + 1, k], low[a + 1, k]
        adjusted = math.log1p(seen) - compensation
        added = total + adjusted
        compensation = (added - total) - adjusted
        total = added
    return total


@numba.njit(cache=True, nogil=True)
def reach(coefficients, floor):
    """Return an upper bound of what unit relative errors in every row of every M can add, as a sum of norms.

    sum_i (size of row y_i) + sum_a (size of row a of u_{i+1}) ||response of y to a unit of state a at i + 1||. The size
    of a row is that of the absolute values of its terms, plus the floor. Both covariance recursions, of the states and
    of their responses, are kept above their exact values by adding more than their rounding to the diagonal.
    """
    n, rows, _ = coefficients.shape
    q = rows - 1
    responses = np.zeros((n + 1, q))
    seen, new, sizes = np.zeros((q, q)), np.zeros((q, q)), np.zeros(rows)
    for i in range(n - 1, -1, -1):
        c = coefficients[i]
        for b in range(q):
            size = abs(c[0, b])
            for a in range(q):
                size += abs(c[a + 1, b]) * math.sqrt(seen[a, a])
            sizes[b] = size
        for b in range(q):
            for d in range(q):
                entry = c[0, b] * c[0, d]
                for a in range(q):
                    for e in range(q):
                        entry += c[a + 1, b] * seen[a, e] * c[e + 1, d]
                new[b, d] = entry
        for b in range(q):
            new[b, b] += INFLATION * sizes[b] * sizes[b]
            responses[i, b] = math.sqrt(new[b, b])
        assign(seen, new)
    total = 0.0
    seen[:] = 0.0
    for i in range(n):
        c = coefficients[i]
        for a in range(rows):
            size = abs(c[a, q])
            for b in range(q):
                size += abs(c[a, b]) * math.sqrt(seen[b, b])
            sizes[a] = size
        total += sizes[0] + floor
        for a in range(q):
            total += (sizes[a + 1] + floor) * responses[i + 1, a]
            for d in range(q):
                entry = c[a + 1, q] * c[d + 1, q]
                for b in range(q):
                    for e in range(q):
                        entry += c[a + 1, b] * seen[b, e] * c[d + 1, e]
                new[a, d] = entry
            new[a, a] += INFLATION * sizes[a + 1] * sizes[a + 1]
        assign(seen, new)
    return total
