"""Reads of the data set by a loop, a loss or a model, which have examples at hand that are not in the batch.

Partners of Mixup, neighbours and memories that are taken from the tensors of the data set let an example take part in
more steps than the participation allows, and the batch does not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_map_only
from torch.utils.data import Subset

from factorize.adapters.data.held_data import list_held
from factorize.errors import InvalidParameter

MAX_SWAPPED_BYTES = 1 << 30
"""The most bytes of a tensor of the data set that is watched: if it is read, it is copied once."""


class DataReads(TorchDispatchMode):
    """A watch for reads of the tensors that a data set holds, which reads other rows if it is told to.

    It sees the operations of torch, not those of numpy.

    Args:
        dataset: a data set; its tensors with one row for each example, or those of what a `Subset` chooses from.
        places: the examples of the batch, whose rows stay.

    Attributes:
        seen: whether such a tensor was read.
        swaps: whether reads get other rows for the examples that are not in the batch.
    """

    def __init__(self, dataset: object, places: np.ndarray) -> None:
        super().__init__()
        self.seen, self.swaps, self._on = False, False, False
        while isinstance(dataset, Subset):
            places, dataset = np.asarray(dataset.indices)[places], dataset.dataset
        held = [each for value in list_held(dataset).values() for each in _listed(value)]
        size = len(dataset) if isinstance(dataset, Sized) else 0
        self._places = places
        self._columns = {
            each.untyped_storage().data_ptr(): each
            for each in held
            if isinstance(each, torch.Tensor) and _is_whole(each) and len(each) == size
        }
        self._others: dict[int, torch.Tensor] = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch, unless there is nothing to watch; loops of two jobs may end their watches in any order."""
        if not self._columns:
            yield
            return
        self._on = True
        self.__enter__()
        try:
            yield
        finally:
            self._on = False
            while isinstance(last := _get_current_dispatch_mode(), DataReads) and not last._on:
                last.__exit__(None, None, None)

    def __torch_dispatch__(
        self, func: Callable[..., object], types: object, args: Sequence[object] = (), kwargs: Mapping[str, object] = {}
    ) -> object:
        """Run an operation, with other rows if it reads data."""
        if self._on:
            args, kwargs = tree_map_only(torch.Tensor, self._swap, (args, kwargs))
        return func(*args, **kwargs)

    def _swap(self, tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
            return tensor
        key = tensor.untyped_storage().data_ptr()
        if key not in self._columns:
            return tensor
        self.seen = True
        if not self.swaps:
            return tensor
        if key not in self._others:
            column = self._columns[key]
            others = np.setdiff1d(np.arange(len(column)), self._places)
            self._on = False
            self._others[key] = column.clone()
            # A mean of numbers that were moved would stay; labels may be counted, so they stay as many.
            instead = self._places[:1] if column.is_floating_point() else np.roll(others, 1)
            self._others[key][others] = column[instead]
            self._on = True
        return self._others[key].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) and len(value) < 16 else [value]


def _is_whole(tensor: torch.Tensor) -> bool:
    """Return whether a plain tensor has its memory for itself, in the order of its entries, and may be copied."""
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_nested
    whole = plain and tensor.is_contiguous() and tensor.dim() > 0 and tensor.numel() > 0
    return whole and tensor.nbytes == tensor.untyped_storage().nbytes() <= MAX_SWAPPED_BYTES


def difference_of_reads(moved: float, allowed: float) -> InvalidParameter | None:
    """Return the error if other rows of the data have moved the gradients of a batch, in parts of their norms."""
    if moved <= allowed:
        return None
    return InvalidParameter(
        "the loop, the loss or the model reads examples of the data set beside those of the batch, such as partners "
        "of Mixup, neighbours or a memory, so an example takes part more often than the participation allows; compute "
        "with the batch alone, or take the others from public data",
        field="data",
    )
