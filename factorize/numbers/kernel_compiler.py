"""The compiler of kernels: options that make it fast, its clock, and constants. It is imported on first use.

A first solve waits for the compiler, so kernels leave out what nobody calls: the entries for C, those for Python where
kernels alone call a function, and the counts of references (so that no kernel may make an array). Garbage collection
pauses meanwhile: the compiler makes millions of objects, and looking through them takes an eighth of its time.

A function that is called with a constant is compiled for that constant alone, again for each; `plain` hides it. Kernels
copy arrays by loops: ``out[...] = source`` takes ten seconds to compile, for the text of numba's error about shapes.
"""

import gc
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, cast

import numba
from llvmlite import ir
from numba import types
from numba.core import event
from numba.core.base import BaseContext
from numba.core.typing.context import Context
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

from factorize.numbers.kernel_cache import KernelCache
from factorize.numbers.processor_time import WATCHERS, stop_clock


def compile_late(function: Callable[..., object], **options: object) -> Any:
    """Return a function that compiles on its first call, runs without the interpreter lock, and is kept on disk."""
    settings: Any = numba.config  # Kernels that read memory by address do not run in Python.
    disabled, settings.DISABLE_JIT = settings.DISABLE_JIT, 0
    try:
        dispatcher = cast(Any, numba.njit)(nogil=True, no_cfunc_wrapper=True, _nrt=False, **options)(function)
    finally:
        settings.DISABLE_JIT = disabled
    if os.path.exists(function.__code__.co_filename):  # In a zipped application numba has no date to compare.
        dispatcher._cache = KernelCache(function)
    return dispatcher


class _Compiler(event.Listener):
    """A listener that tells the watchers, and stops collector and clock while a thread compiles.

    A compilation includes those of the functions that are called.
    """

    depth = 0
    collects = False
    clock = ExitStack()

    def on_start(self, event: event.Event) -> None:
        for call in WATCHERS.calls:
            call()
        if self.depth == 0:
            self.collects = gc.isenabled()
            gc.disable()
            self.clock.enter_context(stop_clock())
        self.depth += 1

    def on_end(self, event: event.Event) -> None:
        if self.depth == 0:  # What a watcher raised ended it.
            return
        self.depth -= 1
        if self.depth > 0:
            return
        self.clock.close()
        if self.collects:
            gc.enable()


event.register("numba:compile", _Compiler())


def _without_its_value(_context: Context, value: types.Type) -> tuple[Signature, Callable[..., ir.Value]]:
    def generate(
        _generation: BaseContext, _builder: ir.IRBuilder, _signature: Signature, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        return arguments[0]

    kind = types.unliteral(value)
    return kind(kind), generate


plain: Callable[[int], int] = cast(Any, intrinsic(_without_its_value))
