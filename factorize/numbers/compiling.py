"""Words of compiled code that compile quickly: copies of arrays, and constants. Imported on first use: numba is heavy.

``out[...] = source`` brings the words of numba's error about shapes along, text of numbers and all: ten seconds of
compiling in each process that compiles such a kernel first. `assign` compiles in a tenth of one. And what is called
with a constant is compiled for that constant alone, again for each: `plain` hides it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

Value = TypeVar("Value", int, bool)


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
