"""Changes of a model by a pass over examples: buffers and parameters are released with it, and no noise covers them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

import torch
from torch.autograd.graph import Node

from factorize.adapters.checks.loop_state import HeldTensor
from factorize.errors import InvalidParameter

MAX_WEIGHT_CHANGE = 1e-6
"""The relative change of a parameter's norm that is explained by roundings, as of a mean of two equal tensors."""


def difference_of_buffers(left: Iterable[tuple[HeldTensor, torch.Tensor]]) -> InvalidParameter | None:
    """Return the error if a pass over other examples has left a buffer with other values than it has now, or None."""
    for held, value in left:
        if held.differs(value):
            return InvalidParameter(
                f"the buffer {held.name} depends on the examples, like a running mean or a code book. It is released "
                "with the model or changes later gradients, but no noise covers it; compute it on public data and "
                "keep it fixed, or use a layer without it (GroupNorm)",
                field="model",
            )
    return None


def sizes_of(model: torch.nn.Module) -> dict[str, float]:
    """Return the norms of all parameters by name, frozen ones too, but not of quantized tensors without a norm."""
    found = dict[str, float]()
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():
            with suppress(NotImplementedError):
                found[name.removeprefix("_module.")] = float(parameter.detach().float().norm())
    return found


def difference_of_weights(before: Mapping[str, float], after: Mapping[str, float]) -> InvalidParameter | None:
    """Return the error if a parameter has another norm after a pass, in which nothing was released, or None."""
    for name, size in after.items():
        if abs(size - before.get(name, size)) > MAX_WEIGHT_CHANGE * size:
            return InvalidParameter(
                f"the forward pass, or the loop before step(), changes the parameter {name}, as code books with "
                "running means, layers that begin with a batch's statistics and embeddings with max_norm do. No noise "
                "covers that; change weights after step(), using only released or public values",
                field="model",
            )
    return None


def refuse_weights_beside(losses: torch.Tensor, model: torch.nn.Module) -> None:
    """Refuse losses whose gradients reach weights outside of the model, such as a head that another optimizer trains.

    Raises:
        InvalidParameter: they reach some.
    """
    own = {id(p) for p in model.parameters()}
    beside = next((p for p in _parameters_behind(losses.grad_fn) if id(p) not in own), None)
    if beside is not None:
        raise InvalidParameter(
            f"the loss gives gradients to a parameter of shape {tuple(beside.shape)} that is not in the model. If an "
            "optimizer trains it, no noise covers what it learns; put it into the model that you give make_private, "
            "or freeze it (requires_grad=False)",
            field="loss",
        )


def _parameters_behind(node: Node | None) -> Iterator[torch.nn.Parameter]:
    """Yield the parameters that a backward pass from a node of autograd's graph reaches."""
    left, seen = [node] if node is not None else [], {node}
    while left:
        each = left.pop()
        held = getattr(each, "variable", None)
        if isinstance(held, torch.nn.Parameter):
            yield held
        new = {after for after, _ in each.next_functions if after is not None} - seen
        seen |= new
        left += new
