"""Columns of strategies with redraws, enclosed (see numbers/wide.py): what their sensitivities are made of.

C = K^-1 is computed, as pairs of doubles, and K is stored. So what the computed columns Y are off by is found from what
K makes of them: with R = I - K Y, whose columns the recurrence bounds (structures/kernels/redrawn.py),

    C - Y = C R,    and with |R| < 1    |C| <= |Y| / (1 - |R|)    in the Frobenius norm, and for each row.

No bound on the condition of K is needed beforehand: where it is too large |R| is not small, and that is an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from factorize.errors import CertificateError, TooLarge
from factorize.numbers.pattern_sums import gram_sizes
from factorize.numbers.rounding import UNIT
from factorize.numbers.wide import Wide, root_above, sum_above
from factorize.structures.base import Bound

LARGEST = 16_384
"""Longest n whose columns of C are solved for: n^2 / 2 entries, which are not all in memory at one time."""

_AT_ONCE = 64  # columns, so that a row of them stays in the cache
_UP = 1 + 2.0**-36  # the floating-point operations on bounds, sums of n terms among them

Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]
"""Decay, output, input, direct and lag of a `RedrawnMatrix`."""


class Columns:
    """Some columns Y of C, in ascending order, and how far K Y is from unit vectors.

    Args:
        parts: K.
        starts: which columns, shape (k,).

    Attributes:
        starts: the columns.
        high: shape (n, k).
        low: shape (n, k).
        norms: squared norms of the columns of Y.
        defects: norms of the columns of R, from above, shape (k,).

    Raises:
        TooLarge: n is above the limit.
        CertificateError: a number came near the overflow.
    """

    def __init__(self, parts: Parts, starts: np.ndarray) -> None:
        from factorize.structures.kernels.redrawn import columns

        n, k = len(parts[0]), len(starts)
        if n > LARGEST:
            raise TooLarge(
                f"the columns of a C with redraws are solved for, entry by entry; n={n} is above {LARGEST}: use fewer "
                "steps, or buffers without redraws"
            )
        self.starts = starts
        self.high, self.low, defects = np.zeros((n, k)), np.zeros((n, k)), np.empty(k)
        norms = np.empty((2, k))
        if not columns(*parts, starts.astype(np.int64), self.high, self.low, norms, defects):
            raise CertificateError("C, the inverse of the stored matrix, has entries above 1e100; use smaller numbers")
        self.norms = Wide(norms[0], norms[1], norms[0] * ((32 + 16 * n) * 2.0**-106 * _UP))
        self.defects = np.sqrt(defects) * _UP


def in_blocks(parts: Parts) -> Iterator[Columns]:
    """Yield all columns, a block at a time."""
    n = len(parts[0])
    for first in range(0, n, _AT_ONCE):
        yield Columns(parts, np.arange(first, min(first + _AT_ONCE, n)))


def norm_above(squares: float, defects: float) -> float:
    """Return at least the Frobenius norm of C.

    Args:
        squares: sum of the squared norms of all columns of Y.
        defects: sum of those of R.

    Raises:
        CertificateError: R is not small, so Y says nothing about C.
    """
    rest = math.sqrt(defects) * _UP
    if not rest < 0.5:
        raise CertificateError(
            f"K times its computed inverse differs from I by up to {rest:.3g}; the strategy is too ill-conditioned for "
            "its sensitivity to be enclosed"
        )
    return math.sqrt(squares) / (1 - rest) * _UP


def entries(parts: Parts) -> Wide:
    """Return all of C, shape (n, n)."""
    n = len(parts[0])
    found, defects = Wide(*np.zeros((3, n, n))), np.empty(n)
    for block in in_blocks(parts):
        found.high[:, block.starts], found.low[:, block.starts] = block.high, block.low
        defects[block.starts] = block.defects
    rows = np.sqrt(np.einsum("ij,ij->i", found.high, found.high))
    # (C R)[i, j] is at most the norm of row i of C times that of column j of R.
    factor = norm_above(1.0, float(defects @ defects)) * _UP
    np.multiply.outer(rows * factor, defects, out=found.error)
    return found


def column_norms(parts: Parts) -> Wide:
    """Return the squared norm of each column of C, shape (n,)."""
    blocks = [(*block.norms, block.defects) for block in in_blocks(parts)]
    high, low, error, defects = (np.concatenate(some) for some in zip(*blocks, strict=True))
    far = norm_above(float(high.sum()), float(defects @ defects)) * defects
    return Wide(high, low, (error + (2 * np.sqrt(high) + far) * far) * _UP)


def fixed_order_bound(parts: Parts, epochs: int) -> Bound:
    """Return the largest absolute Gram sum over the patterns u = {c, c + b, ...}, b = n / epochs.

    |C u| <= |Y u| + |C| |R u|, and the norm of R u is at most the sum of those of its columns.
    """
    separation = len(parts[0]) // epochs
    together = max(1, _AT_ONCE // epochs)
    upper, lower, rest, squares, defects = Fraction(0), 0.0, 0.0, 0.0, 0.0
    for first in range(0, separation, together):
        offsets = np.arange(first, min(first + together, separation))
        block = Columns(parts, (np.arange(epochs)[:, None] * separation + offsets).ravel())
        squares += float(block.norms.high.sum())
        defects += float(block.defects @ block.defects)
        rest = max(rest, float(block.defects.reshape(epochs, -1).sum(axis=0).max()))
        for c in range(len(offsets)):
            above, below = _pattern(block.high[:, c :: len(offsets)], block.low[:, c :: len(offsets)])
            upper, lower = max(upper, above), max(lower, below)
    slack = Fraction(norm_above(squares, defects) * rest * _UP)
    total = upper + 2 * Fraction(root_above(upper)) * slack + slack**2
    exact = total <= Fraction(lower) * (1 + Fraction(1, 10**11))
    rule = "Gram block sums" if exact else "absolute sums of the Gram blocks"
    near = float(total)
    return Bound(near if Fraction(near) >= total else math.nextafter(near, math.inf), exact, rule)


def _pattern(high: np.ndarray, low: np.ndarray) -> tuple[Fraction, float]:
    """Return the absolute Gram sum of some columns from above, and what a choice of signs attains, nearly."""
    high, low = np.ascontiguousarray(high), np.ascontiguousarray(low)
    sizes, gram = gram_sizes(Wide(high, low, np.zeros_like(high))), high.T @ high
    signs = np.where(gram[0] < 0, -1.0, 1.0)
    return sum_above(sizes), max(float(gram.sum()), float(signs @ gram @ signs), float(np.trace(gram)))


def bin_sums(parts: Parts, bins: int) -> np.ndarray:
    """Return the sums of |C|'s columns j, j + b, ..., for each bin j, from above but for n / b roundings; shape (n, b).

    The computed columns are added bin by bin; what they are off by is at most a row's norm times the bin's defects.
    """
    n = len(parts[0])
    sums, squares, defects = np.zeros((n, bins)), np.zeros(n), np.zeros(n)
    for block in in_blocks(parts):
        sizes = np.abs(block.high) + np.abs(block.low)
        squares += np.einsum("ij,ij->i", sizes, sizes)
        defects[block.starts] = block.defects
        for at, j in enumerate(block.starts):
            sums[:, j % bins] += sizes[:, at]
    factor = norm_above(1.0, float(defects @ defects)) * (1 + (n + 8) * UNIT)
    padded = np.zeros(-(-n // bins) * bins)
    padded[:n] = defects
    far = padded.reshape(-1, bins).sum(axis=0) * factor
    return (sums + np.multiply.outer(np.sqrt(squares), far)) * (1 + (n // bins + 16) * UNIT)
