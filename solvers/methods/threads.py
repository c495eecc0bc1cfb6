"""Threads for a few compiled kernels at the same time.

Plain threads, made for the call and joined before it returns: the kernels release the interpreter lock, nothing
waits in a spin loop, and a forked or embedded process finds no pool left over from its parent.
"""

import os
import threading
from collections.abc import Callable, Sequence

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(calls: Sequence[Callable[[], None]], *, together: bool) -> None:
    """Run all calls; in threads of their own, except the first, if ``together`` and the machine has the cores.

    Args:
        calls: functions without argument or result that release the interpreter lock and raise nothing.
        together: whether the calls are long enough (some 0.2 ms) to pay for starting threads.
    """
    if not together or CORES < 2:
        for call in calls:
            call()
        return
    threads = [threading.Thread(target=call) for call in calls[1:]]
    for thread in threads:
        thread.start()
    calls[0]()
    for thread in threads:
        thread.join()
