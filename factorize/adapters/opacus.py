"""Opacus with correlated noise: its per-example gradients, the noise of a factorization, a fixed public divisor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Unpack

import numpy as np
import torch
from opacus.optimizers import DPOptimizer

from factorize.accounting.joint_moments import JointMoments
from factorize.adapters.checks.batch_audit import BatchAudit
from factorize.adapters.checks.own_steps import own_parameters, refuse_own_steps
from factorize.adapters.checks.rehearsal import Rehearsal, refuse_eval
from factorize.adapters.data.given_data import refuse_sampling
from factorize.adapters.data.keyed_mark import refuse_other_data
from factorize.adapters.disjoint_optimizers import as_one, parts_of
from factorize.adapters.given import check_optimizer, refuse_other_clipping
from factorize.adapters.gradients.clipping import SCALED_LOSS, example_rows, load_loops, use_up
from factorize.adapters.gradients.gradient_rows import difference_of_autograd
from factorize.adapters.gradients.layer_rows import Rows
from factorize.adapters.gradients.packed_sequences import refuse_other_orders
from factorize.adapters.gradients.raw_gradients import (
    USED_ROWS,
    forget_gradients,
    keep_gradients,
    kept_gradient,
    refuse_hooks,
    refuse_used,
)
from factorize.adapters.ranks.agreement import refuse_other_ranks
from factorize.adapters.ranks.placements import values_sum
from factorize.adapters.torch import NoiseGenerator, TorchNoiseOptions, with_arrays, with_tensors
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.format.manifest import certified
from factorize.noise.single_use import Secret
from factorize.numbers.scalars import check_type
from factorize.privacy import NOT_LOOKED_AT, Calibration, check_kind
from factorize.training.auditor import Auditor
from factorize.training.stopped_run import epsilon_of_first_steps

__all__ = ["CorrelatedOptimizer", "refuse_sampling"]


_ADDED_TO_STATE = ("noise", "auditor", "weights", "data")
"""The entries of a checkpoint that Opacus's optimizer does not know."""


class OptimizerOptions(TorchNoiseOptions, total=False):
    """The options of a `CorrelatedOptimizer`, for code that passes them on."""

    auditor: Auditor | Literal["not_looked_at"] | None
    model: torch.nn.Module | None


