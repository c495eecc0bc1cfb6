"""Who is told that a kernel is compiled; to ask for that imports no compiler."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Watchers(threading.local):
    """The functions that this thread calls before it compiles a kernel."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []


WATCHERS = Watchers()


@contextmanager
def when_compiling(call: Callable[[], None]) -> Iterator[None]:
    """Call a function whenever this thread compiles a kernel within the block; what it raises ends the compilation."""
    WATCHERS.calls.append(call)
    try:
        yield
    finally:
        WATCHERS.calls.remove(call)
