"""Noise in JAX on eight host devices, which are asked for before JAX begins: a script that prints what it found."""

from __future__ import annotations

import json
import os
import re
from typing import Any

if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"

import jax
import numpy as np
from handmade import handmade
from jax import numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from structure_cases import strategies

from factorize.adapters.jax import NoiseState, correlated_noise
from factorize.adapters.jax_private import make_private
from factorize.errors import InvalidParameter
from factorize.privacy import PrivacyTarget, calibrate

N = 5
SPECS = {"w": P("data", "model"), "b": P(("data", "model")), "c": P(None, "model"), "s": P()}
SHAPES = {"w": (16, 6), "b": (24,), "c": (3, 8), "s": (5,)}
FIRSTS = r"\(?(?:f32\[\d+(?:,1)*\]\{[\d,]*\}(?:, )?)+\)? all-reduce"
EXCHANGED = re.compile(
    rf"= (?!\(?pred\[|{FIRSTS})[^=\n]* (all-gather|all-reduce|all-to-all|collective-permute)[a-z-]*\("
)
"""The exchanges of devices in a compiled program, but for one truth value, whether the sums are finite, and the first
entry of each buffer, by which a state shows whether it was changed."""


def drawn(update: Any, zero: Any, state: Any) -> np.ndarray:
    """Return the noise of every step, flattened."""
    rows = []
    for _ in range(N):
        made, state = update(zero, state)
        rows.append(np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(made)]))
    return np.array(rows)


def found(name: str, mesh: Mesh) -> dict[str, Any]:
    """Compare one device with eight."""
    made = handmade(strategies(N)[name])
    scale = calibrate(made.sensitivity, PrivacyTarget(mu=1.0))
    noise = correlated_noise(made, scale, seed=3 << 64)
    zero = {key: jnp.zeros(shape, jnp.float32) for key, shape in SHAPES.items()}
    alone = drawn(jax.jit(noise.update), zero, noise.init(zero))
    spread = jax.device_put(zero, {key: NamedSharding(mesh, spec) for key, spec in SPECS.items()})
    noise.close()  # two layouts of one noise are compared bit by bit
    state = noise.init(spread)
    update = jax.jit(noise.update).lower(spread, state).compile()  # once: a call of the jitted function compiles again
    program = update.as_text()
    kept = {key: P(None, *spec) for key, spec in SPECS.items()} if state.buffers else ()
    specs = (SPECS, NoiseState(P(), kept, P()))

    def mapped(transformation: Any) -> Any:
        return jax.jit(
            jax.shard_map(transformation.update, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)
        )

    try:
        mapped(noise)(spread, state)
        refusal = "not refused"
    except InvalidParameter as reason:
        refusal = str(reason)
    same = bool(np.array_equal(alone, drawn(update, spread, state)))
    noise.close()
    own = correlated_noise(made, scale, seed=3 << 64, specs=SPECS)
    in_shards = mapped(own).lower(spread, state).compile()
    mapped_rows = drawn(in_shards, spread, state)
    own.close()

    def whole(text: str) -> list[str]:
        return [key for key in ("w", "b", "c") if f"f32[{','.join(map(str, SHAPES[key]))}]" in text]

    return {
        "same bits": same,
        "collectives": EXCHANGED.findall(program),
        "whole leaves": [*whole(program), *whole(in_shards.as_text())],
        "buffers": [int(max(s.data.size for s in leaf.addressable_shards)) for leaf in jax.tree.leaves(state.buffers)],
        "mapped": float(np.abs(alone - mapped_rows).max()),
        "spread": float(alone.std()),
        "refusal": refusal,
    }


def trained(mesh: Mesh | None) -> np.ndarray:
    """Return weights after N steps of a job in a jitted loop, on one device or with data and weights on all."""
    x, y = np.random.default_rng(0).normal(size=(8 * N, 16)).astype(np.float32), np.arange(8.0 * N, dtype=np.float32)
    weights = jnp.full((16, 2), 0.1)
    if mesh is not None:
        weights = jax.device_put(weights, NamedSharding(mesh, P("data", "model")))
        x, y = (jax.device_put(each, NamedSharding(mesh, P("data"))) for each in (x, y))
    noise, batches, _, gradients = make_private(
        handmade(strategies(N)["buffered"]),
        loss=lambda w, x, y: jnp.square((x @ w).sum(1) - y).mean(),
        examples=8 * N,
        epsilon=4.0,
        delta=1e-2,
        epochs=1,
        batch_size=8,
        physical_batch_size=4,
        seed=5 << 64,
    )

    @jax.jit
    def step(weights: Any, state: Any, indices: Any, mask: Any) -> Any:
        released, state = noise.update(gradients(weights, (x, y), indices, mask), state)
        return weights - 0.1 * released, state

    state = noise.init(weights)
    for indices, mask in batches:
        weights, state = step(weights, state, indices, mask)
    noise.close()
    return np.asarray(weights)


def with_explicit_axes() -> dict[str, Any]:
    """Compare noise and a job on one device with those on a mesh as `jax.make_mesh` makes it."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    made = handmade(strategies(N)["buffered"])
    noise = correlated_noise(made, calibrate(made.sensitivity, PrivacyTarget(mu=1.0)), seed=3 << 64)
    zero = {key: jnp.zeros(shape, jnp.float32) for key, shape in SHAPES.items()}
    found = []
    for given in (zero, {key: jax.device_put(zero[key], NamedSharding(mesh, spec)) for key, spec in SPECS.items()}):
        state = noise.init(given)
        update = jax.jit(noise.update).lower(given, state).compile()
        found.append(drawn(update, given, state))
        noise.close()
    off = float(np.abs(trained(None) - trained(mesh)).max())
    return {"same bits": bool(np.array_equal(*found)), "collectives": EXCHANGED.findall(update.as_text()), "job": off}


def of_sums_that_differ(mesh: Mesh) -> list[str]:
    """Return how sums are refused that nobody added up over the devices, and a shard_map without jit."""
    made, said = handmade(strategies(N)["dense"]), []
    noise = correlated_noise(made, calibrate(made.sensitivity, PrivacyTarget(mu=1.0)), seed=7 << 64, specs=P())
    mapped = jax.shard_map(noise.update, mesh=mesh, in_specs=(P("data"), P()), out_specs=P(), check_vma=False)
    for update, sums in ((jax.jit(mapped), jnp.zeros(8)), (mapped, jnp.zeros(8)), (jax.jit(mapped), jnp.arange(8.0))):
        try:
            jax.block_until_ready(update(sums, noise.init(jnp.zeros(2))))
            said.append("not refused")
        except (InvalidParameter, jax.errors.JaxRuntimeError) as reason:
            said.append(str(reason))
    return said


if __name__ == "__main__":
    grid = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    kinds = {name: found(name, grid) for name in ("buffered", "redrawn", "dense")}
    explicit = with_explicit_axes()
    print(json.dumps({**kinds, "explicit": explicit, "differing": of_sums_that_differ(grid)}))
