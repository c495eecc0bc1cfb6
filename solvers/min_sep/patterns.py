"""Patterns of `min_sep` as arrays: all that no further step fits into, and the worst of a Gram matrix."""

import math

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.methods.compiled import Array

Places = NDArray[np.intp]


def count_of_patterns(n: int, separation: int, most: int) -> int:
    """Return how many patterns there are, of any number of steps up to `most`."""
    return sum(math.comb(max(n - (size - 1) * (separation - 1), 0), size) for size in range(1, most + 1))


def maximal_patterns(n: int, separation: int, most: int) -> list[Places]:
    """Return the patterns that no further step fits into, by their number of steps: shapes (patterns, steps)."""
    some, found = np.arange(n)[:, None], []
    for size in range(1, most + 1):
        gaps = np.diff(some, axis=1, prepend=some[:, :1] * 0 - separation)
        full = (gaps < 2 * separation).all(axis=1) & (some[:, -1] + separation >= n) | (size == most)
        if full.any():
            found.append(some[full])
        following = np.maximum(n - separation - some[:, -1], 0)
        before = np.repeat(np.arange(len(some)), following)
        place = np.arange(len(before)) - np.repeat(np.cumsum(following) - following, following)
        some = np.column_stack([some[before], some[before, -1] + separation + place])
    return found


def disjoint_patterns(n: int, min_sep: int, most: int) -> Places:
    """Return disjoint allowed patterns that cover all steps, shape (patterns, most), filled up with -1."""
    patterns = []
    for j in range(min(min_sep, n)):
        steps = np.arange(j, n, min_sep)
        for start in range(0, len(steps), most):
            piece = steps[start : start + most]
            patterns.append(np.concatenate([piece, np.full(most - len(piece), -1)]))
    return np.array(patterns)


def blocks_of(gram: Array, patterns: Places) -> Array:
    """Return the entries between the steps of each pattern, shape (patterns, steps, steps)."""
    return np.asarray(gram[patterns[:, :, None], patterns[:, None, :]])
