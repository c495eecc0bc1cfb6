"""Tensors and numbers that modules keep in plain attributes from one pass to the next: a hidden state, a running mean.

If a pass reads what another left of its examples, these take part in later steps, too, by however little at first. So a
rehearsal puts NaN in the place of such tensors, which spoils every gradient that depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator

import torch

from factorize.adapters.data.altered_batches import tensors_of
from factorize.adapters.gradients.gradient_rows import GradientRows
from factorize.errors import InvalidParameter

_OTHERS = {"_parameters", "_buffers", "_modules", "activations"}
"""The attributes that are looked at elsewhere, or belong to Opacus."""
Attributes = dict[tuple[torch.nn.Module, str], object]
"""Values by module and name."""
Pass = Callable[[], Generator[object, None, GradientRows]]
"""A pass over a batch as it is."""


def attributes_of(model: torch.nn.Module) -> Attributes:
    """Return the plain attributes of all modules."""
    return {(layer, key): v for layer in model.modules() for key, v in vars(layer).items() if key not in _OTHERS}


def left_by_pass(before: Attributes, model: torch.nn.Module) -> Attributes:
    """Return the tensors and numbers that a pass has put in the place of other values."""
    after = attributes_of(model)
    return {place: value for place, value in after.items() if value is not before.get(place) and _numbers(value)}


def rehearse_states(
    model: torch.nn.Module, before: Attributes, left: Attributes, take: Pass, on_any_rank: Callable[[bool], bool]
) -> Generator[object, None, InvalidParameter | None]:
    """Take a batch twice, the second time with NaN in what depends on examples, and return the error if that is read.

    Args:
        model: the model.
        before: the attributes before a pass over other examples.
        left: the tensors that this pass left.
        take: a pass over the batch as it is.
        on_any_rank: a function that returns whether something holds on a rank of the job.
    """
    _put({place: before[place] for place in left if place in before})
    plain = yield from take()
    after = attributes_of(model)
    kept = {place: after.get(place) for place, value in left.items() if not _same(value, after.get(place))}
    if not on_any_rank(bool(kept)):
        return None
    _put({place: _spoilt(value) for place, value in kept.items()})
    spoilt = yield from take()
    _put(kept)
    if spoilt.idle == plain.idle:
        return None
    names = {layer: name.removeprefix("_module").lstrip(".") for name, layer in model.named_modules()}
    shown = ", ".join(sorted(f"{names[layer]}.{key}".lstrip(".") for layer, key in kept))
    return InvalidParameter(
        f"the model keeps {shown} from one batch to the next and computes with it, as with a hidden state or a running "
        "mean, so examples take part in later steps, too; begin each batch with a new state, or compute it from public "
        "data and keep it fixed",
        field="model",
    )


def _put(attributes: Attributes) -> None:
    for (layer, key), value in attributes.items():
        setattr(layer, key, value)


def _spoilt(value: object) -> object:
    """Return NaN in the form of a tensor, of a number, or of tuples and lists of tensors."""
    if isinstance(value, float):
        return math.nan
    if isinstance(value, torch.Tensor):
        return torch.full_like(value, torch.nan, requires_grad=False) if value.is_floating_point() else value
    if type(value) is tuple:
        return tuple(map(_spoilt, value))
    return [*map(_spoilt, value)] if type(value) is list else value


def _numbers(value: object) -> list[torch.Tensor]:
    if isinstance(value, float):
        return [torch.tensor(value, dtype=torch.float64)]
    return [each.detach() for each in tensors_of(value) if each.is_floating_point()]


def _same(one: object, other: object) -> bool:
    some, others = _numbers(one), _numbers(other)
    return len(some) == len(others) and all(map(torch.equal, some, others))
