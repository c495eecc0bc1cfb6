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

from factorize.structures.base import check_parts
from factorize.structures.recursion import MatrixRecursion, X
from factorize.structures.recursive import ComputedToeplitz


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
        self.theta, self.omega = check_parts("blt", {"theta": theta, "omega": omega}, n)
        self.n = n

    @cached_property
    def recursion(self) -> MatrixRecursion:
        """One state for each buffer: y_t = x_t + omega . s_t, s_{t+1} = theta s_t + x_t."""
        pairs = list(zip(self.theta.tolist(), self.omega.tolist(), strict=True))
        buffers = [{(s, 1): theta, (X, 0): 1.0} for s, (theta, _) in enumerate(pairs, 1)]
        return MatrixRecursion(
            self.n, [{(X, 0): 1.0, **{(s, 1): omega for s, (_, omega) in enumerate(pairs, 1)}}, *buffers]
        )

    def bandwidth(self) -> int:
        """Known from the parameters: one or two diagonals where nothing is carried on, else n."""
        if not self.omega.any():
            return 1
        carried = (self.omega > 0) & (self.theta > 0)
        return self.n if carried.any() else min(2, self.n)

    def leading(self, steps: int) -> BltMatrix:
        """The same parameters."""
        return BltMatrix(self.theta, self.omega, steps)

    def tensors(self) -> dict[str, np.ndarray]:
        """Decays and scales."""
        return {"theta": self.theta, "omega": self.omega}
