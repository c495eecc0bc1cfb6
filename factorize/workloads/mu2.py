"""The workloads of mu^2-SGD (R24), without its projection."""

from typing import Literal

import numpy as np

from factorize.workloads.base import StepWorkload
from factorize.workloads.operators import Accumulate, Operator, Scale


class MuSquared(StepWorkload):
    """From increments s to the estimate q = S s, the iterate w = S^2 s or the output average x = V S^2 s.

    V[i, j] = 2 (j+2) / ((i+2)(i+3)) for j <= i. Maps are positive and without the step size; row i of w is the iterate
    after step i, row i of x is R24's x_{i+2}.
    """

    kind: Literal["mu2"]
    output: Literal["q", "w", "x"]

    @property
    def time_invariant(self) -> bool:
        """Whether no average is taken."""
        return self.output != "x"

    def operators(self) -> tuple[Operator, ...]:
        """Return one sum, two sums, or two sums and the weighted average."""
        if self.output == "q":
            return (Accumulate(),)
        if self.output == "w":
            return (Accumulate(), Accumulate())
        i = np.arange(self.n)
        average = (Scale(i + 2.0), Accumulate(), Scale(2.0 / ((i + 2.0) * (i + 3.0))))
        return (Accumulate(), Accumulate(), *average)
