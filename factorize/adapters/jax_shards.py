"""Shards of noise in JAX: each device draws its part of the whole array's normals, under jit and under shard_map."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from factorize.errors import InvalidParameter


def normals(key: jax.Array, step: Any, leaf: int, like: jax.Array, kind: np.dtype, spec: Any = None) -> jax.Array:
    """Return the normals of a leaf at a step: of the whole array, or of the shard that a device holds in shard_map.

    Args:
        key: of the noise.
        step: of the noise.
        leaf: which.
        like: the leaf, or what is here of it.
        kind: of the numbers.
        spec: PartitionSpec of the leaf inside shard_map, None outside.
    """
    own = jax.random.fold_in(jax.random.fold_in(key, step), leaf)
    if spec is None:
        return jax.random.normal(own, like.shape, kind)
    names = [_names(spec, side) for side in range(like.ndim)]
    counts = [math.prod(jax.lax.axis_size(name) for name in each) for each in names]
    whole = jax.random.normal(own, tuple(n * count for n, count in zip(like.shape, counts, strict=True)), kind)
    starts = [_place(each) * n for n, each in zip(like.shape, names, strict=True)]
    return jax.lax.dynamic_slice(whole, starts, like.shape)


def zeros_beside(states: int, parameter: Any, kind: np.dtype) -> jax.Array:
    """Return the buffers of a leaf, shape (states, *leaf), that lie on the devices as the leaf does."""
    shape = (states, *parameter.shape)
    sharding = None if isinstance(parameter, jax.core.Tracer) else getattr(parameter, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return jnp.zeros(shape, kind)
    return jnp.zeros(shape, kind, device=NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec)))


def specs_of(specs: Any, tree: Any) -> list[Any]:
    """Return the PartitionSpec of every leaf, None for each outside of shard_map.

    Raises:
        InvalidParameter: in shard_map without specs: every device would draw the same numbers for another shard.
    """
    count = len(jax.tree.leaves(tree))
    if not _manual():
        return [None] * count
    if specs is None:
        raise InvalidParameter(
            "inside shard_map every device would draw the same noise for its own shard; give correlated_noise specs=, "
            "the PartitionSpecs that shard_map has for the gradients, or call it outside, under jit",
            field="specs",
        )
    given = jax.tree.broadcast(specs, tree, is_leaf=lambda each: isinstance(each, PartitionSpec))
    return jax.tree.leaves(given, is_leaf=lambda each: isinstance(each, PartitionSpec))


def _manual() -> bool:
    """Whether this is traced inside shard_map (or pmap), where arrays are the parts of one device."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def _names(spec: Any, side: int) -> tuple[str, ...]:
    """Return the axes of the mesh that cut a side."""
    named = spec[side] if side < len(spec) else None
    if named is None:
        return ()
    return (named,) if isinstance(named, str) else tuple(named)


def _place(names: tuple[str, ...]) -> Any:
    place: Any = 0
    for name in names:
        place = place * jax.lax.axis_size(name) + jax.lax.axis_index(name)
    return place
