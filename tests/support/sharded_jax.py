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
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from structure_cases import strategies

from factorize.adapters.jax import NoiseState, correlated_noise
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
    own = mapped(correlated_noise(made, scale, seed=3 << 64, specs=SPECS))
    return {
        "same bits": same,
        "collectives": EXCHANGED.findall(program),
        "whole leaves": [key for key in ("w", "b", "c") if f"f32[{','.join(map(str, SHAPES[key]))}]" in program],
        "buffers": [int(max(s.data.size for s in leaf.addressable_shards)) for leaf in jax.tree.leaves(state.buffers)],
        "mapped": float(np.abs(alone - drawn(own, spread, state)).max()),
        "spread": float(alone.std()),
        "refusal": refusal,
    }


if __name__ == "__main__":
    grid = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    print(json.dumps({name: found(name, grid) for name in ("buffered", "redrawn", "dense")}))
