"""Processor seconds that count against a limit, but for compiling, loading and keeping kernels; and who is told."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Uncounted(threading.local):
    """The seconds of this thread that do not count.

    Attributes:
        depth: number of nested blocks of `stop_clock` that the thread is in.
        seconds: seconds in blocks that have ended.
    """

    depth = 0
    seconds = 0.0


class Watchers(threading.local):
    """The functions that this thread calls before it compiles a kernel; what they raise ends the compilation."""

    calls: tuple[Callable[[], None], ...] = ()


WATCHERS = Watchers()
_here, _lock = _Uncounted(), threading.Lock()
_of_process = 0.0  # These seconds of the process do not count.
_inside, _since = 0, 0.0  # These are the threads in a block, and the process's seconds when the first of them came.


def process_seconds() -> float:
    """Return the seconds of all threads; none pass while one of them is in a block of `stop_clock`."""
    with _lock:
        return (_since if _inside else time.process_time()) - _of_process


def thread_seconds() -> float:
    """Return the seconds of this thread."""
    return time.thread_time() - _here.seconds


@contextmanager
def stop_clock() -> Iterator[None]:
    """Leave out the time that this thread spends in the block, so that cold and warm machines get the same time."""
    global _of_process, _inside, _since
    _here.depth += 1
    began = time.thread_time()
    if _here.depth == 1:
        with _lock:
            _since = _since if _inside else time.process_time()
            _inside += 1
    try:
        yield
    finally:
        _here.depth -= 1
        if _here.depth == 0:
            seconds = time.thread_time() - began
            _here.seconds += seconds
            with _lock:
                _of_process += seconds
                _inside -= 1
