"""A `transformers.Trainer` that trains with correlated noise: `pip install 'factorize[huggingface]'`.

The private part is a mixin, `PrivateTraining`, so that trainers that are derived from `Trainer` can have it, too
(`factorize.adapters.huggingface.trl`).
"""

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from secrets import randbits
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from transformers import Trainer
from transformers.trainer_utils import TrainOutput

from factorize.adapters.data.mixed_data import share_of_examples
from factorize.adapters.huggingface.covered_settings import check_settings, check_trainer
from factorize.adapters.huggingface.example_losses import decoder_inputs, example_losses, labels_ahead
from factorize.adapters.loader import PrivateLoader
from factorize.adapters.private import Private, make_private
from factorize.adapters.ranks.agreement import agree, own_rank, world_size
from factorize.adapters.ranks.placements import values_sum
from factorize.adapters.torch import TorchNoiseOptions
from factorize.errors import InvalidParameter, MissingExtra
from factorize.numbers.scalars import check_type
from factorize.training.job import JobData
from factorize.training.run_lock import RunLock

_SECRET_LOGS = ("loss", "train_loss", "grad_norm", "num_input_tokens_seen")

_LOADING = ("drop_last", "num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context", "in_order")
"""Arguments of a `DataLoader` that `TrainingArguments` have; the last two came with later releases."""


