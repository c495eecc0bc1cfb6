"""Prefix sums: plain SGD with a constant learning rate."""

from __future__ import annotations

from typing import Literal

import numpy as np

from factorize.workloads.base import BidiagonalInverse, StepWorkload
from factorize.workloads.operators import Accumulate, Operator


class Prefix(StepWorkload):
    """A[i, j] = 1 for j <= i."""

    kind: Literal["prefix"]

    def operators(self) -> tuple[Operator, ...]:
        """One running sum."""
        return (Accumulate(),)

    def bidiagonal_inverse(self) -> BidiagonalInverse:
        """First differences."""
        q = np.ones(self.n)
        q[0] = 0.0
        return BidiagonalInverse(np.ones(self.n), q)
