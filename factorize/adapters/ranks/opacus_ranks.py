"""Optimizers of several ranks with correlated noise, in place of Opacus's: replicas (DDP) and shards (fully_shard)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Unpack

import numpy as np
import torch
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer, FSDPOptimizerFastGradientClipping
from torch.distributed.tensor import Shard

from factorize.adapters.opacus import Adaptive, CorrelatedOptimizer
from factorize.adapters.ranks.agreement import (
    agreed,
    refuse_difference,
    require_distributed,
    settle,
    world_size,
)
from factorize.adapters.torch import NoiseGenerator, TorchNoiseOptions
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.privacy import Calibration


def correlated_optimizer(
    optimizer: Any,
    factors: Any,
    calibration: Calibration,
    *,
    seed: int,
    model: Any = None,
    auditor: Any = None,
    adaptive: Adaptive = "plain",
    **options: Unpack[TorchNoiseOptions],
) -> CorrelatedOptimizer:
    """Return the optimizer with correlated noise that takes the place of one that Opacus made.

    Args:
        optimizer: `DPOptimizer`, `DistributedDPOptimizer` (DDP), or `FSDPOptimizerFastGradientClipping` (fully_shard).
        factors: what `factorize.client.load` or `solvers.solve` gave.
        calibration: its own; `batch_size` is the divisor of the batch of all ranks together.
        seed: a secret integer, the same on all ranks.
        model: the module that Opacus wrapped; needed with fully_shard, where the module clips.
        auditor: told of every batch before the step, by `expect(indices)` with the indices of each rank's part.
        adaptive: see `CorrelatedOptimizer`; `scaled` not with fully_shard.
        **options: of the noise, see `factorize.adapters.torch.NoiseGenerator`.

    Raises:
        InvalidParameter: the ranks do not agree, or the optimizer clips in a way that is not covered here.
    """
    kind = type(optimizer)
    made: Any
    if kind is FSDPOptimizerFastGradientClipping:
        made = partial(ShardedOptimizer, model=model)
    elif kind is DistributedDPOptimizer:
        made = ReplicatedOptimizer
    elif kind is DPOptimizer or not isinstance(optimizer, DPOptimizer):
        made = CorrelatedOptimizer
    else:
        raise InvalidParameter(
            f"Opacus's {kind.__name__} clips in a way that no sensitivity here covers; use clipping='flat' with "
            "grad_sample_mode='hooks' (one process, DDP) or 'ghost_fsdp' (fully_shard)",
            field="optimizer",
        )
    return made(optimizer, factors, calibration, seed=seed, auditor=auditor, adaptive=adaptive, **options)


class RankedOptimizer(CorrelatedOptimizer):
    """What replicas and shards share: every step is one of all ranks, or of none.

    See `CorrelatedOptimizer` for the arguments.
    """

    def expect(self, indices: np.ndarray, *, masks: np.ndarray | None = None) -> None:
        """Have the batch of the next step audited; all ranks call it, each with its own part.

        Every rank's auditor sees the batch of all ranks: an example on two ranks is one twice in a step.

        Args:
            indices: of the examples of this rank.
            masks: see `CorrelatedOptimizer`.

        Raises:
            InvalidParticipation: it breaks the participation, or the step before it was not taken.
            InvalidParameter: a rank does not come, or is at another step.
        """
        told = {"step": self.noise.step, "indices": np.asarray(indices).reshape(-1).tolist()}
        everywhere = settle("expect", told, _together)
        super().expect(np.array(everywhere, dtype=np.int64), masks=masks)
        self._expected = len(indices) if masks is None else masks.size

    def _agree_on_step(self) -> None:
        """Stop all ranks unless every one of them is ready for the same step."""

        def ready() -> tuple[None, dict[str, Any]]:
            self._check_batch()
            self._check_settings()
            audited = None if self.auditor is None else self.auditor.step
            return None, {"step": self.noise.step, "audited": audited, "divisor": self.expected_batch_size}

        agreed("step", ready)
        self._samples, self._expected = 0, None


class ReplicatedOptimizer(RankedOptimizer):
    """Data-parallel replicas: each rank clips its own examples, and makes the noise of its part of the vector.

    The sums of clipped gradients, one rank's noise added to each entry, are added up over the ranks in float64, and
    rounded last. Every rank then holds the same released gradient.

    Args:
        optimizer: Opacus's `DistributedDPOptimizer`, or torch's own.
        factors: what `factorize.client.load` or `solvers.solve` gave.
        calibration: its own; `batch_size` is the divisor of the batch of all ranks together.
        **others: see `CorrelatedOptimizer`.

    Raises:
        InvalidParameter: no process group, or ranks that do not agree: seeds, digests, parameters.
    """

    def __init__(self, optimizer: Any, factors: Any, calibration: Calibration, **others: Any) -> None:
        require_distributed("a data-parallel optimizer")
        from torch.distributed.device_mesh import init_device_mesh

        first = next(p for group in optimizer.param_groups for p in group["params"])
        mesh = init_device_mesh(first.device.type, (world_size(),))
        super().__init__(getattr(optimizer, "original_optimizer", optimizer), factors, calibration, mesh=mesh, **others)

    def add_noise(self) -> None:
        """Put (sum over all ranks) / divisor + the step's noise into `p.grad`.

        Raises:
            InvalidParticipation: the batch was not audited, or other examples than it holds have gradients.
            InvalidParameter: the ranks are not at the same step, or all n steps were taken.
        """
        self._agree_on_step()
        for p, released in zip(
            self.params, self.released(self.noise, [p.summed_grad for p in self.params]), strict=True
        ):
            p.grad = released
            p.summed_grad._processed = True
        self._unscale()

    def released(self, noise: NoiseGenerator, totals: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return sums over all ranks, divided, with the noise of this step, of which each rank makes a part."""
        divisor = self.expected_batch_size or 1
        means = [(total / divisor).contiguous() for total in totals]
        noise.add_here(means)
        for work in [torch.distributed.all_reduce(mean, async_op=True) for mean in means]:
            work.wait()
        return [mean.float().to(p.device, p.dtype) for p, mean in zip(self.params, means, strict=True)]


