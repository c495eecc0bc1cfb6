"""Processor time of a thread, without what numba compiles in it.

Compilation happens once after an installation, whichever mechanism comes first, and says nothing of that mechanism.
"""

from __future__ import annotations

import threading
import time
from functools import cache
from typing import Any


def own_seconds() -> float:
    """Return seconds of this thread so far; differences of two calls mean something, and none counts compilation."""
    return time.thread_time() - _compilation().spent


class _Compilation(threading.local):
    """What this thread has compiled: seconds of its processor time, and how deep it is in compiling now."""

    spent = 0.0
    began = 0.0
    depth = 0


@cache
def _compilation() -> _Compilation:
    """Return the record of all threads; numba reports to it from now on."""
    from numba.core import event

    seen = _Compilation()

    class Listener(event.Listener):
        """Told in the thread that compiles; a function that is called compiles inside its caller's compilation."""

        def on_start(self, event: Any) -> None:
            if seen.depth == 0:
                seen.began = time.thread_time()
            seen.depth += 1

        def on_end(self, event: Any) -> None:
            seen.depth -= 1
            if seen.depth == 0:
                seen.spent += time.thread_time() - seen.began

    event.register("numba:compile", Listener())
    return seen
