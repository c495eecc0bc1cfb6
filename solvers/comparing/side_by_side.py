"""Tasks that run side by side on the machine's cores, and are heard of in the calling thread.

Threads: what the tasks do for long (compiled recurrences, BLAS, LAPACK) releases the interpreter lock. They begin in
the order given, so that a long one that comes first does not run alone at the end.
"""

import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from queue import SimpleQueue
from typing import TypeVar

from factorize.errors import CacheUnusable, Cancelled
from factorize.numbers.blas_threads import one_blas_thread

_SWITCH_SECONDS = 5e-4
"""Seconds after which a thread that waits gets the interpreter; Python's own interval is ten times as long."""

News = TypeVar("News")
Tell = Callable[[News], None]
"""A function that a task calls with its news; it raises `Cancelled` where all are to end."""


def run_all(tasks: Sequence[Callable[[Tell[News]], None]], hear: Tell[News], *, workers: int) -> None:
    """Run all tasks, at most `workers` at a time; with one worker in this thread, one after the other.

    Args:
        tasks: begun in this order, each in a copy of the caller's context.
        hear: called in this thread with each piece of news; what it raises ends all tasks at their next news.
        workers: the most tasks that run at a time.

    Raises:
        BaseException: whatever a task or `hear` raises first, once all tasks have ended.
    """
    if workers < 2 or len(tasks) < 2:
        for task in tasks:
            task(hear)
        return
    import numba  # noqa: F401  # two threads that import it at once wait for each other for ever

    interval = sys.getswitchinterval()
    # One thread of BLAS for each worker: more would wait for one another in loops that take the processors' time.
    with one_blas_thread(0), warnings.catch_warnings():
        # Libraries silence their own for the length of a call, but for all threads, until whichever ends first.
        warnings.simplefilter("ignore", RuntimeWarning)
        warnings.simplefilter("default", CacheUnusable)
        # A thread that leaves a short kernel waits for one interval while another interprets: 13.9 -> 10.7 s of a
        # recommendation on two cores.
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            _run(tasks, hear, min(workers, len(tasks)))
        finally:
            sys.setswitchinterval(interval)


def _run(tasks: Sequence[Callable[[Tell[News]], None]], hear: Tell[News], workers: int) -> None:
    queue: SimpleQueue[News | Future[None]] = SimpleQueue()  # news, and each task that has ended
    stop = threading.Event()

    def tell(news: News) -> None:
        if stop.is_set():
            raise Cancelled("this task was cancelled by another one, or by its caller")
        queue.put(news)

    with ThreadPoolExecutor(workers, "side by side") as pool:
        try:
            for task in tasks:
                pool.submit(copy_context().run, task, tell).add_done_callback(queue.put)
            left = len(tasks)
            while left:
                news = queue.get()
                if isinstance(news, Future):
                    news.result()
                    left -= 1
                else:
                    hear(news)
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