class ShardedOptimizer(RankedOptimizer):
    """Parameters sharded by fully_shard: Opacus's module clips, each rank adds the noise of its shards.

    The module computes norms layer by layer from whole layers, each rank those of its own examples, so that a norm is
    one over all shards. It does so in the precision of the parameters, and the gradients of all ranks are added up in
    it: those roundings are not part of the certified sensitivity (docs/adapters.md).

    Args:
        optimizer: Opacus's `FSDPOptimizerFastGradientClipping`.
        factors: what `factorize.client.load` or `solvers.solve` gave.
        calibration: its own; `batch_size` is the divisor of the batch of all ranks together.
        model: the `GradSampleModuleFastGradientClippingFSDP`.
        **others: see `CorrelatedOptimizer`.

    Raises:
        InvalidParameter: no such model, one that clips at another norm or adds up in half precision, or ranks that do
            not agree.
    """

    def __init__(self, optimizer: Any, factors: Any, calibration: Calibration, *, model: Any, **others: Any) -> None:
        require_distributed("fully_shard")
        self._model = model
        self._totals: list[torch.Tensor] | None = None
        _check_model(model, calibration)
        if others.get("adaptive", "plain") != "plain":
            message = (
                "the module of fully_shard clips layer by layer, and no example's gradient is there to be scaled or "
                "squared; use adaptive='plain', or replicas (DDP), which take the others"
            )
            raise InvalidParameter(message, field="adaptive")
        refuse_tensor_parallel([p for group in optimizer.param_groups for p in group["params"]])
        super().__init__(optimizer, factors, calibration, **others)

    def accumulate(self) -> None:
        """Add up the shards of the clipped gradients of a forward and backward pass."""
        here = [p.grad.to_local().double() * p.grad.device_mesh.size() for p in self.params]  # means over the ranks
        if self._totals is None:
            self._totals = here
        else:
            for total, more in zip(self._totals, here, strict=True):
                total += more

    def pre_step(self, closure: Callable[[], float] | None = None) -> Any:
        """Add up, and add the noise unless more parts of the batch are to come."""
        self.accumulate()
        if self._check_skip_next_step():
            self._is_last_step_skipped = True
            return False
        self.add_noise()
        if self.step_hook:
            self.step_hook(self)
        self._is_last_step_skipped = False
        return True

    def add_noise(self) -> None:
        """Put (sum over all ranks) / divisor + the step's noise into this rank's shards of `p.grad`.

        Raises:
            InvalidParticipation: the batch was not audited.
            InvalidParameter: the ranks are not at the same step, or all n steps were taken.
        """
        assert self._totals is not None
        _check_divisors(self._model)
        self._agree_on_step()
        divisor = self.expected_batch_size or 1
        totals, self._totals = self._totals, None
        for p, released in zip(self.params, self.noise.release(total / divisor for total in totals), strict=True):
            p.grad = released

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients; those of parts of a batch stay."""
        self.original_optimizer.zero_grad(set_to_none)

    def _check_settings(self) -> None:
        super()._check_settings()
        if self._model.max_grad_norm != self.noise.calibration.clip_norm:
            raise InvalidParameter(
                f"the module clips at {self._model.max_grad_norm}, and the noise is for clip_norm="
                f"{self.noise.calibration.clip_norm}; leave it as it was",
                field="calibration",
            )

    def _check_batch(self) -> None:
        """The module does not tell how many examples have gradients; the auditor's batch is all that is looked at."""
        if self.auditor is not None and (self._expected is None or self.auditor.step != self.noise.step + 1):
            raise InvalidParticipation(
                f"step {self.noise.step} has gradients of a batch that the auditor has not seen; call expect(indices) "
                "on all ranks"
            )


