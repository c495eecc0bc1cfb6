"""Sequences that a recurrent layer gets packed, by falling length, so that its rows are not the batch's examples.

Opacus leaves their gradients in that order. Row i of such a layer then belongs to another example than row i of other
layers, and the norm by which both are clipped to none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN
from torch.utils.hooks import RemovableHandle

from factorize.errors import InvalidParameter

RECURRENT_LAYERS = (DPRNN, DPLSTM, DPGRU)
"""The layers whose gradients are those of the linear layers within."""


def recurrent_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the recurrent layers of Opacus within a model."""
    return [each for each in model.modules() if isinstance(each, RECURRENT_LAYERS)]


def order_of_sequences(inputs: Sequence[object]) -> torch.Tensor | None:
    """Return the examples in the order in which `enforce_sorted=False` has packed them; None if it has not."""
    return getattr(inputs[0], "sorted_indices", None) if inputs else None


def put_back(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the rows of packed sequences in the order of the examples, with zeros for sequences that have ended."""
    put = rows.new_zeros(len(places), *rows.shape[1:])
    put[places[: len(rows)]] = rows
    return put


def refuse_other_orders(model: torch.nn.Module) -> list[RemovableHandle]:
    """Return hooks that refuse sequences in another order, unless `ExampleGradients` puts their gradients back."""
    layers = [] if getattr(model, "puts_sequences_back", False) else recurrent_layers(model)
    return [each.register_forward_pre_hook(_refuse_other_order) for each in layers]


def _refuse_other_order(_: torch.nn.Module, inputs: Sequence[object]) -> None:
    if order_of_sequences(inputs) is not None:
        raise InvalidParameter(
            "a recurrent layer got sequences packed with enforce_sorted=False, whose gradients Opacus leaves in the "
            "order of their lengths, so examples are clipped by norms of others; use make_private, or ExampleGradients "
            "of factorize.adapters.gradients.example_gradients in place of GradSampleModule",
            field="model",
        )
