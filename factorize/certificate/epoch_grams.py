"""Epoch Grams: Gram matrices of all patterns {j, j + b, ...} of few fixed epochs, without a copy of their columns.

Columns of neighbouring patterns are neighbours in each row of C. So one sum of products of two such runs has an entry
of the Gram matrices of all patterns, and the zeros above the diagonal of C are left out epoch by epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from factorize.numbers.wide import Wide, sum_above

_MOST_EPOCHS = 16  # of which each takes a sum with each other in each epoch's rows
_SHORTEST = 64  # steps of an epoch
_TOGETHER = 128  # patterns at most whose wide sums are made at one time
_USUAL = 900  # of exponents of powers of two whose products with doubles are exact


def epochs_of(patterns: np.ndarray, n: int) -> int:
    """Return how many epochs patterns have, if they are all those of so few and so long epochs; else 0."""
    count, k = patterns.shape
    fits = count * k == n and 1 < k <= _MOST_EPOCHS and count >= _SHORTEST
    return k if fits and (patterns == np.arange(n).reshape(k, count).T).all() else 0


def gram_matrices(whole: np.ndarray, epochs: int) -> np.ndarray:
    """Return C_p^T C_p for every pattern p, shape (patterns, epochs, epochs); sums of at most n products in any order.

    Args:
        whole: C, lower-triangular, shape (n, n).
        epochs: see `epochs_of`.
    """
    blocks = _by_epochs(whole, epochs)
    found = np.zeros((epochs, epochs, blocks.shape[2]))
    for rows, last in _rows_by_epochs(len(whole), epochs):
        some = blocks[rows, :last]
        _add_products(found, some, some)
    return np.ascontiguousarray(found.transpose(2, 0, 1))


def magnitudes(whole: np.ndarray, epochs: int) -> np.ndarray:
    """Return the sums of |C_p| over its columns, shape (n, patterns)."""
    blocks = _by_epochs(whole, epochs)
    n, _, b = blocks.shape
    total = np.zeros((n, b))
    for epoch in range(epochs):
        total[epoch * b :] += np.abs(blocks[epoch * b :, epoch])
    return total


def groups(chosen: np.ndarray) -> Iterator[np.ndarray]:
    """Yield patterns, in ascending order, in groups of neighbours."""
    for group in np.unique(chosen // _TOGETHER):
        yield chosen[chosen // _TOGETHER == group]


def largest_sum(whole: np.ndarray, epochs: int, patterns: np.ndarray) -> Fraction | None:
    """Return the largest sum of |X_p| over some neighbouring patterns, from above.

    The sums are those of `pattern_sums.gram_sizes`, for all patterns from the first to the last together.

    Returns:
        None where powers of two would leave the range of doubles.
    """
    first = int(patterns[0])
    blocks = _by_epochs(whole, epochs)[:, :, first : int(patterns[-1]) + 1]
    n, most = len(blocks), np.maximum(blocks.max(axis=(0, 1)), -blocks.min(axis=(0, 1)))
    bits = (52 - n.bit_length()) // 2
    exponents = np.frexp(most)[1].astype(np.int64)
    if np.abs(exponents).max() > _USUAL:
        return None
    up, down = np.ldexp(1.0, bits - exponents), np.ldexp(1.0, exponents - bits)
    high, cross, least, tails = (np.zeros((epochs, epochs, len(most))) for _ in range(4))
    left_over = False
    for rows, last in _rows_by_epochs(n, epochs):
        some = blocks[rows, :last]  # small enough to stay in the cache
        upper = np.rint(some * up) * down
        lower = some - upper
        _add_products(high, upper, upper)
        if lower.any():
            left_over = True
            _add_products(cross, upper, lower)
            _add_products(least, lower, lower)
            _add_products(tails, np.abs(some), np.abs(lower))
    low = cross + cross.swapaxes(0, 1) + least
    # The roundings of three products and of their sum; |lower| <= |C|, entry by entry. Products underflow too.
    error = 4 * (n + 8) * 2.0**-52 * (tails + tails.swapaxes(0, 1)) + (n * 2.0**-1000 if left_over else 0.0)
    sign = np.where(high + low < 0, -1.0, 1.0)
    sizes = Wide(high * sign, low * sign, error)
    return max(sum_above(sizes.take(slice(None), slice(None), p - first)) for p in patterns)


def _by_epochs(whole: np.ndarray, epochs: int) -> np.ndarray:
    n = len(whole)
    return whole.reshape(n, epochs, n // epochs)


def _rows_by_epochs(n: int, epochs: int) -> Iterator[tuple[slice, int]]:
    """Yield the rows of each epoch, and how many columns of a pattern have begun there."""
    b = n // epochs
    return ((slice(last * b, (last + 1) * b), last + 1) for last in range(epochs))


def _add_products(found: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """Add the sums over the rows of left[:, e, j] right[:, f, j] to found, shape (epochs, epochs, patterns)."""
    for e in range(left.shape[1]):
        for f in range((e if left is right else right.shape[1] - 1) + 1):
            found[e, f] += (part := np.einsum("ij,ij->j", left[:, e], right[:, f]))
            if left is right and f < e:
                found[f, e] += part
