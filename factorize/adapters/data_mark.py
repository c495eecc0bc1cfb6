"""A mark of a data set, by which ranks and restarts tell whether its indices still name the same examples.

The order of the batches is one of indices. If an index names another example on another rank, as after a split with a
seed of its own on each, or after a restart, an example takes part more often than the participation allows.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

import numpy as np

from factorize.adapters.altered_batches import Randomness
from factorize.adapters.mixed_data import Examples, call_seeded, digest_of
from factorize.adapters.repeated_data import entries_of
from factorize.errors import InvalidParameter

MAX_MARKED_EXAMPLES = 16
"""The most examples that are read: any other order has others in most of these places, and a few are read quickly."""

MAX_READS = 4
"""The times that each is read: if one of ten is turned by coins of the data set's own, 1 in 1,000 marks misses that."""


def mark_of(dataset: Examples, secret: int) -> str:
    """Return a keyed hash of which examples the indices of a data set name; random numbers are put back.

    It covers the choice of `Subset` and the like, and some items, unless reading one again under the same random
    numbers gives another result.

    Args:
        dataset: a data set with `__len__` and `__getitem__`.
        secret: a secret key, without which the hash reveals no example.
    """
    before = Randomness.now()
    try:
        places = np.linspace(0, len(dataset) - 1, min(len(dataset), MAX_MARKED_EXAMPLES)).astype(int).tolist()
        read = [[digest_of(call_seeded(0, dataset.__getitem__, i)) for i in places] for _ in range(MAX_READS)]
    finally:
        before.restore()
    rows = np.ascontiguousarray(entries_of(dataset)[:, 2], dtype="<i8").tobytes()
    told = hashlib.sha256(rows).digest() + b"".join(read[0] if all(each == read[0] for each in read) else [])
    return hmac.new(f"factorize data {secret}".encode(), told, "sha256").hexdigest()


def refuse_other_data(mark: str | None, checkpoint: Mapping[str, object]) -> None:
    """Refuse a checkpoint of a run on other data, or on the same in another order.

    Args:
        mark: mark of the present data; None where nobody knows them.
        checkpoint: a state that holds a mark as `data`, or none.

    Raises:
        InvalidParameter: the marks differ.
    """
    if mark not in (None, checkpoint.get("data", mark)):
        raise InvalidParameter(
            "an index of the data set names another example than when the checkpoint was made, so examples would take "
            "part more often than the participation allows; give a split or a shuffle the seed of then, and files "
            "their order. If the examples are the same, and only read in another way, leave the checkpoint's 'data' "
            "out",
            field="data",
        )
