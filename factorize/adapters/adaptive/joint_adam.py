"""Adam whose second moments are released with noise of their own, in one mechanism with the first (JME)."""

from collections.abc import Callable, Mapping
from typing import Any, Unpack

import torch

from factorize.accounting.joint_moments import JointMoments
from factorize.adapters.checks.own_steps import refuse_own_steps
from factorize.adapters.gradients.clipping import clipped_moments
from factorize.adapters.gradients.layer_rows import Rows
from factorize.adapters.jobs import check_floor, second_seed
from factorize.adapters.opacus import CorrelatedOptimizer, OptimizerOptions
from factorize.adapters.opacus_ranks import ReplicatedOptimizer
from factorize.adapters.torch import NoiseGenerator
from factorize.errors import InvalidParameter


class MomentAdam(torch.optim.Optimizer):
    """Adam on gradients in `p.grad` and their squares in `p.released_square`, with decoupled weight decay.

    x <- (1 - lr weight_decay) x - lr m_hat / (max(v_hat, floor^2)^(1/2) + eps), since noisy squares may be negative.

    Args:
        optimizer: torch's Adam or AdamW, whose groups are taken.
        floor: the smallest root of second moments, positive.

    Raises:
        InvalidParameter: another optimizer, settings that do not exist here, or a floor out of range.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, floor: float) -> None:
        check_adam(optimizer)
        super().__init__(optimizer.param_groups, {})
        self.floor = check_floor(floor)

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Move by both moments."""
        value = None if closure is None else closure()
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        self._move(p, group)
        return value

    def _move(self, p: torch.nn.Parameter, group: Mapping[str, Any]) -> None:
        (beta1, beta2), kept = group["betas"], self.state[p]
        if not kept:
            zeros = torch.zeros_like(p, dtype=torch.float32)
            kept.update(step=0, exp_avg=zeros, exp_avg_sq=zeros.clone())
        kept["step"] += 1
        kept["exp_avg"].lerp_(p.grad.float(), 1 - beta1)
        kept["exp_avg_sq"].lerp_(p.released_square.float(), 1 - beta2)
        first = kept["exp_avg"] / (1 - beta1 ** kept["step"])
        second = (kept["exp_avg_sq"] / (1 - beta2 ** kept["step"])).clamp(min=self.floor**2).sqrt()
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.sub_((group["lr"] * first / (second + group["eps"])).to(p.dtype))


def check_adam(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer with settings that `MomentAdam` does not have.

    Raises:
        InvalidParameter: another optimizer than Adam and AdamW, AMSGrad, ascent, or coupled weight decay.
    """
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW):
        raise InvalidParameter(f"{type(optimizer).__name__} is neither Adam nor AdamW; use one", field="optimizer")
    for group in optimizer.param_groups:
        coupled = type(optimizer) is torch.optim.Adam and group["weight_decay"]
        wrong = next((name for name in ("amsgrad", "maximize") if group.get(name)), None)
        if coupled or wrong:
            name = wrong or "weight_decay of Adam"
            raise InvalidParameter(f"{name} is not supported with adaptive='joint'; use AdamW without it", field=name)


class JointAdam(CorrelatedOptimizer):
    """Opacus's optimizer with correlated noise on gradients and on their squares, and Adam on both.

    A step releases (sum of clipped gradients + row t of C1^-1 Z) / divisor, and (sum of their squares + row t of C2^-1
    Z') / divisor: squares of each example's clipped gradient, whose mean is the second moment of gradients of examples.
    Z and Z' are independent.

    Args:
        optimizer: torch's Adam, without weight decay, or AdamW.
        first: the factors of C1.
        second: the factors of C2.
        moments: noise of both, from `calibrate_moments`.
        seed: a secret integer, `secrets.randbits(128)`.
        floor: the smallest root of second moments; by default the standard deviation of the second moments' noise, to
            the power 1/2.
        **options: options of `CorrelatedOptimizer`, those of the noise for both noises.

    Attributes:
        second_noise: the generator of C2's noise.

    Raises:
        InvalidParameter: noise of other factorizations, or an optimizer that is not covered.
    """

    def __init__(
        self,
        optimizer: object,
        first: object,
        second: object,
        moments: JointMoments,
        *,
        seed: int,
        floor: float | None = None,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        inner = getattr(optimizer, "original_optimizer", optimizer)
        noise = moments.second.sigma_of_means or moments.second.sigma_of_sums
        adam = MomentAdam(inner, noise**0.5 if floor is None else floor)
        super().__init__(adam, first, moments.first, seed=seed, **options)
        refuse_own_steps(inner, self)
        self.factors, self.calibration = first, moments
        try:
            both = second, moments.second, self.params
            self.second_noise = NoiseGenerator(*both, seed=second_seed(seed), **self._options)
        except BaseException:  # a notebook keeps this frame, and the noise in it would refuse the next one
            del self.noise
            raise
        self._squares: list[torch.Tensor] | None = None

    def accumulate_moments(self, samples: list[Rows]) -> list[torch.Tensor]:
        """Return the sums of clipped gradients, and keep those of their squares."""
        sums, squares = clipped_moments(samples, self.max_grad_norm, self._count(samples))
        if self._squares is None or self.params[0].summed_grad is None:  # the sums so far were thrown away
            self._squares = squares
        else:
            for total, more in zip(self._squares, squares, strict=True):
                total += more
        return sums

    def add_noise(self) -> None:
        """Put the released gradients into `p.grad` and the released squares into `p.released_square`.

        Raises:
            InvalidParameter: a step before this one has taken one of the two noises alone.
        """
        if self.second_noise.step != self.noise.step:
            raise InvalidParameter(
                f"the noises of the two moments are at steps {self.noise.step} and {self.second_noise.step}, since a "
                "step was interrupted; continue from the last checkpoint (load_state_dict)",
                field="second_noise",
            )
        super().add_noise()
        assert self._squares is not None
        kept = [getattr(p, "released_square", None) for p in self.params]
        for p, square in zip(self.params, self.release(self.second_noise, self._squares, kept), strict=True):
            p.released_square = square
        self._squares = None

    def state_dict(self, *, arrays: bool = True) -> dict[str, Any]:
        """Return the state with that of both noises; see `CorrelatedOptimizer`."""
        return {**super().state_dict(arrays=arrays), "second_noise": self.second_noise.state_dict(arrays=arrays)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; see `CorrelatedOptimizer`.

        Raises:
            InvalidParameter: the checkpoint has no noise of second moments, one of another step, or is of another run.
        """
        if "second_noise" not in state_dict:
            raise InvalidParameter("the checkpoint has no second_noise; restore this optimizer's own", field="noise")
        steps = [state_dict.get(key, {}).get("step") for key in ("noise", "second_noise")]
        if steps[0] != steps[1]:
            message = f"the checkpoint's noises are at steps {steps[0]} and {steps[1]}; restore a whole checkpoint"
            raise InvalidParameter(message, field="second_noise")
        self.second_noise.load_state_dict(state_dict["second_noise"])
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "second_noise"})

    def close(self) -> None:
        """Let another optimizer make both noises; see `CorrelatedOptimizer`."""
        super().close()
        self.second_noise.close()


class ReplicatedJointAdam(JointAdam, ReplicatedOptimizer):
    """Joint moments on data-parallel replicas: each rank makes its part of both noises.

    See `JointAdam` for the arguments, and `ReplicatedOptimizer` for the part that the ranks share.
    """