def refuse_tensor_parallel(parameters: Sequence[Any]) -> None:
    """Refuse parameters that are cut for another reason than fully_shard's: (shard) or (replicate, shard) on one mesh.

    Where layers are cut, too, a rank sees parts of an example's norm, and gradients are means over fewer ranks than the
    mesh has: clipping would let more than the clip norm pass.

    Raises:
        InvalidParameter: there are such.
    """
    for p in parameters:
        ways = tuple(getattr(p, "placements", ()))
        cut = bool(ways) and type(ways[-1]) is Shard and all(way.is_replicate() for way in ways[:-1])
        if not cut or len(ways) > 2 or p.device_mesh != parameters[0].device_mesh:
            raise InvalidParameter(
                f"a parameter lies as {ways}, and Opacus's module clips what fully_shard alone has cut; leave out "
                "tensor parallelism, or clip yourself and take NoiseGenerator, which makes noise of every placement",
                field="model",
            )


def _sharded_modules(model: Any) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [] if model is None else [each for each in model.modules() if isinstance(each, FSDPModule)]


def _check_model(model: Any, calibration: Calibration) -> None:
    """Refuse a model that cannot be covered.

    Raises:
        InvalidParameter: it is none of Opacus's with fully_shard, clips at another norm, or computes in half precision.
    """
    modules = _sharded_modules(model)
    if not modules or not hasattr(model, "max_grad_norm"):
        raise InvalidParameter(
            "fully_shard needs the model that Opacus wrapped, whose module clips: "
            "make_private(..., grad_sample_mode='ghost_fsdp') returns it; give it as model=",
            field="model",
        )
    if model.max_grad_norm != calibration.clip_norm:
        raise InvalidParameter(
            f"the module clips at {model.max_grad_norm}, and the calibration is for clip_norm={calibration.clip_norm}; "
            "give Opacus's make_private that max_grad_norm",
            field="calibration",
        )
    for module in modules:
        policy = module._get_fsdp_state()._mp_policy
        for kind in (policy.param_dtype, policy.reduce_dtype):
            if kind in (torch.float16, torch.bfloat16):
                raise InvalidParameter(
                    f"the module computes or adds up gradients in {kind}, and rounding them before the noise is added "
                    "raises their sensitivity; leave param_dtype and reduce_dtype at float32",
                    field="model",
                )
    _check_divisors(model)


def _check_divisors(model: Any) -> None:
    """Refuse gradients that are other than means over the ranks."""
    for module in _sharded_modules(model):
        group = module._get_fsdp_state()._fsdp_param_group
        if group is not None and getattr(group, "gradient_divide_factor", None) is not None:
            raise InvalidParameter(
                f"gradient_divide_factor was set to {group.gradient_divide_factor}, and gradients are means over the "
                "ranks; leave it out",
                field="model",
            )


def _together(told: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the examples of all ranks."""
    refuse_difference([{"step": each["step"]} for each in told])
    return [index for each in told for index in each["indices"]]
