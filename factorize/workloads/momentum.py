"""SGD with heavy-ball or Nesterov momentum, with or without a learning-rate schedule."""

from typing import Literal

import numpy as np

from factorize.plain_data import Fraction
from factorize.workloads.base import Workload
from factorize.workloads.operators import Accumulate, Decay, LookAhead, Operator, Scale
from factorize.workloads.prefix import Prefix
from factorize.workloads.schedule import LearningRates, Rated, Schedule, positive


class Momentum(Rated):
    """m_i = momentum m_{i-1} + g_i, x_{i+1} = x_i - eta_i m_i: A = S diag(eta) M, M[i, j] = momentum^(i-j).

    With `nesterov`: x_{i+1} = x_i - eta_i (g_i + momentum m_i), so A = S diag(eta) (I + momentum M). The order of the
    factors matters as soon as the rates change. Source: C24, section 4 for the workload with
    momentum and cooldown.
    """

    kind: Literal["momentum"]
    momentum: Fraction
    learning_rates: LearningRates | None = None
    nesterov: bool = False

    def operators(self) -> tuple[Operator, ...]:
        """Return momentum, then the rates, then the sum."""
        first = LookAhead(self.momentum) if self.nesterov else Decay(np.full(self.n, self.momentum))
        return (first, Accumulate()) if self.time_invariant else (first, Scale(self.rates()), Accumulate())

    def easier(self) -> Workload:
        """Return it with rates raised to a thousandth of the largest if one is zero; otherwise without momentum."""
        if self.learning_rates is None:
            return Prefix(kind="prefix", n=self.n)
        rates = positive(self.learning_rates, self.n)
        if not self.rates().all():
            return self.model_copy(update={"learning_rates": rates})
        return Schedule(kind="schedule", n=self.n, learning_rates=rates)
