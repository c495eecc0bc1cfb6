"""Compiled recurrences: their arrays, the options that they share, and threads for a few of them at the same time.

Every recurrence runs over steps outside and over poles inside, so that one instruction serves eight poles.  Three
things decide whether the compiler sees it that way, each worth a factor of two to seven:

- Division must not check for zero (``error_model``).  Divisors here are sums with a positive term.
- Sums over poles may be reordered, and ``a * b + c`` contracted (``fastmath`` flags; not the others: infinities and
  NaN stay honest).  With positive terms both stay within the rounding that is allowed for.
- The test whether arrays overlap is moved out of all loops, and gives up if one loop writes row i and reads row
  i - 1, or runs backwards.  Hence the states kept in arrays of their own, and the backward loops that read their
  index from an array ``back`` = n-1, ..., 0: the compiler cannot see through that, and tests row by row.

Compiled code is cached beside the source; the first call on a machine pays once.
Threads are plain ones, made for the call and joined before it returns: the kernels release the interpreter lock,
nothing waits in a spin loop, and a forked or embedded process finds no pool left over from its parent.
"""

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from factorize.numbers import compiling

Array = NDArray[np.float64]
Index = NDArray[np.int64]
TwoArrays = tuple[Array, Array]
ThreeArrays = tuple[Array, Array, Array]
FourArrays = tuple[Array, Array, Array, Array]

WIDTH = 8
"""The number of doubles that move together in a vector; see `lanes`."""


Product = Callable[[Array], Array]
"""Multiplies a vector by a matrix."""
Function = TypeVar("Function", bound=Callable[..., object])

_FLAGS = {"reassoc", "contract", "nsz"}

compiled: Callable[[Function], Function] = compiling.kernel(error_model="numpy", fastmath=_FLAGS)
"""Compile a kernel on its first call, without the interpreter lock."""
part: Callable[[Function], Function] = compiling.part(error_model="numpy", fastmath=_FLAGS)
"""Compile what kernels alone call, as `compiled`."""
inlined: Callable[[Function], Function] = compiling.kernel(inline="always", error_model="numpy", fastmath=_FLAGS)
"""Write a formula out wherever a kernel calls it, before anything is optimised, so that it costs no digit either.

A compiled function would round on its own, and another kernel's sums would come out otherwise in the last bit.
"""


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sum_of(first: Callable[[Array, Array], None], second: Callable[[Array, Array], None], *, together: bool) -> Product:
    """Return the product with the sum of two matrices.

    Args:
        first: writes the product of one with its first argument into its second.
        second: the same of the other.
        together: see `run`.
    """

    def product(x: Array) -> Array:
        below, above = np.empty_like(x), np.empty_like(x)
        run([partial(first, x, below), partial(second, x, above)], together=together)
        return np.add(below, above, out=below)

    return product


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
