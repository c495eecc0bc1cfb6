"""Slow, obvious versions of the privacy-critical functions, for small n. Shares no code with the package."""

from __future__ import annotations

import itertools

import numpy as np


def single_patterns(n: int) -> list[tuple[int, ...]]:
    """Every single step."""
    return [(i,) for i in range(n)]


def fixed_epoch_patterns(n: int, epochs: int) -> list[tuple[int, ...]]:
    """{j, j + b, ...} for each j below b."""
    b = n // epochs
    return [tuple(range(j, n, b)) for j in range(b)]


def min_sep_patterns(n: int, separation: int, most: int) -> list[tuple[int, ...]]:
    """Every set of at most `most` steps whose neighbours are at least `separation` apart."""
    return [
        chosen
        for size in range(1, most + 1)
        for chosen in itertools.combinations(range(n), size)
        if all(b - a >= separation for a, b in itertools.pairwise(chosen))
    ]


def sign_sensitivity(matrix: np.ndarray, patterns: list[tuple[int, ...]]) -> float:
    """Largest norm over scalar contributions of +1 or -1: exact in one dimension, a lower bound for vectors."""
    gram = matrix.T @ matrix
    best = 0.0
    for pattern in patterns:
        block = gram[np.ix_(pattern, pattern)]
        for signs in itertools.product((1.0, -1.0), repeat=len(pattern) - 1):
            u = np.array((1.0, *signs))
            best = max(best, float(u @ block @ u))
    return best**0.5


def absolute_sensitivity(matrix: np.ndarray, patterns: list[tuple[int, ...]]) -> float:
    """Upper bound for vector contributions: sums of absolute Gram entries."""
    gram = np.abs(matrix.T @ matrix)
    return max(float(gram[np.ix_(pattern, pattern)].sum()) for pattern in patterns) ** 0.5
