"""The order of the examples in data of JAX, in which a shuffle between two steps shows."""

import math
from collections.abc import Sequence
from functools import partial

import jax
import numpy as np
from jax import numpy as jnp

from factorize.adapters.jax_table import with_auto_axes

_ENTRIES = 4
"""The most entries of an example that are read of each array: a step must not read all of the data."""


def order_of(data: Sequence[jax.Array]) -> jax.Array:
    """Return hashes of the examples as a set and of their order, shape (2,), uint32.

    Args:
        data: arrays whose first axis is the examples. Keys of random numbers, which change from step to step, are left
            out.
    """
    arrays = [each for each in data if not jnp.issubdtype(each.dtype, jax.dtypes.extended)]
    return with_auto_axes(_hashes, arrays) if arrays else jnp.zeros(2, jnp.uint32)


@partial(jax.jit, inline=True)  # one program, also for a loop that is not jitted
def _hashes(arrays: Sequence[jax.Array]) -> jax.Array:
    rows = jnp.zeros(len(arrays[0]), jnp.uint32)
    for each in arrays:
        size = math.prod(each.shape[1:])
        for place in {*np.linspace(0, size - 1, min(size, _ENTRIES)).astype(int).tolist()}:
            entry = each[(slice(None), *np.unravel_index(place, each.shape[1:]))]
            rows = _mixed(rows ^ _word(entry)) + jnp.uint32(0x9E3779B9)
    order = rows ^ _mixed(jnp.arange(len(rows), dtype=jnp.uint32) + jnp.uint32(1))
    return jnp.stack([jnp.sum(_mixed(hashed), dtype=jnp.uint32) for hashed in (rows, order)])


def _word(entry: jax.Array) -> jax.Array:
    """Return numbers as words, one for each."""
    if jnp.issubdtype(entry.dtype, jnp.inexact):
        return jax.lax.bitcast_convert_type(jnp.real(entry).astype(jnp.float32), jnp.uint32)
    return entry.astype(jnp.uint32)


def _mixed(words: jax.Array) -> jax.Array:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        words = (words ^ words >> shift) * jnp.uint32(factor)
    return words ^ words >> 16
