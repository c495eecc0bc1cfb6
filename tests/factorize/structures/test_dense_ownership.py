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


def test_numbers_that_lie_in_bytes_stay_there_and_those_of_other_buffers_are_copied() -> None:
    numbers = np.tril(np.full((5, 5), 0.5))
    data, others = numbers.tobytes(), bytearray(numbers.tobytes())
    lying = np.frombuffer(data).reshape(5, 5)
    assert DenseMatrix(lying).array is lying
    read_only = np.frombuffer(memoryview(others).toreadonly()).reshape(5, 5)
    matrix = DenseMatrix(read_only)
    others[:8] = bytes(8)
    assert read_only[0, 0] == 0.0 and matrix.array[0, 0] == 0.5


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
