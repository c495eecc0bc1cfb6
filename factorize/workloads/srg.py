"""The workload of stochastic recursive gradients (S24): A = S M L."""

from typing import Literal

import numpy as np

from factorize.plain_data import Fraction, UnitInterval
from factorize.workloads.base import StepWorkload
from factorize.workloads.operators import Accumulate, Decay, Operator


class RecursiveGradient(StepWorkload):
    """A = S M L with M[i, j] = momentum^(i-j) and L[i, j] = decay^(i-j).

    The estimate nabla_t = decay nabla_{t-1} + increment feeds momentum, and the momentum the model: the coefficients of
    1 / ((1-x)(1 - momentum x)(1 - decay x)), taken by recursion since partial fractions fail where two roots meet.
    """

    kind: Literal["srg"]
    momentum: Fraction
    decay: UnitInterval

    def operators(self) -> tuple[Operator, ...]:
        """Return the recursive estimate, momentum, and the sum."""
        return (Decay(np.full(self.n, self.decay)), Decay(np.full(self.n, self.momentum)), Accumulate())
