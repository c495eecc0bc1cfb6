"""A workload that the user supplies as a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from factorize.encoding import tensor_digest
from factorize.errors import InvalidWorkload
from factorize.numbers.masked_entries import refuse_masked
from factorize.plain_data import Count, Long, Real, Sha256
from factorize.workloads.base import Workload

MAX_SIDE = 16_384
"""The most rows or columns of a user's matrix."""


class UserMatrix(Workload):
    """An m x n matrix, inline as `rows` or named by the sha256 of its raw little-endian float64 bytes and its shape.

    A square matrix must be lower-triangular (exact zeros above the diagonal), since no output can depend on a later
    gradient. A matrix named by its digest has to be bound to its numbers before it can be used.
    """

    time_invariant: ClassVar[bool] = False  # a user's matrix need not be Toeplitz

    kind: Literal["matrix"]
    rows: Annotated[list[Annotated[list[Real], Long]], Long] | None = None
    sha256: Sha256 | None = None
    shape: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    _array: np.ndarray | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _one_form(self) -> UserMatrix:
        if self.rows is not None and self.sha256 is None and self.shape is None:
            self._array = check_workload_matrix(_rectangular(self.rows))
        elif self.rows is not None or self.sha256 is None or self.shape is None:
            raise ValueError("give a matrix as `rows`, or as `sha256` with `shape`; not as another mixture")
        if max(self._dimensions()) > MAX_SIDE:
            raise ValueError(f"shape {list(self._dimensions())} has a side above {MAX_SIDE}, the limit")
        return self

    def _dimensions(self) -> tuple[int, int]:
        if self._array is not None:
            return self._array.shape[0], self._array.shape[1]
        assert self.shape is not None  # the validator has checked this
        return self.shape[0], self.shape[1]

    @property
    def n(self) -> int:
        """The number of steps (columns)."""
        return self._dimensions()[1]

    @property
    def m(self) -> int:
        """The number of outputs (rows)."""
        return self._dimensions()[0]

    @property
    def bound(self) -> bool:
        """Whether the numbers are known, and not just their digest."""
        return self._array is not None

    @property
    def array(self) -> np.ndarray:
        """The numbers, shape (m, n); raises InvalidWorkload where only their digest is known."""
        if self._array is None:
            raise InvalidWorkload(
                f"the spec names the matrix {self.sha256} without its numbers; give the array to `solve`, or to the "
                "factors of a file by `opened(matrices={sha256: array})`; for a service, upload it first "
                "(POST /v1/matrices)"
            )
        return self._array

    def bind(self, array: np.ndarray) -> UserMatrix:
        """Return this workload with its numbers, shape (m, n); raise InvalidWorkload where these are other numbers."""
        bound = from_array(array)
        if (bound.sha256, bound.shape) != (self.sha256, self.shape):
            raise InvalidWorkload(
                f"the numbers given have shape {bound.shape} and do not hash to {self.sha256}; give the matrix that "
                "the spec names"
            )
        return bound

    def canonical(self) -> UserMatrix:
        """Return the workload with digest and shape in place of the rows."""
        return self if self.rows is None else from_array(self.array)

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return A x."""
        return self.array @ x

    def adjoint(self, y: np.ndarray) -> np.ndarray:
        """Return A^T y."""
        return self.array.T @ y

    def recursions(self) -> None:
        """Return None, since they are not known for a user's matrix."""
        return None

    def picked(self, rows: Sequence[int]) -> np.ndarray:
        """Return some rows."""
        return self.array[list(rows)]

    def row_block(self, start: int, stop: int) -> np.ndarray:
        """Return a copy of rows start..stop-1."""
        return self.array[start:stop].copy()

    def dense(self) -> np.ndarray:
        """Return the matrix."""
        return self.array.copy()


def from_array(array: np.ndarray) -> UserMatrix:
    """Return the workload of an array of shape (m, n), named by its digest and bound to it."""
    checked = check_workload_matrix(array)
    named = UserMatrix(kind="matrix", sha256=tensor_digest([checked]), shape=list(checked.shape))
    named._array = checked
    return named


def check_workload_matrix(array: np.ndarray) -> np.ndarray:
    """Return a read-only float64 copy of a user's matrix that can be a workload.

    Raises:
        InvalidWorkload: the array is not two-dimensional, empty, not finite, all zero, or square and not
            lower-triangular.
    """
    with np.errstate(invalid="ignore"):  # a signalling NaN raises, and is refused below
        refuse_masked("matrix", array)
        checked = np.array(array, dtype=np.float64) + 0.0
    if checked.ndim != 2 or 0 in checked.shape:
        raise InvalidWorkload(f"a workload matrix must have two dimensions of at least 1; got shape {checked.shape}")
    if not np.isfinite(checked).all():
        raise InvalidWorkload("the workload matrix contains NaN or infinity; every entry must be finite")
    if not checked.any():
        raise InvalidWorkload("the workload matrix is all zeros; there is nothing to release")
    if checked.shape[0] == checked.shape[1] and np.triu(checked, 1).any():
        i, j = np.argwhere(np.triu(checked, 1))[0]
        raise InvalidWorkload(
            f"entry ({i}, {j}) above the diagonal is {float(checked[i, j])!r}; a square workload must be "
            "lower-triangular with exact zeros, since output i cannot depend on a later gradient"
        )
    checked.setflags(write=False)
    return checked


def _rectangular(rows: list[list[float]]) -> np.ndarray:
    lengths = {len(row) for row in rows}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"rows have lengths {sorted(lengths)[:4]}; give rows of one positive length")
    return np.array(rows, dtype=np.float64)
