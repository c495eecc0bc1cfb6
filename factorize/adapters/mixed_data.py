"""Data that mix examples before a model sees them: Mixup in a collation, mosaics and pairs in a data set."""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

import numpy as np
import torch

from factorize.adapters.altered_batches import Randomness, tensors_of
from factorize.errors import InvalidParameter

MAX_COLLATED_EXAMPLES = 4
"""The most examples that are read and collated together: all but one stay, and one is replaced by another one."""
MAX_COMPARED_EXAMPLES = 1 << 13
"""The most examples of each of two data sets that are compared: read in seconds, and enough for a part of a million."""
MAX_COLUMNS = 16
"""The most sequences in a list or tuple that are each watched: a data set's columns, and no data."""
_STATISTICS = {"mean", "std", "var", "sum", "min", "max", "median", "quantile", "norm"}
MAX_DRAWS = 32
"""The most draws of random numbers under which data are checked: they show 97 percent of mixing in one batch of ten."""


def refuse_mixed_data(dataset: Any, collate: Callable[[list[Any]], Any], axis: int = 0) -> None:
    """Refuse a data set or a collation in which one example changes another one; random numbers are put back.

    It notices: several entries read for one item, from anything that the data set holds one of for each example; an
    item that depends on the item read before it; and rows of a small batch that other rows change. Augmentation of an
    example by itself is none of these.

    Args:
        dataset: a data set with `__len__` and `__getitem__`.
        collate: a function from items to a batch.
        axis: axis of the examples in its tensors.

    Raises:
        InvalidParameter: the data mix examples.
    """
    before = Randomness.now()
    places = [int(i) for i in np.linspace(0, len(dataset) - 1, MAX_COLLATED_EXAMPLES + 1)]
    try:
        items = [call_seeded(0, dataset.__getitem__, i) for i in (*places, *places[:1] * 3, places[1], places[0])]
        one, two, _, three = map(digest_of, items[-4:])
        last = one == two != three
        columns = (_find_mixed_column(dataset, place) for place in ([] if last else places[:2]))
        column = next(filter(None, columns), None)
        read = getattr(dataset, "__getitems__", None)  # torch reads a whole batch by it
        given, make = (items, collate) if read is None else (places, lambda chosen: collate(read(chosen)))
        mixed = not (last or column) and any(_is_mixed(given, make, axis, draw) for draw in range(MAX_DRAWS))
    finally:
        before.restore()
    if column or last or mixed:
        what = (
            f"the data set reads several entries of its {column} for one item, or their mean"
            if column
            else (
                "an item of the data set depends on those read before it"
                if last
                else "the collation, or a transform of whole batches, mixes examples or moves them to other places"
            )
        )
        raise InvalidParameter(
            f"{what}, so an example takes part more often than the participation allows; make each item from one "
            "example alone, keep its place, and take means from public data",
            field="data",
        )


def call_seeded(draw: int, call: Callable[[Any], Any], given: Any) -> Any:
    """Return the result of a call under random numbers of its own."""
    random.seed(draw)
    np.random.seed(draw)
    torch.manual_seed(draw)
    return call(given)


class _Watched:
    """A data set's sequence with one entry for each example, which remembers the entries that are read.

    A mean, or another number of all entries that are no labels, reads them all.
    """

    def __init__(self, column: Any) -> None:
        self._column, self.entries = column, set[int]()

    def __len__(self) -> int:
        return len(self._column)

    def __iter__(self) -> Iterator[Any]:
        self._read(slice(None))
        return iter(self._column)

    def _read(self, key: Any) -> None:
        self.entries.update(np.atleast_1d(np.arange(len(self))[key]).tolist())

    def __getitem__(self, key: Any) -> Any:
        first = key[0] if isinstance(key, tuple) and key else key
        if not isinstance(first, (str, bytes)):
            self._read(first)
        return self._column[key]

    def __getattr__(self, name: str) -> Any:
        if name in _STATISTICS and "float" in str(getattr(self._column, "dtype", "float")):  # labels may be counted
            self._read(slice(None))
        return getattr(self._column, name)


