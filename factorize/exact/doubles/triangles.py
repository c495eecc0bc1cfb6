"""Lower-triangular matrices in blocks: a guess of the inverse, and products of a few rows with all that is below them.

Sums run over at most `TERMS` products at a time, which are added one after the other: an entry of a product over n
terms is off by at most gamma_k times the product of the magnitudes, k = `roundings_of(n)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import numpy as np

from factorize.exact.arithmetic.intervals import NotEnclosed

Block = TypeVar("Block")
Found = TypeVar("Found")

LONGEST_IN_PAIRS = 4096
TERMS = 512
_LEAST, _MOST, _BLOCKS, _LEAF = 64, 1024, 8, 32


def roundings_of(terms: int) -> int:
    """Return how many roundings meet one product of a sum."""
    return min(terms, TERMS) + -(-terms // TERMS)


def blocks_of(n: int) -> Iterator[tuple[int, int]]:
    """Yield where the blocks of n steps start and stop."""
    size = min(max(-(-n // _BLOCKS), _LEAST), _MOST)
    return ((start, min(start + size, n)) for start in range(0, n, size))


def in_pairs(step: Callable[[Block], Found], blocks: Iterable[Block], n: int) -> Iterator[tuple[Block, Found]]:
    """Yield blocks with what a step makes of each, in order; two at a time, each in a thread of its own.

    Each block goes the same way as alone, so that nothing of what is rounded changes. Products let go of the
    interpreter's lock, and take one thread each where BLAS has one. Blocks of longer rows go alone: BLAS has both cores
    there, and memory a limit.

    Args:
        step: what is made of a block.
        blocks: in order.
        n: length of the rows.
    """
    waiting = iter(blocks)

    def made(block: Block) -> Found:
        with np.errstate(all="ignore"):  # which threads do not take over
            return step(block)

    with ThreadPoolExecutor(2, "block") as pool:
        while some := list(islice(waiting, 2 if n <= LONGEST_IN_PAIRS else 1)):
            yield from zip(some, pool.map(made, some) if len(some) > 1 else map(made, some), strict=True)


def times_lower(rows: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """Return rows times a lower-triangular matrix.

    Args:
        rows: shape (any, k).
        lower: shape (k, k), zero above the diagonal.
    """
    out = np.zeros((len(rows), lower.shape[1]))
    for start, stop in blocks_of(lower.shape[1]):
        for first in range(start, len(lower), TERMS):
            last = min(first + TERMS, len(lower))
            out[:, start:stop] += rows[:, first:last] @ lower[first:last, start:stop]
    return out


def inverse_of(lower: np.ndarray) -> np.ndarray:
    """Return a guess of the inverse, zero above the diagonal: substitution by blocks.

    Raises:
        NotEnclosed: it leaves the range of doubles.
    """
    n = len(lower)
    found = np.zeros((n, n))
    with np.errstate(all="ignore"):
        for start, stop in blocks_of(n):
            own = _small_inverse(np.ascontiguousarray(lower[start:stop, start:stop]))
            found[start:stop, start:stop] = own
            if start:
                below = times_lower(lower[start:stop, :start], found[:start, :start])
                np.matmul(-own, below, out=found[start:stop, :start])
    if not np.isfinite(found[:, 0]).all() or not np.isfinite(np.einsum("ij->", found)):
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
