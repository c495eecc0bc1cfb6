"""Data that mix examples before a model sees them: Mixup in a collation, mosaics and pairs in a data set."""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch

from factorize.adapters.altered_batches import Randomness, tensors_of
from factorize.errors import InvalidParameter

MAX_LOOKED_AT_EXAMPLES = 4
"""Examples that are read and collated together: two that stay, and two that give way to another one."""
MAX_COMPARED_EXAMPLES = 1 << 13
"""Examples of each of two data sets that are compared: read in seconds, and enough to find a part of a million."""
MAX_DRAWS = 32
"""Random numbers under which that is done: of mixing that one batch in ten sees, 97 percent shows."""
_WAY_OUT = "so that an example takes part more often than the participation allows; make each item of one example alone"


def refuse_mixed_data(dataset: Any, collate: Callable[[list[Any]], Any], axis: int = 0) -> None:
    """Refuse a data set or a collation in which one example changes what another one is; random numbers are put back.

    Seen are: several entries read for one item, of anything that the data set holds one of for each example; an item
    that depends on which was read before it; and rows of a small batch that others change. Augmentation of an example
    by itself is none of these.

    Args:
        dataset: with `__len__` and `__getitem__`.
        collate: items to a batch.
        axis: of the examples in its tensors.

    Raises:
        InvalidParameter: see above.
    """
    before = Randomness.now()
    places = [int(i) for i in np.linspace(0, len(dataset) - 1, MAX_LOOKED_AT_EXAMPLES + 1)]
    try:
        for draw in range(MAX_DRAWS):
            if (column := _find_mixed_column(dataset, places[draw % len(places)], draw)) is not None:
                raise InvalidParameter(
                    f"the data set reads several entries of its {column} for one item, {_WAY_OUT}", field="data"
                )
        items = [_read(dataset, place, 0) for place in places]
        first = [_read(dataset, place, 0) for place in (*places[:1] * 3, places[1], places[0])]
        if _alike(first[1], first[2]) and not _alike(first[2], first[4]):
            raise InvalidParameter(f"an item of the data set depends on those read before it, {_WAY_OUT}", field="data")
        for draw in range(MAX_DRAWS):
            one, two, other = (_rows(items, chosen, collate, axis, draw) for chosen in ("0123", "0123", "0424"))
            if _alike(one, two) and not all(map(_alike, one, other)):
                raise InvalidParameter(f"the collation mixes the examples of a batch, {_WAY_OUT}", field="data")
    finally:
        before.restore()


def _read(dataset: Any, place: int, draw: int) -> Any:
    """Return an item under random numbers of their own."""
    _seed(draw)
    return dataset[place]


def _seed(draw: int) -> None:
    random.seed(draw)
    np.random.seed(draw)
    torch.manual_seed(draw)


class _Watched:
    """What a data set holds one of for each example; keeps which entries are read."""

    def __init__(self, column: Any, read: set[int]) -> None:
        self._column, self._entries_read = column, read

    def __len__(self) -> int:
        return len(self._column)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._column)

    def __getitem__(self, key: Any) -> Any:
        first = key[0] if isinstance(key, tuple) and key else key
        if not isinstance(first, (str, bytes)):
            self._entries_read.update(np.atleast_1d(np.arange(len(self))[first]).tolist())
        return self._column[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._column, name)


def _find_mixed_column(dataset: Any, place: int, draw: int) -> str | None:
    """Return the name of an attribute of which one item takes several entries."""
    while isinstance(dataset, torch.utils.data.Subset):
        dataset, place = dataset.dataset, int(dataset.indices[place])
    held = {name: each for name, each in getattr(dataset, "__dict__", {}).items() if _is_column(each, len(dataset))}
    read: dict[str, set[int]] = {name: set() for name in held}
    try:
        watched = copy(dataset)
        watched.__dict__.update({name: _Watched(each, read[name]) for name, each in held.items()})
        _read(watched, place, draw)
    except Exception:  # a data set that needs the very types shows nothing
        return None
    return next((name for name, entries in read.items() if len(entries) > 1), None)


def _is_column(value: Any, examples: int) -> bool:
    plain = hasattr(type(value), "__getitem__") and not isinstance(value, (str, bytes, Mapping))
    try:
        return plain and len(value) == examples
    except TypeError:
        return False


def _rows(items: Sequence[Any], chosen: str, collate: Callable[[list[Any]], Any], axis: int, draw: int) -> list[Any]:
    """Return the first and the third row of every tensor of a batch; nothing where they do not collate."""
    _seed(draw)
    try:
        batch = collate([copy(items[int(i)]) for i in chosen])
    except Exception:  # examples of other shapes do not always stack
        return []
    tensors = [t for t in tensors_of(batch) if t.dim() > axis and t.shape[axis] == MAX_LOOKED_AT_EXAMPLES]
    return [tensor.movedim(axis, 0)[::2] for tensor in tensors]


def _alike(one: Any, two: Any) -> bool:
    """Return whether two items hold the same; tensors of other shapes show nothing."""
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(_alike(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(_alike, one, two))
    if torch.is_tensor(one):
        return one.shape != two.shape or torch.allclose(one, two, rtol=0, atol=0, equal_nan=True)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, two))
    return bool(one == two) or one != one


def share_of_examples(some: Any, data: Any) -> float:
    """Return about which share of a data set's examples are examples of another one; random numbers are put back."""
    before = Randomness.now()
    try:
        found = [
            {_digest(each[int(i)]) for i in np.linspace(0, len(each) - 1, min(len(each), MAX_COMPARED_EXAMPLES))}
            for each in (some, data)
        ]
    finally:
        before.restore()
    return len(found[0] & found[1]) / len(found[0]) * max(1.0, len(data) / MAX_COMPARED_EXAMPLES)


def _digest(item: Any) -> bytes:
    """Return a hash of the numbers and texts of an item."""
    if isinstance(item, Mapping):
        item = [part for key in sorted(item) for part in (key, item[key])]
    if isinstance(item, (list, tuple)):
        return hashlib.sha256(b"".join(map(_digest, item))).digest()
    whole = item.detach().cpu() if torch.is_tensor(item) else item
    return hashlib.sha256(repr(whole).encode() if isinstance(whole, str) else np.asarray(whole).tobytes()).digest()
