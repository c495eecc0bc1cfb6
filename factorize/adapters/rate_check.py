"""The check of the learning rate (`factorize.training.rate_check`) for a model and an optimizer of torch."""

import warnings
from typing import Any

import torch

from factorize.adapters.opacus import CorrelatedOptimizer
from factorize.errors import InvalidParameter
from factorize.numbers.scalars import check_type
from factorize.privacy import Calibration
from factorize.training.learning_rate import STUDIED_OPTIMIZERS
from factorize.training.rate_check import ArrayRateCheck

_RATE_NAMES = "lr", "initial_lr", "max_lr", "min_lr"
"""The names of rates in a group of an optimizer; the last two come with `OneCycleLR`."""


class RateCheck:
    """Fits the rate to how far data and noise move the weights, and averages those of a constant rate.

    Call `step` after each of the optimizer's, before the schedule's; see `ArrayRateCheck`, which is its arithmetic.

    Attributes:
        factor: factor of the rate, which the optimizer and the schedules have.
    """

    def __init__(self, optimizer: CorrelatedOptimizer, *schedules: Any) -> None:
        """Begin before the first step.

        Args:
            optimizer: an optimizer of `make_private`, over SGD, Adam or AdamW with one learning rate, and weights that
                no rank splits.
            *schedules: schedules of torch, whose rates are multiplied, too.

        Raises:
            InvalidParameter: another optimizer, one that has a check, several rates, noise that is not of means, or a
                run that has begun or has no end.
        """
        check_type("optimizer", optimizer, CorrelatedOptimizer, remedy="give the optimizer that make_private returned")
        self._optimizer, self._schedules = optimizer, schedules
        self._seen: int | None = 0
        name = type(optimizer.original_optimizer).__name__.lower()
        noise, group = optimizer.calibration, optimizer.param_groups[0]
        steps, begun = optimizer.noise.steps, optimizer.noise.step
        means = isinstance(noise, Calibration) and noise.sigma_of_means is not None
        whole = not any(hasattr(p, "device_mesh") for p in self._weights)
        if name not in STUDIED_OPTIMIZERS or not means or group.get("dampening") or not whole or steps is None or begun:
            raise InvalidParameter(
                f"the rate check supports {', '.join(STUDIED_OPTIMIZERS)} without dampening or joint moments, with "
                f"noise for means, a last step and unsharded weights, before the first step; this is {name} at step "
                f"{begun} of {steps}. Train without the check",
                field="optimizer",
            )
        self._rate()
        if hasattr(optimizer.original_optimizer, "checked_rate"):
            message = (
                "this optimizer's rate has a check already, and two would lower it twice; keep one, or make both anew"
            )
            raise InvalidParameter(message, field="optimizer")
        optimizer.original_optimizer.checked_rate = True
        assert isinstance(noise, Calibration) and noise.sigma_of_means is not None
        (momentum, second), unit = group.get("betas", (group.get("momentum"), None)), noise.clip_norm
        sigma = noise.sigma_of_means / (1.0 if second is None else unit)
        decay = group["weight_decay"] if name != "adam" else 0.0  # Adam's own decay is divided as gradients are
        peaks = [group.get("initial_lr", 0.0), group.get("max_lr", 0.0)]
        peaks += [rate for each in schedules for rate in getattr(each, "max_lrs", ())]
        warmed = group["lr"] < max(peaks)
        self._check = ArrayRateCheck(optimizer.factors, sigma, self._weights, momentum, second, decay, warmed=warmed)
        self.factor = 1.0
        self._multiply(self._check.factor)

    @property
    def _weights(self) -> list[torch.Tensor]:
        return [p.detach() for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad]

    def _rate(self) -> float:
        rates = {float(group["lr"]) for group in self._optimizer.param_groups}
        if len(rates) > 1:
            message = f"the rate check needs one learning rate, but the groups have {sorted(rates)}; give all the same"
            raise InvalidParameter(message, field="optimizer")
        return rates.pop()

    def step(self) -> None:
        """Count a step, and change the weights and the rate where that helps.

        Raises:
            InvalidParameter: the learning rates of groups are not one.
        """
        taken = self._optimizer.noise.step
        if self._seen in (None, taken):  # the check is over, or this is a part of a step
            return
        if taken != self._seen + 1:
            warnings.warn(f"the rate is not checked: this saw {self._seen + 1} of {taken} steps", stacklevel=2)
            self._seen = None
            self._multiply(1.0)
            return
        self._seen = taken
        weights = self._weights
        for one, new in zip(weights, self._check.step(weights, self._rate()), strict=True):
            if new is not one:
                one.copy_(new)
        self._multiply(self._check.factor)

    def _multiply(self, factor: float) -> None:
        change, self.factor = factor / self.factor, factor
        if change == 1:
            return
        for group in self._optimizer.param_groups:
            group.update({name: group[name] * change for name in _RATE_NAMES if name in group})
        for schedule in self._schedules:
            for name in ("base_lrs", "max_lrs"):  # CyclicLR has the second
                if hasattr(schedule, name):
                    setattr(schedule, name, [rate * change for rate in getattr(schedule, name)])
