"""SGD with weight decay, decoupled from the gradient or added to it."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import model_validator

from factorize.plain_data import Fraction, NonNegative
from factorize.workloads.base import Workload
from factorize.workloads.forms import FirstOrder, MomentumForm
from factorize.workloads.operators import CoupledDecay, Decay, Operator, Scale
from factorize.workloads.schedule import Rated
from factorize.workloads.schedules import LearningRates, explicit, positive

_LEAST_DECAY = 1e-30


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
        """Momentum, rates, then the decaying sum; or the coupled recursion as one."""
        rates = self.rates()
        if self.mode == "coupled":
            return (CoupledDecay(rates, self.momentum, self.rate),)
        return (Decay(np.full(self.n, self.momentum)), Scale(rates), Decay(1.0 - rates * self.rate))

    def easier(self) -> Workload | None:
        """With rates raised to a thousandth of the largest where one is zero; then decoupled and without momentum."""
        if self.learning_rates is not None and not self.rates().all():
            return self.model_copy(update={"learning_rates": positive(self.rates().tolist(), self.n)})
        plain = self.model_copy(update={"mode": "decoupled", "momentum": 0.0})
        return None if self == plain else plain

    def first_order(self) -> FirstOrder | None:
        """The decoupled rule without momentum; a step of rate zero does not decay either."""
        if self.momentum or self.mode == "coupled":
            return None
        rates = self.rates()
        follow = 1.0 - rates * self.rate
        follow[0] = 0.0
        return FirstOrder(follow, rates)

    def momentum_form(self) -> MomentumForm | None:
        """With positive rates: the decoupled rule, and the coupled one where it does not oscillate."""
        rates = self.rates()
        if not rates.all():
            return None
        if self.mode == "coupled":
            return self._two_decays(rates)
        # The factor of step i + 1 acts between i and i + 1; the last one acts on nothing.
        return MomentumForm(np.full(self.n, self.momentum), rates, np.append(1.0 - rates[1:] * self.rate, 1.0))

    def _two_decays(self, rates: np.ndarray) -> MomentumForm | None:
        """Split x_{i+1} = (1 - eta_i rate + rho_i momentum) x_i - rho_i momentum x_{i-1} - eta_i g_i into two decays.

        With rho_i = eta_i / eta_{i-1} and y_i = x_{i+1} - s_i x_i the recursion is y_i = r_i y_{i-1} - eta_i g_i, where
        r_i s_{i-1} = rho_i momentum and r_i + s_i is the factor of x_i. So s_0 = 1 and

            s_i = 1 - eta_i rate - rho_i momentum (1 / s_{i-1} - 1),

        and momentum / s_{i-1} is what multiplies the momentum. Once s_i falls below the momentum, x oscillates.
        """
        decays, follow = np.ones(self.n), np.zeros(self.n)
        for i in range(1, self.n):
            follow[i - 1] = self.momentum / decays[i - 1]
            decays[i] = 1.0 - rates[i] * self.rate - rates[i] / rates[i - 1] * (follow[i - 1] - self.momentum)
            if not decays[i] > max(self.momentum, _LEAST_DECAY):
                return None
        return MomentumForm(follow, rates, np.append(decays[1:], 1.0))
