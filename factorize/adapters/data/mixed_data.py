"""Data that mix examples before a model sees them: Mixup in a collation, mosaics and pairs in a data set."""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from factorize.adapters.data.altered_batches import Randomness, tensors_of
from factorize.adapters.data.held_data import list_held, numbers_in, with_others
from factorize.errors import InvalidParameter

MAX_COLLATED_EXAMPLES = 4
"""The most examples that are read and collated together: all but one stay, and one is replaced by another one."""
MAX_COMPARED_EXAMPLES = 1 << 13
"""The most examples of each of two data sets that are compared: read in seconds, and enough for a part of a million."""
MAX_COLUMNS = 16
"""The most sequences in a list or tuple that are each watched: a data set's columns, and no data."""
MAX_REPEATS = 8
"""The most times that a difference is seen again: with coins of a data set's own, 1 in 65,000 is so alike."""
MAX_KEPT_READS = 4
"""The most items that a data set may remember: a mosaic of those that were read last has four."""
MAX_MOVED_BYTES = 1 << 28
"""The most bytes of a column of labels or images that are copied to put its entries in other places."""
_STATISTICS = {"mean", "std", "var", "sum", "min", "max", "median", "quantile", "norm"}
MAX_DRAWS = 32
"""The most draws of random numbers under which data are checked: they show 97 percent of mixing in one batch of ten."""


Given = TypeVar("Given")
Result = TypeVar("Result")


