"""Correlated noise in JAX: C^-1 as jax_privacy takes it, and an optax transformation: `pip install 'factorize[jax]'`.

JAX reads float64 as float32 unless `jax_enable_x64` is set, and says nothing. Here what is asked for in float64 is
refused where JAX would round it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import optax
from jax import numpy as jnp

from factorize.adapters.coefficients import PlanTable
from factorize.adapters.factors import Held
from factorize.client.engines import RowSource
from factorize.client.structures import Streamable
from factorize.errors import InvalidParameter, UnsupportedProblem
from factorize.privacy import Calibration

Precision = Literal["float32", "float64"]


class NoiseState(NamedTuple):
    """What the transformation carries from step to step, and a checkpoint keeps; the seed is not in it.

    Attributes:
        step: whose noise comes next, int32.
        buffers: a leaf of shape (k, *leaf) for each leaf of the parameters; no state where C has no recurrence.
    """

    step: jax.Array
    buffers: Any


def correlated_noise(
    factors: Any, calibration: Calibration, *, seed: int, dtype: Precision = "float32"
) -> optax.GradientTransformation:
    """Return the transformation that adds row t of C^-1 Z to the t-th gradient.

    Put it first: `optax.chain(correlated_noise(...), optax.sgd(rate))`, over sums of clipped gradients, or means with
    the calibration's divisor. It may be jitted. The noise of step n and after is NaN under jit, an error outside of it.

    Args:
        factors: what `factorize.client.load` or `solvers.solve` gave.
        calibration: its own.
        seed: a secret integer, `secrets.randbits(128)`, never used for a second run of the same factorization; 64 bits
            of its hash are JAX's key.
        dtype: of noise, state and coefficients; the result has the gradient's.

    Raises:
        InvalidParameter: the calibration is of another factorization, or JAX would read float64 as float32.
        TooLarge: the coefficients of a tree or of coupled states are too many.
    """
    held = Held(factors)
    held.check(calibration)
    kind = checked_dtype(dtype)
    key = _key(seed, held.digest)
    source = held.source()
    if isinstance(source, Streamable):
        return _streaming(PlanTable.of(source), key, calibration.sigma, kind)
    return _replaying(_inverse(source), key, calibration.sigma, kind)


def noising_matrix(factors: Any, *, dtype: Precision = "float64") -> Any:
    """Return C^-1 for `jax_privacy`: a `StreamingMatrix` where C has a recurrence, else an array of shape (n, n).

    `matrix_factorization_privatizer(noising_matrix(factors), stddev=calibration.sigma)` is its use. Rows n and after
    are NaN in a `StreamingMatrix`; of an array jax_privacy repeats row n - 1, so do not go on there.

    Args:
        factors: what `factorize.client.load` or `solvers.solve` gave.
        dtype: of the numbers; float64 needs `jax_enable_x64`, float32 rounds C^-1 knowingly.

    Raises:
        InvalidParameter: JAX would read float64 as float32.
        UnsupportedProblem: the noise takes draws of earlier steps again.
        TooLarge: the coefficients of a tree or of coupled states are too many.
    """
    kind = checked_dtype(dtype)
    source = Held(factors).source()
    if not isinstance(source, Streamable):
        return jnp.asarray(_inverse(source), dtype=kind)
    if source.recurrence(np.float64).redraws:
        raise UnsupportedProblem(
            "the noise of this C takes draws of earlier steps again, which jax_privacy's StreamingMatrix does not hand "
            "over; use correlated_noise, which draws for itself, or pass C^-1 as an array: factors.rows('C_inv', 0, n)",
            field="factors",
        )
    from jax_privacy.matrix_factorization.streaming_matrix import StreamingMatrix

    table = _on_device(PlanTable.of(source), kind)

    def init(value: Any) -> tuple[jax.Array, jax.Array]:
        return jnp.array(0, jnp.int32), jnp.zeros((table.reads.shape[1], *value.shape), kind)

    def multiply(value: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        step, buffers = state
        x, buffers = _advance(table, step, value.astype(kind), buffers)
        return x, (step + 1, buffers)

    return StreamingMatrix.from_array_implementation(init, multiply)


def checked_dtype(dtype: str) -> np.dtype:
    """Return a dtype that JAX will keep.

    Raises:
        InvalidParameter: another one, or float64 where JAX would silently use float32.
    """
    if dtype not in ("float32", "float64"):
        raise InvalidParameter(f"dtype {str(dtype)[:20]!r} is not float32 or float64", field="dtype")
    if dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise InvalidParameter(
            'JAX would read these float64 numbers as float32; call jax.config.update("jax_enable_x64", True) first, or '
            'accept numbers rounded to 24 bits with dtype="float32"',
            field="dtype",
        )
    return np.dtype(dtype)


def _streaming(table: PlanTable, key: jax.Array, sigma: float, kind: np.dtype) -> optax.GradientTransformation:
    steps = len(table.gain)
    loads = table.loads * np.r_[1.0, np.full(table.takes.shape[1], sigma)][: table.loads.shape[2]]
    scaled = replace(table, gain=table.gain * sigma, takes=table.takes * sigma, loads=loads)  # in float64
    table = _on_device(scaled, kind)

    def init(params: Any) -> NoiseState:
        buffers = jax.tree.map(lambda p: jnp.zeros((table.reads.shape[1], *p.shape), kind), params)
        return NoiseState(jnp.array(0, jnp.int32), buffers)

    def update(updates: Any, state: NoiseState, params: Any = None) -> tuple[Any, NoiseState]:
        _refuse_past(state.step, steps)
        leaves, shape = jax.tree.flatten(updates)
        noisy, kept = [], []
        for i, (leaf, buffers) in enumerate(zip(leaves, shape.flatten_up_to(state.buffers), strict=True)):
            z = _normal(key, state.step, i, leaf, kind)
            earlier = [_normal(key, step, i, leaf, kind) for step in _earlier(table, state.step)]
            drawn, buffers = _advance(table, state.step, z, buffers, earlier)
            noisy.append((leaf + drawn).astype(leaf.dtype))
            kept.append(buffers)
        return shape.unflatten(noisy), NoiseState(state.step + 1, shape.unflatten(kept))

    return optax.GradientTransformation(init, update)


def _replaying(inverse: np.ndarray, key: jax.Array, sigma: float, kind: np.dtype) -> optax.GradientTransformation:
    """Draw all earlier rows of Z again in each step; no state."""
    rows = jnp.asarray(inverse * sigma, dtype=kind)

    def update(updates: Any, state: NoiseState, params: Any = None) -> tuple[Any, NoiseState]:
        _refuse_past(state.step, len(rows))
        row = rows.at[state.step].get(mode="fill", fill_value=jnp.nan)
        leaves, shape = jax.tree.flatten(updates)
        noisy = []
        for i, leaf in enumerate(leaves):

            def add(s: jax.Array, total: jax.Array, i: int = i, leaf: jax.Array = leaf) -> jax.Array:
                return total + row[s] * _normal(key, s, i, leaf, kind)

            drawn = jax.lax.fori_loop(0, jnp.minimum(state.step, len(rows) - 1) + 1, add, jnp.zeros(leaf.shape, kind))
            noisy.append((leaf + drawn).astype(leaf.dtype))
        return shape.unflatten(noisy), NoiseState(state.step + 1, ())

    return optax.GradientTransformation(lambda _: NoiseState(jnp.array(0, jnp.int32), ()), update)


def _earlier(table: PlanTable, step: jax.Array) -> list[jax.Array]:
    """Return the steps whose draws this one takes again; where there is none, one whose coefficients are 0."""
    steps: Any = table.steps
    return [steps.at[step, m].get(mode="clip") for m in range(steps.shape[1])]


def _advance(
    table: PlanTable, step: jax.Array, z: jax.Array, state: jax.Array, earlier: Sequence[jax.Array] = ()
) -> tuple[jax.Array, jax.Array]:
    """Return row `step` of C^-1 Z and the next state, shapes z and (k, *z)."""

    def at(values: Any) -> jax.Array:
        return values.at[step].get(mode="fill", fill_value=jnp.nan)  # no row past n

    moves, ones = at(table.moves), (1,) * z.ndim
    u = at(table.gain) * z
    x = u - jnp.tensordot(at(table.reads), state, axes=1)
    kept = jnp.tensordot(moves, state, axes=1) if moves.ndim == 2 else moves.reshape(-1, *ones) * state
    if earlier:
        draws = jnp.stack([u, *earlier])
        return x + jnp.tensordot(at(table.takes), draws[1:], axes=1), kept + jnp.tensordot(at(table.loads), draws, 1)
    return x, kept + at(table.writes).reshape(-1, *ones) * x


def _normal(key: jax.Array, step: Any, leaf: int, like: jax.Array, kind: np.dtype) -> jax.Array:
    return jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, step), leaf), like.shape, kind)


def _refuse_past(step: Any, steps: int) -> None:
    """Refuse step n where the step is known; under jit its noise is NaN."""
    if not isinstance(step, jax.core.Tracer) and int(step) >= steps:
        raise InvalidParameter(
            f"step {int(step) + 1} is past n={steps}: no sensitivity covers it; stop, or factor a larger n",
            field="step",
        )


def _on_device(table: PlanTable, kind: np.dtype) -> PlanTable:
    parts = {name: jnp.asarray(part, dtype=kind) for name, part in vars(table).items() if name != "steps"}
    return PlanTable(**parts, steps=jnp.asarray(table.steps))


def _inverse(source: RowSource) -> np.ndarray:
    return np.stack(list(source.iterate()))


def _key(seed: int, digest: str) -> jax.Array:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InvalidParameter(f"seed={seed!r} is not an integer >= 0; draw secrets.randbits(128)", field="seed")
    secret = seed.to_bytes((seed.bit_length() + 7) // 8, "little")
    hashed = hashlib.sha512(hashlib.sha256(f"jax {digest}".encode()).digest() + secret).digest()
    return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(hashed[:8], "<u4")), impl="threefry2x32")
