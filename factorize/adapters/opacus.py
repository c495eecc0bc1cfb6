"""Opacus with correlated noise: clipping as Opacus does it, the noise of a factorization, a fixed public divisor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
import torch
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer import _check_processed_flag
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler

from factorize.accounting.amplification import AmplifiedCalibration
from factorize.adapters.torch import NoiseGenerator, TorchNoiseOptions
from factorize.auditor import ParticipationAuditor
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.privacy import Calibration
from factorize.training.bins_audit import BinsAuditor


class CorrelatedOptimizer(DPOptimizer):
    """Opacus's `DPOptimizer`, with row t of C^-1 Z in place of fresh noise at step t.

    Use it with a model in Opacus's `GradSampleModule` (from `PrivacyEngine.make_private(poisson_sampling=False)`, say).
    Clip norm, scale and divisor come from the calibration: sums where it has no `batch_size`, else means with that
    divisor, whatever a batch holds. Opacus's accountants do not know this noise: ask the calibration.

    Args:
        optimizer: of torch, or one that Opacus has wrapped, whose noise is then replaced.
        factors: what `factorize.client.load` or `solvers.solve` gave.
        calibration: its own.
        seed: a secret integer, `secrets.randbits(128)`.
        auditor: told of every batch before the step; without it the order is the caller's promise alone.
        **options: of the noise, see `factorize.adapters.torch.NoiseGenerator`.

    Attributes:
        noise: the generator.
        auditor: the auditor, or None.

    Raises:
        InvalidParameter: the calibration belongs to another factorization, or counts on sampling without an auditor.
    """

    def __init__(
        self,
        optimizer: Any,
        factors: Any,
        calibration: Calibration,
        *,
        seed: int,
        auditor: ParticipationAuditor | BinsAuditor | None = None,
        **options: Unpack[TorchNoiseOptions],
    ) -> None:
        if isinstance(optimizer, DPOptimizer):
            optimizer = optimizer.original_optimizer
        _check_auditor(calibration, auditor)
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self.noise = NoiseGenerator(factors, calibration, parameters, seed=seed, **options)
        self.auditor = auditor
        self._samples = 0
        self._expected: int | None = None
        self._masks: list[np.ndarray] = []
        super().__init__(
            optimizer,
            noise_multiplier=calibration.noise_multiplier,
            max_grad_norm=calibration.clip_norm,
            expected_batch_size=calibration.batch_size,
            loss_reduction="sum" if calibration.batch_size is None else "mean",
        )

    def expect(self, indices: np.ndarray, *, masks: np.ndarray | None = None) -> None:
        """Have the batch of the next step audited; `step` then wants the gradients of as many examples.

        Args:
            indices: of the examples.
            masks: of the parts that the batch comes in, shape (parts, rows): False for rows that pad, whose gradients
                count as zero. None where nothing pads.

        Raises:
            InvalidParticipation: it breaks the participation, or the step before it was not taken.
        """
        if self.auditor is None:
            raise InvalidParameter("there is no auditor; give one to the optimizer", field="auditor")
        if self.auditor.step != self.noise.step:
            raise InvalidParticipation(
                f"batch {self.auditor.step} was handed out, and step {self.noise.step} not taken yet; call step() once "
                "for each batch, or examples and noise part ways"
            )
        if isinstance(self.auditor, BinsAuditor):
            self.auditor.record(indices, divisor=self.expected_batch_size)
        else:
            self.auditor.record(indices)
        self._expected = len(indices) if masks is None else masks.size
        self._masks = [] if masks is None else list(masks)

    def clip_and_accumulate(self) -> None:
        """Clip as Opacus does, and count the rows; padding, and a gradient that is not finite, count as zero."""
        self._drop_padding()
        self._drop_not_finite()
        super().clip_and_accumulate()
        self._samples += len(self.grad_samples[0])

    def add_noise(self) -> None:
        """Put (sum of clipped gradients) / divisor + the step's noise into `p.grad`.

        Raises:
            InvalidParticipation: the batch was not audited, or other examples than it holds have gradients.
            InvalidParameter: all n steps were taken.
        """
        self._check_batch()
        divisor = self.expected_batch_size or 1
        for p, drawn in zip(self.params, self.noise.next(), strict=True):
            if hasattr(p.summed_grad, "_processed"):
                raise InvalidParameter("gradients of the step before are still there; call zero_grad() after step()")
            p.grad = (p.summed_grad / divisor + drawn).view_as(p)
            p.summed_grad._processed = True
        self._samples, self._expected = 0, None

    def scale_grad(self) -> None:
        """The divisor was applied with the noise, which is scaled for it; no number of parts changes it."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer with that of noise and auditor, for `torch.save`; the seed is not in it.

        Raises:
            InvalidParameter: a batch was handed out, and its step not taken yet.
        """
        if self.auditor is not None and self.auditor.step != self.noise.step:
            raise InvalidParameter(f"batch {self.noise.step} is handed out and not used; checkpoint after step()")
        state: dict[str, Any] = dict(super().state_dict())
        state["noise"] = self.noise.state_dict()
        if self.auditor is not None:
            kept = self.auditor.state_dict()
            state["auditor"] = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in kept.items()}
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, whose model must be restored with it.

        Raises:
            InvalidParameter: it has no noise or no auditor, or those of another run.
        """
        missing = [key for key in ("noise", *(["auditor"] if self.auditor else [])) if key not in state_dict]
        if missing:
            message = f"the checkpoint has no {missing[0]}: it is none of this optimizer; noise would be released twice"
            raise InvalidParameter(message, field=missing[0])
        self.noise.load_state_dict(state_dict["noise"])
        if self.auditor is not None:
            kept = state_dict["auditor"]
            self.auditor.load_state_dict({k: v.numpy() if torch.is_tensor(v) else v for k, v in kept.items()})
        super().load_state_dict({k: v for k, v in state_dict.items() if k not in ("noise", "auditor")})

    def _drop_padding(self) -> None:
        """Padding is computed like examples, so that no time shows how much of it there is, and then set to zero."""
        if not self._masks:
            return
        mask, rows = self._masks.pop(0), len(self.grad_samples[0])
        if len(mask) != rows:
            raise InvalidParticipation(
                f"a part of step {self.noise.step} has gradients of {rows} rows, not {len(mask)}; use each part whole, "
                "once, and call step() after each"
            )
        self._keep(torch.from_numpy(mask.copy()))

    def _keep(self, kept: torch.Tensor) -> None:
        """Set the gradients of the other rows to zero."""
        for p, g in zip(self.params, self.grad_samples, strict=True):
            _check_processed_flag(p.grad_sample)
            rows = kept.to(g.device).reshape(-1, *(1,) * (g.dim() - 1))
            p.grad_sample = torch.where(rows, g, torch.zeros_like(g))

    def _drop_not_finite(self) -> None:
        """No factor clips what is not finite: one example would make the sum NaN, and show that it was there."""
        samples = self.grad_samples
        if not samples or not len(samples[0]):
            return
        sums = [g.reshape(len(g), -1).sum(dim=1).to(samples[0].device) for g in samples]
        finite = torch.stack(sums).isfinite().all(dim=0)
        if not finite.all():
            self._keep(finite)

    def _check_batch(self) -> None:
        if self.auditor is None:
            return
        if self._expected is None or self.auditor.step != self.noise.step + 1:
            raise InvalidParticipation(
                f"step {self.noise.step} has gradients of a batch that the auditor has not seen; take batches from the "
                "loader that make_private returned, or call expect(indices)"
            )
        if self._samples != self._expected:
            raise InvalidParticipation(
                f"step {self.noise.step} has gradients of {self._samples} examples, its batch holds {self._expected}; "
                "use each batch whole, once, and nothing beside it"
            )