class Examples(Protocol):
    """A data set with one item for each example."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def __getitem__(self, index: int, /) -> object:
        """Return the item of an example."""


@Randomness.keep()
def refuse_mixed_data(dataset: Examples, collate: Callable[[list[Any]], object], axis: int = 0) -> None:
    """Refuse a data set or a collation in which one example changes another one; random numbers are put back.

    It notices: several entries read for one item, from anything that the data set holds one of for each example; an
    item that changes with such entries of others, or depends on the items read before it; a batch that depends on those
    before it; and rows of a small batch that other rows change. Augmentation of an example by itself is none of these.

    Args:
        dataset: a data set with `__len__` and `__getitem__`.
        collate: a function from items to a batch.
        axis: axis of the examples in its tensors.

    Raises:
        InvalidParameter: the data mix examples.
    """
    mixture = _find_mixture(dataset, collate, axis)
    if mixture is not None:
        raise InvalidParameter(
            f"{mixture}, so an example takes part more often than the participation allows; make each item from one "
            "example alone, keep its place, and take means from public data",
            field="data",
        )


def _find_mixture(dataset: Examples, collate: Callable[[list[object]], object], axis: int) -> str | None:
    """Return in words how one example changes another one, or None."""
    places = [int(i) for i in np.linspace(0, len(dataset) - 1, MAX_COLLATED_EXAMPLES + 1)]
    items = [call_seeded(0, dataset.__getitem__, i) for i in places]
    if _follows(dataset.__getitem__, *places[:2]):
        return "an item of the data set depends on those read before it"
    if column := next(filter(None, (_find_mixed_column(dataset, place) for place in places[:2])), None):
        return f"the data set reads several entries of its {column} for one item, or their mean"
    read = getattr(dataset, "__getitems__", None)  # torch reads a whole batch by it
    if read is None and _copies_for_none(items[:-1], collate, axis):
        return "the collation puts another example in the place of one that is None"
    given, make = (items, collate) if read is None else (places, lambda chosen: collate(read(chosen)))
    with suppress(Exception):  # examples of other shapes cannot always be stacked
        if _follows(lambda chosen: tensors_of(make([*map(copy, chosen)])), given[:-1], given[1:]):
            return "a batch of the collation depends on those collated before it"
    if any(_is_mixed(given, make, axis, draw) for draw in range(MAX_DRAWS)):
        return "the collation, or a transform of whole batches, mixes examples or moves them to other places"
    return None


def call_seeded(draw: int, call: Callable[[Given], Result], given: Given) -> Result:
    """Return the result of a call under random numbers of its own."""
    random.seed(draw)
    np.random.seed(draw)
    torch.default_generator.manual_seed(draw)  # torch.manual_seed formats the stack for devices not in use
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(draw)
    return call(given)


def _follows(read: Callable[[Given], object], own: Given, other: Given) -> bool:
    """Return whether a read returns one thing after itself, and another one after another read, each time alike."""
    found = set[tuple[bytes, ...]]()
    for _ in range(MAX_REPEATS):
        alone, after = (
            [digest_of(call_seeded(0, read, each)) for each in [before] * MAX_KEPT_READS + [own]][-1]
            for before in (own, other)
        )
        found.add((alone, after))
        if alone == after or len(found) > 1:
            return False
    return True


class _Watched:
    """A data set's sequence with one entry for each example, which remembers the entries that are read.

    A mean, or another number of all entries that are no labels, reads them all.
    """

    def __init__(self, column: Any) -> None:
        self.column, self.entries = column, set[int]()

    def __len__(self) -> int:
        return len(self.column)

    def __iter__(self) -> Iterator[Any]:
        self._read(slice(None))
        return iter(self.column)

    def _read(self, key: Any) -> None:
        self.entries.update(np.atleast_1d(np.arange(len(self))[key]).tolist())

    def __getitem__(self, key: Any) -> Any:
        first = key[0] if isinstance(key, tuple) and key else key
        if not isinstance(first, (str, bytes)):
            self._read(first)
        return self.column[key]

    def __getattr__(self, name: str) -> Any:
        if name in _STATISTICS and "float" in str(getattr(self.column, "dtype", "float")):  # labels may be counted
            self._read(slice(None))
        return getattr(self.column, name)


def _map_columns(value: Any, examples: int, change: Callable[[Any], object], depth: int = 3) -> object:
    """Return a value with every sequence of one entry for each example changed, or the value itself if it has none.

    Sequences are also found within mappings, short lists and tuples, and attributes of plain objects.
    """
    if isinstance(value, (str, bytes, type, torch.nn.Module)) or callable(value):
        return value
    with suppress(Exception):  # tensors without an axis have no length, and some objects cannot be copied
        if hasattr(type(value), "__getitem__") and len(value) == examples and not _has_names(value):
            return change(value)
        parts: dict[object, object] = {}
        if not depth:
            return value
        if isinstance(value, Mapping):
            parts = dict(value)
        elif type(value) in (list, tuple) and len(value) <= MAX_COLUMNS:
            parts = dict(enumerate(value))
        elif not isinstance(value, torch.utils.data.Dataset):
            parts = dict(getattr(value, "__dict__", {}))
        new = {key: _map_columns(each, examples, change, depth - 1) for key, each in parts.items()}
        if all(new[key] is parts[key] for key in parts):
            return value
        if type(value) in (list, tuple):
            return type(value)(new.values())
        made = copy(value)
        if isinstance(value, Mapping):
            made.update(new)
        else:
            made.__dict__.update(new)
        return made
    return value


def _has_names(value: object) -> bool:
    """Return whether a mapping has names for fields in place of numbers of examples."""
    return isinstance(value, Mapping) and not all(isinstance(key, int) for key in value)


def _alter(column: Any, place: int) -> object:
    """Return a column with another entry for all examples but one: its own where entries are numbers, else moved ones.

    Moved labels stay as many as they were, since they may be counted.
    """
    order = np.roll(np.arange(len(column)), -1)
    order[place - 1], order[place] = order[place], place
    if isinstance(column, np.ndarray) and column.dtype.kind in "fc":
        return np.broadcast_to(column[place], column.shape)
    if torch.is_tensor(column) and column.is_floating_point():
        return column[place].expand_as(column)
    if isinstance(column, (np.ndarray, torch.Tensor)):
        return column[order] if column.nbytes <= MAX_MOVED_BYTES else column
    if hasattr(column, "iloc"):
        return column.iloc[order].set_axis(column.index)
    return type(column)(column[i] for i in order.tolist()) if type(column) in (list, tuple) else column


def _find_mixed_column(dataset: Any, place: int) -> str | None:
    """Return the name of an attribute from which one item takes several entries, in one draw or in all together.

    It shows by entries that are read, or by an item that is another one where the entries of others are.
    """
    while isinstance(dataset, torch.utils.data.Subset):
        dataset, place = dataset.dataset, int(dataset.indices[place])
    size, own = len(dataset), {key: each for kind in type(dataset).__mro__[::-1] for key, each in vars(kind).items()}
    own = {key: each for key, each in own.items() if not key.startswith("__")} | list_held(dataset)
    for value in own.values():
        for inner in value if type(value) in (list, tuple) and len(value) <= MAX_COLUMNS else (value,):
            if isinstance(inner, torch.utils.data.Dataset) and hasattr(inner, "__len__") and len(inner):
                if (found := _find_mixed_column(inner, place % len(inner))) is not None:
                    return found
    columns: dict[str, list[_Watched]] = {name: [] for name in own}
    with suppress(Exception):  # a data set that needs the very types shows nothing
        watched: Examples = with_others(dataset, _map_all(own, size, lambda name, each: _watch(each, columns[name])))
        for draw in range(MAX_DRAWS // 2):
            call_seeded(draw, watched.__getitem__, place)
            for name, some in columns.items():
                if any(len(each.entries) > 1 for each in some):
                    return name
    origin, orders = _find_origin([each for some in columns.values() for each in some], place)
    altered = _map_all(
        own, size, lambda _, each: each if any(each is order for order in orders) else _alter(each, origin)
    )
    moved = _is_moved(dataset, altered, place)
    one_by_one = (
        name for name, value in altered.items() if moved is not False and _is_moved(dataset, {name: value}, place)
    )
    return next(one_by_one, next(iter(altered)) if moved else None)


def _find_origin(columns: Sequence[_Watched], place: int) -> tuple[int, list[object]]:
    """Return the example that an item is made of, and the columns that only number the examples, as a shuffle does.

    Such a column is a permutation, and all other columns are read where it says, so no two items share an example.
    """
    numbers = [numbers_in(each.column) for each in columns]
    orders = [np.array_equal(np.sort(each), np.arange(each.size)) and each.size > 0 for each in numbers]
    read = {entry for each, order in zip(columns, orders, strict=True) if not order for entry in each.entries}
    told = [order and read == {int(each[place])} for each, order in zip(numbers, orders, strict=True)]
    return (read.pop() if any(told) else place), [each.column for each, one in zip(columns, told, strict=True) if one]


def _map_all(own: Mapping[str, object], size: int, change: Callable[[str, Any], object]) -> dict[str, object]:
    """Return the attributes that hold a sequence of one entry for each example, with it changed."""
    mapped = {name: _map_columns(value, size, partial(change, name)) for name, value in own.items()}
    return {name: value for name, value in mapped.items() if value is not own[name]}


def _is_moved(dataset: Examples, altered: Mapping[str, object], place: int) -> bool | None:
    """Return whether other attributes make another item, each time it is read; None where they make none."""
    with suppress(Exception):
        both = dataset, with_others(dataset, altered)
        for draw in range(MAX_DRAWS // 2 if altered else 0):
            one, other = ([digest_of(call_seeded(draw, each.__getitem__, place))] for each in both)
            for _ in range(MAX_REPEATS if one != other else 0):
                for each, found in zip(both, (one, other), strict=True):
                    found.append(digest_of(call_seeded(draw, each.__getitem__, place)))
            if one != other and len({*one}) == len({*other}) == 1:
                return True
        return False
    return None


def _watch(column: Any, into: list[_Watched]) -> _Watched:
    into.append(_Watched(column))
    return into[-1]


def _is_mixed(items: Sequence[object], collate: Callable[[list[Any]], object], axis: int, draw: int) -> bool:
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


def _copies_for_none(items: list[object], collate: Callable[[list[object]], object], axis: int) -> bool:
    """Return whether a collation fills the place of an item that is None, as of a broken file, with another item."""
    with suppress(Exception):  # most collations take no None
        batch = tensors_of(call_seeded(0, collate, [*map(copy, items[:-1]), None]))
        rows = [[*map(digest_of, each.movedim(axis, 0))] for each in batch if each.dim() > axis + 1]
        return any(len(own) == len(items) and own[-1] in own[:-1] and len({*own[:-1]}) == len(own) - 1 for own in rows)
    return False


@Randomness.keep()
def share_of_examples(some: Examples, data: Examples) -> float:
    """Return the approximate share of a data set's examples that are in another; random numbers are put back.

    Columns that only one of them has do not count.
    """
    common = _common_columns(some[0], data[0])
    found = [
        {
            digest_of({key: item[key] for key in common} if isinstance(item, Mapping) and common else item)
            for item in (each[int(i)] for i in np.linspace(0, len(each) - 1, min(len(each), MAX_COMPARED_EXAMPLES)))
        }
        for each in (some, data)
    ]
    return len(found[0] & found[1]) / len(found[0]) * max(1.0, len(data) / MAX_COMPARED_EXAMPLES)


def _common_columns(one: object, other: object) -> list[str]:
    """Return the columns of two items, or none if they have only single numbers in common, which tell nothing."""
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return []
    common = sorted(set(one) & set(other))
    return common if any(isinstance(one[key], (str, list, tuple)) or np.ndim(one[key]) for key in common) else []


def digest_of(item: object) -> bytes:
    """Return a hash of the numbers and texts of an item."""
    if isinstance(item, Mapping):
        item = [part for key in sorted(item) for part in (key, item[key])]
    if isinstance(item, (list, tuple)):
        return hashlib.sha256(b"".join(map(digest_of, item))).digest()
    if isinstance(item, str):
        return hashlib.sha256(repr(item).encode()).digest()
    if isinstance(item, torch.Tensor):
        dense = item.detach().cpu().to_dense()
        item = dense.float() if dense.dtype == torch.bfloat16 else dense
    try:
        array = np.asarray(item)
    except ValueError:  # fields of several lengths, as of a graph
        return digest_of([*item])  # type: ignore[misc]  # numpy refuses nothing else here but sequences
    if array.dtype.hasobject and array.ndim:
        return digest_of(list(array.flat))
    return hashlib.sha256(type(item).__name__.encode() if array.dtype.hasobject else array.tobytes()).digest()
