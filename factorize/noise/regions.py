"""Regions: the entries of the flattened noise that one worker makes, as runs of neighbours, and their parts in blocks.

A shard of rows is one run; a shard of columns is a run for every row. In any case the entries that a worker keeps
follow one another in its own vector, in the order of the flattened noise.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from factorize.errors import InvalidParameter


@dataclass(frozen=True)
class BlockPart:
    """The part of a region in one block.

    Attributes:
        block: number of the block.
        inside: the entries, counted from the start of the block, as a slice or an increasing array.
        at: the places of these entries in the region's vector.
    """

    block: int
    inside: slice | np.ndarray
    at: slice

    @property
    def width(self) -> int:
        """The number of entries."""
        return int(self.at.stop - self.at.start)

    @property
    def last(self) -> int:
        """The end of the last entry, counted from the start of the block."""
        return int(self.inside.stop if isinstance(self.inside, slice) else self.inside[-1] + 1)


@dataclass(frozen=True, eq=False)
class Region:
    """A set of entries of a flattened vector.

    Attributes:
        starts: first entry of each run, increasing, int64.
        stops: the entry after the last of each run, which is in no run.
    """

    starts: np.ndarray
    stops: np.ndarray

    @classmethod
    def of(cls, runs: Iterable[tuple[int, int]]) -> Self:
        """Return the region of runs (first, last) in increasing order; empty ones are left out, neighbours joined.

        Raises:
            InvalidParameter: the runs overlap or go back.
        """
        pairs = np.array([pair for pair in runs if pair[0] != pair[1]], dtype=np.int64).reshape(-1, 2)
        return cls.joined(pairs[:, 0], pairs[:, 1])

    @classmethod
    def joined(cls, starts: np.ndarray, stops: np.ndarray) -> Self:
        """Return the region of many runs, none of them empty.

        Raises:
            InvalidParameter: the runs overlap or go back.
        """
        wrong = bool((starts >= stops).any() or (starts[1:] < stops[:-1]).any() or (len(starts) and starts[0] < 0))
        if wrong:
            raise InvalidParameter("the ranges of a shard overlap or are not in order; sort them", field="shard")
        begins = np.r_[True, starts[1:] > stops[:-1]][: len(starts)]
        ends = np.r_[begins[1:], True][: len(starts)]
        return cls(starts[begins], stops[ends])

    @classmethod
    def of_slices(cls, offset: int, shape: Sequence[int], kept: Sequence[range | np.ndarray]) -> Self:
        """Return the region of a part of one tensor, which begins at `offset` in the flattened vector.

        Args:
            offset: place of the tensor's first entry.
            shape: shape of the tensor.
            kept: the indices that are kept along each side, increasing; a range takes no memory.
        """
        if any(len(each) == 0 for each in kept):
            return cls.of([])
        inner, side = 1, len(shape)
        while side and len(kept[side - 1]) == shape[side - 1]:
            side -= 1
            inner *= shape[side]
        starts, run = np.array([offset], dtype=np.int64), inner
        for axis, each in enumerate(kept[:side]):
            stride, indices = math.prod(shape[axis + 1 :]), each
            if axis == side - 1 and isinstance(each, range) and each.step == 1:
                indices, run = each[:1], len(each) * inner
            starts = (starts[:, None] + np.asarray(indices, dtype=np.int64) * stride).reshape(-1)
        return cls.joined(starts, starts + run)

    @classmethod
    def together(cls, regions: Sequence[Region]) -> Self:
        """Return the union of regions that follow one another."""
        starts = np.concatenate([each.starts for each in regions] or [np.empty(0, np.int64)])
        stops = np.concatenate([each.stops for each in regions] or [np.empty(0, np.int64)])
        return cls.joined(starts, stops)

    @property
    def size(self) -> int:
        """The number of entries."""
        return int((self.stops - self.starts).sum())

    @property
    def stop(self) -> int:
        """The entry after the last one, 0 where there is none."""
        return int(self.stops[-1]) if len(self.stops) else 0

    def meets(self, other: Region) -> bool:
        """Return whether an entry is in both regions."""
        after = np.searchsorted(other.stops, self.starts, "right")  # These runs are the first to end after each start.
        within = after < len(other.starts)
        return bool((other.starts[after[within]] < self.stops[within]).any())

    def document(self) -> list[int] | dict[str, Any]:
        """Return the form that checkpoints compare: [first, last] for one run, else a hash of all runs."""
        if len(self.starts) == 1:
            return [int(self.starts[0]), int(self.stops[0])]
        runs = np.stack([self.starts, self.stops]).astype("<i8")
        return {"runs": len(self.starts), "sha256": hashlib.sha256(runs.tobytes()).hexdigest()}

    def parts(self, block: int) -> list[BlockPart]:
        """Return the parts of the region in blocks of `block` entries, one by one."""
        at = np.cumsum(np.r_[0, self.stops - self.starts])
        parts = []
        for number in np.unique(_positions(self.starts // block, (self.stops - 1) // block + 1)).tolist():
            low, high = number * block, (number + 1) * block
            i, j = np.searchsorted(self.stops, low, "right"), np.searchsorted(self.starts, high, "left")
            starts, stops = np.maximum(self.starts[i:j], low) - low, np.minimum(self.stops[i:j], high) - low
            first = int(at[i] + starts[0] + low - self.starts[i])
            where = slice(first, first + int((stops - starts).sum()))
            inside = slice(int(starts[0]), int(stops[0])) if len(starts) == 1 else _positions(starts, stops)
            parts.append(BlockPart(number, inside, where))
        return parts


def _positions(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Return the entries of all runs, in the smallest integer type that holds them."""
    lengths = stops - starts
    ends = np.cumsum(lengths)
    places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)
    return places.astype(np.min_scalar_type(int(stops[-1]) if len(stops) else 0))
