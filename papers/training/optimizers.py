"""First-order methods that consume noisy gradients: after the noise they are post-processing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from factorize.errors import InvalidParameter

Step = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""A function from weights and the step's (noisy) gradient to the next weights; called once per step, in order."""


class Optimizer(Protocol):
    """Any first-order method."""

    def begin(self) -> Step:
        """Return the step function of a new run, with a state of its own."""


def cool_down_rates(n: int, *, last: int, final: float = 0.05) -> list[float]:
    """Return rates of 1 that fall linearly to `final` over the last steps (C24, appendix G).

    Raises:
        InvalidParameter: more last steps than steps, or a final rate outside (0, 1].
    """
    if not 0 <= last <= n or not 0 < final <= 1:
        raise InvalidParameter(
            f"last={last} of n={n} steps with final={final}: use 0 to n steps and a final rate in (0, 1]", field="last"
        )
    return [1.0] * (n - last) + [1.0 - (1.0 - final) * (step + 1) / last for step in range(last)]


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """SGD with heavy-ball or Nesterov momentum, a schedule and weight decay: the methods that workloads describe.

    m_t = momentum m_{t-1} + g_t;  x_{t+1} = x_t - eta_t m_t, or with Nesterov x_t - eta_t (g_t + momentum m_t).

    Args:
        learning_rate: the rate at the peak.
        schedule: one factor per step, relative to the peak; None for a constant rate.
        momentum: momentum in [0, 1).
        nesterov: look ahead.
        weight_decay: rate; `decoupled` shrinks x_t by (1 - eta_t rate), `coupled` adds rate x_t to the gradient.
        decay_mode: `decoupled` or `coupled`.

    Raises:
        InvalidParameter: a value out of range, or a combination that no workload describes.
    """

    learning_rate: float
    schedule: Sequence[float] | None = None
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    decay_mode: str = "decoupled"

    def __post_init__(self) -> None:
        """Refuse what no workload describes."""
        if self.decay_mode not in ("decoupled", "coupled"):
            message = f"decay_mode={self.decay_mode!r} is not decoupled or coupled"
            raise InvalidParameter(message, field="decay_mode")
        if not (self.learning_rate > 0 and 0 <= self.momentum < 1 and self.weight_decay >= 0):
            raise InvalidParameter(
                f"learning_rate={self.learning_rate}, momentum={self.momentum}, weight_decay={self.weight_decay}: "
                "need a rate above 0, a momentum in [0, 1), a decay of at least 0",
                field="learning_rate",
            )
        if self.nesterov and self.weight_decay:
            raise InvalidParameter("no workload has nesterov with weight_decay; leave one out", field="nesterov")

    def rate(self, step: int) -> float:
        """Return eta_t.

        Raises:
            InvalidParameter: the schedule ended before this step.
        """
        if self.schedule is None:
            return self.learning_rate
        if step >= len(self.schedule):
            message = f"the schedule has {len(self.schedule)} rates, none for step {step}; give one per step"
            raise InvalidParameter(message, field="schedule")
        return self.learning_rate * self.schedule[step]

    def begin(self) -> Step:
        """Return the step function of a new run."""
        state: dict[str, Any] = {"step": 0, "average": 0.0}

        def step(weights: np.ndarray, gradient: np.ndarray) -> np.ndarray:
            eta = self.rate(state["step"])
            state["step"] += 1
            if self.decay_mode == "coupled":
                gradient = gradient + self.weight_decay * weights
            average = state["average"] = self.momentum * state["average"] + gradient
            kept = 1.0 if self.decay_mode == "coupled" else 1.0 - eta * self.weight_decay
            return kept * weights - eta * (gradient + self.momentum * average if self.nesterov else average)

        return step

    def workload(self, n: int) -> dict[str, Any]:
        """Return the spec's workload of this method over n steps, the `true` workload of S24.

        Rates are relative to the peak, except beside weight decay, which fixes their scale.
        """
        rates = None if self.schedule is None else [float(factor) for factor in self.schedule[:n]]
        if self.weight_decay:
            absolute = [self.learning_rate * factor for factor in (rates or [1.0] * n)]
            kind = {"kind": "weight_decay", "rate": self.weight_decay, "mode": self.decay_mode}
            return {**kind, "n": n, "momentum": self.momentum, "learning_rates": absolute}
        schedule = {} if rates is None else {"learning_rates": rates}
        if self.momentum:
            return {"kind": "momentum", "n": n, "momentum": self.momentum, "nesterov": self.nesterov, **schedule}
        return {"kind": "schedule", "n": n, **schedule} if schedule else {"kind": "prefix", "n": n}