def _watch(value: Any, examples: int, found: list[_Watched]) -> Any:
    """Return a value with every sequence of one entry for each example watched, also within short lists and tuples."""
    if not hasattr(type(value), "__getitem__") or isinstance(value, (str, bytes, Mapping)):
        return value
    with suppress(TypeError):  # tensors without an axis have no length
        if len(value) == examples:
            found.append(_Watched(value))
            return found[-1]
        if type(value) in (list, tuple) and len(value) <= MAX_COLUMNS:
            return type(value)(_watch(each, examples, found) for each in value)
    return value


def _find_mixed_column(dataset: Any, place: int) -> str | None:
    """Return the name of an attribute from which one item takes several entries, in one draw or in all together."""
    while isinstance(dataset, torch.utils.data.Subset):
        dataset, place = dataset.dataset, int(dataset.indices[place])
    columns: dict[str, list[_Watched]] = {}
    with suppress(Exception):  # a data set that needs the very types shows nothing
        watched, size = copy(dataset), len(dataset)
        for name, value in getattr(dataset, "__dict__", {}).items():
            watched.__dict__[name] = _watch(value, size, columns.setdefault(name, []))
        for draw in range(MAX_DRAWS // 2):
            call_seeded(draw, watched.__getitem__, place)
            found = (name for name, some in columns.items() if any(len(each.entries) > 1 for each in some))
            if (name := next(found, None)) is not None:
                return name
    return None


def _is_mixed(items: Sequence[Any], collate: Callable[[list[Any]], Any], axis: int, draw: int) -> bool:
    """Return whether rows of a batch change with another one, and with nothing else, as with other random numbers."""
    found, after = [], []
    for chosen in ((0, 1, 2, 3), (0, 1, 2, 3), (0, 4, 2, 3)):
        try:
            batch = call_seeded(draw, collate, [copy(items[i]) for i in chosen])
        except Exception:  # examples of other shapes cannot always be stacked
            return False
        after.append((random.random(), float(np.random.random()), float(torch.rand(()))))
        tensors = [each for each in tensors_of(batch) if each.dim() > axis and each.shape[axis] == len(chosen)]
        found.append([(each.shape, digest_of(each.movedim(axis, 0)[[0, 2, 3]])) for each in tensors])
    pairs = zip(found[0], found[2], strict=False)
    same = found[0] == found[1] and len(set(after)) == 1
    return same and any(mine != other and mine[0] == other[0] for mine, other in pairs)


def share_of_examples(some: Any, data: Any) -> float:
    """Return the approximate share of a data set's examples that are in another; random numbers are put back."""
    before = Randomness.now()
    try:
        found = [
            {digest_of(each[int(i)]) for i in np.linspace(0, len(each) - 1, min(len(each), MAX_COMPARED_EXAMPLES))}
            for each in (some, data)
        ]
    finally:
        before.restore()
    return len(found[0] & found[1]) / len(found[0]) * max(1.0, len(data) / MAX_COMPARED_EXAMPLES)


def digest_of(item: Any) -> bytes:
    """Return a hash of the numbers and texts of an item."""
    if isinstance(item, Mapping):
        item = [part for key in sorted(item) for part in (key, item[key])]
    if isinstance(item, (list, tuple)):
        return hashlib.sha256(b"".join(map(digest_of, item))).digest()
    if isinstance(item, str):
        return hashlib.sha256(repr(item).encode()).digest()
    if torch.is_tensor(item):
        item = item.detach().cpu().to_dense()
        item = item.float() if item.dtype == torch.bfloat16 else item
    array = np.asarray(item)
    if array.dtype.hasobject and array.ndim:
        return digest_of(list(array.flat))
    return hashlib.sha256(type(item).__name__.encode() if array.dtype.hasobject else array.tobytes()).digest()
