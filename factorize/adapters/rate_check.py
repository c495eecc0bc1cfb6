"""A look at the learning rate of a run from its weights alone, which costs no privacy."""

import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from factorize.adapters.opacus import CorrelatedOptimizer
from factorize.errors import InvalidParameter
from factorize.privacy import Calibration
from factorize.structures.layouts import build_matrix
from factorize.training.learning_rate import ADAPTIVE, CHECKED, STUDIED, noise_moved, share_of_data


class RateCheck:
    """Lowers a learning rate at which noise moves the weights further than the data do.

    Call `step` after each of the optimizer's, before the schedule's. After a fifth of the run it compares how far the
    weights are from their start with how far noise alone moves them. If that is further than the data did, rate and
    movement are multiplied by the ratio of the two (docs/choose.md). Weights are made of released gradients, so this
    is post-processing. Until then a copy of the weights is kept.

    Attributes:
        factor: what the rate was multiplied by; None until then.
    """

    def __init__(self, optimizer: CorrelatedOptimizer, *schedules: Any) -> None:
        """Begin before the first step.

        Args:
            optimizer: of `make_private`, over SGD, Adam or AdamW with one learning rate, and weights that no rank
                splits.
            *schedules: of torch, whose rates are lowered too.

        Raises:
            InvalidParameter: another optimizer, several rates, noise that is not of means, or a run that has begun or
                has no end.
        """
        self._optimizer, self._schedules = optimizer, schedules
        self.factor: float | None = None
        self._name = type(optimizer.original_optimizer).__name__.lower()
        self._rates: list[float] = []
        steps, begun, noise = optimizer.noise.steps, optimizer.noise.step, optimizer.calibration
        means = isinstance(noise, Calibration) and noise.sigma_of_means is not None
        plain = means and not optimizer.param_groups[0].get("dampening")
        whole = not any(hasattr(p, "device_mesh") for p in self._weights)
        if self._name not in STUDIED or not plain or not whole or steps is None or begun:
            raise InvalidParameter(
                f"a check of the rate is for {', '.join(STUDIED)} without dampening or moments of their own, means of "
                f"a number of steps, and whole weights before the first one; this is {self._name} at step {begun} of "
                f"{steps}: train without the check",
                field="optimizer",
            )
        self._rate()
        self._at = max(1, int(CHECKED * steps))
        self._start = [p.detach().clone() for p in self._weights]

    @property
    def _weights(self) -> list[torch.Tensor]:
        return [p for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad]

    def _pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return zip(self._weights, self._start, strict=True)

    def _rate(self) -> float:
        rates = {float(group["lr"]) for group in self._optimizer.param_groups}
        if len(rates) > 1:
            message = f"a check of the rate is for one rate, and the groups have {sorted(rates)}; give all the same"
            raise InvalidParameter(message, field="optimizer")
        return rates.pop()

    def step(self) -> None:
        """Count a step; at the one of the check, look.

        Raises:
            InvalidParameter: the learning rates of groups are not one.
        """
        taken = self._optimizer.noise.step
        if self.factor is not None or taken == len(self._rates):  # over, or a part of a step
            return
        self._rates.append(self._rate())
        if taken != len(self._rates):
            self._end(1.0)
            warnings.warn(f"the rate is not checked: this saw {len(self._rates)} of {taken} steps", stacklevel=2)
        elif taken == self._at:
            moved = math.fsum(float((p.detach() - q).square().sum()) for p, q in self._pairs()) ** 0.5
            self._end(share_of_data(moved, self._noise()))

    def _noise(self) -> float:
        factors, noise = self._optimizer.factors, self._optimizer.calibration
        assert isinstance(noise, Calibration) and noise.sigma_of_means is not None
        group, size = self._optimizer.param_groups[0], sum(p.numel() for p in self._weights)
        strategy = build_matrix(factors.structure, factors.strategy_tensors(), factors.steps)
        adaptive = self._name in ADAPTIVE
        momentum, second = group["betas"] if adaptive else (group["momentum"], None)
        unit = noise.sigma_of_means / noise.clip_norm
        moved = noise_moved(strategy, unit, size, self._rates, momentum, second)
        return moved * (1.0 if adaptive else noise.clip_norm)

    def _end(self, factor: float) -> None:
        if factor < 1:
            for weights, start in self._pairs():
                weights.data.lerp_(start, 1 - factor)
            for group in self._optimizer.param_groups:
                group.update({name: group[name] * factor for name in ("lr", "initial_lr") if name in group})
            for schedule in self._schedules:
                schedule.base_lrs = [rate * factor for rate in schedule.base_lrs]
        self.factor, self._start = factor, []
