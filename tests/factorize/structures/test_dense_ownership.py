"""Whose numbers a dense C holds: a copy, or those that its caller has given away."""

import numpy as np
import pytest

from factorize.errors import InvalidStrategy
from factorize.structures.dense import DenseMatrix


def test_an_array_is_copied_unless_it_owns_its_numbers_and_cannot_be_written() -> None:
    given = np.tril(np.full((5, 5), 0.5))
    matrix = DenseMatrix(given)
    given[3, 1] = 7.0
    assert matrix.array[3, 1] == 0.5
    view = given[:]
    view.setflags(write=False)
    assert not np.shares_memory(DenseMatrix(view).array, given)
    given.setflags(write=False)
    assert DenseMatrix(given).array is given


@pytest.mark.parametrize(("row", "column"), [(0, 1), (0, 599), (255, 256), (256, 257), (10, 300), (598, 599)])
def test_one_entry_above_the_diagonal_is_found(row: int, column: int) -> None:
    array = np.eye(600)
    array[row, column] = 1e-300
    with pytest.raises(InvalidStrategy, match=rf"entry \({row}, {column}\) above the diagonal"):
        DenseMatrix(array)


def test_bands_are_counted_from_the_last_that_is_not_zero() -> None:
    array = np.eye(6)
    array[4, 1] = 1.0
    assert DenseMatrix(np.eye(6)).bandwidth() == 1
    assert DenseMatrix(array).bandwidth() == 4
