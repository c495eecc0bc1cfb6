"""The inverse of a Toeplitz matrix with few diagonals: the structure `inverse_banded_toeplitz`.

What is stored is C^-1, so that the noise of a step is a sum over the last few draws, and C is what that noise protects.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from factorize.structures.base import check_parts
from factorize.structures.recursion import MatrixRecursion, toeplitz
from factorize.structures.recursive import ComputedToeplitz
from factorize.workloads.state_space import StateSpace


class InverseBandedToeplitz(ComputedToeplitz):
    """The inverse of the lower-triangular Toeplitz matrix with few diagonals: 1, and below it nothing positive.

    Then c_t = sum_d |m_d| c_{t-d}, in which nothing is subtracted, and with sum |m_d| <= 1 no coefficient exceeds 1.

    Args:
        noising: first column of C^-1, shape (bands,): 1, then numbers in [-1, 0] that sum to -1 at least; none between
            -1e-100 and 0.
        n: side, at least `bands`.

    Raises:
        InvalidStrategy: otherwise.
    """

    structure = "inverse_banded_toeplitz"

    def __init__(self, noising: np.ndarray, n: int) -> None:
        (self.noising,) = check_parts(self.structure, {"inverse_coefficients": noising}, n)
        self.n = n

    @cached_property
    def inverse_recursion(self) -> MatrixRecursion:
        """A sum over the last inputs, the oldest first."""
        return toeplitz(self.noising, self.n)

    @cached_property
    def recursion(self) -> MatrixRecursion:
        """Its inverse."""
        return self.inverse_recursion.inverse()

    def decoder_errors(self, workload: StateSpace) -> None:  # noqa: ARG002  as of any other Toeplitz matrix
        """None: diagonals may be many."""

    def bandwidth(self) -> int:
        """One where C is I, else n."""
        return self.n if self.noising[1:].any() else 1

    def leading(self, steps: int) -> InverseBandedToeplitz:
        """The start of the inverse's column."""
        return InverseBandedToeplitz(self.noising[:steps], steps)

    def tensors(self) -> dict[str, np.ndarray]:
        """The inverse's column."""
        return {"inverse_coefficients": self.noising}
