"""Hashes of arrays in JAX, for checks of a program: they tell apart what a mistake changes, and keep no secret."""

from collections.abc import Sequence
from functools import partial

import jax
from jax import numpy as jnp


def mix_words(words: jax.Array) -> jax.Array:
    """Return words of which each bit depends on every bit of the given one, uint32, the same shape."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        words = (words ^ words >> shift) * jnp.uint32(factor)
    return words ^ words >> 16


@partial(jax.jit, inline=True)
def hash_bits(leaves: Sequence[jax.Array]) -> jax.Array:
    """Return the sum of a hash of each entry's bits and place, modulo 2^32.

    A sum of the bits alone would not change when all entries are multiplied by a power of two, since that adds one
    number to the bits of each.
    """
    total = jnp.zeros((), jnp.uint32)
    for place, leaf in enumerate(leaves):
        kind = jnp.result_type(leaf)
        wide = jnp.asarray(leaf, jnp.float32 if jnp.issubdtype(kind, jnp.floating) and kind.itemsize < 4 else kind)
        bits = jax.lax.bitcast_convert_type(wide, jnp.uint32).ravel()
        placed = bits ^ (jnp.arange(bits.size, dtype=jnp.uint32) + jnp.uint32(place)) * jnp.uint32(2654435761)
        total += jnp.sum(mix_words(placed), dtype=jnp.uint32)
    return total
