"""Random numbers that a layer drew for a batch, and that its copy draws again for one example at a time.

Most layers draw a row for each example, so a copy gets the same numbers from the same state of a generator. Masks of
Dropout are kept, since tensors within a layer may have other axes first, or lie in memory in another order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Numbers: TypeAlias = tuple[torch.Tensor, ...]
"""The states of torch's generators, on the CPU and on a device."""


def _numbers_of(device: torch.device) -> Numbers:
    """Return the states of the generators that a layer on a device may use."""
    return (torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else []))


def _draw_from(numbers: Numbers, device: torch.device) -> None:
    """Go back to states of generators."""
    torch.set_rng_state(numbers[0])
    for state in numbers[1:]:
        torch.cuda.set_rng_state(state, device)


class _Dropout(NamedTuple):
    """The arguments of torch's function, by their names."""

    input: torch.Tensor
    p: float = 0.5
    training: bool = True
    inplace: bool = False

    def mask_by(self, mask: torch.Tensor) -> torch.Tensor:
        factors = mask.to(self.input.dtype).div_(1 - self.p)
        return self.input.mul_(factors) if self.inplace else self.input * factors


class _Masks(TorchFunctionMode, ABC):
    """Code in which masks come from `mask`."""

    def __torch_function__(
        self,
        call: Callable[..., object],
        types: object,
        inputs: Sequence[object] = (),
        options: Mapping[str, object] | None = None,
    ) -> object:
        """Run a function of torch, and that of Dropout with a mask from here."""
        if call is functional.dropout:
            dropout = _Dropout(*inputs, **(options or {}))  # type: ignore[arg-type]
            if dropout.training and 0 < dropout.p < 1:
                return dropout.mask_by(self.mask(dropout.input, dropout.p))
        return call(*inputs, **(options or {}))

    @abstractmethod
    def mask(self, tensor: torch.Tensor, p: float) -> torch.Tensor:
        """Return which entries of a tensor stay."""


class DrawnNumbers(_Masks):
    """What a layer draws in one call, and a context that keeps its masks.

    Args:
        device: the layer's device.

    Attributes:
        before: the states of the generators before it.
        masks: the masks of its Dropout, and the states of the generators after each.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.before, self._device = _numbers_of(device), device
        self.masks: list[tuple[torch.Tensor, Numbers]] = []

    def any(self) -> bool:
        """Return whether a number was drawn."""
        return not all(map(torch.equal, self.before, _numbers_of(self._device)))

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw from the same state on, and leave the generators as they are."""
        with torch.random.fork_rng([self._device] if self._device.type == "cuda" else []):
            _draw_from(self.before, self._device)
            yield

    def mask(self, tensor: torch.Tensor, p: float) -> torch.Tensor:
        """Return which entries of a tensor stay, as torch draws them for one that lies in memory in the usual order."""
        drawn = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).bernoulli_(1 - p).bool()
        self.masks.append((drawn, _numbers_of(tensor.device)))
        return drawn


class RepeatedMasks(_Masks):
    """Code that runs again for one example of a batch.

    Args:
        drawn: what was drawn for the batch.
        place: the place of the example, a tensor without axes.
    """

    def __init__(self, drawn: DrawnNumbers, place: torch.Tensor) -> None:
        super().__init__()
        self._kept, self._place = iter(drawn.masks), place

    def mask(self, tensor: torch.Tensor, p: float) -> torch.Tensor:
        """Return which entries of a tensor stay.

        Raises:
            ValueError: the batch had no mask, or one of another shape.
        """
        drawn, numbers = next(self._kept, (torch.empty(0), ()))
        axes = [i for i, (ours, own) in enumerate(zip(drawn.shape, tensor.shape, strict=False)) if ours != own]
        if drawn.dim() != tensor.dim() or len(axes) > 1:
            raise ValueError("its Dropout has another shape for one example than for a batch")
        _draw_from(numbers, tensor.device)
        if not axes:
            return drawn
        rows = drawn.movedim(axes[0], 0).unflatten(0, (-1, tensor.shape[axes[0]]))
        return rows.index_select(0, self._place.view(1))[0].movedim(0, axes[0])
