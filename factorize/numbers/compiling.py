"""Kernels that compile quickly: their options, copies of arrays, and constants. Imported on first use: numba is heavy.

A first solve waits for the compiler, so that `kernel` and `part` leave out what nobody calls: the entries for C, and
those for Python where kernels alone call a function. No garbage is collected meanwhile: the compiler makes millions of
objects, and looking through them takes an eighth of its time.

``out[...] = source`` brings the words of numba's error about shapes along, text of numbers and all: ten seconds of
compiling in each process that compiles such a kernel first. `assign` compiles in a tenth of one. And what is called
with a constant is compiled for that constant alone, again for each: `plain` hides it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba import types
from numba.core import event
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

Value = TypeVar("Value", int, bool)


def kernel(**options: Any) -> Any:
    """Return a decorator: compile a function on its first call, without the interpreter lock, and keep it on disk."""
    return cast(Any, numba.njit)(cache=True, nogil=True, no_cfunc_wrapper=True, **options)


def part(**options: Any) -> Any:
    """Return a decorator: compile a function that kernels alone call; Python cannot call it."""
    return kernel(no_cpython_wrapper=True, **options)


class _NoGarbage(event.Listener):
    """Keeps the collector still while a function and those that it calls compile; numba compiles in one thread."""

    depth = 0
    collects = False

    def on_start(self, event: Any) -> None:
        if self.depth == 0:
            self.collects = gc.isenabled()
            gc.disable()
        self.depth += 1

    def on_end(self, event: Any) -> None:
        self.depth -= 1
        if self.depth == 0 and self.collects:
            gc.enable()


event.register("numba:compile", _NoGarbage())


def assign(out: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy `source` to `out`, entry by entry from the first: both of one shape, which nothing checks; 1 to 3 axes."""
    out[...] = source


@overload(assign)
def _assign(out, source):  # type: ignore[no-untyped-def]  # numba compares its signature with those below
    return _LOOPS[out.ndim]


def _vector(out, source):  # type: ignore[no-untyped-def]  # numba types it, as the two below
    for i in range(out.shape[0]):
        out[i] = source[i]


def _matrix(out, source):  # type: ignore[no-untyped-def]  # as above
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = source[i, j]


def _block(out, source):  # type: ignore[no-untyped-def]  # as above
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            for k in range(out.shape[2]):
                out[i, j, k] = source[i, j, k]


_LOOPS: dict[int, Callable[..., None]] = {1: _vector, 2: _matrix, 3: _block}


def _without_its_value(_context: Any, value: Any) -> tuple[Any, Any]:
    def generate(_generation: Any, _builder: Any, _signature: Any, arguments: Any) -> Any:
        return arguments[0]

    kind = types.unliteral(value)
    return kind(kind), generate


plain: Callable[[Value], Value] = cast(Any, intrinsic(_without_its_value))
"""The same number, of which the compiler's types do not know that it is a constant."""
