"""Gram matrix of the sums of |C| over residue classes of the steps: what balls-in-bins sampling lets be seen.

An example that draws bin j takes part in the steps j, j + b, j + 2b, ... For every lower-triangular C, and for
contributions of every dimension, adaptive ones too, no two runs can be told apart better than the normal laws whose
means are the sums of the columns of |C| over a class (docs/notes/amplification-proofs.md, theorem 1). The sums are
rounded up: a larger |C| can only leak more (corollary 1).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from factorize.checker.arithmetic.machine import check_products
from factorize.checker.strategy import Strategy
from factorize.checker.structures.base import Buffers
from factorize.errors import InvalidParameter, InvalidStrategy, TooLarge

MOST_BINS = 4096
"""Bins for which a Gram matrix is held and exponentiated here."""
MOST_WORK = 1 << 36
_UNIT = 2.0**-52
_LEAST = 2.0**-1000  # more than products below the normal range lose


class ClassSums(NamedTuple):
    """Ends of the sums of |C| over a class, shape (n, bins); one column of them, shape (n,), where C is Toeplitz."""

    low: np.ndarray
    high: np.ndarray


class Gram(NamedTuple):
    """What is known of the Gram matrix of the sums.

    Attributes:
        high: at least M^T M entry by entry, M the sums rounded up; at least that of the true sums.
        near: at most M^T M entry by entry. So M^T M, which is a covariance, is between the two.
        least: at most the diagonal for the true sums, shape (bins,).
    """

    high: np.ndarray
    near: np.ndarray
    least: np.ndarray


def gram(strategy: Strategy, bins: int) -> Gram:
    """Enclose the Gram matrix of the sums of |C| over the classes of the steps modulo `bins`.

    Args:
        strategy: C.
        bins: number of bins; those beyond n are empty.

    Raises:
        InvalidParameter: no number of bins.
        TooLarge: above the limits of this checker.
        InvalidStrategy: the sums overflow.
    """
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise InvalidParameter(f"the number of bins is an integer of at least 1; got {bins!r}", field="bins")
    if bins > MOST_BINS:
        raise TooLarge(f"a Gram matrix over bins is limited to {MOST_BINS} bins here; got {bins}")
    toeplitz = strategy.toeplitz is not None
    work = strategy.n * bins * (1 if toeplitz else bins)
    if work > MOST_WORK:
        raise TooLarge(f"sums over {bins} bins of n={strategy.n} steps take {work} products, above {MOST_WORK}")
    with np.errstate(over="ignore", invalid="ignore"):
        sums = column_sums(strategy, bins)
        found = _of_shifts(sums, bins) if toeplitz else _of_sums(sums)
    if not all(np.isfinite(part).all() for part in found):
        raise InvalidStrategy("sums of |C| or their squares are beyond the range of doubles; divide C by a constant")
    return found


def column_sums(strategy: Strategy, bins: int) -> ClassSums:
    """Return both ends of the sums of |C| over classes; of class 0 alone for a Toeplitz C, the rest are its shifts."""
    if strategy.toeplitz is not None:
        return _of_toeplitz(strategy, bins)
    reading = strategy.reading
    buffers = reading.buffers
    if buffers is not None and buffers.nonnegative and len(buffers.inputs) == strategy.n:
        return _of_buffers(buffers, _factors(strategy), bins)
    if (bands := reading.diagonals(MOST_WORK)) is not None:
        return _of_bands(bands, strategy.scale, bins)
    return _of_columns(strategy, bins)


def _around(values: np.ndarray, roundings: int) -> ClassSums:
    """Ends around sums of non-negative terms, each of which has met at most so many roundings."""
    slack = (roundings + 4) * _UNIT
    return ClassSums(np.maximum(values * (1 - slack) - _LEAST, 0.0), values * (1 + slack) + _LEAST)


def _factors(strategy: Strategy) -> np.ndarray:
    return np.ones(strategy.n) if strategy.scale is None else strategy.scale


def _of_toeplitz(strategy: Strategy, bins: int) -> ClassSums:
    (column,), (far,) = (part.T for part in strategy.near_columns(np.zeros(1, dtype=np.int64)))
    ends = ClassSums(np.maximum(np.abs(column) - far, 0.0), np.abs(column) + far)
    for part in ends:
        for start in range(bins, strategy.n, bins):
            stop = min(start + bins, strategy.n)
            part[start:stop] += part[start - bins : stop - bins]
    turns = -(-strategy.n // bins) + 1
    return ClassSums(_around(ends.low, turns).low, _around(ends.high, turns).high)


def _of_bands(bands: np.ndarray, scale: np.ndarray | None, bins: int) -> ClassSums:
    n = bands.shape[1]
    found = np.zeros((n, bins))
    for d, band in enumerate(bands):
        columns = np.arange(n - d)
        factors = 1.0 if scale is None else scale[: n - d]
        found[columns + d, columns % bins] += np.abs(band[: n - d]) * factors
    return _around(found, len(bands) + 1)


def _of_columns(strategy: Strategy, bins: int) -> ClassSums:
    """Columns of doubles, some at a time."""
    n = strategy.n
    if n * n > 1 << 32:
        raise TooLarge(f"the columns of a matrix that is no recursion are added up to n=65536; got n={n}")
    found, rows = np.zeros((2, n, bins)), np.arange(n)[:, None]
    for start in range(0, n, bins):
        steps = np.arange(start, min(start + bins, n))
        values, far = strategy.near_columns(steps)
        off = np.where(rows >= steps, far, 0.0)
        found[0, :, : len(steps)] += np.maximum(np.abs(values) - off, 0.0)
        found[1, :, : len(steps)] += np.abs(values) + off
    turns = -(-n // bins) + 1
    return ClassSums(_around(found[0], turns).low, _around(found[1], turns).high)


def _of_buffers(given: Buffers, factors: np.ndarray, bins: int) -> ClassSums:
    """The recursion itself, with an input for each class in place of each column; every number is non-negative."""
    n, groups, states = given.inputs.shape
    found, state = np.zeros((n, bins)), np.zeros((groups, states, bins))
    for i in range(n):
        if i:
            state = np.matmul(given.transition[i], state)
        found[i] = np.tensordot(given.outputs[i], state, axes=2)
        found[i, i % bins] += given.diagonal[i] * factors[i]
        state[:, :, i % bins] += given.inputs[i] * factors[i]
    return _around(found, n * (states + 3) + groups * states + 4)


def _of_shifts(sums: ClassSums, bins: int) -> Gram:
    """The Gram matrix of the shifts of one column, cut at n: running sums of its products with itself."""
    n = len(sums.high)
    high, least = np.zeros((bins, bins)), np.zeros(bins)
    used = min(bins, n)
    for d in range(used):
        running = np.cumsum(sums.high[: n - d] * sums.high[d:])
        columns = np.arange(min(bins - d, n - d))
        high[columns, columns + d] = high[columns + d, columns] = running[n - 1 - d - columns]
    squares = np.cumsum(sums.low * sums.low)
    least[:used] = _around(squares[n - 1 - np.arange(used)], n + 2).low
    found = _around(high, n + 2)
    return Gram(found.high, found.low, least)


def _of_sums(sums: ClassSums) -> Gram:
    """The product of non-negative numbers: each of its entries is off by n roundings at most, in any order."""
    check_products()
    high = _around(sums.high.T @ sums.high, len(sums.high) + 2)
    return Gram(high.high, high.low, _around((sums.low * sums.low).sum(axis=0), len(sums.low) + 2).low)