class CorrelatedOptimizer(Secret, DPOptimizer):
    """Opacus's `DPOptimizer`, with row t of C^-1 Z in place of fresh noise at step t.

    Use it with a model in Opacus's `GradSampleModule` (from `PrivacyEngine.make_private(poisson_sampling=False)`, say).
    Clip norm, scale and divisor come from the calibration: sums if it has no `divisor`, else noisy sums over that
    divisor, whatever a batch holds. Opacus's accountants do not know this noise: ask the calibration.

    Gradients are clipped and summed in float64, whatever the type of the parameters, to a millionth less than the clip
    norm, which pays for the roundings (docs/notes/clipping.md). The noise is added to that sum, and only the release is
    rounded, to float32 and the parameter's type.

    Args:
        optimizer: an optimizer of torch, or a list of some over disjoint parameters, or one that Opacus has wrapped,
            whose noise is then replaced.
        factors: the result of `factorize.client.load` or `solvers.solve`.
        calibration: the calibration of these factors.
        seed: a secret integer, `secrets.randbits(128)`.
        auditor: an auditor that is told of every batch before the step; without it the order is the caller's promise
            alone, which takes the word `not_looked_at` if epsilon relies on sampling.
        model: the trained model; an optimizer over a part of it, or over another one's parameters, is then refused.
        **options: options of the noise, see `factorize.adapters.torch.NoiseGenerator`.

    Attributes:
        noise: the generator.
        factors: factors of the noise.
        calibration: calibration of the job, or of both moments, if there are two noises.
        ranks: number of processes whose sums are added up.
        rehearsal: the check of model and loss before their first step; None where nobody gave the model.
        data_mark: a mark of the data (`factorize.adapters.data.data_mark`), which checkpoints hold; None if unknown.
        overflow_delta: the part of the guarantee's delta for an overflow, see `PrivacyStatement`.

    Raises:
        InvalidParameter: the calibration belongs to another factorization, or relies on sampling without an auditor; or
            the optimizer needs more than a released gradient.
    """

    ranks = 1
    overflow_delta = 0.0
    data_mark: str | None = None
    _step_supports_amp_scaling = True  # a GradScaler then sets `grad_scale` here before it calls `step`

    def __init__(
        self,
        optimizer: Any,
        factors: Any,
        calibration: Calibration,
        *,
        seed: int,
        auditor: Auditor | Literal["not_looked_at"] | None = None,
        model: torch.nn.Module | None = None,
        **options: Unpack[TorchNoiseOptions],
    ) -> None:
        if isinstance(optimizer, CorrelatedOptimizer):
            message = "this optimizer is already private; give the torch or Opacus optimizer that it was made from"
            raise InvalidParameter(message, field="optimizer")
        optimizer = as_one(optimizer)
        refuse_other_clipping(optimizer, alone=type(self) is CorrelatedOptimizer)
        if isinstance(optimizer, DPOptimizer):
            optimizer = optimizer.original_optimizer
        if model is not None:
            check_type("model", model, torch.nn.Module, remedy="give the model of the loop")
        check_optimizer(optimizer, model)
        if model is not None:
            hooks = [model.register_forward_hook(refuse_eval), *refuse_other_orders(model)]
            getattr(model, "autograd_grad_sample_hooks", []).extend(hooks)  # remove_hooks() then ends them
        told = check_kind(calibration).accept_auditor(auditor, certified(factors).steps)
        self._batch = BatchAudit(told, self.ranks, sampled=auditor == NOT_LOOKED_AT)
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self._options = options
        load_loops(parameters)
        self.factors = factors
        self.calibration: Calibration | JointMoments = calibration
        self._weights: str | None = None  # a hash of a loaded checkpoint's weights, until the next step
        self.rehearsal: Rehearsal | None = None
        self._fresh = all(p.grad is None for p in parameters)
        super().__init__(
            optimizer,
            noise_multiplier=calibration.noise_multiplier,
            max_grad_norm=calibration.clip_norm,
            expected_batch_size=calibration.divisor,
            loss_reduction="sum" if calibration.divisor is None else "mean",
        )
        # What fails later would leave the noise in a frame that a notebook keeps, and it would refuse the next one.
        self.noise = NoiseGenerator(factors, calibration, parameters, seed=seed, auditor=NOT_LOOKED_AT, **options)
        self.stepping = False
        for each in parts_of(optimizer):
            refuse_own_steps(each, self)
        own_parameters(parameters, self)
        if self._fresh:
            keep_gradients(parameters)

    @property
    def auditor(self) -> Auditor | None:
        """The auditor of the job's batches, or None."""
        return self._batch.auditor

    def epsilon_so_far(self, delta: float | None = None) -> float:
        """Return epsilon of the steps taken, for a run that stops here.

        `PrivacyStatement.epsilon_so_far` explains for which stops this holds.
        """
        noise, steps = self.calibration.document(), self.noise.step
        return epsilon_of_first_steps(self.factors, noise, steps, delta, overflow_delta=self.overflow_delta)

    @property
    def grad_scale(self) -> object:
        """The factor 1, since there is nothing to undo.

        Raises:
            InvalidParameter: a `GradScaler` sets a factor.
        """
        return 1

    @grad_scale.setter
    def grad_scale(self, scale: object) -> None:
        raise InvalidParameter(SCALED_LOSS, field="optimizer")

    def expect(self, indices: np.ndarray, *, masks: np.ndarray | None = None) -> None:
        """Have the batch of the next step audited; `step` then needs the gradients of as many examples.

        If the batch of a step that was not taken comes again, as in another pass after Ctrl-C, the step begins anew.

        Args:
            indices: indices of the examples.
            masks: the parts of the batch, shape (parts, rows): False for rows that pad, whose gradients count as zero.
                None where nothing pads.

        Raises:
            InvalidParticipation: the batch breaks the participation, or the step before it was not taken.
        """
        if self._batch.comes_again(self.noise.step, indices):
            for p in self.params:
                p.grad, p.grad_sample, p.summed_grad = None, None, None
            forget_gradients(self.params)
        elif self.rehearsal is not None and self.rehearsal.again and self._batch.is_ahead(self.noise.step):
            raise InvalidParticipation(
                f"the model was changed before step {self.noise.step}, or no example had a gradient, so its batch "
                "has to be rehearsed; change the model before a pass, and take a pass from one iter(loader)"
            )
        self._batch.expect(self.noise.step, indices, masks=masks, divisor=self.expected_batch_size)

    def begin_parts(self) -> None:
        """Forget which parts a batch was to have, if its step was begun and not taken; `signal_skip_step` says it."""
        self._step_skip_queue.clear()

    # Loops that are compiled call it as it is. torch.compiler.disable would load the compiler in every job.
    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take a step, or a part of one; for a rehearsal's batch, only keep its gradients.

        Returns:
            The loss of the closure; None without one.

        Raises:
            InvalidParameter: settings, gradients, parameters or a loss that the noise does not cover.
            InvalidParticipation: the batch was not audited, or other examples than it holds have gradients.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.rehearsal is not None and not self._may_step(self.rehearsal):
            return loss
        self.stepping = True
        try:
            super().step()
        finally:
            self.stepping = False
        return loss

    def _may_step(self, rehearsal: Rehearsal) -> bool:
        """Return whether the present gradients are for a step."""
        if rehearsal.rehearsing:
            rehearsal.capture([self, *parts_of(self.original_optimizer)])
            return False
        rehearsal.trained.check()
        return not rehearsal.postpone(self._batch.rows)

    @property
    def grad_samples(self) -> list[Rows]:
        """The gradients by parameter, one row for each example.

        Raises:
            InvalidParameter: a parameter has none, those of the step before, or other rows than the others.
        """
        refuse_used(self.params)
        part = None if self.rehearsal is None else self.rehearsal.examples
        return example_rows(self._named, self._batch.rows_of_part(part))

    @property
    def _named(self) -> list[tuple[str, torch.nn.Parameter]]:
        own = self.params
        numbered = [(f"parameter {i}", p) for i, p in enumerate(own)]
        return numbered if self.rehearsal is None else self.rehearsal.trained.named(own)

    def clip_and_accumulate(self) -> None:
        """Clip and add up, and count the rows; padding, and a gradient that is not finite, count as zero.

        Raises:
            InvalidParameter: clip norm, divisor or noise multiplier were changed, as Opacus's schedulers do; or a
                parameter has other rows than the batch has examples.
        """
        self._check_settings()
        samples = self.grad_samples
        examples, several = len(samples[0]), any(isinstance(p.grad_sample, list) for p in self.params)
        for p, total in zip(self.params, self.accumulate_moments(samples), strict=True):
            if p.summed_grad is None:
                p.summed_grad = total
            else:
                p.summed_grad += total
            p.grad_sample = USED_ROWS  # frees most of a step's memory, which nothing later needs
        self._batch.end_part(examples, several=several)

    def accumulate_moments(self, samples: list[Rows]) -> Iterable[torch.Tensor]:
        """Return the sums of the clipped gradients of a part of the batch, which are taken off the list."""
        return use_up(samples, self.max_grad_norm, self._count(samples))

    def _count(self, samples: list[Rows]) -> torch.Tensor | None:
        """Return which rows do not pad, after a check of the gradients of a run's first step."""
        counted = self._batch.begin_part(self.noise.step, len(samples[0]))
        if self.rehearsal is not None:
            self.rehearsal.compare(samples, counted, self.max_grad_norm)
        elif self._fresh and (fault := difference_of_autograd(self._named, samples)) is not None:
            raise fault
        for p in self.params if self._fresh else ():
            kept_gradient(p)
        self._fresh = False
        return counted

    def add_noise(self) -> None:
        """Put (sum of clipped gradients + the step's noise) / divisor into `p.grad`.

        Raises:
            InvalidParticipation: the batch was not audited, or other examples than it holds have gradients.
            InvalidParameter: all n steps were taken.
        """
        self._check_step()
        totals = [p.summed_grad for p in self.params]
        kept = [p.grad for p in self.params]  # new memory would leave holes
        for p, released in zip(self.params, self.release(self.noise, totals, kept), strict=True):
            p.grad = released
            p.summed_grad = USED_ROWS
        self._batch.end_step()

    def release(
        self, noise: NoiseGenerator, totals: list[torch.Tensor], out: list[torch.Tensor | None]
    ) -> list[torch.Tensor]:
        """Return sums over the batch with the noise of this step, divided, in `out` where they fit; sums are lost."""
        return noise.release(totals, out=out)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Clear gradients; see Opacus."""
        super().zero_grad(set_to_none)
        forget_gradients(self.params)

    def scale_grad(self) -> None:
        """Do nothing: the divisor was applied after the noise, and the number of parts does not change it."""

    def state_dict(self, *, arrays: bool = True) -> dict[str, Any]:
        """Return the state of the optimizer with that of noise and auditor, for `torch.save`; the seed is not in it.

        Args:
            arrays: whether to include the vectors of the noise; see
                `factorize.adapters.torch.NoiseGenerator.state_dict`.

        Raises:
            InvalidParameter: a batch was handed out, and its step is not taken yet.
        """
        if self._batch.is_ahead(self.noise.step):
            raise InvalidParameter(f"batch {self.noise.step} was handed out but not used; checkpoint after step()")
        state: dict[str, Any] = dict(super().state_dict())
        state["noise"] = self.noise.state_dict(arrays=arrays)
        state["weights"] = values_sum(self.params)
        state |= {} if self.data_mark is None else {"data": self.data_mark}
        if self.auditor is not None:
            state["auditor"] = with_tensors(self.auditor.state_dict())
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, whose model must be restored with it, before or after; the next step checks it.

        Raises:
            InvalidParameter: the checkpoint has no noise or no auditor, or those of another run, or is of other data.
        """
        missing = [key for key in ("noise", *(["auditor"] if self.auditor else [])) if key not in state_dict]
        if missing:
            message = f"the checkpoint has no {missing[0]}, so noise would be used twice; restore this optimizer's own"
            raise InvalidParameter(message, field=missing[0])
        refuse_other_data(self.data_mark, state_dict)
        self.noise.load_state_dict(state_dict["noise"])
        if self.auditor is not None:
            self.auditor.load_state_dict(with_arrays(state_dict["auditor"]))
        self._weights = state_dict.get("weights")
        super().load_state_dict({k: v for k, v in state_dict.items() if k not in _ADDED_TO_STATE})

    def close(self) -> None:
        """Let another optimizer of this process make the same noise, which nobody may have seen."""
        self.noise.close()

    def _check_settings(self) -> None:
        refuse_hooks(self.params)
        c = self.noise.calibration
        settings = self.max_grad_norm, self.expected_batch_size, self.noise_multiplier
        if settings != (c.clip_norm, c.divisor, c.noise_multiplier):
            raise InvalidParameter(
                f"clip norm, divisor and noise multiplier were changed to {settings}, but the noise is for "
                f"{(c.clip_norm, c.divisor, c.noise_multiplier)}; leave them, or calibrate again",
                field="calibration",
            )
        for (name, p), kind in zip(self._named, self.noise.kinds, strict=False):
            if (p.dtype, p.device) != kind:
                raise InvalidParameter(
                    f"{name} is now {p.dtype} on {p.device}, but its noise is for {kind[0]} on {kind[1]}; call "
                    "model.to(...) before you make the optimizer and the private job",
                    field="model",
                )

    def _check_step(self) -> None:
        refuse_other_ranks(self.ranks)  # a process group may begin after the job was made
        if self.rehearsal is not None and self.rehearsal.fault is not None:
            raise self.rehearsal.fault
        if self._weights is not None and self._weights != values_sum(self.params):
            raise InvalidParameter(
                f"the optimizer was restored from a checkpoint before step {self.noise.step}, but the weights were "
                "not. The same noise would be released with other gradients, and the difference reveals the data; "
                "load the model of the same checkpoint",
                field="model",
            )
        self._weights = None
        self._batch.check(self.noise.step, self.expected_batch_size)
