"""Threads of BLAS, limited to one for products of blocks, which are too small for threads that wait in busy loops.

On a busy machine two threads take ten times the processor time of one for blocks of 256 rows, and are slower on the
clock, too; on an idle machine they save a tenth of a second at n = 2048.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import Any

MAX_SIDE_IN_BLOCKS = 4096
"""The largest side of a triangular matrix multiplied in blocks for which one thread is faster or loses little."""
MAX_SIDE_WHOLE = 512
"""The same limit for matrices that are multiplied whole."""


_lock, _limited = threading.Lock(), ExitStack()
_asking = 0  # The last block to end sets the number of threads back.


@cache
def _libraries() -> Any:
    """Return the libraries, found once, since the search takes milliseconds.

    scipy has a BLAS of its own. It is loaded now, since a BLAS that a solve loads later would use all threads. The last
    digits of that solve would then differ from those of the next one.
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
            with suppress(ModuleNotFoundError):  # A training image has none, and is in no hurry.
                _limited.enter_context(_libraries().limit(limits=1, user_api="blas"))
        _asking += 1
    try:
        yield
    finally:
        with _lock:
            _asking -= 1
            if _asking == 0:
                _limited.close()
