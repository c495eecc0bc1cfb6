"""Gradients of examples that are not in memory: a few are made at a time, from tensors that their layer keeps.

A linear layer's gradient of an example is as large as the layer, but it is made of tensors as large as its inputs and
outputs. So clipping goes over the examples twice, once for norms and once for sums, and makes the same rows each time
by the same operations. Opacus's ghost clipping keeps no rows either, but its norms and sums are rounded as parameters
are, and the certified sensitivity does not cover that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from factorize.adapters.gradients.clipped_sums import MAX_ADDED_EXAMPLES

MAX_STREAMED_ENTRIES = 1 << 24
"""The most entries of gradients that are made at a time, 64 MiB in float32, unless a single example has more."""


@dataclass
class LayerPass:
    """The inputs and the gradients of the outputs that a layer keeps of one pass, examples first."""

    sampler: Callable[..., dict[torch.nn.Parameter, torch.Tensor]]
    layer: torch.nn.Module
    inputs: list[torch.Tensor]
    outputs: torch.Tensor
    _made: dict[tuple[int, int], dict[torch.nn.Parameter, torch.Tensor]] = field(default_factory=dict)

    def rows(self, parameter: torch.nn.Parameter, first: int, last: int) -> torch.Tensor:
        """Return the gradients of some examples by a parameter; the layer's other parameters keep theirs for a call."""
        own = self._made.pop((first, last), {})
        if parameter not in own:
            own = self.sampler(self.layer, [part[first:last] for part in self.inputs], self.outputs[first:last])
        found = own.pop(parameter)
        self._made = {(first, last): own} if own else {}
        return found


@dataclass
class LayerRows:
    """The gradients of a parameter by example, in place of the tensor that Opacus has as `grad_sample`."""

    parameter: torch.nn.Parameter
    passes: list[LayerPass]

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.passes[0].outputs)

    def __getitem__(self, rows: slice) -> LayerRows:
        """Return all of them: Opacus adds the gradients of each pass to the first ones, which are as many."""
        return self

    def __setitem__(self, rows: slice, added: LayerRows) -> None:
        """Keep the result of `+=`."""

    def __iadd__(self, other: LayerRows) -> LayerRows:
        """Add the gradients of another pass through the layer."""
        self.passes += other.passes
        return self

    @property
    def shape(self) -> torch.Size:
        """The shape that the tensor would have."""
        return torch.Size([len(self), *self.parameter.shape])

    @property
    def dtype(self) -> torch.dtype:
        """The type that the tensor would have."""
        return self.passes[0].outputs.dtype

    @property
    def device(self) -> torch.device:
        """The device that the tensor would be on."""
        return self.passes[0].outputs.device

    def rows(self, first: int, last: int) -> torch.Tensor:
        """Return the gradients of some examples, shape (last - first, *shape)."""
        first_pass, *others = (each.rows(self.parameter, first, last) for each in self.passes)
        return sum(others, first_pass)


Rows: TypeAlias = torch.Tensor | LayerRows
"""The gradients of a parameter by example, shape (examples, *shape)."""


def keep_pass(
    sampler: Callable[..., dict[torch.nn.Parameter, torch.Tensor]],
    layer: torch.nn.Module,
    inputs: list[torch.Tensor],
    outputs: torch.Tensor,
) -> dict[torch.nn.Parameter, Any]:
    """Return a layer's gradients by example: as tensors, or as the parts of a pass if these are smaller."""
    own = [p for p in layer.parameters(recurse=False) if p.requires_grad]
    known = [getattr(p, "_current_grad_sample", None) for p in own]  # from an earlier pass
    kept = outputs.numel() + sum(part.numel() for part in inputs)
    steady = not (outputs.is_cuda and isinstance(layer, torch.nn.Embedding))  # otherwise two runs add up in two orders
    smaller = steady and kept < len(outputs) * sum(p.numel() for p in own)
    if not (smaller if known == [None] * len(own) else all(isinstance(each, LayerRows) for each in known)):
        return sampler(layer, inputs, outputs)
    one = LayerPass(sampler, layer, inputs, outputs)
    for p, before in zip(own, known, strict=True):
        p._current_grad_sample = LayerRows(p, []) if before is None else before
    return {p: LayerRows(p, [one]) for p in own}


def iterate_rows(samples: Sequence[Rows]) -> Iterator[tuple[slice, list[torch.Tensor]]]:
    """Yield the examples that are in memory at a time, and their gradients by parameter.

    It yields all of them if all are in memory, else equally many at a time, a divisor of `MAX_ADDED_EXAMPLES`.
    """
    examples = len(samples[0])
    if not any(isinstance(sample, LayerRows) for sample in samples):
        yield slice(0, examples), [sample for sample in samples if torch.is_tensor(sample)]
        return
    entries = sum(sample.shape[1:].numel() for sample in samples)
    count = MAX_ADDED_EXAMPLES
    while count > 1 and count * entries > MAX_STREAMED_ENTRIES:
        count //= 2
    for first in range(0, max(1, examples), count):
        last = min(examples, first + count)
        yield slice(first, last), [s.rows(first, last) if isinstance(s, LayerRows) else s[first:last] for s in samples]
