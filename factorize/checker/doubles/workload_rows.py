"""A in doubles, times a matrix: row by row, with a bound on what each entry is off by; or as a guess.

A is run as its program, beside each state what it has lost. What is no program, and what loses too much so, is an array
that is multiplied.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from factorize.checker.arithmetic.balls import errors_of, nearest
from factorize.checker.arithmetic.near import SLACK, TINY, Around, Factor, NotEnclosed, column_norms, gamma, row_norms
from factorize.checker.doubles.triangles import roundings_of
from factorize.checker.spec.workloads import array_of, program_of, toeplitz_column
from factorize.checker.structures.base import toeplitz_array

_LOOSE = 2.0**-29  # of the largest entry: what a column may lose as a program
_BLOCK = 256


class WorkloadRows:
    """A, shape (rows, columns), by its program or whole.

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
        """All of A where it is no program, or one that loses too much."""
        if self._given is not None:
            return Around(self._given, np.zeros(1))
        assert self._program is not None  # or there are numbers
        if not self._program.constant:
            return None
        column = list(self._program.run((Around(float(i == 0), 0.0) for i in range(self.rows)), Factor.of))
        loose = not max(each.errors for each in column) <= _LOOSE * max(abs(each.values) for each in column)
        return _whole(self._document) if loose else None

    @cached_property
    def chain(self) -> np.ndarray | None:
        """Numbers k and e, rounded once, of rows s_i = k_i s_{i-1} + e_i x_i, shape (2, n); None for any other A."""
        steps = self._program.steps(self.rows) if self._program is not None and self._array is None else None
        return None if steps is None else np.array(steps, dtype=np.float64).T

    def times(self, matrix: np.ndarray | None = None) -> Iterator[Around]:
        """Yield the rows of A times a matrix, or of A."""
        if self._array is None:
            assert self._program is not None  # or there is an array
            places = np.arange(self.columns)
            inputs = matrix if matrix is not None else (1.0 * (places == i) for i in range(self.rows))
            return self._program.run((Around(row, 0.0 * row) for row in inputs), Factor.of)
        return self._rows(self._array) if matrix is None else self._rows(_product(self._array, matrix))

    def guess(self, matrix: np.ndarray) -> np.ndarray:
        """Return A times a matrix, nearly."""
        if self._array is not None:
            return np.asarray(self._array.values @ matrix)
        assert self._program is not None  # or there is an array
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
    """Products by Cauchy and Schwarz, of as many terms as a column of the matrix has."""
    terms = int(np.count_nonzero(matrix, axis=0).max(initial=0))
    lengths, sizes = row_norms(array.values), column_norms(matrix)
    slack = gamma(roundings_of(terms) + 2) * lengths
    if array.errors.any():
        slack = slack + row_norms(array.errors)
    return Around(array.values @ matrix, np.multiply.outer(slack, sizes) * (1 + SLACK) + terms * TINY)


def _whole(document: Mapping[str, object]) -> Around:
    column = toeplitz_column(document)
    assert column is not None  # the factors are those of every step
    values = nearest(column)
    return Around(toeplitz_array(values), toeplitz_array(errors_of(column, values)))
