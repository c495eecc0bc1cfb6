"""Lower-triangular matrices in blocks: a guess of the inverse, and products of a few rows with all that is below them.

Sums run over at most `TERMS` products at a time, which are added one after the other: an entry of a product over n
terms is off by at most gamma_k times the product of the magnitudes, k = `roundings_of(n)`.
"""

from collections.abc import Iterator

import numpy as np

from factorize.checker.arithmetic.near import NotEnclosed

TERMS = 512
_LEAST, _MOST, _BLOCKS, _COLUMNS = 64, 1024, 8, 256


def roundings_of(terms: int) -> int:
    """Return how many roundings meet one product of a sum."""
    return min(terms, TERMS) + -(-terms // TERMS)


def blocks_of(n: int) -> Iterator[tuple[int, int]]:
    """Yield where the blocks of n steps start and stop."""
    size = min(max(-(-n // _BLOCKS), _LEAST), _MOST)
    return ((start, min(start + size, n)) for start in range(0, n, size))


def times_lower(rows: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """Return rows, shape (any, k), times a matrix that is zero above the diagonal, shape (k, k)."""
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


def gram(matrix: np.ndarray) -> np.ndarray:
    """Return X^T X in such sums."""
    total = matrix[:TERMS].T @ matrix[:TERMS]
    for first in range(TERMS, len(matrix), TERMS):
        total += matrix[first : first + TERMS].T @ matrix[first : first + TERMS]
    return np.asarray(total)


def inverse_of(lower: np.ndarray) -> np.ndarray:
    """Return a guess of the inverse of a matrix that is zero above the diagonal; NotEnclosed where it overflows."""
    import scipy.linalg  # not its lapack: threads that import both ways wait for each other

    with np.errstate(all="ignore"):
        # Upper, as what is stored by rows is the transposed by columns; what is below the diagonal is not touched.
        inverse, failed = scipy.linalg.lapack.dtrtri(lower.T, lower=0)
        if failed or not np.isfinite(np.einsum("ij->", inverse)):  # as an entry that is not makes every sum
            raise NotEnclosed("C is too ill-conditioned to be inverted in double precision")
    return np.ascontiguousarray(inverse.T)
