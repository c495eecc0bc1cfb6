"""Selections in doubles: which rows of |C^T C| a best selection of two stages may take (docs/sensitivity.md).

A selection holds at most k steps that are b or more apart. Each row's best sum of entries is made in doubles, and for
each row the best sum of such sums with that row in it. What these are off by is bounded in advance
(docs/notes/exact-checker.md); a row whose sum is below the largest by more is in no best selection, and need not be
multiplied out.
"""

from __future__ import annotations

import math

import numpy as np

from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.machine import check_products

_UNIT = 2.0**-53
_LEAST, _MOST = 2.0**-400, 2.0**900
_ENTRY = 32  # roundings of an entry that count twice, and a few for sums of them


def deciding_rows(columns: np.ndarray, separation: int, most: int) -> np.ndarray | None:
    """Return the rows of |C^T C| that a best selection may take, ascending; None where doubles do not tell.

    Args:
        columns: C but for a power of two, shape (n, n); each entry off by at most 16 u of itself.
        separation: b.
        most: k.
    """
    try:
        check_products()
    except NotEnclosed:
        return None
    with np.errstate(all="ignore"):
        gram = np.abs(columns.T @ columns)
        peak = float(np.diagonal(gram).max())
        if not _LEAST < peak < _MOST:
            return None
        totals = totals_through(_best(gram, separation, most), separation, most)
    away = 4 * most**2 * (len(gram) + _ENTRY + most) * _UNIT * peak
    return np.flatnonzero(totals >= totals.max() - 2 * away)


def totals_through(values: np.ndarray, separation: int, most: int) -> np.ndarray:
    """Return for each step the best sum of a selection that holds it, nearly.

    Args:
        values: not negative, shape (n,).
        separation: b.
        most: k.
    """
    n = len(values)
    after, before = (
        [table[separation:] for table in _tables(some, separation, most)] for some in (values, values[::-1])
    )
    best = np.zeros(n)
    for left in range(len(after)):
        np.maximum(best, before[left][::-1] + after[len(after) - 1 - left], out=best)
    return values + best


def _tables(values: np.ndarray, separation: int, most: int) -> list[np.ndarray]:
    """Best sums from each step on of at most 0, ..., k - 1 steps; one table where any number that fits is allowed."""
    n = len(values)
    if most == math.ceil(n / separation):
        return [_unlimited(values, separation)]
    tables = [np.zeros(n + separation)]
    for _ in range(most - 1):
        tables.append(_longer(values, tables[-1], separation))
    return tables


def _best(gram: np.ndarray, separation: int, most: int) -> np.ndarray:
    """The best sums of the entries of each row of a symmetric matrix: all of them at once, step by step."""
    n = len(gram)
    if most == math.ceil(n / separation):
        return np.asarray(_unlimited(gram, separation)[0])
    table = np.zeros((n + separation, n))
    for _ in range(most):
        table = _longer(gram, table, separation)
    return np.asarray(table[0])


def _unlimited(values: np.ndarray, separation: int) -> np.ndarray:
    """Best sums from each step on, and zeros after the last step."""
    n = len(values)
    table = np.zeros((n + separation, *values.shape[1:]))
    for i in range(n - 1, -1, -1):
        table[i] = np.maximum(table[i + 1], values[i] + table[i + separation])
    return table


def _longer(values: np.ndarray, table: np.ndarray, separation: int) -> np.ndarray:
    """The same for one step more than a table allows."""
    found = np.zeros_like(table)
    found[: len(values)] = np.maximum.accumulate((values + table[separation:])[::-1], axis=0)[::-1]
    return found
