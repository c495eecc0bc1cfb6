"""SGD with a learning-rate schedule."""

from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from factorize.workloads.base import StepWorkload, Workload
from factorize.workloads.operators import Accumulate, Operator, Scale
from factorize.workloads.schedules import LearningRates, explicit, positive


class Rated(StepWorkload):
    """A workload with a learning rate for each step, or with none."""

    if TYPE_CHECKING:
        learning_rates: LearningRates | None

    def model_post_init(self, _context: object) -> None:
        """Check the list against n."""
        if self.learning_rates is not None:
            explicit(self.learning_rates, self.n)

    @property
    def time_invariant(self) -> bool:
        """Whether the learning rate is constant."""
        return self.learning_rates is None

    def rates(self) -> np.ndarray:
        """Return the n learning rates, ones where none are given."""
        return np.ones(self.n) if self.learning_rates is None else np.array(explicit(self.learning_rates, self.n))

    def canonical(self) -> Self:
        """With the schedule as its list."""
        if self.learning_rates is None:
            return self
        return self.model_copy(update={"learning_rates": explicit(self.learning_rates, self.n)})


class Schedule(Rated):
    """A = S diag(learning_rates): A[i, j] = learning_rates[j] for j <= i."""

    kind: Literal["schedule"]
    learning_rates: LearningRates

    def operators(self) -> tuple[Operator, ...]:
        """Scale, then sum."""
        return (Scale(self.rates()), Accumulate())

    def easier(self) -> Workload | None:
        """With rates raised to a thousandth of the largest where one is zero."""
        if self.rates().all():
            return None
        return Schedule(kind=self.kind, n=self.n, learning_rates=positive(self.learning_rates, self.n))
