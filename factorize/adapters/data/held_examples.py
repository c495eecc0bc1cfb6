"""Examples that a model holds beside its batches, as the points of a kernel, a memory, or centres that begin at some.

They are in the gradient of every other example, or are released with the model, and no noise covers that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import default_convert

from factorize.adapters.data.altered_batches import Randomness, tensors_of
from factorize.adapters.data.mixed_data import Examples
from factorize.errors import InvalidParameter

_MAX_READ_EXAMPLES = 1 << 10
"""The most examples that are read: they find 1 percent of the data in a model, and take a second."""


@Randomness.keep()
def refuse_held_examples(model: torch.nn.Module, dataset: Examples) -> None:
    """Refuse a model with a parameter, a buffer or another tensor that has examples of the data among its rows.

    It reads up to `_MAX_READ_EXAMPLES` examples, as they are without random numbers of their own; random numbers are
    put back.

    Raises:
        InvalidParameter: it has some.
    """
    sizes = {each.numel() for each in tensors_of(default_convert(dataset[0])) if each.is_floating_point()} - {0, 1}
    held = {row: name for name, tensor in _tensors_in(model) for row in _rows_of(tensor, sizes)}
    for i in np.linspace(0, len(dataset) - 1, min(len(dataset), _MAX_READ_EXAMPLES if held else 0)).astype(int):
        for each in tensors_of(default_convert(dataset[int(i)])):
            name = next((held[row] for row in _rows_of(each[None], sizes) if row in held), None)
            if name is not None:
                raise InvalidParameter(
                    f"{name} of the model holds examples of the data (points of a kernel, a memory, centres that "
                    "begin at examples), which would be in the gradients of others, or released with the model, "
                    "without noise; take public data or random numbers for it",
                    field="model",
                )


def _tensors_in(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
    for name, layer in model.named_modules():
        yield from ((f"{name}.{key}".lstrip("."), each) for key, each in vars(layer).items() if torch.is_tensor(each))


def _rows_of(tensor: torch.Tensor, sizes: set[int]) -> Iterator[bytes]:
    """Yield hashes of the rows of a tensor of as many numbers as a tensor of an example."""
    if tensor.dim() > 1 and tensor.is_floating_point() and len(tensor) and tensor[0].numel() in sizes:
        rows = tensor.detach().reshape(len(tensor), -1).to("cpu", torch.float32)
        ends = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
        telling = ((rows != ends[0]) & (rows != ends[1])).any(1)  # rows of two values may agree by chance
        yield from (hashlib.blake2b(row, digest_size=16).digest() for row in rows[telling].numpy())
