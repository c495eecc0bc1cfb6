"""Withdrawn keys: ids of revoked keys, kept in the store, so that a ledger restored from a copy brings none back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from factorize.storage.medium.location import WITHDRAWN
from factorize.storage.objects import Objects
from factorize.storage.publication import Publisher


class WithdrawnKeys:
    """The ids of revoked keys in one store, an empty object for each.

    Args:
        medium: opens the store's medium; called when an id is first written or read.
    """

    def __init__(self, medium: Callable[[], Objects]) -> None:
        self._medium = medium

    def add(self, key_id: str) -> None:
        """Write an id down durably; one that stands there stays.

        Raises:
            StoreUnavailable: the medium refused.
        """
        Publisher(self._medium()).publish(f"{WITHDRAWN}/{key_id}", b"", lambda: True)

    def ids(self) -> Iterator[str]:
        """Return the ids.

        Raises:
            StoreUnavailable: the medium refused.
        """
        return (entry.key.rpartition("/")[2] for entry in self._medium().list(WITHDRAWN))
