"""Epoch sums: which patterns {j, j + b, ...} of few fixed epochs may have the largest sum of |C_p^T C_p|.

Most patterns need not be multiplied out. Columns of neighbouring patterns are neighbours in each row of C, so one sum
of products of two such runs has an entry of the Gram matrices of all patterns, and the zeros above the diagonal are
left out epoch by epoch. With y = 2^(beta - e) C = u + l, u the nearest integers, C_p^T C_p is u^T u + w + w^T in units
of 2^(2 (e - beta)), w = (u + l / 2)^T l: the first is exact in doubles, and what the others round is bounded in
advance (docs/notes/exact-checker.md).
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.machine import check_products
from factorize.exact.arithmetic.pairs import in_pairs

MOST_EPOCHS = 16
"""Each of them takes a sum with each other in each epoch's rows."""
SHORTEST = 64
"""Steps of an epoch."""
_USUAL = 400  # of exponents: nothing of y is then lost by underflow but what is below 2^-600, which is looked for
_UNIT = 2.0**-53
_SLACK = 1 + 2.0**-30


class LargestPatterns(NamedTuple):
    """Patterns that may have the largest sum.

    Attributes:
        chosen: which, ascending; at least one.
        others: no sum of any other pattern is above this.
    """

    chosen: np.ndarray
    others: Fraction


def largest_patterns(array: np.ndarray, epochs: int) -> LargestPatterns | None:
    """Return the patterns that may have the largest sum of |C_p^T C_p|; None where all are to be multiplied out.

    Args:
        array: C, finite and zero above the diagonal, shape (n, n).
        epochs: k, which divides n.
    """
    n = len(array)
    if not 1 < epochs <= MOST_EPOCHS or n < SHORTEST * epochs:
        return None
    try:
        check_products()
    except NotEnclosed:
        return None
    exponent, bits = int(np.frexp(max(array.max(), -array.min()))[1]), (53 - (n - 1).bit_length()) // 2
    if not -_USUAL < exponent < _USUAL:
        return None
    first, second = _products(array, epochs, bits - exponent)
    second = second + second.swapaxes(0, 1)
    sign = np.where(first + second < 0, -1.0, 1.0)
    whole = np.abs(first).sum(axis=(0, 1))
    if not whole.max() < 2.0**53:
        return None
    whole = (sign * first).sum(axis=(0, 1))
    left, off = (sign * second).sum(axis=(0, 1)), _rounded(first, second, n)
    unit = Fraction(4) ** (exponent - bits)
    sums = [Fraction(a) + Fraction(b) for a, b in zip(whole.tolist(), left.tolist(), strict=True)]
    high = [(value + Fraction(lost)) * unit for value, lost in zip(sums, off.tolist(), strict=True)]
    low = max((value - Fraction(lost)) * unit for value, lost in zip(sums, off.tolist(), strict=True))
    chosen = np.array([p for p, value in enumerate(high) if value >= low])
    return LargestPatterns(chosen, max((value for value in high if value < low), default=Fraction(0)))


def _products(array: np.ndarray, epochs: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Return u^T u and (u + l / 2)^T l for all patterns, shape (epochs, epochs, patterns)."""
    n, b = len(array), len(array) // epochs
    blocks, scale = array.reshape(n, epochs, b), 2.0**shift

    def products_of(last: int) -> tuple[np.ndarray, np.ndarray]:
        """Of the rows of an epoch, in which the columns of later ones are zero."""
        low = blocks[last * b : (last + 1) * b, : last + 1] * scale
        whole = np.rint(low)
        low -= whole
        middle = whole + 0.5 * low
        first, second = np.zeros((2, epochs, epochs, b))
        for e in range(last + 1):
            for f in range(last + 1):
                second[e, f] = np.einsum("ij,ij->j", middle[:, e], low[:, f])
                if f <= e:
                    first[e, f] = first[f, e] = np.einsum("ij,ij->j", whole[:, e], whole[:, f])
        return first, second

    first, second = np.zeros((2, epochs, epochs, b))
    for _, (one, other) in in_pairs(products_of, reversed(range(epochs)), n):
        first += one
        second += other
    return first, second


def _rounded(first: np.ndarray, second: np.ndarray, n: int) -> np.ndarray:
    """What the sums over all entries of a pattern are off by at most, shape (patterns,)."""
    lengths = np.sqrt(np.einsum("eep->ep", first)).sum(axis=0) + 0.25 * len(first) * np.sqrt(n)
    products = 2 * (n + 4) * _UNIT * lengths * (0.5 * np.sqrt(n) * len(first))
    return np.asarray((products + (len(first) ** 2 + 4) * _UNIT * np.abs(second).sum(axis=(0, 1))) * _SLACK)
