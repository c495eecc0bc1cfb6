"""Products in doubles: A times a matrix, row by row with a bound on each entry or as a guess; triangles in blocks.

A runs as its program, which carries with each state a bound of its rounding. A kind without a program, or one that
loses too much, is multiplied as an array.

Sums of a triangle run over at most `TERMS` products at a time, which are added one after the other: an entry of a
product over n terms is off by at most gamma_k times the product of the magnitudes, k = `roundings_of(n)`.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from factorize.checker.arithmetic.balls import errors_of, nearest
from factorize.checker.arithmetic.near import SLACK, TINY, Around, Factor, NotEnclosed, column_norms, gamma, row_norms
from factorize.checker.spec.workloads import array_of, program_of, toeplitz_column

TERMS = 512
"""The most products that are summed in one go."""
_MIN_BLOCK, _MAX_BLOCK, _BLOCKS, _MIN_COLUMNS = 64, 1024, 8, 256


def roundings_of(terms: int) -> int:
    """Return the number of roundings that one product in a sum of `terms` products goes through."""
    return min(terms, TERMS) + -(-terms // TERMS)


def blocks_of(n: int) -> Iterator[tuple[int, int]]:
    """Yield where the blocks of n steps start and stop."""
    size = min(max(-(-n // _BLOCKS), _MIN_BLOCK), _MAX_BLOCK)
    return ((start, min(start + size, n)) for start in range(0, n, size))


def times_lower(rows: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """Return rows, shape (any, k), times a matrix that is zero above the diagonal, shape (k, k)."""
    out = np.empty((len(rows), len(lower)))
    size = max(_MIN_COLUMNS, min(len(lower) // _BLOCKS, _MAX_BLOCK))
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
    """Return X^T X, summed over at most `TERMS` rows at a time."""
    total = matrix[:TERMS].T @ matrix[:TERMS]
    for first in range(TERMS, len(matrix), TERMS):
        total += matrix[first : first + TERMS].T @ matrix[first : first + TERMS]
    return np.asarray(total)


def inverse_of(lower: np.ndarray) -> np.ndarray:
    """Return a guess of the inverse of a lower-triangular matrix; raise NotEnclosed where it overflows."""
    import scipy.linalg  # Not scipy.linalg.lapack: threads that import both wait for each other.

    with np.errstate(all="ignore"):
        # The transposed of rows is stored by columns, so the triangle is the upper one; the other is not touched.
        inverse, failed = scipy.linalg.lapack.dtrtri(lower.T, lower=0)
        if failed or not np.isfinite(np.einsum("ij->", inverse)):  # One entry that is not finite makes the sum so.
            raise NotEnclosed("C is too ill-conditioned to be inverted in double precision")
    return np.ascontiguousarray(inverse.T)


_MAX_COLUMN_LOSS = 2.0**-29  # A program may lose this share of a column's largest entry before A becomes an array.
_ROWS_AT_ONCE = 256


class WorkloadRows:
    """The workload A, shape (rows, columns), by its program or as an array.

    Args:
        document: the spec's workload.
        user: numbers of user-supplied matrices by sha256.

    Attributes:
        triangular: whether entries above the diagonal are known to be 0.

    Raises:
        NotEnclosed: the numbers of a user's matrix are not known.
    """

    def __init__(self, document: Mapping[str, Any], user: Mapping[str, np.ndarray]) -> None:
        self.rows, self.columns = document.get("shape") or (document["n"], document["n"])
        self._document, self._program = document, program_of(document)
        self.triangular = document["kind"] != "matrix"
        self._given = None if self._program is not None else array_of(document, user)
        if self._program is None and self._given is None:
            raise NotEnclosed("the workload's numbers are not known here")

    @cached_property
    def _array(self) -> Around | None:
        """The whole of A where it has no program, or one that loses too much."""
        if self._given is not None:
            return Around(self._given, np.zeros(1))
        assert self._program is not None  # Only an array of numbers has none.
        if not self._program.constant:
            return None
        column = list(self._program.run((Around(float(i == 0), 0.0) for i in range(self.rows)), Factor.of))
        loose = not max(each.errors for each in column) <= _MAX_COLUMN_LOSS * max(abs(each.values) for each in column)
        return _whole(self._document) if loose else None

    @cached_property
    def chain(self) -> np.ndarray | None:
        """The numbers k and e, each rounded once, of rows s_i = k_i s_{i-1} + e_i x_i, shape (2, n), or None."""
        steps = self._program.steps(self.rows) if self._program is not None and self._array is None else None
        return None if steps is None else np.array(steps, dtype=np.float64).T

    def times(self, matrix: np.ndarray | None = None) -> Iterator[Around]:
        """Yield the rows of A times a matrix, or without one the rows of A."""
        if self._array is None:
            assert self._program is not None  # Otherwise there is an array.
            places = np.arange(self.columns)
            inputs = matrix if matrix is not None else (1.0 * (places == i) for i in range(self.rows))
            return self._program.run((Around(row, 0.0 * row) for row in inputs), Factor.of)
        return self._rows(self._array) if matrix is None else self._rows(_product(self._array, matrix))

    def guess(self, matrix: np.ndarray) -> np.ndarray:
        """Return an approximation of A times a matrix."""
        if self._array is not None:
            return np.asarray(self._array.values @ matrix)
        assert self._program is not None  # Otherwise there is an array.
        guess = np.empty((self.rows, matrix.shape[1]))
        if self.chain is not None:
            before = np.zeros(matrix.shape[1])
            for place, (follow, feed) in enumerate(self.chain.T):
                before = np.add(follow * before, feed * matrix[place], out=guess[place])
            return guess
        for place, row in enumerate(self._program.run(matrix)):
            guess[place] = row
        return guess

    def _rows(self, array: Around) -> Iterator[Around]:
        errors = np.broadcast_to(array.errors, array.values.shape)
        return map(Around, array.values, errors)


def _product(array: Around, matrix: np.ndarray) -> Around:
    """Return a product with errors by Cauchy and Schwarz; a sum has a term for each non-zero entry of its column."""
    terms = int(np.count_nonzero(matrix, axis=0).max(initial=0))
    lengths, sizes = row_norms(array.values), column_norms(matrix)
    slack = gamma(roundings_of(terms) + 2) * lengths
    if array.errors.any():
        slack = slack + row_norms(array.errors)
    return Around(array.values @ matrix, np.multiply.outer(slack, sizes) * (1 + SLACK) + terms * TINY)


def _whole(document: Mapping[str, object]) -> Around:
    column = toeplitz_column(document)
    assert column is not None  # The factors are the same at every step.
    values = nearest(column)
    return Around(toeplitz_array(values), toeplitz_array(errors_of(column, values)))


def toeplitz_array(column: np.ndarray) -> np.ndarray:
    """Return a lower-triangular Toeplitz matrix, as views of one vector."""
    n = len(column)
    padded = np.concatenate([column[::-1], np.zeros(n - 1)])
    return np.lib.stride_tricks.sliding_window_view(padded, n)[::-1]
