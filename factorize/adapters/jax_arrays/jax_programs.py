"""Programs that JAX traces: what they read beside their arguments, which a compiled program keeps as it was."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

MAX_COPIED_ENTRIES = 2**18
"""Arrays beside the arguments are compared by their bytes up to this size, and beyond it by being the same object."""
_HOST_CALLS = ("pure_callback", "io_callback")
"""Operations whose results come from the host; `debug_callback` returns none."""


def is_traced(value: object) -> bool:
    """Return whether a value is an argument of a program that is being traced, so that it has no number yet."""
    return isinstance(value, jax.core.Tracer)


def constants(program: object) -> Iterator[Any]:
    """Yield the arrays that a program closes over and its functions of the host, also of programs within it."""
    if isinstance(program, (tuple, list)):
        yield from itertools.chain.from_iterable(map(constants, program))
    elif isinstance(program, ClosedJaxpr):
        yield from program.consts
        yield from constants(program.jaxpr)
    elif isinstance(program, Jaxpr):
        yield from (each.params["callback"] for each in program.eqns if each.primitive.name in _HOST_CALLS)
        yield from itertools.chain.from_iterable(constants(list(each.params.values())) for each in program.eqns)


def fixed_values(program: object) -> Iterator[object]:
    """Yield the operations of a program, and the numbers, lengths and arrays that its arguments do not change."""
    if isinstance(program, (tuple, list)):
        yield from itertools.chain.from_iterable(map(fixed_values, program))
    elif isinstance(program, ClosedJaxpr):
        yield from map(_copied, program.consts)
        yield from fixed_values(program.jaxpr)
    elif isinstance(program, Jaxpr):
        for each in program.eqns:
            yield each.primitive.name
            yield from (_copied(value.val) for value in each.invars if isinstance(value, Literal))
            yield from fixed_values(list(each.params.values()))
    elif isinstance(program, (int, float)):  # lengths of slices, axes
        yield _copied(program)


def _copied(value: object) -> object:
    """Return a number or a small array as its type, shape and bytes, since a loop may change it in place."""
    if not isinstance(value, (complex, float, int, np.ndarray, np.generic, jax.Array)) or is_traced(value):
        return value
    if jnp.issubdtype(jnp.result_type(value), jax.dtypes.extended) or np.size(value) > MAX_COPIED_ENTRIES:
        return value
    array = np.asarray(value)
    return str(array.dtype), array.shape, array.tobytes()


def are_alike(before: Sequence[object], after: Sequence[object]) -> bool:
    """Return whether two traces of a loss gave one program; an array that was not copied has to be the same object."""
    return len(before) == len(after) and all(
        one is other or (isinstance(one, (str, tuple)) and isinstance(other, (str, tuple)) and one == other)
        for one, other in zip(before, after, strict=True)
    )
