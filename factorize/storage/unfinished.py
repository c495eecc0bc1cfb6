"""Unfinished work: the state of a solve that may be cut off, so that another machine goes on from it.

It is no result. Nothing publishes it, nothing names it, no reader of results looks at it, and `gc` removes what is old.
A solve that goes on from it has its certificate recomputed like every other, so the worst that a false state can do
is to cost time.

A state is one object below `unfinished/`: a sealed line that says what it is, then the arrays as little-endian float64,
whose sha256 the line has. Objects are never overwritten: each state has a name of its own, a number that rises, and the
older ones are removed after it is there.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from factorize.encoding import check_digest, sha256
from factorize.errors import CorruptObject, NotFound, StoreUnavailable
from factorize.solution import LoopState
from factorize.storage.objects import Objects, read_object
from factorize.storage.records import seal, unseal

if TYPE_CHECKING:
    from factorize.storage.store import Store

UNFINISHED = "unfinished"
SECONDS = 30.0
"""Between two states that are written, and before the first."""
LARGEST_BYTES = 1 << 30
_FORMAT = 1
_MOST_STEPS = 10**9
_Layout = list[tuple[str, tuple[int, ...]]]


class UnfinishedWork:
    """The states of one spec's solve. Not for several threads at once.

    Args:
        store: where they are.
        spec_digest: of the spec.
        release: of the solver; a state of another release is passed over.
        seconds: between two states that are written; 0 writes each.
    """

    def __init__(self, store: Store, spec_digest: str, release: str, *, seconds: float = SECONDS) -> None:
        self._objects: Objects = store.objects
        self._spec_digest, self._release, self._seconds = check_digest(spec_digest), release, seconds
        self._written = time.monotonic()
        self._number = 0
        self._found = self._newest()

    @property
    def step(self) -> int:
        """The step of the state that was found, 0 where there is none."""
        return 0 if self._found is None else self._found.step

    def taken_up(self, loop: str) -> LoopState | None:
        """Return the state that was found, if a loop of this name has left it."""
        return self._found if self._found is not None and self._found.loop == loop else None

    def forget(self) -> None:
        """Let nothing be taken up any more: what was found has led nowhere."""
        self._found = None

    def offer(self, loop: str, step: int, **arrays: np.ndarray) -> None:
        """Write the state of a loop, unless the last one is young. A store that refuses it costs nothing but that.

        Args:
            loop: its name.
            step: how many steps led there.
            arrays: float64, by name.
        """
        if time.monotonic() - self._written < self._seconds:
            return
        with suppress(StoreUnavailable):
            self._write(state_bytes(self._spec_digest, self._release, LoopState(loop, step, arrays)))
        self._written = time.monotonic()

    def clear(self) -> None:
        """Remove all states: the result is stored."""
        with suppress(StoreUnavailable):
            self._remove_before(None)

    def _write(self, data: bytes) -> None:
        if len(data) > LARGEST_BYTES:
            return
        self._number += 1
        key = f"{self._prefix}-{self._number:09d}-{secrets.token_hex(4)}"
        with self._objects.stage() as staged:
            staged.write(data)
            self._objects.put(key, staged)
        self._remove_before(key)

    def _remove_before(self, kept: str | None) -> None:
        for key in self._keys():
            if kept is None or key < kept:
                with suppress(NotFound):  # somebody else did
                    self._objects.delete(key)

    def _newest(self) -> LoopState | None:
        """The state with the largest number that is whole and of this release."""
        with suppress(StoreUnavailable):
            for key in reversed(self._keys()):
                number = key.removeprefix(self._prefix).split("-")[1]
                self._number = max(self._number, int(number) if number.isascii() and number.isdigit() else 0)
                with suppress(NotFound, CorruptObject):
                    return read_state(read_object(self._objects, key), self._spec_digest, self._release)
        return None

    def _keys(self) -> list[str]:
        folder = f"{UNFINISHED}/{self._spec_digest[:2]}"
        entries = self._objects.list(folder)
        return [e.key for e in entries if e.key.startswith(f"{self._prefix}-") and e.size <= LARGEST_BYTES]

    @property
    def _prefix(self) -> str:
        return f"{UNFINISHED}/{self._spec_digest[:2]}/{self._spec_digest}"


def state_bytes(spec_digest: str, release: str, state: LoopState) -> bytes:
    """Return a state as it is stored."""
    parts = {name: np.ascontiguousarray(array, dtype="<f8") for name, array in sorted(state.arrays.items())}
    body = b"".join(array.tobytes() for array in parts.values())
    record = {
        "format": _FORMAT,
        "spec_digest": spec_digest,
        "release": release,
        "loop": state.loop,
        "step": state.step,
        "arrays": {name: list(array.shape) for name, array in parts.items()},
        "sha256": sha256(body),
    }
    return seal(record) + b"\n" + body


def read_state(data: bytes, spec_digest: str, release: str) -> LoopState:
    """Return a state from its bytes: finite numbers, of this spec and release.

    Raises:
        CorruptObject: it is not.
    """
    line, _, body = data.partition(b"\n")
    record = unseal(line, "unfinished work")
    try:
        layout = _layout(record["arrays"])
        loop, step = str(record["loop"])[:64], record["step"]
        same = (record["format"], record["spec_digest"], record["release"]) == (_FORMAT, spec_digest, release)
        whole = sha256(body) == record["sha256"] and len(body) == 8 * sum(math.prod(shape) for _, shape in layout)
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptObject(f"unfinished work is not of this format: {error!r}") from None
    if not (same and whole and type(step) is int and 0 < step <= _MOST_STEPS):
        raise CorruptObject("unfinished work is damaged, or of another spec or release; the solve begins anew")
    arrays, at = {}, 0
    for name, shape in layout:
        count = math.prod(shape)
        arrays[name] = np.frombuffer(body, "<f8", count, at).reshape(shape).astype(np.float64)
        at += 8 * count
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise CorruptObject("unfinished work has numbers that are not finite; the solve begins anew")
    return LoopState(loop, step, arrays)


def _layout(arrays: Mapping[str, Any]) -> _Layout:
    """Names and shapes, in the order of the body."""
    found: _Layout = []
    for name, shape in sorted(arrays.items()):
        if not isinstance(shape, list) or len(shape) > 4 or any(type(side) is not int or side < 0 for side in shape):
            raise ValueError(name)
        found.append((name, tuple(shape)))
    return found
