"""Normals as JAX operations, a function of key, step, leaf and place: each device draws its part of the whole array's.

They have the bits of `jax.random.normal` for the same key, whatever version and settings of JAX there are. The
generator is written out as operations on all numbers at once, of which XLA makes one loop. JAX's own is a loop over
rounds on CPUs: normals took 2.6 times as long, and each leaf took twice as long to compile.
"""

import math
from collections.abc import Callable

import jax
import numpy as np
from jax import numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from factorize.adapters.jax_arrays.jax_table import names_of, place_of, whole_shape

WIDE_COUNT = 1 << 32
"""The entries from which on a leaf takes both words of the counter."""
_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_LEAVES = 64  # so many keys are made at once
_PARITY = np.uint32(0x1BD11BDA)

Words = tuple[jax.Array, jax.Array]


def normals(
    key: jax.Array, step: ArrayLike, leaf: int, like: jax.Array, kind: np.dtype, spec: PartitionSpec | None = None
) -> jax.Array:
    """Return the normals of a leaf at a step: of the whole array, or of the shard that a device holds in shard_map.

    Args:
        key: key of the noise, two words of 32 bits.
        step: step of the noise.
        leaf: number of the leaf.
        like: the leaf, or its part on this device.
        kind: type of the numbers, float32 or float64.
        spec: PartitionSpec of the leaf inside shard_map, None outside.
    """
    keys = _leaf_keys(key, jnp.asarray(step).astype(jnp.uint32), leaf - leaf % _LEAVES)
    high, low = threefry(keys[:, leaf % _LEAVES], *_counters(like, spec))
    if kind == np.float32:
        bits = (high ^ low) >> 9
    else:
        bits = (high.astype(jnp.uint64) << 32 | low.astype(jnp.uint64)) >> 12
    one, least = np.ones((), kind), np.nextafter(-np.ones((), kind), np.zeros((), kind))
    unit = jax.lax.bitcast_convert_type(bits | one.view(bits.dtype), kind) - one  # from 0 to 1, without 1
    return jax.lax.erf_inv(jnp.maximum(unit * (one - least) + least, least)) * np.sqrt(2).astype(kind)


def _threefry(key: jax.Array, high: jax.Array, low: jax.Array) -> Words:
    """Return both words of Threefry-2x32 in 20 rounds (Salmon, Moraes, Dror and Shaw, SC 2011)."""
    keys = key[0], key[1], key[0] ^ key[1] ^ _PARITY
    x, y = high + keys[0], low + keys[1]
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ (y << turn | y >> (32 - turn))
        x, y = x + keys[(group + 1) % 3], y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def _keys_of(key: jax.Array, step: jax.Array, first: int) -> jax.Array:
    """Return the keys of `_LEAVES` leaves at a step, shape (2, _LEAVES), which XLA makes at once."""
    own, zero = jnp.stack(threefry(key, np.uint32(0), step)), jnp.zeros(_LEAVES, np.uint32)
    leaves = jnp.arange(_LEAVES, dtype=np.uint32) + jnp.asarray(first).astype(np.uint32)
    return jax.lax.optimization_barrier(jnp.stack(threefry(own, zero, leaves)))


# Under jit they are traced once for all leaves of a shape.
threefry: Callable[[ArrayLike, ArrayLike, ArrayLike], Words] = jax.jit(_threefry)
_leaf_keys: Callable[[ArrayLike, ArrayLike, int], jax.Array] = jax.jit(_keys_of)


def _counters(like: jax.Array, spec: PartitionSpec | None) -> Words:
    """Return the place of every entry in the whole array, row by row, as two words."""
    whole = whole_shape(like, spec)
    wide = math.prod(whole) >= WIDE_COUNT
    with jax.enable_x64(wide or jax.config.read("jax_enable_x64")):
        place = jnp.zeros(like.shape, np.uint64 if wide else np.uint32)
        for side, count in enumerate(like.shape):
            start = 0 if spec is None else place_of(names_of(spec, side)) * count
            along = jax.lax.broadcasted_iota(place.dtype, like.shape, side) + jnp.asarray(start).astype(place.dtype)
            place = place + along * np.asarray(math.prod(whole[side + 1 :]), place.dtype)
        high = (place >> 32).astype(np.uint32) if wide else jnp.zeros((), np.uint32)
        return high, place.astype(np.uint32)
