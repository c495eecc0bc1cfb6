"""Batches of no example, which sampled orders may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from copy import copy
from typing import Any

import torch

from factorize.adapters.data.altered_batches import tensors_of
from factorize.errors import InvalidParameter


def collate_or_empty(collate: Callable[[list[Any]], Any], empty: Any, examples: list[Any]) -> Any:
    """Return a batch as the caller's collation makes it, or of no examples the given one, which has the same fields."""
    return collate(examples) if examples else empty


def empty_like(batch: Any, axis: int = 0) -> Any:
    """Return a batch of no example, made from a batch of one: tensors without a row, and lists without an item.

    Args:
        batch: tensors, in dicts, lists and tuples; a list without a tensor holds one item for each example, such as a
            text.
        axis: axis of the examples.

    Raises:
        InvalidParameter: a field has another type, whose value without examples is unknown.
    """
    if torch.is_tensor(batch) and batch.dim() > axis:
        return batch.narrow(axis, 0, 0)
    if batch is None:
        return None
    if isinstance(batch, Mapping):
        parts: Any = {key: empty_like(value, axis) for key, value in batch.items()}
        if not isinstance(batch, MutableMapping):
            return parts
        empty = copy(batch)
        empty.update(parts)
        return empty
    if isinstance(batch, (list, tuple)):
        parts = [] if len(batch) == 1 and not tensors_of(batch) else [empty_like(part, axis) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    what = f"tensor of {batch.dim()} axes" if torch.is_tensor(batch) else type(batch).__name__
    raise InvalidParameter(
        f"the loader's batches have a field of type {what}. Sampled batches may be empty, and an empty one cannot be "
        "made of that type; let collate_fn return tensors or lists with one entry per example, or leave the field out",
        field="data",
    )
