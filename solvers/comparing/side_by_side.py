"""Tasks that run side by side on the machine's cores, and are heard of in the calling thread.

Threads: what the tasks do for long (compiled recurrences, BLAS, LAPACK) releases the interpreter lock. They begin in
the order given, so that a long one that comes first does not run alone at the end.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from queue import SimpleQueue
from typing import Generic, TypeVar

from factorize.errors import Cancelled
from factorize.solvers.comparing.own_time import own_seconds

_SWITCH = 5e-4  # seconds after which a thread that waits gets the interpreter; Python's own is ten times as long

News = TypeVar("News")
Tell = Callable[[News], None]
"""What a task calls with its news; raises `Cancelled` where all are to end."""


def run_all(tasks: Sequence[Callable[[Tell[News]], None]], hear: Tell[News], *, workers: int) -> None:
    """Run all tasks, at most `workers` at a time; with one worker in this thread, one after the other.

    Args:
        tasks: begun in this order, each in a copy of the caller's context.
        hear: called in this thread with each piece of news; what it raises ends all tasks at their next news.
        workers: how many run at a time.

    Raises:
        BaseException: whatever a task or `hear` raises first, once all tasks have ended.
    """
    if workers < 2 or len(tasks) < 2:
        for task in tasks:
            task(hear)
        return
    from threadpoolctl import threadpool_limits

    interval = sys.getswitchinterval()
    own_seconds()  # imports numba in this thread: two threads that import it at once wait for each other for ever
    # One thread of BLAS for each worker: more would wait for one another in loops that take the processors' time.
    with threadpool_limits(limits=1, user_api="blas"), warnings.catch_warnings():
        # Libraries silence their own for the length of a call, but for all threads, until whichever ends first.
        warnings.simplefilter("ignore", RuntimeWarning)
        # A thread that leaves a short kernel waits for one interval while another interprets: 13.9 -> 10.7 s of a
        # recommendation on two cores.
        sys.setswitchinterval(_SWITCH)
        try:
            _Run(tasks, min(workers, len(tasks))).wait(hear)
        finally:
            sys.setswitchinterval(interval)


class _Run(Generic[News]):
    """Some threads and the queue that they report to."""

    def __init__(self, tasks: Sequence[Callable[[Tell[News]], None]], workers: int) -> None:
        self._waiting = deque(tasks)
        self._news: SimpleQueue[tuple[bool, News | BaseException | None]] = SimpleQueue()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=copy_context().run, args=(self._work,), name=f"side by side {place}")
            for place in range(workers)
        ]

    def wait(self, hear: Tell[News]) -> None:
        running = len(self._threads)
        try:
            for thread in self._threads:
                thread.start()
            while running:
                ended, news = self._news.get()
                running -= ended
                if isinstance(news, BaseException):
                    raise news
                if not ended:
                    hear(news)  # type: ignore[arg-type]  # None only where a thread ended
        finally:
            self._stop.set()
            for thread in self._threads:
                if thread.ident is not None:
                    thread.join()

    def _tell(self, news: News) -> None:
        if self._stop.is_set():
            raise Cancelled("another task, or who waits for it, has ended this one")
        self._news.put((False, news))

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    task = self._waiting.popleft()
                except IndexError:
                    break
                task(self._tell)
        except BaseException as error:  # raised again where the caller waits
            self._news.put((True, error))
        else:
            self._news.put((True, None))
