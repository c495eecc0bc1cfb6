"""Tasks that run side by side on the machine's cores, and are heard of in the calling thread.

Threads: what the tasks do for long (compiled recurrences, BLAS, LAPACK) releases the interpreter lock. They begin in
the order given, so that a long one that comes first does not run alone at the end.

Under a deadline each stage of a comparison ends at a share of the processor seconds that a user gave.
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
from factorize.numbers.processor_time import process_seconds
from factorize.privacy.question import WORK

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


SOLVES, CALIBRATIONS, CLAIMS = 0.8, 0.9, 1.0
"""Shares of the time by which the stages end: searches are stopped then, and nothing of a later stage begins that is
not expected to end by its share."""

LATE_BOUNDS, LATE_CLAIMS, FIRST_CLAIM = 1.6, 1.3, 2.0
"""Later shares, by which these end: bounds of leads in many bins and their claim; claims of rows recommended and of
leads near them; the first claim, or a short one."""
_WORK_PER_SECOND, _MIN_WORK = 6e6, 1 << 23
"""Samples times bins for each second of the whole time, about a third of which tests a claim, and at least."""


class Deadline:
    """Processor seconds that a comparison may take, from now on: of all threads, but not the compiler's.

    The clock decides nothing: on a busy machine the same mechanisms are tried, and the answer comes later.

    Attributes:
        seconds: processor seconds of the whole comparison, or None for no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._began = process_seconds()

    def over(self, share: float, needed: float = 0.0) -> bool:
        """Return whether what takes so many seconds would end after a share of the time."""
        if self.seconds is None:
            return False
        return process_seconds() - self._began + needed > share * self.seconds

    @property
    def work(self) -> int | None:
        """Samples times bins that may test one direction of a claim, a part of the time; None for the usual."""
        most = WORK if self.seconds is None else max(_MIN_WORK, int(_WORK_PER_SECOND * self.seconds))
        return most if most < WORK else None

    def told(self, what: str) -> str:
        """Return what happened to something that the time did not last for, and the way out."""
        assert self.seconds is not None
        return (
            f"{what}: the time for all, {self.seconds:g} processor seconds, is used up; give more (--seconds "
            f"{6 * self.seconds:g})"
        )
