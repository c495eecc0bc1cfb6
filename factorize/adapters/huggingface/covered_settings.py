"""Settings and methods of a `Trainer` that a private job covers, and the remedies for others."""

import os
from typing import Any

from transformers import Trainer

from factorize.errors import InvalidParameter

LOSSES_REMEDY = "give example_losses= in PrivacyArguments"
_COVERED_SETTINGS: dict[str, tuple[tuple[object, ...], str]] = {
    "max_grad_norm": ((1.0, 0.0, None), "give clip_norm= in PrivacyArguments, which clips each example"),
    "train_sampling_strategy": (("random",), "the order is one public permutation"),
    "group_by_length": ((False,), "the order is one public permutation"),
    "data_seed": ((None,), "give options={'order_seed': ...} in PrivacyArguments"),
    "n_gpu": ((0, 1), "make one GPU visible (CUDA_VISIBLE_DEVICES)"),
    "fsdp": ((None, False, "", []), "clip in your own loop, with NoiseGenerator"),
    "deepspeed": ((None,), "clip in your own loop, with NoiseGenerator"),
    "parallelism_config": ((None,), "clip in your own loop, with NoiseGenerator"),
    "fp16": ((False,), "use bf16, which needs no scaler"),
    "auto_find_batch_size": ((False,), "give physical_batch_size= in PrivacyArguments"),
    "label_smoothing_factor": ((0.0,), LOSSES_REMEDY),
    "label_names": ((None, ["labels"]), "name the labels `labels`"),
    "neftune_noise_alpha": ((None,), "its noise depends on the longest example of a batch, so leave it out"),
    "gradient_checkpointing": ((None, False), "set it to False, and give physical_batch_size= in PrivacyArguments"),
    "activation_checkpointing": ((None, False), "give physical_batch_size= in PrivacyArguments"),
    "torch_compile": ((False,), "Opacus's hooks do not run in compiled code, so leave it out"),
    "use_liger_kernel": ((False,), "its kernels sum over examples, so set it to False"),
    "include_num_input_tokens_seen": ((False, "no"), "counts of tokens are secret"),
    "include_tokens_per_second": ((False,), "counts of tokens are secret"),
    "debug": (("", []), "it prints activations of private data, so leave it out"),
    "torch_empty_cache_steps": ((None,), "give physical_batch_size= in PrivacyArguments"),
    "packing": ((False,), "a packed row has many examples, but each needs its own gradient; set it to False"),
    "padding_free": ((False,), "it joins the examples of a batch, but each needs its own gradient; set it to False"),
    "activation_offloading": ((False,), "give physical_batch_size= in PrivacyArguments"),
    "loss_type": (("nll",), LOSSES_REMEDY),
}
"""The settings of `TrainingArguments` and TRL, with the values that a private job covers and the remedy for others."""
_RAW_OPTIMIZERS = ("lomo", "layerwise", "schedule_free")
"""Parts of the names of optimizers that step by raw gradients in the backward pass, or fail after a row is spent."""
_UNUSED_METHODS = {
    "create_optimizer": "give optimizers=(optimizer, None)",
    "get_train_dataloader": "give train_dataset and data_collator: the order is one public permutation",
    "_get_train_sampler": "the order is one public permutation; for a part of the data give a torch.utils.data.Subset",
}
"""Methods of the Trainer that a private job does not call, with the remedy."""


def check_settings(args: Any) -> None:
    """Refuse settings that no guarantee here covers.

    Raises:
        InvalidParameter: a setting has a value that is not covered.
    """
    for name, (allowed, instead) in _COVERED_SETTINGS.items():
        value = getattr(args, name, allowed[0])
        if value not in allowed:
            raise InvalidParameter(f"{name}={value} is not supported; {instead}", field=name)
    watched = os.environ.get("WANDB_WATCH", "false")
    if watched in ("gradients", "all"):
        message = f"WANDB_WATCH={watched} logs gradients without noise; leave it out, or set it to parameters"
        raise InvalidParameter(message, field="report_to")
    if any(part in str(args.optim).lower() for part in _RAW_OPTIMIZERS):
        raise InvalidParameter(f"optim={args.optim} applies raw gradients; use adamw_torch or sgd", field="optim")
    if args.max_steps <= 0 and (args.num_train_epochs != int(args.num_train_epochs) or args.num_train_epochs < 1):
        message = f"num_train_epochs={args.num_train_epochs} is not a whole number from 1; give one, or max_steps"
        raise InvalidParameter(message, field="num_train_epochs")


def check_trainer(trainer: Trainer, mixin: type) -> None:
    """Refuse arguments, methods and losses that a private trainer would not use.

    Args:
        trainer: a trainer that is derived from the mixin.
        mixin: the class that computes private steps in place of the trainer's own.

    Raises:
        InvalidParameter: an argument would be ignored.
    """
    kind = type(trainer)
    if kind.of_batches is None:
        message = (
            f"{kind.__name__} names no loss of batches, which its private steps leave out; write "
            "`of_batches = DPOTrainer.compute_loss` in it, say, and a loss for each example (example_losses)"
        )
        raise InvalidParameter(message, field="of_batches")
    if trainer.compute_loss_func is not None or kind.compute_loss is not kind.of_batches:
        message = f"compute_loss returns one loss per batch, but each example needs its own; {LOSSES_REMEDY}"
        raise InvalidParameter(message, field="compute_loss_func")
    own = kind.__mro__[: kind.__mro__.index(mixin)]
    for name, instead in _UNUSED_METHODS.items():
        if any(name in vars(each) for each in own):
            message = f"{name} of {kind.__name__} would not be used; {instead}"
            raise InvalidParameter(message, field=name)
    if getattr(trainer, "aux_loss_enabled", False):
        message = "the router's auxiliary loss mixes the examples of a batch; set router_aux_loss_coef=0.0"
        raise InvalidParameter(message, field="router_aux_loss_coef")
    if getattr(trainer.accelerator, "scaler", None) is not None:
        message = "Accelerate uses a GradScaler, which reads gradients without noise; use bf16, which needs none"
        raise InvalidParameter(message, field="fp16")
