"""Noise of `correlated_noise` in JAX under jit, beside jax_privacy's and beside the normals alone.

    python -m benchmarks.jax_noise

Processor seconds of this process, the median of seven updates after two, each library's in turn; the environment of
`make test-frameworks` has both. XLA takes all cores that it may have: bind the process to one (`taskset -c 0`).
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import numpy as jnp
from jax_privacy.matrix_factorization import toeplitz
from jax_privacy.noise_addition import matrix_factorization_privatizer

from factorize import parse_spec
from factorize.adapters.jax import correlated_noise
from factorize.solvers import solve

STEPS, BANDS, TURNS = 32, 16, 9


def stepper(update: Callable[..., Any], state: Any, size: int, *, donated: bool) -> Callable[[], None]:
    """Return a call that takes the next update of zeros."""
    compiled = jax.jit(update, donate_argnums=(1,) if donated else ())
    held = {"state": state, "zeros": jnp.zeros(size, jnp.float32)}

    def step() -> None:
        row, held["state"] = jax.block_until_ready(compiled(held["zeros"], held["state"]))
        assert row.dtype == jnp.float32

    return step


def measured(size: int) -> dict[str, float]:
    """Return seconds by what is done."""
    mechanism = {"kind": "banded_square_root", "bands": BANDS}
    factors = solve(parse_spec({"workload": {"kind": "prefix", "n": STEPS}, "mechanism": mechanism}))
    scale, zeros, calls = factors.calibrate(mu=1.0), jnp.zeros(size, jnp.float32), {}
    for name, donated in (("correlated_noise", True), ("correlated_noise, state copied", False)):
        noise = correlated_noise(factors, scale, seed=secrets.randbits(128))
        calls[name] = stepper(noise.update, noise.init(zeros), size, donated=donated)
    coefficients = jnp.asarray(factors.strategy.finite().dense()[:BANDS, 0], jnp.float32)
    peer = matrix_factorization_privatizer(
        toeplitz.inverse_as_streaming_matrix(coefficients), stddev=1.0, prng_key=jax.random.key(1)
    )
    calls["jax_privacy"] = stepper(peer.update, peer.init(zeros), size, donated=True)
    draw, keys = jax.jit(lambda key: jax.random.normal(key, (size,), jnp.float32)), iter(range(TURNS))
    calls["normals alone"] = lambda: jax.block_until_ready(draw(jax.random.key(next(keys))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            began = time.process_time()
            call()
            times[name].append(time.process_time() - began)
    return {name: statistics.median(each[2:]) for name, each in times.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each size."""
    parser = argparse.ArgumentParser(description="Noise in JAX beside jax_privacy's.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**6, 10**7])
    for size in parser.parse_args(arguments).sizes:
        found = measured(size)
        print(f"{size} numbers, {BANDS} bands, float32: {', '.join(f'{name} {s:.3f} s' for name, s in found.items())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
