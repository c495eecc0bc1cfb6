"""Steps of jax_privacy's streaming noise, with the clock; benchmarks/noise.py runs it in the environment of the peer.

    python noise_peer_script.py '{"size": 10000000, "rounds": 11, "decays": [...], "scales": [...]}'

Prints one JSON line. Nothing of ours is imported here. The state is given back to each step (donated), as a training
job would do, so that the peer writes in place.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz
from jax_privacy.noise_addition import matrix_factorization_privatizer


def steps(noising, size, rounds):
    """Return the seconds of each step after the two that compile."""
    privatizer = matrix_factorization_privatizer(noising, stddev=1.0, prng_key=jax.random.key(1))
    update = jax.jit(privatizer.update, donate_argnums=(0, 1))
    state = privatizer.init(jnp.zeros(size, jnp.float32))
    gradient = jnp.zeros(size, jnp.float32)
    times = []
    for _ in range(rounds + 2):
        began = time.perf_counter()
        gradient, state = jax.block_until_ready(update(gradient, state))
        times.append(time.perf_counter() - began)
    assert gradient.dtype == jnp.float32 and bool(jnp.isfinite(gradient).all())
    return times[2:]


def alone(size, rounds):
    """Return the seconds of drawing that many normals."""
    draw = jax.jit(lambda key: jax.random.normal(key, (size,), jnp.float32))
    times = []
    for i in range(rounds + 2):
        began = time.perf_counter()
        jax.block_until_ready(draw(jax.random.key(i)))
        times.append(time.perf_counter() - began)
    return times[2:]


def main(question):
    """Measure both structures that it streams."""
    jax.config.update("jax_enable_x64", True)  # the search for the inverse of a BLT asks for it
    size, rounds = question["size"], question["rounds"]
    blt = buffered_toeplitz.BufferedToeplitz.build(buf_decay=question["decays"], output_scale=question["scales"])
    single = jax.tree.map(lambda array: array.astype(jnp.float32), blt.inverse())
    coefficients = jnp.asarray(1 / np.arange(1, 7), jnp.float32)
    noise = {
        "blt, 6 buffers": steps(single.as_streaming_matrix(), size, rounds),
        "banded, 6 bands": steps(toeplitz.inverse_as_streaming_matrix(coefficients), size, rounds),
    }
    answer = {
        "noise": noise,
        "alone": alone(size, rounds),
        "version": version("jax_privacy"),
        "jax": version("jax"),
        "device": str(jax.devices()[0]),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
