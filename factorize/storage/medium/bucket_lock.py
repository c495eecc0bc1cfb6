"""A lock on a bucket, shared or exclusive, between machines whose clocks may disagree.

A process that wants the lock writes a marker under `tmp/locks/`, then looks at the others' markers. A shared holder
steps back while there is an exclusive marker; an exclusive one keeps its marker, so that nobody new comes in, and waits
until the shared ones are gone. Since a bucket shows a marker to everybody once it is written, two that conflict cannot
both have seen nothing.

The lock matters where a put finds its file, left by a killed put, say. A sweep that knows no manifest of that file
would remove it before the put has named it, and the put would answer that the result is stored.

An owner writes its marker anew every `BEAT_SECONDS`. A marker that no longer changes belongs to a dead holder: a waiter
removes it after `LEASE_SECONDS` without a change, by the waiter's own clock. A marker that was removed never comes
back, since an owner only writes over the version that it has seen. A holder that was delayed for that long finds its
marker gone at the end and raises an error. One that removes objects has to know this earlier: it calls `confirm` before
each removal, which refuses once half a lease has passed without a beat. The request has the other half.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from factorize.errors import NotFound, StoreUnavailable
from factorize.storage.medium.bucket_calls import BucketCalls, Version
from factorize.storage.objects import ObjectEntry

BEAT_SECONDS = 10.0
LEASE_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_SHARED, _EXCLUSIVE = "shared", "exclusive"


class BucketLock:
    """One holder's view of the lock.

    Args:
        bucket: the bucket.
        folder: folder of the lock's markers.
        exclusive: whether nobody else may hold it.
    """

    def __init__(self, bucket: BucketCalls, folder: str, *, exclusive: bool) -> None:
        self._bucket = bucket
        self._folder = folder
        self._exclusive = exclusive
        self._key = f"{folder}/{_EXCLUSIVE if exclusive else _SHARED}-{secrets.token_hex(16)}"
        self._seen: dict[str, tuple[tuple[int, ...], float]] = {}
        self._beats = 0
        self._alive_at = float("-inf")

    @contextmanager
    def hold(self) -> Iterator[Callable[[], None]]:
        """Take the lock, keep it alive, give it back.

        Yields:
            `confirm`.

        Raises:
            StoreUnavailable: the bucket refuses, or others took this holder for dead meanwhile, so that its records may
                name removed objects. Do it again.
        """
        ended = threading.Event()
        thread = threading.Thread(target=self._keep_beating, args=(ended,), daemon=True, name="factorize-lock")
        thread.start()
        try:
            self._take()
            yield self.confirm
            if not self._stands():
                raise _held_up(LEASE_SECONDS)
        finally:
            ended.set()
            thread.join()
            with suppress(StoreUnavailable):
                self._bucket.remove(self._key)

    def confirm(self) -> None:
        """Check that nobody can have taken this holder for dead yet, nor will before a request is done.

        Raises:
            StoreUnavailable: half a lease has passed since the marker was last written.
        """
        if time.monotonic() - self._alive_at > LEASE_SECONDS / 2:
            raise _held_up(LEASE_SECONDS / 2)

    def _take(self) -> None:
        self._write()
        while (conflicts := self._conflicts()) or not self._stands():
            if not conflicts:  # Others may have taken this one for dead, and come in.
                self._write()
            elif self._exclusive and not any(key.startswith(f"{self._folder}/{_EXCLUSIVE}") for key in conflicts):
                time.sleep(_LOOK_SECONDS)
            else:
                self._bucket.remove(self._key)  # The way is free for a moment.
                time.sleep(_LOOK_SECONDS * (1 + secrets.randbelow(100) / 100))
                while self._others(_EXCLUSIVE):
                    time.sleep(_LOOK_SECONDS)
                self._write()

    def _conflicts(self) -> list[str]:
        """Return the markers that this holder waits for; of two exclusive ones, the smaller name goes first."""
        exclusive = self._others(_EXCLUSIVE)
        if not self._exclusive:
            return exclusive
        return [key for key in exclusive if key < self._key] or self._others("")

    def _others(self, kind: str) -> list[str]:
        """Return the markers of other live holders, and remove those of dead ones."""
        living = []
        for entry in self._bucket.list(self._folder):
            if entry.key == self._key or not entry.key.startswith(f"{self._folder}/{kind}"):
                continue
            if self._is_dead(entry):
                self._bucket.remove(entry.key)
            else:
                living.append(entry.key)
        return living

    def _is_dead(self, marker: ObjectEntry) -> bool:
        now = time.monotonic()
        known, since = self._seen.setdefault(marker.key, (marker.version, now))
        if known != marker.version:
            self._seen[marker.key] = (marker.version, now)
            return False
        return now - since > LEASE_SECONDS

    def _stands(self) -> bool:
        """Return whether the marker is still there, so that nobody has taken this holder for dead."""
        with suppress(NotFound):
            self._bucket.status(self._key)
            return True
        return False

    def _write(self, version: Version | None = None) -> None:
        """Write the marker, or only over this version of it."""
        self._beats += 1
        began = time.monotonic()
        self._bucket.write(self._key, str(self._beats).encode(), version)
        self._alive_at = began

    def _keep_beating(self, ended: threading.Event) -> None:
        while not ended.wait(BEAT_SECONDS):
            with suppress(StoreUnavailable, NotFound):
                self._write(self._bucket.get(self._key, 0)[1])


def _held_up(seconds: float) -> StoreUnavailable:
    return StoreUnavailable(
        f"this process stalled for more than {seconds:g} s while it had the lock, so another may have taken it; try "
        "again"
    )
