"""Losses of the models of transformers, one for each example."""

from collections.abc import Mapping
from typing import Any

import torch

from factorize.errors import InvalidParameter


def example_losses(output: Any, labels: torch.Tensor, *, ahead: bool | None = True) -> torch.Tensor:
    """Return the cross entropy of each example: that of its class, or the mean over its tokens that have a label.

    Args:
        output: an output with logits, shape (batch, classes) or (batch, tokens, words).
        labels: classes, shape (batch,), or words, shape (batch, tokens), -100 where none counts.
        ahead: whether the logits of a token are for the label of the next one; None if that is unknown.

    Raises:
        InvalidParameter: no logits, other shapes, or words if it is unknown which token a label belongs to.
    """
    entropy = torch.nn.functional.cross_entropy
    logits: Any = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if not torch.is_tensor(logits):
        message = f"the model's output ({type(output).__name__}) has no logits; give example_losses"
        raise InvalidParameter(message, field="example_losses")
    if logits.dim() == 2 and labels.dim() == 1 and not labels.is_floating_point():
        return entropy(logits.float(), labels, reduction="none")
    if logits.dim() != 3 or labels.shape != logits.shape[:2] or ahead is None:
        raise InvalidParameter(
            f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)} are not those of a classifier, or of a "
            "causal, masked, token-classifying or encoder-decoder model of transformers; give example_losses=",
            field="example_losses",
        )
    if ahead:
        logits, labels = logits[:, :-1], labels[:, 1:]
    each = entropy(logits.float().transpose(1, 2), labels, reduction="none", ignore_index=-100)
    return each.sum(1) / (labels != -100).sum(1).clamp(min=1)


def labels_ahead(model: object, encodes: bool) -> bool | None:
    """Return whether a model's logits are for the label of the next token; None where its class does not tell.

    Args:
        model: a model of transformers.
        encodes: whether it has an encoder and a decoder, whose inputs are the labels one later.
    """
    name = type(model).__name__
    if encodes or name.endswith(("ForMaskedLM", "ForTokenClassification")):
        return False
    return True if name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")) else None


def decoder_inputs(model: torch.nn.Module, labels: torch.Tensor) -> torch.Tensor:
    """Return the words from which a decoder predicts the labels: each the label before it.

    Raises:
        InvalidParameter: the model does not say with which word a text begins.
    """
    own = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if own is not None:
        return own(labels)
    first, padding = (getattr(model.config, f"{name}_token_id", None) for name in ("decoder_start", "pad"))
    if first is None or padding is None:
        raise InvalidParameter(
            f"the configuration of {type(model).__name__} has decoder_start_token_id={first} and "
            f"pad_token_id={padding}, and a decoder needs both; set them, or let the data collator return "
            "decoder_input_ids",
            field="model",
        )
    words = torch.nn.functional.pad(labels[:, :-1], (1, 0), value=first)
    return words.masked_fill(words == -100, padding)
