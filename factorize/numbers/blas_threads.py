"""Threads of BLAS: one while products of blocks are made, which are too small for threads that wait in loops.

On a busy machine two threads take ten times the processors' time of one for blocks of 256 rows, and lose on the clock
too; on an idle one they gain a tenth of a second at n = 2048.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import Any

MAX_SIDE_IN_BLOCKS = 4096
"""Side of a triangular matrix that is taken in blocks, up to which one thread is quicker or loses little."""
MAX_SIDE_WHOLE = 512
"""The same of matrices that are taken whole."""


_lock, _limited = threading.Lock(), ExitStack()
_asking = 0  # who comes last sets the number of threads back


@cache
def _libraries() -> Any:
    """The libraries, found once: to look takes milliseconds.

    scipy has a BLAS of its own. It is loaded now, since one that a solve loads later would have all threads: the solve
    would end in other last digits than the next one, for which it is there.
    """
    import scipy.linalg  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def one_blas_thread(n: int, *, largest: int = MAX_SIDE_IN_BLOCKS) -> Iterator[None]:
    """Let BLAS use one thread within the block, for all threads of the process, where side n is at most `largest`."""
    global _asking
    if n > largest:
        yield
        return
    with _lock:
        if _asking == 0:
            with suppress(ModuleNotFoundError):  # a training image; it proves nothing in a hurry
                _limited.enter_context(_libraries().limit(limits=1, user_api="blas"))
        _asking += 1
    try:
        yield
    finally:
        with _lock:
            _asking -= 1
            if _asking == 0:
                _limited.close()
