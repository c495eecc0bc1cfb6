"""Data sets that name an example more than once: by their indices, in a table twice, or by an item that comes again.

An item comes again, too, where another one is made of the same entries in another way, as of an image turned around.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from factorize.adapters.data.altered_batches import Randomness
from factorize.adapters.data.held_data import list_held, numbers_in, with_others
from factorize.adapters.data.mixed_data import Examples, call_seeded, digest_of
from factorize.errors import InvalidParticipation

_TWINS = 8
"""The number of pairs of equal items, all different, that are no accident; fewer may be rows of different people."""
Reads = list[tuple[Any, Any]]
"""Sequences and data sets, and what was read of each."""
_MAX_COPIES = 10
"""The most copies of a whole data set that are looked for where no part of it has their length."""
_MAX_LABELED = 20
"""The mean number of items of one number from which numbers are labels, and not places of examples."""


@Randomness.keep()
def refuse_repeats(dataset: Examples) -> None:
    """Refuse a data set that names some of its examples more than once, for example to have more of a rare class.

    Raises:
        InvalidParticipation: the data set does, so that these examples take part more often than the participation
            allows.
    """
    entries = entries_of(dataset, within=True)[:, :2]
    if len(np.unique(entries, axis=0)) < len(entries) or _has_twins(dataset):
        raise InvalidParticipation(
            f"the {type(dataset).__name__} lists some examples more than once, so they would take part more often "
            "than the participation allows; list each once, or give users=[number of the example of each item], whose "
            "items take turns",
            field="data",
        )


def entries_of(dataset: Any, *, within: bool = False) -> np.ndarray:
    """Return for each item of a data set what holds it, its place there, and its index, shape (items, 3).

    Args:
        dataset: a data set.
        within: whether a data set that makes each item of the same one of another is told by that one.
    """
    if isinstance(dataset, Subset):
        return entries_of(dataset.dataset, within=within)[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([entries_of(part, within=within) for part in dataset.datasets])
    inner = _find_wrapped(dataset) if within else None
    if inner is not None:
        return entries_of(inner, within=True)
    chosen: Any = getattr(dataset, "_indices", None)  # of `datasets`, which keep a choice of rows in a table
    rows = chosen.column(0).to_numpy() if hasattr(chosen, "column") else np.arange(len(dataset))
    held = np.column_stack([np.full(len(rows), id(dataset)), rows])
    table = getattr(dataset, "data", dataset)
    chunks = [each for each in table.column(0).chunks if len(each)] if getattr(table, "num_columns", 0) else []
    if chunks:  # a table may hold another one twice, whose rows lie in the same memory
        starts = [next((part.address for part in each.buffers()[1:] if part), id(each)) for each in chunks]
        places = np.concatenate([each.offset + np.arange(len(each)) for each in chunks])
        held = np.column_stack([np.repeat(starts, [*map(len, chunks)]), places])[rows]
    return np.column_stack([held, rows])


def _has_twins(dataset: Examples) -> bool:
    """Return whether items of a data set, or of one that it wraps, come again, as `data[i % n]` makes them."""
    own = [dataset] if isinstance(dataset, (list, tuple)) else [*list_held(dataset).values()]
    few = [each for each in own if isinstance(each, (list, tuple)) and len(each) < _TWINS]
    sized = [(each, _size_of(each)) for each in chain(own, *few)]
    if any(_are_twins(dataset, pairs) for pairs in _possible_twins(len(dataset), sized)):
        return True
    whole = isinstance(dataset, (Subset, ConcatDataset))
    inner = [each for each, size in sized if isinstance(each, Dataset) and size and (whole or size == len(dataset))]
    return any(map(_has_twins, inner))


def _size_of(value: object) -> int:
    """Return the length of a sequence; 0 for what has none, such as a number in a tensor."""
    with suppress(Exception):
        return len(value) if isinstance(value, Sized) and hasattr(value, "__getitem__") else 0
    return 0


def _possible_twins(size: int, sized: Iterable[tuple[object, int]]) -> Iterator[np.ndarray]:
    """Yield pairs of items that may be one example, shape (pairs, 2), by the parts of a data set and their lengths."""
    copies = [size // count for count in range(2, _MAX_COPIES + 1) if size % count == 0]
    for period in sorted({*copies, *(length for _, length in sized)}):
        if 1 < period < size:
            first = np.arange(min(period, size - period))
            yield np.column_stack([first, first + period])
            if size % period == 0:
                first = np.arange(0, size, size // period)
                yield np.column_stack([first, first + 1])
    for given, length in sized:
        named = hasattr(given, "iloc")  # rows of pandas keep their names where they are copied
        part = getattr(given, "index", 0) if named else given
        numbers = numbers_in(part) if length == size else np.zeros(0)
        values, order, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        if len(numbers) and len(values) * _MAX_LABELED >= size:  # places of examples, not labels
            places = np.argsort(order, kind="stable")
            first = (np.cumsum(counts) - counts)[counts > 1]
            yield np.column_stack([places[first], places[first + 1]])


def _are_twins(dataset: Examples, pairs: np.ndarray) -> bool:
    """Return whether the items of each pair are equal, or made of equal entries, and those of no two pairs."""
    return any(_are_equal_by(digest, dataset, pairs[:_TWINS]) for digest in (_digest_of_item, _digest_of_origin))


def _are_equal_by(digest: Callable[[Examples, int], bytes], dataset: Examples, pairs: np.ndarray) -> bool:
    found = set[bytes]()
    with suppress(Exception):  # an item that cannot be read says so when a step reads it
        for pair in pairs.tolist():
            one, other = (digest(dataset, place) for place in pair)
            if one != other or one in found:
                return False
            found.add(one)
    return len(found) == _TWINS


def _digest_of_item(dataset: Examples, place: int) -> bytes:
    return digest_of(call_seeded(0, dataset.__getitem__, place))


def _digest_of_origin(dataset: Examples, place: int) -> bytes:
    """Return a hash of the entries that an item is made of.

    Raises:
        ValueError: they do not show, or are single numbers, such as labels, which many examples share.
    """
    if isinstance(dataset, Subset):
        return _digest_of_origin(dataset.dataset, dataset.indices[place])
    if isinstance(dataset, ConcatDataset):
        part = int(np.searchsorted(dataset.cumulative_sizes, place, side="right"))
        return _digest_of_origin(dataset.datasets[part], place - [0, *dataset.cumulative_sizes][part])
    read = _read_for(dataset, place)
    inner = [_digest_of_origin(held, key) for held, key in read if isinstance(held, Dataset)]
    entries = [held[key] for held, key in read if not isinstance(held, Dataset)]
    if not (inner or any(isinstance(each, (str, Mapping)) or _size_of(each) > 1 for each in entries)):
        raise ValueError("no entry tells examples apart")
    return inner[0] if len(read) == 1 and inner else digest_of([*entries, *map(bytes.hex, inner)])


def _find_wrapped(dataset: Examples) -> Examples | None:
    """Return the data set whose items another one alters one by one, or None."""
    with suppress(Exception):
        for place in {0, len(dataset) // 2, len(dataset) - 1}:
            ((inner, own),) = _read_for(dataset, place)
            if own != place or not isinstance(inner, Dataset) or len(inner) != len(dataset):
                return None
        return inner
    return None


def _read_for(dataset: Examples, place: int) -> Reads:
    """Return what is read of the sequences and data sets that a data set holds, to make an item."""
    read = Reads()
    held = list_held(dataset)
    noted = {name: _watch_entries(each, read) for name, each in held.items()}
    watched = with_others(dataset, {name: each for name, each in noted.items() if each is not held[name]})
    call_seeded(0, watched.__getitem__, place)
    return read


def _watch_entries(value: object, read: Reads) -> object:
    """Return a sequence, or those in a short list or tuple, so that reads of it are noted, or the value itself."""
    if isinstance(value, (list, tuple)) and len(value) < _TWINS:
        parts = (_watch_entries(each, read) for each in value)
        return value if type(value) not in (list, tuple) else [*parts] if isinstance(value, list) else tuple(parts)
    plain = isinstance(value, (str, bytes, type, Mapping, torch.nn.Module)) or callable(value)
    return value if plain or not _size_of(value) else _NotedSequence(cast(Examples, value), read)


class _NotedSequence:
    """A sequence that notes which of its entries are read."""

    def __init__(self, held: Examples, read: Reads) -> None:
        self._held, self._read = held, read

    def __len__(self) -> int:
        return len(self._held)

    def __getitem__(self, key: int) -> object:
        self._read.append((self._held, key))
        return self._held[key]

    def __getattr__(self, name: str) -> object:
        return getattr(self._held, name)
