"""The plain sensitivity: the formulas of docs/sensitivity.md in ordinary floating point, from the rows of a structure.

It has no allowance for rounding and states nothing. A certificate compares it with the value that the checker bounds
from the tensors (certificate/sensitivity.py): the two share no code, so a blunder in either shows.
"""

import math

import numpy as np

from factorize.numbers.triangular import pattern_sums
from factorize.participation import Participation
from factorize.structures.base import Matrix

BESIDE = 2048
"""Longest n at which a Toeplitz matrix is taken for any other, too."""
_AT_ONCE = 1 << 24  # entries
_FEW = 1 << 17  # patterns that are visited one by one
_MOST_WORK = 1 << 29  # steps before, at and after each step of a pattern, whose sums are compared


def plain_sensitivity(matrix: Matrix, participation: Participation) -> float:
    """Return the sensitivity by the formula that bounds it lowest, nearly.

    Raises:
        TooLarge: columns overlap, and n is above the limit for an n x n array.
    """
    separation, most, _ = participation.spread(matrix.n)
    with np.errstate(over="ignore", invalid="ignore"):
        return math.sqrt(_squared(matrix, separation, most, periodic=participation.patterns(matrix.n) is not None))


def _squared(matrix: Matrix, separation: int, most: int, *, periodic: bool) -> float:
    if most == 1 or matrix.bandwidth() <= separation:
        norms = matrix.column_norms_squared()
        if periodic:
            norms = norms.reshape(most, separation).sum(axis=0)
        return float(norms.max() if most == 1 or periodic else best_selections(norms, separation, most))
    column = _column(matrix)
    leading = math.inf if column is None else _leading_pattern(column, separation, most)
    if column is not None and (matrix.n > BESIDE or (column[:-1] >= column[1:]).all() and column[-1] >= 0):
        return leading
    whole = matrix.dense()
    return min(leading, (_patterns if periodic else _two_stages)(whole, separation, most))


def _column(matrix: Matrix) -> np.ndarray | None:
    """The first column of a Toeplitz matrix."""
    if matrix.time_invariant:
        return matrix.rows(matrix.n - 1, matrix.n)[0, ::-1]
    if matrix.structure != "dense":
        return None
    whole = matrix.dense()
    constant = all((whole[i, 1 : i + 1] == whole[i - 1, :i]).all() for i in range(1, matrix.n))
    return whole[:, 0] if constant else None


def _leading_pattern(column: np.ndarray, separation: int, most: int) -> float:
    """Squared norm of the sum of columns 0, b, 2b, ... of the smallest non-increasing sequence above."""
    majorant = np.maximum.accumulate(np.abs(column)[::-1])[::-1]
    return float((pattern_sums(majorant, separation, most) ** 2).sum())


