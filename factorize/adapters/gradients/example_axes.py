"""Where the examples are in what a layer takes and returns, if they are not its rows.

Frames of a video, windows of an image and words of a text may go through a layer as a batch of their own, of shape
(examples * parts, ...): its rows then belong to the examples in turn. Others take time first, and examples second.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import torch
from opacus.layers.dp_rnn import RNNLinear


class RowLayout(NamedTuple):
    """Where a layer has the examples of a batch.

    Attributes:
        axis: the axis of examples.
        parts: number of rows that each example has in this axis.
    """

    axis: int = 0
    parts: int = 1


class ExampleAxes:
    """Where each layer has the examples, as the first pass showed it.

    It has to follow from the shapes of the model's inputs in the same way in all passes. The number of parts is the
    product of the axes behind that of the examples, or the same for the same shapes. A rehearsal compares the gradients
    that are made so. Words without their padding, for example, are other numbers of rows in other batches, and may be a
    multiple of the examples by chance.
    """

    def __init__(self) -> None:
        self._known = dict[torch.nn.Module, tuple[int, set[Hashable]]]()  # by layer: its first pass, and what it showed
        self._passes, self._shapes = 0, tuple[torch.Size, ...]()
        self._examples: int | None = None  # in the present batch, and None if the inputs do not agree

    def begin(self, inputs: Sequence[torch.Tensor]) -> None:
        """Begin a pass of the model over tensors."""
        self._passes += 1
        self._shapes = tuple(each.shape[1:] for each in inputs)
        lengths = {len(each) for each in inputs}
        self._examples = lengths.pop() if len(lengths) == 1 else None

    def end(self, *_: object) -> None:
        """End it, as a hook: a layer that runs by itself later has inputs of its own."""
        self._examples = None

    def find(self, layer: torch.nn.Module, shape: torch.Size, *, second: bool) -> RowLayout:
        """Return where the examples are in a layer's output of a shape: in its rows where nothing tells another place.

        Args:
            layer: the layer. The rows of an RNN's are sequences that go on, in another order than the examples.
            shape: the shape of its output.
            second: whether it may have examples in its second axis.
        """
        if self._examples is None or not shape or isinstance(layer, RNNLinear):
            return RowLayout()
        read = self._read(shape, self._examples, second)
        if not self._examples:  # shows nothing of other batches
            return next(read, (RowLayout(), ()))[0]
        first, known = self._known.setdefault(layer, (self._passes, set()))
        for layout, reasons in read:
            if first == self._passes:
                known |= reasons
            if known & reasons:
                return layout
        return RowLayout()

    def _read(self, shape: torch.Size, examples: int, second: bool) -> Iterator[tuple[RowLayout, set[Hashable]]]:
        """Yield the layouts that a shape may have, the likely ones first, and what would tell them in other passes."""
        rows, sizes = shape[0], {size for each in self._shapes for size in each}
        turned = second and len(shape) > 2 and shape[1] == examples
        if rows == examples:
            yield RowLayout(), {RowLayout()}
        if turned and rows in sizes:
            yield RowLayout(1), {RowLayout(1)}
        if examples and rows % examples == 0:
            parts = rows // examples
            axes = ((i, n, size) for i, each in enumerate(self._shapes) for n, size in enumerate(accumulate(each, mul)))
            yield RowLayout(0, parts), {(self._shapes, parts), *((i, n) for i, n, size in axes if size == parts)}
        if turned:
            yield RowLayout(1), {RowLayout(1)}
