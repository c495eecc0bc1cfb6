"""SGD with weight decay, decoupled from the gradient or added to it."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import model_validator

from factorize.plain_data import Fraction, NonNegative
from factorize.workloads.base import Workload
from factorize.workloads.operators import CoupledDecay, Decay, Operator, Scale
from factorize.workloads.schedule import LearningRates, Rated, explicit, positive


class WeightDecay(Rated):
    """Decoupled: x_{i+1} = (1 - eta_i rate) x_i - eta_i m_i, so A = P diag(eta) M.

    P[i, j] = prod_{s=j+1..i} (1 - eta_s rate). Coupled: rate x_i is added to the gradient before the momentum, so
    A = (I + rate S diag(eta) M Sh)^-1 S diag(eta) M with Sh the shift by one step.
    """

    kind: Literal["weight_decay"]
    rate: NonNegative
    mode: Literal["decoupled", "coupled"]
    momentum: Fraction = 0.0
    learning_rates: LearningRates | None = None

    @model_validator(mode="after")
    def _contracts(self) -> WeightDecay:
        fastest = 1.0 if self.learning_rates is None else max(explicit(self.learning_rates, self.n))
        if fastest * self.rate >= 1:
            raise ValueError(
                f"rate={self.rate} times the largest learning rate {fastest} is not below 1; lower the rate, since "
                "learning rates are relative to a peak of 1"
            )
        return self

    def operators(self) -> tuple[Operator, ...]:
        """Return momentum, rates, then the decaying sum; or the coupled recursion as one operator."""
        rates = self.rates()
        if self.mode == "coupled":
            return (CoupledDecay(rates, self.momentum, self.rate),)
        return (Decay(np.full(self.n, self.momentum)), Scale(rates), Decay(1.0 - rates * self.rate))

    def easier(self) -> Workload | None:
        """Return it with rates raised as by `positive` if one is zero; otherwise decoupled and without momentum."""
        if self.learning_rates is not None and not self.rates().all():
            return self.model_copy(update={"learning_rates": positive(self.rates().tolist(), self.n)})
        plain = self.model_copy(update={"mode": "decoupled", "momentum": 0.0})
        return None if self == plain else plain
