"""Publication of an object under its final name: once, unless what stands there is damaged and moved away first."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress

from factorize.errors import CorruptObject, NotFound
from factorize.storage.objects import Objects, StagedFile

QUARANTINE = "quarantine"
Step = tuple[str, StagedFile, Callable[[], bool]]
"""A key, the file that gets it, and whether what stands there is sound; asked only when something does."""


class Publisher:
    """Gives objects their names on one medium; safe for threads, and for any number of processes.

    Args:
        objects: the medium.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def publish(self, key: str, data: bytes | memoryview, intact: Callable[[], bool]) -> None:
        """Write an object and give it its name; see `settle`."""
        with self._objects.stage() as staged:
            staged.write(data)
            self._objects.sync_all([staged])
            self.settle(key, staged, intact)

    def settle(self, key: str, staged: StagedFile, intact: Callable[[], bool]) -> bool:
        """Give a synced file its name unless a sound object has it; a damaged one goes to quarantine first.

        Args:
            key: the name.
            staged: the file, on the medium already (`Objects.sync_all`).
            intact: whether what stands at the key is sound; asked only when something does.

        Returns:
            Whether this file has the name.

        Raises:
            CorruptObject: another damaged object came into the place of the one that was moved away.
            StoreUnavailable: the medium refused.
        """
        if self._objects.put(key, staged):
            return True
        if intact():
            return False
        self.quarantine(key)
        mine = self._objects.put(key, staged)
        if not mine and not intact():
            raise CorruptObject(f"{key} is damaged and another damaged object took its place; run fsck --repair")
        return mine

    def quarantine(self, key: str) -> None:
        """Move an object out of the way; it is never deleted, and keeps its key below `quarantine/`."""
        with suppress(NotFound):  # somebody else moved it
            self._objects.move(key, f"{QUARANTINE}/{key}.{secrets.token_hex(8)}")
