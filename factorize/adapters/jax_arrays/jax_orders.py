"""The order of the examples in data of JAX, in which a shuffle between two steps shows."""

import math
from collections.abc import Sequence
from functools import partial

import jax
import numpy as np
from jax import numpy as jnp

from factorize.adapters.jax_arrays.jax_hashes import mix_words
from factorize.adapters.jax_arrays.jax_table import with_auto_axes

_ENTRIES = 4
"""The most entries of an example that are read of each array."""
_EXAMPLES = 1 << 13
"""The most examples that are read: a step must not read all of the data, and of 10^6 in another order 67 show it."""
_ACCIDENTS = 3
"""The fewest examples in other places that are no accident: hashes of other data, in 32 bits, agree in 1.6 percent."""


def order_of(data: Sequence[jax.Array]) -> jax.Array:
    """Return hashes of examples all over the data, in their order, shape (examples,), uint32.

    Args:
        data: arrays whose first axis is the examples. Keys of random numbers, which change from step to step, are left
            out.
    """
    arrays = [each for each in data if not jnp.issubdtype(each.dtype, jax.dtypes.extended)]
    return with_auto_axes(_hashes, arrays) if arrays else jnp.zeros(0, jnp.uint32)


def are_moved(before: np.ndarray, now: np.ndarray) -> bool:
    """Return whether examples that the data had, by `order_of`, are in other places now; equal ones are not told apart.

    Args:
        before: hashes of some step.
        now: those of another one.
    """
    if before.shape != now.shape or np.array_equal(before, now):
        return False
    changed = before != now
    values, counts = np.unique(before, return_counts=True)
    gone = changed & np.isin(before, values[counts == 1])
    found = np.isin(before[gone], now[changed]).sum()
    return bool(found >= min(_ACCIDENTS, changed.sum()))


@partial(jax.jit, inline=True)  # one program, also for a loop that is not jitted
def _hashes(arrays: Sequence[jax.Array]) -> jax.Array:
    # At random, since every place of a regular choice could be left by a shift.
    examples = np.sort(np.random.default_rng(0).permutation(len(arrays[0]))[:_EXAMPLES])
    rows = jnp.zeros(len(examples), jnp.uint32)
    for each in arrays:
        size = math.prod(each.shape[1:])
        for place in {*np.linspace(0, size - 1, min(size, _ENTRIES)).astype(int).tolist()}:
            entry = each[(examples, *np.unravel_index(place, each.shape[1:]))]
            rows = mix_words(rows ^ _word(entry)) + jnp.uint32(0x9E3779B9)
    return rows


def _word(entry: jax.Array) -> jax.Array:
    """Return numbers as words, one for each."""
    if jnp.issubdtype(entry.dtype, jnp.inexact):
        return jax.lax.bitcast_convert_type(jnp.real(entry).astype(jnp.float32), jnp.uint32)
    return entry.astype(jnp.uint32)
