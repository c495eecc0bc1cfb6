"""One step of any streaming strategy as JAX operations: the coefficients on the device, float64 or pairs of float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from factorize.adapters.coefficients import PlanTable


class SplitDouble(NamedTuple):
    """Numbers of a recurrence on the device: as they are in float64, or as the sum of two float32.

    Attributes:
        high: rounded.
        low: the rest, rounded; None where nothing is left.
    """

    high: jax.Array
    low: jax.Array | None

    @classmethod
    def of(cls, values: np.ndarray, kind: np.dtype) -> SplitDouble:
        """Split float64 numbers, to 48 bits where the device has only float32."""
        high = values.astype(kind)
        low = None if kind == np.float64 else jnp.asarray((values - high).astype(kind))
        return cls(jnp.asarray(high), low)

    def at(self, step: Any) -> SplitDouble:
        """Return those of a step, NaN past the last."""
        high, low = (None if p is None else p.at[step].get(mode="fill", fill_value=jnp.nan) for p in self)
        assert high is not None
        return SplitDouble(high, low)

    def times(self, values: jax.Array) -> jax.Array:
        """Multiply element by element: XLA may round the factors of a matrix product to TF32 or bfloat16."""
        spread = (*self.high.shape, *(1,) * (values.ndim - self.high.ndim))
        product = self.high.reshape(spread) * values
        return product if self.low is None else product + self.low.reshape(spread) * values


class DeviceTable(NamedTuple):
    """A `PlanTable` on the device; see there."""

    gain: SplitDouble
    reads: SplitDouble
    moves: SplitDouble
    writes: SplitDouble
    takes: SplitDouble
    loads: SplitDouble
    scale: SplitDouble
    steps: jax.Array

    @classmethod
    def of(cls, table: PlanTable, kind: np.dtype) -> DeviceTable:
        """Move one there."""
        parts = {name: SplitDouble.of(part, kind) for name, part in vars(table).items() if name != "steps"}
        return cls(**parts, steps=jnp.asarray(table.steps))


def advance(
    table: DeviceTable, step: jax.Array, z: jax.Array, state: jax.Array, earlier: Sequence[jax.Array] = ()
) -> tuple[jax.Array, jax.Array]:
    """Return row `step` of C^-1 Z and the next state, shapes z and (k, *z)."""
    moves, u = table.moves.at(step), table.gain.at(step).times(z)
    x = u - table.reads.at(step).times(state).sum(axis=0)
    if moves.high.ndim == 1:
        kept = moves.times(state)
    else:
        kept = moves.times(jnp.broadcast_to(state, (len(state), *state.shape))).sum(axis=1)
    loads = table.loads.at(step)
    if loads.high.shape[1]:
        draws = jnp.stack([u, *earlier])
        if earlier:
            x = x + table.takes.at(step).times(draws[1:]).sum(axis=0)
        kept = kept + loads.times(jnp.broadcast_to(draws, (len(state), *draws.shape))).sum(axis=1)
    else:
        kept = kept + table.writes.at(step).times(jnp.broadcast_to(x, state.shape))
    return table.scale.at(step).times(x), kept
