"""Lower-triangular matrices in blocks: a guess of the inverse, and products of a few rows with all that is below them.

Sums run over at most `TERMS` products at a time, which are added one after the other: an entry of a product over n
terms is off by at most gamma_k times the product of the magnitudes, k = `roundings_of(n)`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.pairs import in_pairs

TERMS = 512
_LEAST, _MOST, _BLOCKS, _LEAF, _COLUMNS = 64, 1024, 8, 32, 256


def roundings_of(terms: int) -> int:
    """Return how many roundings meet one product of a sum."""
    return min(terms, TERMS) + -(-terms // TERMS)


def blocks_of(n: int) -> Iterator[tuple[int, int]]:
    """Yield where the blocks of n steps start and stop."""
    size = min(max(-(-n // _BLOCKS), _LEAST), _MOST)
    return ((start, min(start + size, n)) for start in range(0, n, size))


def times_lower(rows: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """Return rows times a lower-triangular matrix.

    Args:
        rows: shape (any, k).
        lower: shape (k, k), zero above the diagonal.
    """
    out = np.empty((len(rows), len(lower)))
    size = max(_COLUMNS, min(len(lower) // _BLOCKS, _MOST))
    for start in range(0, len(lower), size):
        some = out[:, start : start + size]
        for first in range(start, len(lower), TERMS):
            terms = slice(first, first + TERMS)
            if first == start:
                np.matmul(rows[:, terms], lower[terms, start : start + size], out=some)
            else:
                some += rows[:, terms] @ lower[terms, start : start + size]
    return out


def times_upper(rows: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Return rows times an upper-triangular matrix, nearly: columns whose sums are short are made of few rows.

    Args:
        rows: shape (any, k).
        upper: shape (k, k), zero below the diagonal.
    """
    found = np.empty(rows.shape)

    def fill(block: tuple[int, int]) -> None:
        start, stop = block
        np.matmul(rows[:, :stop], upper[:stop, start:stop], out=found[:, start:stop])

    for _ in in_pairs(fill, reversed(list(blocks_of(len(upper)))), len(upper)):  # the longest first
        pass
    return found


def inverse_of(lower: np.ndarray) -> np.ndarray:
    """Return a guess of the inverse, zero above the diagonal: substitution by blocks, for some columns at a time.

    Raises:
        NotEnclosed: it leaves the range of doubles.
    """
    n = len(lower)
    found, blocks = np.zeros((n, n)), list(blocks_of(n))

    def own(block: tuple[int, int]) -> np.ndarray:
        return _small_inverse(np.ascontiguousarray(lower[slice(*block), slice(*block)]))

    with np.errstate(all="ignore"):  # of short rows, where threads would wait for each other
        inverses = {block: own(block) for block in blocks}

    def fill(block: tuple[int, int]) -> None:
        first, last = block
        found[first:last, first:last] = inverses[block]
        for start, stop in (one for one in blocks if one[0] >= last):
            above = lower[start:stop, first:start] @ found[first:start, first:last]
            np.matmul(-inverses[start, stop], above, out=found[start:stop, first:last])

    for _ in in_pairs(fill, blocks, n):
        pass
    if not np.isfinite(np.einsum("ij->", found)):  # as an entry that is not makes every sum
        raise NotEnclosed("C is too ill-conditioned to be inverted in double precision")
    return found


def _small_inverse(lower: np.ndarray) -> np.ndarray:
    n = len(lower)
    if n <= _LEAF:
        if not np.diagonal(lower).all():
            raise NotEnclosed("C is too ill-conditioned to be inverted in double precision")
        return _substituted(lower)
    half = n // 2
    first, last = _small_inverse(lower[:half, :half]), _small_inverse(lower[half:, half:])
    found = np.zeros((n, n))
    found[:half, :half], found[half:, half:] = first, last
    found[half:, :half] = -last @ (lower[half:, :half] @ first)
    return found


def _substituted(lower: np.ndarray) -> np.ndarray:
    found = np.diag(1.0 / np.diagonal(lower))
    for i in range(1, len(lower)):
        found[i, :i] = -(lower[i, :i] @ found[:i, :i]) * found[i, i]
    return found
