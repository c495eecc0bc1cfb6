"""Processor seconds that count against a limit: without those that the compiler of kernels takes on a new machine."""

import threading
import time


class _Compiling(threading.local):
    """What the compiler took of this thread's seconds."""

    seconds = 0.0


_of_thread, _of_process = _Compiling(), 0.0
_began: tuple[float, float] | None = None  # seconds of the process and of the compiling thread, of which there is one


def process_seconds() -> float:
    """Return the seconds of all threads; none pass while one of them compiles."""
    began = _began
    return (time.process_time() if began is None else began[0]) - _of_process


def thread_seconds() -> float:
    """Return the seconds of this thread."""
    return time.thread_time() - _of_thread.seconds


def compiler_begins() -> None:
    """Hear that this thread compiles a kernel, and all that it calls."""
    global _began
    _began = time.process_time(), time.thread_time()


def compiler_ends() -> None:
    """Hear that it is compiled."""
    global _began, _of_process
    assert _began is not None
    seconds, _began = time.thread_time() - _began[1], None
    _of_thread.seconds += seconds
    _of_process += seconds
