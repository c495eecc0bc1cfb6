"""Compiled recurrences: the options they share.

Every recurrence runs over steps outside and over poles inside, so that one instruction serves eight poles.  Three
things decide whether the compiler sees it that way, each worth a factor of two to seven:

- Division must not check for zero (``error_model``).  Divisors here are sums with a positive term.
- Sums over poles may be reordered, and ``a * b + c`` contracted (``fastmath`` flags; not the others: infinities and
  NaN stay honest).  With positive terms both stay within the rounding that is allowed for.
- The test whether arrays overlap is moved out of all loops, and gives up if one loop writes row i and reads row
  i - 1, or runs backwards.  Hence the states kept in arrays of their own, and the backward loops that read their
  index from an array ``back`` = n-1, ..., 0: the compiler cannot see through that, and tests row by row.

Compiled code is cached beside the source; the first call on a machine pays once.
"""

from collections.abc import Callable
from typing import TypeVar

from factorize.numbers import compiling

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
