"""The Gram matrix of the sums of |C| over residue classes of the steps, which bounds the leakage of balls in bins.

An example that draws bin j takes part in the steps j, j + b, j + 2b, ... No two runs can be told apart better than the
normal laws whose means are these sums (docs/notes/amplification-proofs.md, theorem 1), which are rounded up: a larger
|C| can only leak more (corollary 1).
"""

from typing import NamedTuple

import numpy as np

from factorize.checker.arithmetic.machine import check_products
from factorize.checker.strategy import Strategy
from factorize.checker.structures.base import Buffers
from factorize.errors import InvalidParameter, InvalidStrategy, TooLarge

MAX_BINS = 4096
"""The most bins for which a Gram matrix is held and exponentiated."""
MAX_WORK = 1 << 36
"""The most products that sums over bins may take."""
_MAX_N_OF_COLUMNS = 65_536  # A longer C is added up only if it is Toeplitz or a recursion of positive numbers.
_ENTRIES_AT_ONCE = 1 << 22  # The entries of columns that are held together.
_UNIT = 2.0**-52
_UNDERFLOW = 2.0**-1000  # Products below the normal range lose less.


class Gram(NamedTuple):
    """Bounds of the Gram matrix of the sums.

    Attributes:
        high: at least M^T M entry by entry, where M are the sums rounded up, and so at least that of the true sums.
        near: at most M^T M entry by entry. So M^T M, which is a covariance, is between the two.
    """

    high: np.ndarray
    near: np.ndarray


def gram(strategy: Strategy, bins: int) -> Gram:
    """Enclose the Gram matrix of the sums of |C| over the classes of the steps modulo `bins`.

    Args:
        strategy: C.
        bins: number of bins; bins after the n-th are empty.

    Raises:
        InvalidParameter: `bins` is no number of bins.
        TooLarge: the work is above the limits of this checker.
        InvalidStrategy: the sums overflow.
    """
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise InvalidParameter(f"the number of bins must be an integer of at least 1; got {bins!r}", field="bins")
    if bins > MAX_BINS:
        raise TooLarge(f"a Gram matrix over bins is limited to {MAX_BINS} bins here; got {bins}")
    toeplitz = strategy.toeplitz is not None
    work = strategy.n * bins * (1 if toeplitz else bins)
    if work > MAX_WORK:
        raise TooLarge(
            f"sums over {bins} bins of n={strategy.n} steps need {work} products, and the limit is {MAX_WORK}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        enclosed = _of_shifts(_of_toeplitz(strategy, bins), bins) if toeplitz else _of_sums(_sums(strategy, bins))
    if not np.isfinite(enclosed.high).all():
        raise InvalidStrategy("sums of |C| or their squares exceed the range of doubles; divide C by a constant")
    return enclosed


def _around(values: np.ndarray, roundings: int) -> Gram:
    """Return ends around sums of non-negative terms, each after at most `roundings` roundings."""
    slack = (roundings + 4) * _UNIT
    return Gram(values * (1 + slack) + _UNDERFLOW, np.maximum(values * (1 - slack) - _UNDERFLOW, 0.0))


def _of_toeplitz(strategy: Strategy, bins: int) -> np.ndarray:
    """Return upper bounds of the sums over class 0, shape (n,), whose shifts are those over the others."""
    (column,), (far,) = (part.T for part in strategy.near_columns(np.zeros(1, dtype=np.int64)))
    sums = np.abs(column) + far
    for start in range(bins, strategy.n, bins):
        stop = min(start + bins, strategy.n)
        sums[start:stop] += sums[start - bins : stop - bins]
    return _around(sums, -(-strategy.n // bins) + 1).high


def _sums(strategy: Strategy, bins: int) -> np.ndarray:
    """Return upper bounds of the sums over all classes, shape (n, bins)."""
    factors = np.ones(strategy.n) if strategy.scale is None else strategy.scale
    buffers, bands = strategy.reading.buffers, strategy.reading.bands
    if buffers is not None and buffers.nonnegative and len(buffers.inputs) == strategy.n:
        return _of_buffers(buffers, factors, bins)
    if bands is None or strategy.n * len(bands) ** 2 > MAX_WORK:
        return _of_columns(strategy, bins)
    return _of_bands(bands, factors, bins)


def _of_bands(bands: np.ndarray, factors: np.ndarray, bins: int) -> np.ndarray:
    n = len(factors)
    sums = np.zeros((n, bins))
    for d, band in enumerate(bands):
        columns = np.arange(n - d)
        sums[columns + d, columns % bins] += np.abs(band[: n - d]) * factors[: n - d]
    return _around(sums, len(bands) + 1).high


def _of_buffers(buffers: Buffers, factors: np.ndarray, bins: int) -> np.ndarray:
    """Run the recursion with an input for each class in place of each column; every number is non-negative."""
    n, groups, states = buffers.inputs.shape
    sums, state = np.zeros((n, bins)), np.zeros((groups, states, bins))
    for i in range(n):
        if i:
            state = np.matmul(buffers.transition[i], state)
        sums[i] = np.tensordot(buffers.outputs[i], state, axes=2)
        sums[i, i % bins] += buffers.diagonal[i] * factors[i]
        state[:, :, i % bins] += buffers.inputs[i] * factors[i]
    return _around(sums, n * (states + 3) + groups * states + 4).high


def _of_columns(strategy: Strategy, bins: int) -> np.ndarray:
    """Add up columns of doubles, some at a time."""
    n = strategy.n
    if n > _MAX_N_OF_COLUMNS:
        raise TooLarge(f"the columns of a C that is not a recursion are added up to n={_MAX_N_OF_COLUMNS}; got n={n}")
    sums, rows, step = np.zeros((n, bins)), np.arange(n)[:, None], bins * max(_ENTRIES_AT_ONCE // (n * bins), 1)
    for start in range(0, n, step):
        steps = np.arange(start, min(start + step, n))
        values, far = strategy.near_columns(steps)
        sizes = np.abs(values) + (np.where(rows >= steps, far, 0.0) if far.any() else 0.0)
        for first in range(0, len(steps), bins):
            some = sizes[:, first : first + bins]
            sums[:, : some.shape[1]] += some
    return _around(sums, -(-n // bins) + 1).high


def _of_shifts(sums: np.ndarray, bins: int) -> Gram:
    """Return the Gram matrix of the shifts of one column, cut at n, by running sums of its products with itself."""
    n, high = len(sums), np.zeros((bins, bins))
    for d in range(min(bins, n)):
        running = np.cumsum(sums[: n - d] * sums[d:])
        columns = np.arange(min(bins - d, n - d))
        high[columns, columns + d] = high[columns + d, columns] = running[n - 1 - d - columns]
    return _around(high, n + 2)


def _of_sums(sums: np.ndarray) -> Gram:
    """Return the Gram matrix of non-negative sums, each entry off by n roundings at most, in any order."""
    check_products()
    return _around(sums.T @ sums, len(sums) + 2)
