"""A mark of a data set, by which ranks, restarts and passes tell whether its indices still name the same examples.

The order of the batches is one of indices. If an index names another example on another rank, as after a split with a
seed of its own on each, after a restart, or after a shuffle between two epochs, an example takes part more often than
the participation allows.
"""

from __future__ import annotations

import hashlib

import numpy as np

from factorize.adapters.data.altered_batches import Randomness
from factorize.adapters.data.keyed_mark import keyed_mark
from factorize.adapters.data.mixed_data import MAX_COMPARED_EXAMPLES, Examples, call_seeded, digest_of
from factorize.adapters.data.repeated_data import entries_of
from factorize.errors import InvalidParticipation

MAX_MARKED_EXAMPLES = 16
"""The most examples that are read: any other order has others in most of these places, and a few are read quickly."""

MAX_READS = 4
"""The times that each is read: if one of ten is turned by coins of the data set's own, 1 in 1,000 marks misses that."""


class DataMark:
    """Marks of which examples the indices of a data set name; random numbers are put back.

    They cover the choice of `Subset` and the like, and some items, unless reading one again under the same random
    numbers gives another result.

    Args:
        dataset: a data set with `__len__` and `__getitem__`.
        secret: a secret key, without which the hash reveals no example.

    Attributes:
        keyed: a keyed hash of all marks.
    """

    def __init__(self, dataset: Examples, secret: int) -> None:
        self._dataset, self._rows = dataset, _rows_of(dataset)
        self._places = _spread(len(dataset), MAX_MARKED_EXAMPLES)
        read = [self._read(self._places) for _ in range(MAX_READS)]
        self._items = read[0] if all(each == read[0] for each in read) else []
        told = hashlib.sha256(self._rows.tobytes()).digest() + b"".join(self._items)
        self.keyed = keyed_mark(secret, told)

    @Randomness.keep()
    def _read(self, places: list[int]) -> list[bytes]:
        return [digest_of(call_seeded(0, self._dataset.__getitem__, i)) for i in places]

    def check(self) -> None:
        """Refuse data that are in another order than before, as after a shuffle or a sort between two passes.

        An item that differs may be the same example, read in another way, as at a larger size; one that is at another
        place now has been moved.

        Raises:
            InvalidParticipation: an example has been moved, or is gone.
        """
        size = len(self._rows)
        moved = len(self._dataset) < size or not np.array_equal(_rows_of(self._dataset)[:size], self._rows)
        if not moved and self._items:
            now = zip(self._places, self._items, self._read(self._places), strict=True)
            changed = {old: place for place, old, new in now if old != new}
            some = _spread(size, MAX_COMPARED_EXAMPLES) if changed else []
            found = zip(some, self._read(some), strict=True)
            moved = any(changed.get(item, place) != place for place, item in found)
            self._items = [] if changed else self._items  # as they are read in another way, and comparing takes long
        if moved:
            raise InvalidParticipation(
                "the order of the data set has changed since the job began, so its indices name other examples, which "
                "would take part more often than the participation allows; shuffle, sort or choose before you make "
                "the job private, and leave the data as they are until its end"
            )


def _rows_of(dataset: Examples) -> np.ndarray:
    return np.ascontiguousarray(entries_of(dataset)[:, 2], dtype="<i8")


def _spread(size: int, most: int) -> list[int]:
    """Return up to `most` places all over `size` of them."""
    return [int(i) for i in np.linspace(0, size - 1, min(size, most))]