@dataclass(frozen=True)
class PrivacyArguments:
    """The arguments of a private training besides the `TrainingArguments`.

    Attributes:
        epsilon: the epsilon of (epsilon, delta)-DP.
        delta: the delta of (epsilon, delta)-DP.
        spec: `auto`; or a spec, digest, path or URL; or a factorization. See `factorize.adapters.private.make_private`.
        clip_norm: bound on an example's gradient.
        seed: secret seed of the noise; drawn if None. A job that restarts must keep it.
        physical_batch_size: examples per forward pass, if a batch is too large for the memory.
        example_losses: a function that takes the model's output and the labels and returns one loss for each example,
            shape (batch,); cross entropy, its mean over the tokens of an example, if None.
        options: options of `make_private`: url, store, solve, remainder, users, sampling, adaptive and so on.
    """

    epsilon: float
    delta: float
    spec: Any = "auto"
    clip_norm: float = 1.0
    seed: int | None = field(default=None, repr=False)
    physical_batch_size: int | None = None
    example_losses: Callable[[Any, torch.Tensor], torch.Tensor] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise InvalidParameter for options that `make_private` does not have, or that have their own place."""
        check_type("options", self.options, Mapping, remedy="give a dictionary of options of make_private")
        if self.example_losses is not None:
            check_type("example_losses", self.example_losses, Callable, remedy="give a function of outputs and labels")
        elsewhere = {*(each.name for each in fields(self)), "model", "optimizer", "data", "epochs"}
        known = {*inspect.signature(make_private).parameters, *TorchNoiseOptions.__annotations__} - elsewhere
        unknown = [str(name)[:40] for name in self.options if name not in known - {"loss", "loss_reduction"}]
        if unknown:
            message = f"options has {unknown[0]}, which is none that make_private has and the trainer leaves open"
            raise InvalidParameter(f"{message}; see factorize.adapters.private.make_private", field="options")


if TYPE_CHECKING:

    class _Mixed(Trainer):
        """The class that it is mixed into."""

else:
    _Mixed = object


class PrivateTraining(_Mixed):
    """A mixin that makes a `Trainer` private: clipped gradients with correlated noise, over the order of the noise.

    Only parameters with `requires_grad` are trained and get noise: with peft that are the adapters. Losses and gradient
    norms of training are secret, and are left out of logs.

    A batch is `per_device_train_batch_size` x `gradient_accumulation_steps` examples of every process; with several
    accumulation steps a part is `per_device_train_batch_size`. Processes (torchrun, accelerate) share a batch and its
    noise, which is the noise of one process. With `max_steps` the noise is that of whole epochs, of which the run may
    leave out the last steps.

    Args:
        *args: arguments of the `Trainer` that it is mixed into.
        privacy: the arguments of the private training.
        **others: options of that `Trainer`; `train_dataset` with a length.

    Attributes:
        private: the job: optimizer, loader and statement; None before `train`.

    Raises:
        InvalidParameter: settings of `TrainingArguments` that no guarantee here covers.
    """

    of_batches: ClassVar[Any] = None
    """The trainer's own loss, which no private step computes; each class that is mixed names it."""

    def __init__(self, *args: Any, privacy: PrivacyArguments, **others: Any) -> None:
        check_type("privacy", privacy, PrivacyArguments, remedy="give PrivacyArguments(epsilon=..., delta=...)")
        given = inspect.signature(super().__init__).bind_partial(*args, **others).arguments
        self._parts = getattr(given.get("args"), "gradient_accumulation_steps", 1)
        if self._parts > 1:
            if privacy.physical_batch_size is not None:
                message = "gradient_accumulation_steps and physical_batch_size both split a batch; give only one"
                raise InvalidParameter(message, field="gradient_accumulation_steps")
            given["args"] = copy(given["args"])  # the caller may use its own again
            given["args"].gradient_accumulation_steps = 1  # one item of the loader holds all parts of a step
        super().__init__(**given)
        self.privacy = privacy
        self.private: Private | None = None
        check_settings(self.args)
        streams = isinstance(self.train_dataset, torch.utils.data.IterableDataset)
        if streams or not (hasattr(self.train_dataset, "__len__") and len(self.train_dataset)):
            message = "there is no train_dataset with a length, an index and examples; give one, not a stream"
            raise InvalidParameter(message, field="train_dataset")
        check_trainer(self, PrivateTraining)
        for each in self.eval_dataset.values() if isinstance(self.eval_dataset, dict) else [self.eval_dataset]:
            self._check_evaluated(each)
        self.args.max_grad_norm = 0.0  # the Trainer would clip after the noise
        self.args.ignore_data_skip = True  # the loader continues from the optimizer's step
        # The private optimizer adds up over the processes; torch's DDP, which is left out, would do so before clipping.
        self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)

    def _check_evaluated(self, dataset: Any) -> None:
        """Refuse to evaluate on examples of the private data, whose metrics have no noise.

        Raises:
            InvalidParameter: most examples of the data set are in `train_dataset`, as far as a look at some of them
                shows.
        """
        if hasattr(dataset, "__len__") and len(dataset) and share_of_examples(dataset, self.train_dataset) > 0.5:
            message = "the examples to evaluate on are of the private train_dataset, whose metrics have no noise; "
            message += "give other data"
            raise InvalidParameter(message, field="eval_dataset")

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the loader of data that training does not use."""
        given = self.eval_dataset if eval_dataset is None else eval_dataset
        self._check_evaluated(self.eval_dataset[given] if isinstance(given, str) else given)
        return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return the loader of data that training does not use."""
        self._check_evaluated(test_dataset)
        return super().get_test_dataloader(test_dataset)

    @property
    def statement(self) -> Any:
        """The guarantee of the job.

        Raises:
            InvalidParameter: `train` was not called yet.
        """
        if self.private is None:
            raise InvalidParameter("train() makes the job private; ask for the statement after it", field="privacy")
        return self.private.statement

    def get_train_dataloader(self) -> Any:
        """Return the private order's loader, one item for each step."""
        if self.private is None:
            self.private = self._make_private()
            self.optimizer = self.private.optimizer
        return _Steps(self.private.loader)

    def train(self, *args: Any, **others: Any) -> TrainOutput:
        """Train; the output has no training loss, which is a function of the data without noise.

        Raises:
            InvalidParameter: another process trains in `output_dir`, which would continue with the same noise; or a
                setting was changed to one that is not covered.
        """
        check_settings(self.args)
        lock = agree("output_dir", lambda: (self._lock(), {}))
        before = self._sums_of_weights()
        try:
            done = super().train(*args, **others)
        finally:
            if lock is not None:
                lock.release()
        same = [name for name, value in self._sums_of_weights().items() if before.get(name) == value]
        if same and done.global_step and self.args.learning_rate > 0:
            few = ", ".join(same[:3]) + (" ..." if len(same) > 3 else "")
            message = (
                f"training changed no bit of {len(same)} of {len(before)} parameters ({few}): is the rate too small?"
            )
            warnings.warn(message, stacklevel=2)
        metrics = {name: value for name, value in done.metrics.items() if name not in _SECRET_LOGS}
        return TrainOutput(done.global_step, math.nan, metrics)

    def _sums_of_weights(self) -> dict[str, str]:
        return {name: values_sum([p]) for name, p in self.model.named_parameters() if p.requires_grad}

    def _lock(self) -> RunLock | None:
        """Return the lock on the run's folder, which rank 0 holds for all processes."""
        return RunLock(Path(self.args.output_dir) / "checkpoints", field="output_dir") if own_rank() == 0 else None

    def _given_data(self) -> torch.utils.data.DataLoader[Any]:
        """Return the loader that `Trainer` would make of its arguments."""
        args, dataset, collate = self.args, self.train_dataset, self.data_collator
        if hasattr(dataset, "column_names"):
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        loading = {
            name: getattr(args, f"dataloader_{name}") for name in _LOADING if hasattr(args, f"dataloader_{name}")
        }
        loading["pin_memory"] = args.dataloader_pin_memory and args.device.type == "cuda"
        size = args.train_batch_size * self._parts * world_size()
        return torch.utils.data.DataLoader(dataset, batch_size=size, shuffle=True, collate_fn=collate, **loading)

    def _make_private(self) -> Private:
        privacy, ranks = self.privacy, world_size()
        if self.optimizer is None:
            super().create_optimizer()
        self.model.train()
        data, seed = self._given_data(), [privacy.seed]
        if ranks > 1 and privacy.seed is None:
            seed = [randbits(128)]
            torch.distributed.broadcast_object_list(seed, src=0)
        return make_private(
            self.model if ranks == 1 else DifferentiallyPrivateDistributedDataParallel(self.model),
            self.optimizer,
            data,
            privacy.spec,
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            epochs=self._epochs(data),
            clip_norm=privacy.clip_norm,
            physical_batch_size=self.args.train_batch_size if self._parts > 1 else privacy.physical_batch_size,
            loss=lambda _, part: self.example_losses(self.model, self._prepare_inputs(dict(part))),
            loss_reduction="sum",
            seed=seed[0],
            **privacy.options,
        )

    def _epochs(self, data: torch.utils.data.DataLoader[object]) -> int:
        """Return the number of planned passes: with `max_steps`, all that it begins."""
        if self.args.max_steps <= 0:
            return int(self.args.num_train_epochs)
        options, size = self.privacy.options, data.batch_size or 1
        units = JobData(examples=len(data.dataset), users=options.get("users")).units
        steps = -(-units // size) if options.get("remainder") == "pad" else units // size
        return -(-self.args.max_steps // max(1, steps))

    def create_optimizer(self, model: object = None) -> Any:
        """Return the private optimizer, which was made with the loader.

        Raises:
            InvalidParameter: `model_init` has made another model than the one that was made private.
        """
        if self.private is None:
            self.get_train_dataloader()
        elif self.optimizer is None:
            message = "model_init made another model for a second run, and a trainer has the noise of one; make a new "
            message += "trainer for it, and add up the epsilons of all runs"
            raise InvalidParameter(message, field="model_init")
        return self.optimizer

    def training_step(self, model: Any, inputs: Mapping[str, Any], num_items_in_batch: object = None) -> torch.Tensor:
        """Compute the gradients of all parts of a batch; each is clipped before the next one comes.

        Returns:
            0 in place of the loss, which is secret.

        Raises:
            InvalidParameter: the run goes on from a checkpoint without the state of its noise.
        """
        assert self.private is not None
        step = self.private.optimizer.noise.step
        if step < self.state.global_step:
            raise InvalidParameter(
                f"the run goes on after step {self.state.global_step}, and its noise after step {step}: the checkpoint "
                "has no state of the optimizer (save_only_model=True leaves it out), and the noise of earlier steps "
                "would be released twice; resume from a checkpoint with optimizer.pt, or begin a run with another seed",
                field="resume_from_checkpoint",
            )
        model.train()
        for place, part in enumerate(inputs["parts"]):
            if place:
                self.private.optimizer.step()  # this step only adds up
            self.private.optimizer.zero_grad()  # the Trainer clears only those of the model
            losses = self.example_losses(model, self._prepare_inputs(dict(part)))
            self.accelerator.backward(losses.sum())
        return torch.zeros((), device=self.args.device)

    def example_losses(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Return one loss for each example, which no other example of the batch changes.

        Raises:
            InvalidParameter: the inputs have no labels, or the losses are not one for each example.
        """
        labels = inputs.pop("labels", None)
        if labels is None:
            raise InvalidParameter(
                "the batch has no labels; let the data collator return them. If the model takes other targets, such as "
                "start_positions, give these as labels, a row for each example, with remove_unused_columns=False and "
                "example_losses=, which gets them",
                field="train_dataset",
            )
        base = getattr(self.model, "get_base_model", lambda: self.model)()
        encodes = bool(getattr(getattr(base, "config", None), "is_encoder_decoder", False))
        if encodes and "decoder_input_ids" not in inputs:
            inputs["decoder_input_ids"] = decoder_inputs(base, labels)
        own = self.privacy.example_losses or partial(example_losses, ahead=labels_ahead(base, encodes))
        with self.compute_loss_context_manager():
            losses = own(model(**inputs), labels)
        if losses.shape != labels.shape[:1]:
            raise InvalidParameter(
                f"the losses have shape {tuple(losses.shape)} for {len(labels)} examples; return one per example, "
                "since in a mean over the batch examples change each other's gradients",
                field="example_losses",
            )
        return losses

    def log(self, logs: dict[str, float], *args: Any, **others: Any) -> None:
        """Log only values that are no functions of a batch without noise; and the epsilon so far, if that is quick.

        `PrivacyStatement.epsilon_so_far` explains for which stops this holds.
        """
        private = self.private
        if private is not None and not private.statement.calibration.amplified and private.statement.moments is None:
            with suppress(MissingExtra):  # training needs no accountant
                logs = {**logs, "epsilon_so_far": private.optimizer.epsilon_so_far()}
        super().log({name: value for name, value in logs.items() if name not in _SECRET_LOGS}, *args, **others)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save a state for any number of processes: the noise without its vectors, if several processes share them."""
        if self.private is None or world_size() == 1:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        kept = self.private.optimizer.state_dict(arrays=False)  # all ranks call this, and rank 0 saves
        optimizer = self.optimizer
        self.optimizer = cast(Any, SimpleNamespace(state_dict=lambda: kept))
        try:
            super()._save_optimizer_and_scheduler(output_dir)
        finally:
            self.optimizer = optimizer

    def floating_point_ops(self, inputs: object) -> int:
        """Return 0, since a step holds parts."""
        return 0


class PrivateTrainer(PrivateTraining, Trainer):
    """`transformers.Trainer` with correlated noise: see `PrivateTraining`."""

    of_batches = Trainer.compute_loss


class _Steps:
    """The loader's parts, combined into one item for each step.

    Args:
        loader: the loader that has every batch audited.
    """

    def __init__(self, loader: PrivateLoader) -> None:
        self.dataset, self._loader = loader.dataset, loader
        self.batch_size: int | None = None

    def __len__(self) -> int:
        """Return the number of steps of one pass."""
        return self._loader.steps_of_pass

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the parts of each step that is left in this pass; each part is read when it is computed."""
        for parts in self._loader.steps():
            yield {"parts": parts}