def _check_auditor(calibration: Calibration, auditor: ParticipationAuditor | BinsAuditor | None) -> None:
    """Refuse a calibration that counts on sampling without the auditor that sees it."""
    balls = getattr(calibration, "sampling", None) == "balls_in_bins"
    missing = auditor is None and isinstance(calibration, AmplifiedCalibration)
    if missing or (balls and not isinstance(auditor, BinsAuditor)):
        what, kind = ("balls in bins", "BinsAuditor") if balls else ("cyclic Poisson sampling", "auditor")
        raise InvalidParameter(
            f"epsilon={calibration.epsilon} counts on {what}; use make_private, which samples so, or give the {kind} "
            "that is told of every sampled batch",
            field="auditor",
        )


def refuse_sampling(loader: Any) -> None:
    """Refuse a data loader that samples at random in every step, as `PrivacyEngine` makes by default.

    Raises:
        InvalidParticipation: it does. No sensitivity here covers that order; for banded C there is cyclic sampling.
    """
    sampler = getattr(loader, "batch_sampler", None)
    if isinstance(sampler, (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)):
        raise InvalidParticipation(
            f"the loader's {type(sampler).__name__} draws Poisson samples, and correlated noise needs a fixed order; "
            "use poisson_sampling=False, or make_private(sampling='cyclic_poisson') with a banded C",
            field="data",
        )
