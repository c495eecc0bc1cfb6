"""A strategy with scaled columns, to norm 1 say: the structure `scaled`, around any of `INNER_STRUCTURES`."""

from __future__ import annotations

import numpy as np

from factorize.errors import CorruptObject, InvalidStrategy
from factorize.format.tensors import COLUMN_SCALE, INNER_STRUCTURES, SCALED, check_scale
from factorize.numbers.state_space import StateSpace, scaling
from factorize.structures.base import Matrix


class ColumnScaled(Matrix):
    """Another matrix with its columns scaled: C diag(scale).

    Args:
        inner: the matrix, of a structure in `INNER_STRUCTURES`.
        scale: shape (n,), in [1e-60, 1e60].

    Raises:
        InvalidStrategy: the inner structure or the scale is not allowed.
    """

    structure = SCALED

    def __init__(self, inner: Matrix, scale: np.ndarray) -> None:
        if inner.structure not in INNER_STRUCTURES:
            raise InvalidStrategy(
                f"the columns of a {inner.structure} matrix cannot be scaled, because the file format has no such "
                f"matrix; use one of {', '.join(INNER_STRUCTURES)}"
            )
        scale = np.array(scale, dtype=np.float64)
        try:
            check_scale({COLUMN_SCALE: scale}, inner.n)
        except CorruptObject as error:
            raise InvalidStrategy(str(error)) from None
        scale.setflags(write=False)
        self.inner = inner
        self.scale = scale
        self.n = inner.n

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return the inner rows with scaled columns."""
        return self.inner.rows(start, stop) * self.scale

    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """Solve y C D = block as y C = block D^-1."""
        return self.inner.right_solve(block / self.scale)

    def leading(self, steps: int) -> ColumnScaled:
        """Return the leading block of the inner matrix, with the scales of its columns."""
        return ColumnScaled(self.inner.leading(steps), self.scale[:steps])

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the inner tensors and the scale."""
        return {**self.inner.tensors(), COLUMN_SCALE: self.scale}

    def column_norms_squared(self) -> np.ndarray:
        """Return the squared column norms of the inner matrix times the squared scale."""
        return self.inner.column_norms_squared() * self.scale**2

    @property
    def signed(self) -> bool:
        """Whether the inner matrix may have a negative entry; scales are positive."""
        return self.inner.signed

    def bandwidth(self) -> int:
        """Return the bandwidth of the inner matrix, since scaling leaves zeros zero."""
        return self.inner.bandwidth()

    def left_multiply(self, block: np.ndarray) -> np.ndarray:
        """Return the inner product with scaled columns."""
        return self.inner.left_multiply(block) * self.scale

    def decoder_errors(self, workload: StateSpace) -> np.ndarray | None:
        """Return the inner errors for a workload that begins with the inverse scales, as (C D)^-1 = D^-1 C^-1."""
        return self.inner.decoder_errors(scaling(1.0 / self.scale).then(workload))
