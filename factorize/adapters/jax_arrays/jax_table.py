"""One step of any streaming strategy as JAX operations, on one device or on several, under jit and under shard_map.

Coefficients are on the device, in float64 or as pairs of float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from factorize.adapters.coefficients import PlanTable
from factorize.errors import InvalidParameter

Result = TypeVar("Result")
MAX_WRITTEN_TERMS = 64
"""The most terms of a sum over states that are written out: a program with more takes seconds to compile."""


class SplitDouble(NamedTuple):
    """Numbers of a recurrence on the device: as they are in float64, or as the sum of two float32.

    Attributes:
        high: the numbers, rounded.
        low: the rest, rounded; None where nothing is left.
    """

    high: jax.Array
    low: jax.Array | None

    @classmethod
    def of(cls, values: np.ndarray, kind: np.dtype) -> SplitDouble:
        """Split float64 numbers, to 48 bits where the device has only float32."""
        high = values.astype(kind)
        low = (values - high).astype(kind)
        return cls(jnp.asarray(high), jnp.asarray(low) if low.any() else None)

    def at(self, step: ArrayLike) -> SplitDouble:
        """Return the numbers of a step, NaN past the last step."""
        high, low = (None if p is None else p.at[step].get(mode="fill", fill_value=jnp.nan) for p in self)
        assert high is not None
        return SplitDouble(high, low)

    def times(self, values: jax.Array) -> jax.Array:
        """Multiply element by element: XLA may round the factors of a matrix product to TF32 or bfloat16."""
        spread = (*self.high.shape, *(1,) * (values.ndim - self.high.ndim))
        product = self.high.reshape(spread) * values
        return product if self.low is None else product + self.low.reshape(spread) * values

    def dot(self, vectors: jax.Array | Sequence[jax.Array]) -> jax.Array:
        """Return the sum of the vectors, each times its number, shape of one of them.

        The sum is written out, since a reduction over the first axis takes XLA's code for CPUs up to 25 times as long.
        """
        count = len(vectors)
        if count <= MAX_WRITTEN_TERMS:
            return functools.reduce(jnp.add, [self._term(r, vectors) for r in range(count)])
        stacked = jnp.stack(vectors) if isinstance(vectors, Sequence) else vectors
        return jax.lax.fori_loop(1, count, lambda r, total: total + self._term(r, stacked), self._term(0, stacked))

    def _term(self, r: ArrayLike, vectors: Any) -> jax.Array:
        low = None if self.low is None else self.low[r]
        return SplitDouble(self.high[r], low).times(vectors[r])


DeviceTable = PlanTable[SplitDouble]


def on_device(table: PlanTable[np.ndarray], kind: np.dtype) -> DeviceTable:
    """Return a table with its numbers on the device."""
    names = "gain", "reads", "moves", "takes", "loads", "scale"
    numbers = {name: SplitDouble.of(getattr(table, name), kind) for name in names}
    return PlanTable(**numbers, steps=table.steps, keeps_draws=table.keeps_draws, slots=table.slots)


def advance(
    table: DeviceTable, step: jax.Array, z: jax.Array, state: jax.Array, earlier: Sequence[jax.Array] = ()
) -> tuple[jax.Array, jax.Array]:
    """Return row `step` of C^-1 Z and the next state, shapes z and (k, *z); NaN past the last step."""

    def advanced(z: jax.Array, state: jax.Array, earlier: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
        u = table.gain.at(step).times(z)
        x = u - table.reads.at(step).dot(state) if len(state) else u
        if earlier:
            x = x + table.takes.at(step).dot(earlier)
        return x, _next_state(table, step, [u, *earlier] if table.keeps_draws else [x], state)

    if isinstance(step, jax.core.Tracer):
        # The branch of its own has its x put down once: otherwise XLA would make it again for the release, and copy the
        # state for that.
        inside = step < len(table.steps)
        x, kept = jax.lax.cond(inside, advanced, lambda z, state, _: (z * jnp.nan, state), z, state, earlier)
    else:
        x, kept = advanced(z, state, earlier)
    return table.scale.at(step).times(x), kept


def _next_state(table: DeviceTable, step: jax.Array, taken: Sequence[jax.Array], state: jax.Array) -> jax.Array:
    """Return the state after a step that took some vectors."""
    if table.slots is not None:
        slot = jnp.asarray(table.slots).at[step].get(mode="clip")
        return jax.lax.dynamic_update_index_in_dim(state, taken[0], slot, 0)
    moves, loads = table.moves.at(step), table.loads.at(step)
    if moves.high.ndim == 1:
        kept = moves.times(state)
    else:
        kept = moves.times(jnp.broadcast_to(state, (len(state), *state.shape))).sum(axis=1)
    for m, each in enumerate(taken):
        kept = kept + SplitDouble(*(None if part is None else part[:, m] for part in loads)).times(each[None])
    return kept


def whole_shape(like: jax.Array, spec: PartitionSpec | None) -> tuple[int, ...]:
    """Return the shape of the whole array that a leaf is, or of which a device holds a part in shard_map."""
    if spec is None:
        return tuple(np.shape(like))
    counts = [math.prod(jax.lax.axis_size(name) for name in names_of(spec, side)) for side in range(like.ndim)]
    return tuple(n * count for n, count in zip(like.shape, counts, strict=True))


def zeros_beside(states: int, parameter: jax.Array, kind: np.dtype) -> jax.Array:
    """Return the buffers of a leaf, shape (states, *leaf), that lie on the devices as the leaf does."""
    shape = (states, *np.shape(parameter))
    traced = isinstance(parameter, jax.core.Tracer)
    sharding = jax.typeof(parameter).sharding if traced else getattr(parameter, "sharding", None)
    if not isinstance(sharding, NamedSharding) or (traced and not sharding.mesh.explicit_axes):
        return jnp.zeros(shape, kind)
    return jnp.zeros(shape, kind, device=NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec)))


def specs_of(specs: object, tree: object) -> list[PartitionSpec | None]:
    """Return the PartitionSpec of every leaf, None for each outside of shard_map.

    Raises:
        InvalidParameter: a call in shard_map has no specs: every device would draw the same numbers for another shard.
    """
    count = len(jax.tree.leaves(tree))
    if not manual_axes():
        return [None] * count
    if specs is None:
        raise InvalidParameter(
            "inside shard_map and pmap, every device would draw the same noise for its own shard; give "
            "correlated_noise specs=, shard_map's PartitionSpecs for the gradients, or call it outside, under jit",
            field="specs",
        )
    spread = jax.tree.broadcast(specs, tree, is_leaf=lambda each: isinstance(each, PartitionSpec))
    return jax.tree.leaves(spread, is_leaf=lambda each: isinstance(each, PartitionSpec))


def with_auto_axes(function: Callable[..., Result], *given: object, lies_as: Result | None = None) -> Result:
    """Return what a function makes of arrays, where XLA chooses how arrays in between lie on the devices.

    A mesh of `jax.make_mesh` has explicit axes: there JAX refuses operations that do not say where their results lie.

    Args:
        function: a function of trees of arrays.
        *given: its arguments.
        lies_as: a tree like the result, of arrays that lie on the devices as the results will; others lie everywhere.
            None for a single array that lies everywhere.
    """
    places = [jax.typeof(leaf).sharding for leaf in jax.tree.leaves(given)]
    mesh = next((place.mesh for place in places if place.mesh.explicit_axes), None)
    if mesh is None:
        return function(*given)
    everywhere = NamedSharding(mesh, PartitionSpec())

    def place(leaf: jax.Array) -> NamedSharding:
        own = jax.typeof(leaf).sharding
        return own if own.mesh.explicit_axes else everywhere

    after = everywhere if lies_as is None else jax.tree.map(place, lies_as)
    result: Result = jax.sharding.auto_axes(function, axes=mesh.explicit_axes, out_sharding=after)(*given)
    return result


def manual_axes() -> tuple[str, ...]:
    """Return the axes over which this is traced inside shard_map, where arrays are the parts of one device."""
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


def names_of(spec: PartitionSpec, side: int) -> tuple[str, ...]:
    """Return the axes of the mesh that cut a side."""
    named = spec[side] if side < len(spec) else None
    if named is None:
        return ()
    return (named,) if isinstance(named, str) else tuple(named)


def replica_axes(leaf: jax.Array, spec: PartitionSpec | None) -> tuple[str, ...]:
    """Return the axes along which the devices in shard_map hold the same entries of a leaf; none outside."""
    cut = {name for side in range(leaf.ndim) for name in names_of(spec or PartitionSpec(), side)}
    return tuple(name for name in manual_axes() if name not in cut)


def place_of(names: tuple[str, ...]) -> ArrayLike:
    """Return the number of this device along axes of the mesh."""
    place: ArrayLike = 0
    for name in names:
        place = place * jax.lax.axis_size(name) + jax.lax.axis_index(name)
    return place
