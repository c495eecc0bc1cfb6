"""Processor seconds that count against a limit: without those in which kernels are compiled, loaded and kept."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class _Uncounted(threading.local):
    """What does not count of this thread's seconds.

    Attributes:
        depth: of the blocks of `stop_clock` that the thread is in.
        seconds: of those that have ended.
    """

    depth = 0
    seconds = 0.0


_here, _lock = _Uncounted(), threading.Lock()
_of_process = 0.0  # seconds that do not count
_inside, _since = 0, 0.0  # threads in a block, and the seconds of the process when the first of them came


def process_seconds() -> float:
    """Return the seconds of all threads; none pass while one of them is in a block of `stop_clock`."""
    with _lock:
        return (_since if _inside else time.process_time()) - _of_process


def thread_seconds() -> float:
    """Return the seconds of this thread."""
    return time.thread_time() - _here.seconds


@contextmanager
def stop_clock() -> Iterator[None]:
    """Let what this thread does in the block not count: a new machine and a warm one then try the same."""
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