def _patterns(whole: np.ndarray, separation: int, most: int) -> float:
    """The largest absolute sum of the Gram matrices of the columns j, j + b, ..."""
    n, largest = len(whole), 0.0
    step = max(_AT_ONCE // (n * most), 1)
    for start in range(0, separation, step):
        columns = whole.reshape(n, most, separation)[:, :, start : start + step].transpose(2, 1, 0)
        largest = max(largest, float(np.abs(columns @ columns.swapaxes(1, 2)).sum(axis=(1, 2)).max()))
    return largest


def _two_stages(whole: np.ndarray, separation: int, most: int) -> float:
    """The best selection within each row of |C^T C|, then of the rows; that of all patterns where they can be had."""
    n = len(whole)
    choices = (math.comb(max(n - (size - 1) * (separation - 1), 0), size) for size in range(1, most + 1))
    memory = memory_of(n, separation, most, int(np.flatnonzero([whole.diagonal(-d).any() for d in range(n)])[-1]) + 1)
    if n * n <= _AT_ONCE and (memory or sum(choices) <= _FEW):
        sizes = np.abs(whole.T @ whole)
        if memory:
            return Chains(sizes, separation, most, memory).best()
        return _visit_patterns(sizes, sizes.diagonal(), separation, most)
    step = max(_AT_ONCE // n, 1)
    blocks = (np.abs(whole.T @ whole[:, start : start + step]) for start in range(0, n, step))
    rows = np.concatenate([best_selections(block, separation, most) for block in blocks])
    return float(best_selections(rows, separation, most))


def _visit_patterns(sizes: np.ndarray, gains: np.ndarray, separation: int, most: int) -> float:
    """Return the most that up to `most` further steps add; `gains` is what each adds to those before."""
    if most == 1 or len(gains) <= separation:
        return float(gains.max(initial=0.0))
    return max(
        float(gains[i])
        + _visit_patterns(
            sizes[i + separation :, i + separation :],
            gains[i + separation :] + 2 * sizes[i, i + separation :],
            separation,
            most - 1,
        )
        for i in range(len(gains))
    )


class Chains:
    """Largest sums over patterns of X_ii and twice |X_ij|, where a step counts with the one or two steps before it.

    Args:
        sizes: |X|, shape (n, n).
        separation: least distance of two steps of a pattern.
        most: steps of one.
        memory: how many steps before it each counts with, 1 or 2.

    Attributes:
        own: |X_ii|.
        ways: twice |X_ij| of steps i < j of a pattern, minus infinity of others.
        tables: what further steps after i and j add at [i + 1, j], or [0, j] without i: at most 0, 1, ... steps; one
            table, for all, where any number fits.
    """

    def __init__(self, sizes: np.ndarray, separation: int, most: int, memory: int) -> None:
        n, self.own, self.memory = len(sizes), sizes.diagonal(), memory
        apart = np.subtract.outer(np.arange(n), np.arange(n)) <= -separation
        self.ways = np.where(apart, 2 * sizes, -np.inf)
        self.earlier = np.pad(self.ways[: n * (memory - 1)], ((1, 0), (0, 0)))
        self.limited = most < -(-n // separation)
        self.tables = [np.zeros_like(self.earlier)]
        for _ in range(most - 1 if self.limited else 1):
            after = self.tables[-1]
            table = after.copy() if self.limited else after
            for j in range(n - separation - 1, -1, -1):
                rows, far = max(j - separation + 2, 1), n if self.limited else j + 2 * separation
                added = self.own + self.ways[j] + after[(j + 1) * (memory - 1)]
                gains = self.earlier[:rows, j + separation : far] + added[j + separation : far]
                table[:rows, j] = np.maximum(gains.max(axis=1), 0.0)
            self.tables += [table] if self.limited else []

    def best(self) -> float:
        """Return the largest sum."""
        return float((self.own + self.tables[-1][0]).max())


def memory_of(n: int, separation: int, most: int, bands: int) -> int | None:
    """Return how many steps before it each step of a pattern meets, 1 or 2; None for more, or if that is too dear."""
    memory = min(most, -(-bands // separation)) - 1
    reach = separation if most >= -(-n // separation) else n * most
    work = n * reach * (1.0 if memory < 2 else min(reach, n) / 3)
    return max(memory, 1) if memory <= 2 and n * n <= _AT_ONCE and work <= _MOST_WORK else None


def best_selections(values: np.ndarray, separation: int, most: int) -> np.ndarray:
    """Return the largest sums of `most` non-negative values, shape (n, ...), along the first axis.

    Their places are `separation` or more apart.
    """
    n = len(values)
    best = np.zeros((n + separation, *values.shape[1:]))
    if most >= math.ceil(n / separation):
        for i in range(n - 1, -1, -1):
            best[i] = np.maximum(best[i + 1], values[i] + best[i + separation])
        return np.asarray(best[0])
    for _ in range(most):
        best[:n] = np.maximum.accumulate((values + best[separation:])[::-1], axis=0)[::-1]
    return np.asarray(best[0])
