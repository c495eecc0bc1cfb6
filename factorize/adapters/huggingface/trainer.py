"""A `transformers.Trainer` that trains with correlated noise: `pip install 'factorize[huggingface]'`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import Trainer

from factorize.adapters.loader import PrivateLoader
from factorize.adapters.private import Private, make_private
from factorize.errors import InvalidParameter

_SECRET = ("loss", "grad_norm", "num_input_tokens_seen")


@dataclass(frozen=True)
class PrivacyArguments:
    """What is asked for beside the `TrainingArguments`.

    Attributes:
        epsilon: of (epsilon, delta)-DP.
        delta: of (epsilon, delta)-DP.
        spec: `auto`; or a spec, digest, path or URL; or a factorization. See `factorize.adapters.private.make_private`.
        clip_norm: bound on an example's gradient.
        seed: secret, of the noise; drawn if None. A job that restarts must keep it.
        physical_batch_size: examples per forward pass, where a batch is too large for the memory.
        example_losses: from the model's output and the labels to one loss for each example, shape (batch,); cross
            entropy, its mean over the tokens of an example, if None.
        options: of `make_private`: url, store, solve, remainder, users, sampling, adaptive and so on.
    """

    epsilon: float
    delta: float
    spec: Any = "auto"
    clip_norm: float = 1.0
    seed: int | None = field(default=None, repr=False)
    physical_batch_size: int | None = None
    example_losses: Callable[[Any, torch.Tensor], torch.Tensor] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class PrivateTrainer(Trainer):
    """A Trainer whose optimizer releases clipped gradients with correlated noise, over the order that it is for.

    Only parameters with `requires_grad` are trained and get noise: with peft that are the adapters. A batch is
    `per_device_train_batch_size` examples. Losses and gradient norms of training are secret, and are left out of logs.

    Args:
        *args: of `Trainer`.
        privacy: what is asked for.
        **others: of `Trainer`; `train_dataset` with a length.

    Attributes:
        private: the job: optimizer, loader and statement; None before `train`.

    Raises:
        InvalidParameter: settings of `TrainingArguments` that no guarantee here covers.
    """

    def __init__(self, *args: Any, privacy: PrivacyArguments, **others: Any) -> None:
        super().__init__(*args, **others)
        self.privacy = privacy
        self.private: Private | None = None
        _check(self.args)
        if self.train_dataset is None or not hasattr(self.train_dataset, "__len__"):
            raise InvalidParameter("there is no train_dataset with a length; give one", field="train_dataset")
        self.args.max_grad_norm = 0.0  # it would clip what the noise is already on
        self.args.ignore_data_skip = True  # the loader goes on from the optimizer's step
        self.args.remove_unused_columns = False

    @property
    def statement(self) -> Any:
        """What the job guarantees.

        Raises:
            InvalidParameter: `train` was not called yet.
        """
        if self.private is None:
            raise InvalidParameter("the job is made private by train(); ask after it", field="privacy")
        return self.private.statement

    def get_train_dataloader(self) -> Any:
        """Return the private order's loader, one item for each step."""
        if self.private is None:
            self.private = self._make_private()
            self.optimizer = self.private.optimizer
        return _Steps(self.private.loader)

    def _make_private(self) -> Private:
        privacy = self.privacy
        if self.optimizer is None:
            super().create_optimizer()
        self.model.train()
        return make_private(
            self.model,
            self.optimizer,
            torch.utils.data.DataLoader(
                self.train_dataset, batch_size=self.args.train_batch_size, collate_fn=self.data_collator
            ),
            privacy.spec,
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            epochs=int(self.args.num_train_epochs),
            clip_norm=privacy.clip_norm,
            physical_batch_size=privacy.physical_batch_size,
            loss=lambda _, part: self.example_losses(self.model, self._prepare_inputs(dict(part))),
            loss_reduction="sum",
            seed=privacy.seed,
            **privacy.options,
        )

    def create_optimizer(self, model: Any = None) -> Any:
        """Return the private optimizer, which the loader was made with."""
        if self.private is None:
            self.get_train_dataloader()
        return self.optimizer

    def training_step(self, model: Any, inputs: Mapping[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Compute the gradients of all parts of a batch; each is clipped before the next one comes."""
        assert self.private is not None
        model.train()
        means: list[torch.Tensor] = []
        for part in inputs["parts"]:
            if means:
                self.private.optimizer.step()  # adds up, and moves nothing
            self.private.optimizer.zero_grad()  # the Trainer clears those of the model alone
            losses = self.example_losses(model, self._prepare_inputs(dict(part)))
            self.accelerator.backward(losses.sum())
            means.append(losses.detach().mean())
        return torch.stack(means).mean()

    def example_losses(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Return one loss for each example, which no other example of the batch changes.

        Raises:
            InvalidParameter: the inputs have no labels, or the losses are not one for each example.
        """
        labels = inputs.pop("labels", None)
        if labels is None:
            raise InvalidParameter("the batch has no labels; have the collator give them", field="train_dataset")
        with self.compute_loss_context_manager():
            losses = (self.privacy.example_losses or example_losses)(model(**inputs), labels)
        if losses.shape != labels.shape[:1]:
            raise InvalidParameter(
                f"the losses have shape {tuple(losses.shape)} for {len(labels)} examples; give one for each, a mean "
                "over the batch lets examples change each other's gradients",
                field="example_losses",
            )
        return losses

    def log(self, logs: dict[str, float], *args: Any, **others: Any) -> None:
        """Log what is no function of a batch without noise."""
        super().log({name: value for name, value in logs.items() if name not in _SECRET}, *args, **others)

    def floating_point_ops(self, inputs: Any) -> int:
        """Count none: a step holds parts."""
        return 0


class _Steps:
    """The loader's parts, put together to one item for each step.

    Args:
        loader: that has every batch audited.
    """

    def __init__(self, loader: PrivateLoader) -> None:
        self.dataset, self._loader = loader.dataset, loader
        self.batch_size: int | None = None

    def __len__(self) -> int:
        """Return the number of steps of one pass."""
        return len(self._loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the parts of each step that is left in this pass, each of which is read when it is computed."""
        for parts in self._loader.steps():
            yield {"parts": parts}


def example_losses(output: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of each example: of its class, or the mean over its tokens, each predicting the next.

    Args:
        output: with logits, shape (batch, classes) or (batch, tokens, words).
        labels: classes, shape (batch,), or words, shape (batch, tokens), -100 where none counts.

    Raises:
        InvalidParameter: other shapes.
    """
    logits, entropy = output.logits, torch.nn.functional.cross_entropy
    if logits.dim() == 2 and labels.dim() == 1 and not labels.is_floating_point():
        return entropy(logits.float(), labels, reduction="none")
    if logits.dim() != 3 or labels.shape != logits.shape[:2]:
        raise InvalidParameter(
            f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)} are neither classes nor words; give "
            "example_losses",
            field="example_losses",
        )
    ahead = labels[:, 1:]
    each = entropy(logits[:, :-1].float().transpose(1, 2), ahead, reduction="none", ignore_index=-100)
    return each.sum(1) / (ahead != -100).sum(1).clamp(min=1)


def _check(args: Any) -> None:
    """Refuse settings that no guarantee here covers.

    Raises:
        InvalidParameter: see above.
    """
    for name, allowed, instead in (
        ("gradient_accumulation_steps", (1,), "give physical_batch_size= in PrivacyArguments"),
        ("max_steps", (-1,), "give num_train_epochs"),
        ("group_by_length", (False,), "the order is public and fixed"),
        ("world_size", (1,), "use make_private with Opacus's data-parallel module"),
        ("n_gpu", (0, 1), "show one device to the job"),
        ("fp16", (False,), "use bf16, which needs no scaler"),
        ("auto_find_batch_size", (False,), "give physical_batch_size= in PrivacyArguments"),
    ):
        value = getattr(args, name, allowed[0])
        if value not in allowed:
            raise InvalidParameter(f"{name}={value} is not covered; {instead}", field=name)
    if args.num_train_epochs != int(args.num_train_epochs) or args.num_train_epochs < 1:
        message = f"num_train_epochs={args.num_train_epochs} is not a whole number from 1"
        raise InvalidParameter(message, field="num_train_epochs")
