"""Optimizers of several ranks with correlated noise, in place of Opacus's: data-parallel replicas (DDP)."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import torch
from opacus.optimizers import DistributedDPOptimizer

from factorize.adapters.gradients.released_sums import release_memory
from factorize.adapters.opacus import CorrelatedOptimizer, OptimizerOptions
from factorize.adapters.ranks.agreement import agree, refuse_difference, require_distributed, settle, world_size
from factorize.adapters.torch import NoiseGenerator
from factorize.privacy import Calibration


def correlated_optimizer(
    optimizer: object, factors: object, calibration: Calibration, *, seed: int, **options: Unpack[OptimizerOptions]
) -> CorrelatedOptimizer:
    """Return the optimizer with correlated noise that takes the place of one that Opacus made.

    Args:
        optimizer: `DPOptimizer` or `DistributedDPOptimizer` (DDP).
        factors: the result of `factorize.client.load` or `solvers.solve`.
        calibration: the calibration of these factors; `divisor` is that of the batch of all ranks together.
        seed: a secret integer, the same on all ranks.
        **options: options of `CorrelatedOptimizer`; an `auditor` is told of every batch by `expect(indices)` with each
            rank's indices.

    Raises:
        InvalidParameter: the ranks do not agree, or the optimizer clips in a way that is not covered here.
    """
    made = ReplicatedOptimizer if isinstance(optimizer, DistributedDPOptimizer) else CorrelatedOptimizer
    return made(optimizer, factors, calibration, seed=seed, **options)


class ReplicatedOptimizer(CorrelatedOptimizer):
    """Data-parallel replicas: each rank clips its own examples, and makes the noise of its part of the vector.

    All ranks take a step, or none does. The sums of clipped gradients, with one rank's noise added to each entry, are
    added up over the ranks in float64, and rounded last. Every rank then holds the same released gradient.

    Args:
        optimizer: Opacus's `DistributedDPOptimizer`, or torch's own.
        factors: the result of `factorize.client.load` or `solvers.solve`.
        calibration: the calibration of these factors; `divisor` is that of the batch of all ranks together.
        **others: options of `CorrelatedOptimizer`.

    Raises:
        InvalidParameter: there is no process group, or the ranks do not agree: seeds, digests, parameters.
    """

    def __init__(self, optimizer: Any, factors: Any, calibration: Calibration, **others: Any) -> None:
        require_distributed("a data-parallel optimizer")
        from torch.distributed.device_mesh import init_device_mesh

        first = next(p for group in optimizer.param_groups for p in group["params"])
        self.ranks = world_size()
        mesh = init_device_mesh(first.device.type, (self.ranks,))
        super().__init__(getattr(optimizer, "original_optimizer", optimizer), factors, calibration, mesh=mesh, **others)

    def expect(self, indices: np.ndarray, *, masks: np.ndarray | None = None) -> None:
        """Have the batch of the next step audited; all ranks call it, each with its own part.

        Every rank's auditor sees the batch of all ranks: an example on two ranks is twice in one step.

        Args:
            indices: indices of the examples of this rank.
            masks: see `CorrelatedOptimizer`.

        Raises:
            InvalidParticipation: the batch breaks the participation, or the step before it was not taken.
            InvalidParameter: a rank does not come, or is at another step.
        """
        own = {"step": self.noise.step, "indices": np.asarray(indices).reshape(-1).tolist()}
        everywhere = settle("expect", own, _together)
        super().expect(np.array(everywhere, dtype=np.int64), masks=masks)
        self._batch.rows = len(indices) if masks is None else masks.size

    def release(
        self, noise: NoiseGenerator, totals: list[torch.Tensor], out: list[torch.Tensor | None]
    ) -> list[torch.Tensor]:
        """Return sums over all ranks with the noise of this step, of which each rank makes a part, divided."""
        divisor = noise.calibration.divisor or 1
        sums = [total.clone(memory_format=torch.contiguous_format) for total in totals]
        noise.add_here(sums)
        for work in [torch.distributed.all_reduce(total, async_op=True) for total in sums]:
            work.wait()
        return [
            release_memory(p, p.dtype, p.device, place).copy_((total / divisor).float())
            for p, total, place in zip(self.params, sums, out, strict=True)
        ]

    def _check_step(self) -> None:
        """Stop all ranks unless every rank is ready for the same step.

        Raises:
            InvalidParticipation: the batch was not audited, or other examples than it holds have gradients.
            InvalidParameter: the ranks are not at the same step.
        """

        def ready() -> tuple[None, dict[str, object]]:
            super(ReplicatedOptimizer, self)._check_step()
            self._check_settings()
            audited = None if self.auditor is None else self.auditor.step
            return None, {"step": self.noise.step, "audited": audited, "divisor": self.expected_batch_size}

        agree("step", ready)


def _together(told: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the examples of all ranks."""
    refuse_difference([{"step": each["step"]} for each in told])
    return [index for each in told for index in each["indices"]]
