"""The law of the noise in torch and JAX: what they really make is at least as private as it was calibrated.

As in test_client_law.py: normals are replaced by unit vectors, the matrix that comes out is inverted, and the exact checker
bounds the sensitivity of the inverse. The noise is calibrated for mu = 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch
from client_law import PARTICIPATIONS, N, impulse_rows, real_mu
from handmade import Handmade, handmade
from jax import numpy as jnp
from structure_cases import NAMES, strategies

from factorize import parse_spec
from factorize.adapters import jax as jax_adapter
from factorize.adapters import torch_engine
from factorize.adapters.jax import correlated_noise, noising_matrix, raised_sigma_of_sums
from factorize.adapters.torch import NoiseGenerator
from factorize.factors.sensitivity import sensitivity_of
from factorize.noise.allowances import raised
from factorize.noise.recurrences.state_rounding import SINGLE
from factorize.noise.source import Streamable, noise_source
from factorize.privacy import Calibration, PrivacyTarget, calibrate

CASES = [
    pytest.mark.parametrize("precision", ["float32", "float64"]),
    pytest.mark.parametrize("participation", PARTICIPATIONS, ids=lambda p: p["kind"]),
    pytest.mark.parametrize("name", NAMES),
]


def cases(test: Any) -> Any:
    for mark in CASES:
        test = mark(test)
    return test


def in_turn(test: Any) -> Any:
    """Every strategy at either precision, each with the next participation: JAX compiles anew for each."""
    places = itertools.product(NAMES, ["float32", "float64"])
    rows = [(name, PARTICIPATIONS[turn % 3], precision) for turn, (name, precision) in enumerate(places)]
    return pytest.mark.parametrize(
        ("name", "participation", "precision"),
        rows,
        ids=lambda value: value["kind"] if isinstance(value, dict) else value,
    )(test)


@pytest.fixture
def precise(precision: str) -> Iterator[None]:
    """JAX's float64, for what is to be made in it."""
    jax.config.update("jax_enable_x64", precision == "float64")
    yield
    jax.config.update("jax_enable_x64", False)


def calibrated(name: str, participation: dict[str, Any]) -> tuple[Handmade, Calibration]:
    """A strategy with its true sensitivity, and the noise for mu = 1."""
    strategy = strategies(N)[name]
    spec = parse_spec({"workload": {"kind": "prefix", "n": N}, "participation": participation})
    found = sensitivity_of(strategy, spec.participation)
    made = handmade(strategy, found.participation, value=found.value)
    return made, calibrate(made.sensitivity, PrivacyTarget(mu=1.0))


def source_of(made: Handmade) -> Any:
    return noise_source(made.strategy.structure, made.strategy.tensors(), N, made.digest)


class TorchImpulses:
    """Normals of torch of which coordinate i is 1 at step i, and 0 at every other step."""

    block, key = 1 << 16, b""

    def fill(self, out: torch.Tensor, step: int, block: int, scale: float = 1.0) -> None:
        """Fill one block; there is only one."""
        assert block == 0 and scale == 1.0
        out.zero_()
        out[step] = 1


def torch_rows(generator: NoiseGenerator) -> np.ndarray:
    """Return the rows before they are rounded to float32; and see that they are these rows, rounded once."""
    if generator.generator != "torch":
        return impulse_rows(generator._made, N)
    source, rows = generator._made, torch.empty((N, N), dtype=torch.float64)
    narrow, source._flat = source._flat, torch.empty(N, dtype=torch.float64)
    for step in range(N):
        rows[step] = source.next()
    source.close()  # these rows were released to nobody
    source.restore(0, None)
    source._flat = narrow
    for step in range(N):
        assert torch.equal(source.next(), rows[step].float()), step
    return rows.numpy()


def whitened(made: Handmade, rows: np.ndarray, sigma: float) -> float:
    """Return how far the noise is from sigma C^-1 Z, as what is left of Z."""
    return float(np.abs(made.strategy.dense() @ rows / sigma - np.eye(N)).max())


@cases
def test_torch(name: str, participation: dict[str, Any], precision: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch_engine, "device_normals", lambda seed, context, device: TorchImpulses())
    made, scale = calibrated(name, participation)
    generator: Any = "torch" if isinstance(source_of(made), Streamable) else "sfc64"
    noise = NoiseGenerator(made, scale, [torch.zeros(N)], seed=1 << 64, precision=precision, generator=generator)
    assert noise.sigma == raised(scale.sigma_of_sums, noise.allowance) and SINGLE <= noise.allowance < 3e-5
    rows = torch_rows(noise)
    assert real_mu(rows, made.strategy, scale, noise.sigma) <= 1
    assert whitened(made, rows, noise.sigma) < (1e-6 if precision == "float32" else 1e-7)


def unit_vectors(key: jax.Array, step: Any, leaf: int, like: jax.Array, kind: np.dtype, spec: Any = None) -> jax.Array:
    """In place of JAX's normals: 1 at entry `step`."""
    return (jnp.arange(like.size) == step).astype(kind)


@in_turn
def test_jax(name: str, participation: dict[str, Any], precision: Any, precise: None, monkeypatch: pytest.MonkeyPatch):
    made, scale = calibrated(name, participation)
    monkeypatch.setattr(jax_adapter, "normals", unit_vectors)
    noise = correlated_noise(made, scale, seed=1 << 64, dtype=precision)
    update, zero = jax.jit(noise.update), jnp.zeros(N, precision)
    state, drawn = noise.init(zero), []
    for _ in range(N):
        row, state = update(zero, state)
        drawn.append(np.asarray(row, dtype=np.float64))
    rows, source = np.stack(drawn), source_of(made)
    if isinstance(source, Streamable):
        sigma = raised_sigma_of_sums(made, scale, dtype=precision)
    else:
        inverse = jax_adapter._inverse(source)
        sigma = raised(scale.sigma_of_sums, jax_adapter._rows_allowance(inverse, np.dtype(precision)))
    assert scale.sigma_of_sums < sigma < 1.001 * scale.sigma_of_sums
    assert real_mu(rows, made.strategy, scale, sigma) <= 1
    assert whitened(made, rows, sigma) < (1e-6 if precision == "float32" else 1e-13)


@in_turn
def test_jax_privacy(name: str, participation: dict[str, Any], precision: Any, precise: None):
    """Whoever multiplies Z by the matrix that is handed over."""
    if name == "redrawn":
        return  # refused, see test_jax_noise.py
    made, scale = calibrated(name, participation)
    sigma = raised_sigma_of_sums(made, scale, dtype=precision)
    rows = np.asarray(noising_matrix(made, dtype=precision) @ (sigma * jnp.eye(N, dtype=precision)), dtype=np.float64)
    assert real_mu(rows, made.strategy, scale, sigma) <= 1
    assert whitened(made, rows, sigma) < (1e-6 if precision == "float32" else 1e-13)
