"""Correlated noise in JAX: C^-1 as jax_privacy takes it, and an optax transformation: `pip install 'factorize[jax]'`.

JAX reads float64 as float32 unless `jax_enable_x64` is set, and says nothing. Here what is asked for in float64 is
refused where JAX would round it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import optax
from jax import numpy as jnp

from factorize.adapters.coefficients import PlanTable, plan_table
from factorize.adapters.jax_table import SplitDouble, advance, normals, on_device, specs_of, zeros_beside
from factorize.client.allowances import check_allowance, raised, rounding_of
from factorize.client.noise_source import ComputedRows, Streamable, source_of
from factorize.client.normals import committed, keyed
from factorize.client.recurrences.state_rounding import DOUBLE, SINGLE
from factorize.errors import InvalidParameter, UnsupportedProblem
from factorize.format.factors import certified
from factorize.numbers.triangular import lower_inverse
from factorize.privacy import Calibration, check_own

Precision = Literal["float32", "float64"]
Row = Callable[[jax.Array, Callable[[Any], jax.Array], Any], tuple[jax.Array, Any]]
"""From a step, the normals of any step, and the state of a leaf to the row of sigma C^-1 Z and the next state."""


class NoiseState(NamedTuple):
    """What the transformation carries from step to step, and a checkpoint keeps; the seed is not in it.

    Attributes:
        step: whose noise comes next, int32.
        buffers: a leaf of shape (k, *leaf) for each leaf of the parameters; no state where C has no recurrence.
    """

    step: jax.Array
    buffers: Any


def correlated_noise(
    factors: Any, calibration: Calibration, *, seed: int, dtype: Precision = "float32", specs: Any = None
) -> optax.GradientTransformation:
    """Return the transformation that adds row t of C^-1 Z to the t-th sum of clipped gradients.

    Put it first: `optax.chain(correlated_noise(...), optax.sgd(rate))`. It takes sums, never means: where the
    calibration has a divisor it returns means, dividing after the noise. It may be jitted. The noise of step n and
    after is NaN under jit, an error outside of it.

    Args:
        factors: what `factorize.client.load` or `solvers.solve` gave.
        calibration: its own.
        seed: a secret integer, `secrets.randbits(128)`, never used for a second run of the same factorization; 64 bits
            of its hash are JAX's key.
        dtype: of noise, state and arithmetic; coefficients keep 48 bits in float32, as pairs of numbers. The result has
            the gradient's type, and no more digits than the noise.
        specs: PartitionSpecs of the gradients (a tree, or one for all leaves), where this is called inside shard_map.
            Under jit nothing is needed: buffers lie as the parameters that `init` gets, and each device makes its part.

    Raises:
        InvalidParameter: the calibration is of another factorization, JAX would read float64 as float32, or the
            roundings cannot be bounded (factorize/client/allowances.py): use float64. `update` raises it for gradients
            of float16 or bfloat16.
        TooLarge: the coefficients of a tree or of coupled states are too many.
    """
    held = certified(factors)
    check_own(calibration, held)
    kind = checked_dtype(dtype)
    key = _key(seed, held.digest)
    source = source_of(held)
    states: int | None
    if isinstance(source, Streamable):
        sigma = raised(calibration.sigma_of_sums, _allowance(source, calibration, kind))
        steps, states, row = _streamed(plan_table(source), sigma, kind)
    else:
        inverse = _inverse(source)
        sigma = raised(calibration.sigma_of_sums, _rows_allowance(inverse, kind))
        steps, states, row = len(inverse), None, _replayed(SplitDouble.of(inverse * sigma, kind), kind)

    def init(params: Any) -> NoiseState:
        buffers = jax.tree.map(lambda p: zeros_beside(states, p, kind), params) if states is not None else ()
        return NoiseState(jnp.array(0, jnp.int32), buffers)

    def update(updates: Any, state: NoiseState, params: Any = None) -> tuple[Any, NoiseState]:
        _refuse_past(state.step, steps)
        leaves, shape = jax.tree.flatten(updates)
        held = shape.flatten_up_to(state.buffers) if states is not None else [None] * len(leaves)
        noisy, kept = [], []
        for i, (leaf, buffers, spec) in enumerate(zip(leaves, held, specs_of(specs, updates), strict=True)):
            refuse_narrow(leaf)

            def normal(step: Any, own: tuple[int, jax.Array, np.dtype, Any] = (i, leaf, kind, spec)) -> jax.Array:
                return normals(key, step, *own)

            drawn, after = row(state.step, normal, buffers)
            noisy.append(_released(leaf, drawn, calibration.divisor or 1))
            kept.append(after)
        return shape.unflatten(noisy), NoiseState(state.step + 1, shape.unflatten(kept) if states is not None else ())

    return optax.GradientTransformation(init, update)


def noising_matrix(factors: Any, *, dtype: Precision = "float64") -> Any:
    """Return C^-1 for `jax_privacy`: a `StreamingMatrix` where C has a recurrence, else an array of shape (n, n).

    Over sums of clipped gradients its use is
    `matrix_factorization_privatizer(noising_matrix(factors), stddev=raised_sigma_of_sums(factors, calibration))`.
    Rows n and after are NaN in a `StreamingMatrix`; of an array jax_privacy repeats row n - 1, so do not go on there.

    Args:
        factors: what `factorize.client.load` or `solvers.solve` gave.
        dtype: of the numbers; float64 needs `jax_enable_x64`, float32 rounds C^-1 knowingly.

    Raises:
        InvalidParameter: JAX would read float64 as float32.
        UnsupportedProblem: the noise takes draws of earlier steps again.
        TooLarge: the coefficients of a tree or of coupled states are too many.
    """
    kind = checked_dtype(dtype)
    source = source_of(certified(factors))
    if not isinstance(source, Streamable):
        return jnp.asarray(_inverse(source), dtype=kind)
    if source.recurrence().redraws:
        raise UnsupportedProblem(
            "the noise of this C takes draws of earlier steps again, which jax_privacy's StreamingMatrix does not hand "
            "over; use correlated_noise, which draws for itself, or pass C^-1 as an array: factors.rows('C_inv', 0, n)",
            field="factors",
        )
    from jax_privacy.matrix_factorization.streaming_matrix import StreamingMatrix

    plan = plan_table(source)
    table, states = on_device(plan, kind), plan.reads.shape[1]

    def init(value: Any) -> tuple[jax.Array, jax.Array]:
        return jnp.array(0, jnp.int32), jnp.zeros((states, *value.shape), kind)

    def multiply(value: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        refuse_narrow(value)
        step, buffers = state
        x, buffers = advance(table, step, value.astype(kind), buffers)
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


def refuse_narrow(value: jax.Array) -> None:
    """Refuse sums of clipped gradients, or normals, that are rounded to fewer digits than float32 has.

    Raises:
        InvalidParameter: they are. Rounding before the noise is added raises the sensitivity.
    """
    if jnp.finfo(value.dtype).eps > jnp.finfo(np.float32).eps:
        raise InvalidParameter(
            f"the sum of clipped gradients (or its noise) is {value.dtype}, and rounding it before the noise is added "
            "raises its sensitivity; clip and sum in float32: clipped_grad(..., dtype=jnp.float32) in jax_privacy",
            field="dtype",
        )


def raised_sigma_of_sums(factors: Any, calibration: Calibration, *, dtype: Precision = "float64") -> float:
    """Return the standard deviation of Z that pays for the roundings, for whoever multiplies Z by `noising_matrix`.

    It is for sums of clipped gradients. Divide after the noise is added, or this by your own public divisor.

    Args:
        factors: what `factorize.client.load` or `solvers.solve` gave.
        calibration: its own.
        dtype: of the noising matrix and of what is done with it.

    Raises:
        InvalidParameter: the calibration is of another factorization, or the roundings cannot be bounded.
    """
    held = certified(factors)
    check_own(calibration, held)
    kind, source = checked_dtype(dtype), source_of(held)
    if isinstance(source, Streamable):
        return raised(calibration.sigma_of_sums, _allowance(source, calibration, kind))
    return raised(calibration.sigma_of_sums, _rows_allowance(_inverse(source), kind, terms=source.steps))


def _allowance(source: Streamable, calibration: Calibration, kind: np.dtype) -> float:
    """Of a recurrence: where there is no float64, every product of a pair rounds three times."""
    single = kind == np.float32
    recurrence, arithmetic = source.recurrence(), 3 * SINGLE if single else DOUBLE
    unit = SINGLE if single else DOUBLE
    allowance = rounding_of(recurrence, calibration, unit, 4 * unit, arithmetic)
    return check_allowance(allowance, str(kind))


def _rows_allowance(inverse: np.ndarray, kind: np.dtype, terms: int = 1) -> float:
    """Of a sum of rows: X off by e |X| makes C (I + C E)^-1, and |C E| is at most e times the norm of |C| |X|."""
    sizes, back = np.abs(inverse), np.abs(lower_inverse(inverse))
    norm = math.sqrt((back @ sizes.sum(axis=1)).max() * (back.sum(axis=0) @ sizes).max()) * 1.001
    unit = SINGLE if kind == np.float32 else DOUBLE
    off = (8 + terms) * unit * norm
    return check_allowance(math.inf if off >= 0.5 else 1 / (1 - off) / (1 - 4 * SINGLE) - 1, str(kind))


def _streamed(table: PlanTable[np.ndarray], sigma: float, kind: np.dtype) -> tuple[int, int, Row]:
    """Return n, the number of states, and what makes a row from them."""
    loads = table.loads * np.r_[1.0, np.full(table.takes.shape[1], sigma)]
    scaled = replace(table, gain=table.gain * sigma, takes=table.takes * sigma, loads=loads)
    there, again = on_device(scaled, kind), jnp.asarray(table.steps)

    def row(step: jax.Array, normal: Callable[[Any], jax.Array], buffers: Any) -> tuple[jax.Array, Any]:
        # where no earlier draw is taken again, one whose coefficients are 0
        earlier = [normal(again.at[step, m].get(mode="clip")) for m in range(again.shape[1])]
        return advance(there, step, normal(step), buffers, earlier)

    return table.reads.shape[0], table.reads.shape[1], row


def _replayed(rows: SplitDouble, kind: np.dtype) -> Row:
    """Return what draws all earlier rows of Z again in each step; what a sum loses is carried beside it."""

    def row(step: jax.Array, normal: Callable[[Any], jax.Array], buffers: Any) -> tuple[jax.Array, Any]:
        weights = rows.at(step)

        def add(s: jax.Array, sums: Any) -> Any:
            total, lost = sums
            term = weights.at(s).times(normal(s))
            fresh = total + term
            far = jnp.abs(total) >= jnp.abs(term)
            return fresh, lost + jnp.where(far, (total - fresh) + term, (term - fresh) + total)

        zero = jnp.zeros(jax.eval_shape(normal, step).shape, kind)
        last = jnp.minimum(step, len(rows.high) - 1) + 1
        total, lost = jax.lax.fori_loop(0, last, add, (zero, zero))
        return total + lost, None

    return row


def _released(leaf: jax.Array, drawn: jax.Array, divisor: int) -> jax.Array:
    """Return the sum, rounded to the digits of the noise (beyond them a gradient of float64 would show), divided."""
    return ((leaf + drawn).astype(drawn.dtype) / divisor).astype(leaf.dtype)


def _refuse_past(step: Any, steps: int) -> None:
    """Refuse step n where the step is known; under jit its noise is NaN."""
    if not isinstance(step, jax.core.Tracer) and int(step) >= steps:
        raise InvalidParameter(
            f"step {int(step) + 1} is past n={steps}: no sensitivity covers it; stop, or factor a larger n",
            field="step",
        )


def _inverse(source: ComputedRows) -> np.ndarray:
    return np.stack([source.make()(step) for step in range(source.steps)])


def noise_commitment(factors: Any, seed: int) -> str:
    """Return what tells the noise of a seed and a factorization from any other, in hex, and reveals nothing of it.

    Raises:
        InvalidParameter: the seed is no integer >= 0.
    """
    return committed(keyed("jax", seed, certified(factors).digest), b"")


def _key(seed: int, digest: str) -> jax.Array:
    hashed = np.frombuffer(keyed("jax", seed, digest)[:8], "<u4")
    return jax.random.wrap_key_data(jnp.asarray(hashed), impl="threefry2x32")
