"""A JAX job on several processes of two host devices each: a script that prints what one of them found."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"

import jax
import numpy as np
import optax
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from private_cases import EPOCHS, EXAMPLES, SIZE, factors

from factorize.adapters.jax_private import make_private
from factorize.errors import InvalidParameter
from factorize.solvers import solve
from factorize.training.receipt import Receipt

X = np.random.default_rng(0).normal(size=(EXAMPLES, 6)).astype(np.float32)
STEPS = 3


def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ weights).mean()


def refusal_of(act: Callable[[], object]) -> str:
    try:
        act()
    except InvalidParameter as reason:
        return str(reason)
    return "not refused"


def main(port: str, rank: int, world: int, folder: str) -> None:
    """Train on all devices of all processes, after a look at what a process is told that would train alone."""
    if world > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", world, rank)
    settings: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-5, "epochs": EPOCHS, "batch_size": SIZE}
    make = partial(make_private, factors(), loss=loss, examples=EXAMPLES, **settings)
    differing = refusal_of(lambda: make(seed=(2 << 100) + rank))
    made = make(seed=1 << 100)
    optimizer, local, batch = optax.chain(made.noise, optax.sgd(0.1)), jnp.zeros((6, 3)), next(iter(made.batches))
    alone = [refusal_of(lambda: optimizer.init(local)), refusal_of(lambda: made.gradients(local, (X,), *batch))]
    everywhere = NamedSharding(Mesh(np.array(jax.devices()), ("device",)), P())

    def spread(value: Any) -> jax.Array:
        array = np.asarray(value)
        return jax.make_array_from_callback(array.shape, everywhere, lambda part: array[part])

    @jax.jit
    def step(weights: jax.Array, state: Any, x: jax.Array, indices: jax.Array, mask: jax.Array) -> Any:
        updates, state = optimizer.update(made.gradients(weights, (x,), indices, mask), state)
        return optax.apply_updates(weights, updates), state

    weights, x = spread(local), spread(X)
    state = optimizer.init(weights)
    for passes in (1, 2):  # the second begins with the batch that the first has drawn and not used
        for indices, mask in made.batches:
            if made.batches.step > passes * STEPS:
                break
            weights, state = step(weights, state, x, spread(indices), spread(mask))
            jax.block_until_ready(weights)
    told = refusal_of(made.batches.state_dict)
    receipt = Receipt(f"{folder}/receipt.json")
    job = {**settings, "loss": loss, "examples": EXAMPLES, "seed": 3 << 100, "solve": solve, "receipt": receipt}
    kept = [refusal_of(lambda: make_private("auto", **job)), refusal_of(lambda: receipt.close({"weights": local}))]
    found = np.asarray(weights.addressable_data(0)).ravel().tolist()
    about = {"alone": alone, "differing": differing, "state": told, "receipt": kept}
    print(json.dumps({**about, "weights": found, "devices": jax.device_count()}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
