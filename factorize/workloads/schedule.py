"""SGD with a learning-rate schedule."""

from __future__ import annotations

from typing import Literal

import numpy as np

from factorize.workloads.base import StepWorkload, Workload
from factorize.workloads.forms import BidiagonalInverse, FirstOrder
from factorize.workloads.operators import Accumulate, Operator, Scale
from factorize.workloads.schedules import LearningRates, explicit, positive


class Schedule(StepWorkload):
    """A = S diag(learning_rates): A[i, j] = learning_rates[j] for j <= i."""

    kind: Literal["schedule"]
    learning_rates: LearningRates

    def model_post_init(self, _context: object) -> None:
        """Check the list against n."""
        explicit(self.learning_rates, self.n)

    @property
    def time_invariant(self) -> bool:
        """No: the rate changes."""
        return False

    def canonical(self) -> Schedule:
        """With the schedule as its list."""
        return Schedule(kind=self.kind, n=self.n, learning_rates=explicit(self.learning_rates, self.n))

    def operators(self) -> tuple[Operator, ...]:
        """Scale, then sum."""
        return (Scale(np.array(explicit(self.learning_rates, self.n))), Accumulate())

    def easier(self) -> Workload | None:
        """With rates raised to a thousandth of the largest where one is zero."""
        if all(explicit(self.learning_rates, self.n)):
            return None
        return Schedule(kind=self.kind, n=self.n, learning_rates=positive(self.learning_rates, self.n))

    def bidiagonal_inverse(self) -> BidiagonalInverse | None:
        """Row i of A^-1 is (x_i - x_{i-1}) / learning_rates_i; None where a rate is zero."""
        rates = np.array(explicit(self.learning_rates, self.n))
        if not rates.all():
            return None
        p = 1.0 / rates
        return BidiagonalInverse(p, np.where(np.arange(self.n) == 0, 0.0, p))

    def first_order(self) -> FirstOrder:
        """The sum follows itself."""
        return FirstOrder(np.minimum(np.arange(self.n), 1.0), np.array(explicit(self.learning_rates, self.n)))
