"""A buffered linear Toeplitz strategy: the structure `blt`, two numbers per buffer whatever n is.

c_0 = 1 and c_t = sum_r omega_r theta_r^(t-1). With decays in [0, 1] and scales that are not negative the coefficients
from c_1 on are positive and fall, in exact arithmetic and not only as computed; with sum omega <= 1 all of them do,
which is what makes the sensitivity under several participations exact (KL24, Theorem 2).

Reference: McMahan, Xu, Zhang, A hassle-free algorithm for private learning in practice: don't use tree aggregation, use
BLTs (2024), algorithms 2 and 3, for the recursions of C and C^-1.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from factorize.errors import InvalidStrategy
from factorize.format.tensors import refuse_coinciding
from factorize.numbers.series import toeplitz_rows
from factorize.structures.inverse_banded_toeplitz import ComputedToeplitz
from factorize.workloads.state_space import StateSpace


class BltMatrix(ComputedToeplitz):
    """The lower-triangular Toeplitz matrix with that column.

    Args:
        theta: decays, shape (buffers,), in [0, 1], no two within 2^-43.
        omega: scales, shape (buffers,), not negative.
        n: side.

    Raises:
        InvalidStrategy: otherwise.
    """

    structure = "blt"

    def __init__(self, theta: np.ndarray, omega: np.ndarray, n: int) -> None:
        decays, scales = np.array(theta, dtype=np.float64), np.array(omega, dtype=np.float64)
        if decays.ndim != 1 or not len(decays) or scales.shape != decays.shape:
            raise InvalidStrategy(
                f"theta and omega hold one number per buffer, at least one; got shapes {decays.shape}, {scales.shape}"
            )
        if not (np.isfinite(decays).all() and np.isfinite(scales).all()):
            raise InvalidStrategy("a buffered Toeplitz matrix holds NaN or infinity; every entry must be finite")
        if (decays < 0).any() or (decays > 1).any() or (scales < 0).any():
            raise InvalidStrategy(
                f"decays span [{decays.min()!r}, {decays.max()!r}] and scales start at {scales.min()!r}; decays must "
                "lie in [0, 1] and scales must not be negative, or no sensitivity by closed form holds; add the "
                "matrix as a dense one"
            )
        refuse_coinciding(decays)
        if n < 1:
            raise InvalidStrategy(f"n={n} is below 1")
        for part in (decays, scales):
            part.setflags(write=False)
        self.theta, self.omega, self.n = decays, scales, n

    @cached_property
    def _column(self) -> np.ndarray:
        column = self.times(np.eye(1, self.n)[0])
        column.setflags(write=False)
        return column

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Slide over the column."""
        return toeplitz_rows(self._column, start, stop)

    def column(self) -> np.ndarray:
        """Return the first column, each entry rounded once, shape (n,)."""
        return self._column

    def divide(self, series: np.ndarray) -> np.ndarray:
        """Return the series over that of C: one recursion with `buffers` states."""
        try:
            from factorize.structures.kernels.blt import divide_rows
        except ModuleNotFoundError:
            from factorize.structures.plain_rows import divide_blt as divide_rows  # type: ignore[assignment]

        out = np.empty((1, self.n))
        divide_rows(self.theta, self.omega, np.ascontiguousarray(series, dtype=np.float64)[None], out)
        return out[0]

    def times(self, series: np.ndarray) -> np.ndarray:
        """Return the product with the series of C: one recursion with `buffers` states."""
        try:
            from factorize.structures.kernels.blt import multiply_rows
        except ModuleNotFoundError:
            from factorize.structures.plain_rows import multiply_blt as multiply_rows  # type: ignore[assignment]

        out = np.empty((1, self.n))
        multiply_rows(self.theta, self.omega, np.ascontiguousarray(series, dtype=np.float64)[None], out)
        return out[0]

    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """The recursion of C^-1 along each row, from its end; O(n buffers) per row."""
        try:
            from factorize.structures.kernels.blt import divide_rows
        except ModuleNotFoundError:
            from factorize.structures.plain_rows import divide_blt as divide_rows  # type: ignore[assignment]

        out = np.empty(block.shape)
        divide_rows(self.theta, self.omega, np.ascontiguousarray(block[:, ::-1], dtype=np.float64), out)
        return out[:, ::-1]

    def left_multiply(self, block: np.ndarray) -> np.ndarray:
        """The recursion of C along each row, from its end; O(n buffers) per row."""
        try:
            from factorize.structures.kernels.blt import multiply_rows
        except ModuleNotFoundError:
            from factorize.structures.plain_rows import multiply_blt as multiply_rows  # type: ignore[assignment]

        out = np.empty(block.shape)
        multiply_rows(self.theta, self.omega, np.ascontiguousarray(block[:, ::-1], dtype=np.float64), out)
        return out[:, ::-1]

    @cached_property
    def _inverse_column(self) -> np.ndarray:
        return self.divide(np.eye(1, self.n)[0])

    def inverse_rows(self, start: int, stop: int) -> np.ndarray:
        """Slide over the inverse's column."""
        return toeplitz_rows(self._inverse_column, start, stop)

    def column_norms_squared(self) -> np.ndarray:
        """Column j holds the first n - j coefficients."""
        return np.cumsum(self._column**2)[::-1]

    def bandwidth(self) -> int:
        """Known from the parameters: one or two diagonals where nothing is carried on, else n."""
        if not self.omega.any():
            return 1
        carried = (self.omega > 0) & (self.theta > 0)
        return self.n if carried.any() else min(2, self.n)

    def decoder_errors(self, workload: StateSpace) -> np.ndarray:
        """One forward recurrence over the covariance of both states, O(n (buffers + states)^2)."""
        from factorize.structures.kernels.blt import output_variances

        variances = np.empty(self.n)
        follow, feed, read, through = map(np.ascontiguousarray, workload.parts())
        output_variances(self.theta, self.omega, follow, feed, read, through, variances)
        return variances

    def tensors(self) -> dict[str, np.ndarray]:
        """Decays and scales."""
        return {"theta": self.theta, "omega": self.omega}
