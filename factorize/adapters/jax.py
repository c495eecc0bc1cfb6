"""Correlated noise in JAX: C^-1 as jax_privacy takes it, and an optax transformation: `pip install 'factorize[jax]'`.

JAX reads float64 as float32 unless `jax_enable_x64` is set, without a warning. Here float64 is refused if JAX would
round it.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import jax
import numpy as np
import optax
from jax import numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from factorize.adapters.coefficients import PlanTable, plan_table
from factorize.adapters.jax_arrays.jax_guard import StepGuard, checked_state, refuse_data, seal_of, sealed
from factorize.adapters.jax_arrays.jax_leaves import checked_dtype, real_leaves, refuse_unfit
from factorize.adapters.jax_arrays.jax_normals import normals
from factorize.adapters.jax_arrays.jax_processes import refuse_alone, refuse_other_noise
from factorize.adapters.jax_arrays.jax_table import (
    SplitDouble,
    advance,
    on_device,
    specs_of,
    whole_shape,
    with_auto_axes,
    zeros_beside,
)
from factorize.encoding import canonical_json
from factorize.errors import InvalidParameter, UnsupportedProblem
from factorize.format.manifest import CertifiedFactors, certified
from factorize.noise.allowances import check_allowance, raised, rounding_of
from factorize.noise.normals import committed, keyed
from factorize.noise.recurrences.state_rounding import DOUBLE, SINGLE
from factorize.noise.single_use import Secret
from factorize.noise.source import ComputedRows, Streamable, source_of
from factorize.numbers.triangular import lower_inverse
from factorize.privacy import Calibration, check_own
from factorize.training.auditor import Auditor

_COMMITTED_NUMBERS = 64
"""The numbers of z_0 from which a commitment is made."""
Precision = Literal["float32", "float64"]
Normal = Callable[[ArrayLike], jax.Array]
Buffers: TypeAlias = "jax.Array | None"
Row = Callable[[jax.Array, Normal, Buffers], tuple[jax.Array, Buffers]]
"""A function from a step, the normals of any step, and a leaf's state to the row of sigma C^-1 Z and the next state."""


class NoiseState(NamedTuple):
    """The state that the transformation carries from step to step, and a checkpoint keeps; the seed is not in it.

    Attributes:
        step: the step whose noise comes next, int32.
        buffers: a leaf of shape (k, *leaf) for each leaf of the parameters; no state where C has no recurrence.
        commitment: a hash of seed, factorization, scale and parameters, shape (8,), uint32; it reveals none of them.
            Its first number is raised by `seal_of` the step and the buffers, so that a state shows whether it was
            changed.
    """

    step: jax.Array
    buffers: optax.Updates
    commitment: jax.Array


class NoiseTransformation(Secret, optax.GradientTransformationExtraArgs):
    """A transformation of optax that makes noise: it is not copied, and only one per noise is alive in a process.

    It takes the extra arguments of others in its chain to refuse those that compute from the data without noise.
    """

    __slots__ = ()

    @classmethod
    def of(cls, maker: Any) -> Self:
        """Return the transformation of an object with the methods `init`, `update` and `close`."""
        return cls(maker.init, maker.update)

    def close(self) -> None:
        """Let another transformation make the same noise, or this one make it again; nobody may have seen it."""
        self.init.__self__.close()  # `of` was given this object


def correlated_noise(
    factors: object,
    calibration: Calibration,
    *,
    seed: int,
    dtype: Precision = "float32",
    specs: object = None,
    auditor: Auditor | Literal["not_looked_at"] | None = None,
) -> NoiseTransformation:
    """Return the transformation that adds row t of C^-1 Z to the t-th sum of clipped gradients.

    Put it first: `optax.chain(correlated_noise(...), optax.sgd(rate))`. It takes sums, never means: where the
    calibration has a divisor it returns means, dividing after the noise. It may be jitted. No step is taken twice, not
    under jit either: a state is used once. The noise of step n and after is refused.

    Args:
        factors: the result of `factorize.client.load` or `solvers.solve`.
        calibration: the calibration of these factors.
        seed: a secret integer, `secrets.randbits(128)`, never used for a second run of the same factorization; 64 bits
            of its hash are JAX's key.
        dtype: type of noise, state and arithmetic; coefficients keep 48 bits in float32, as pairs of numbers. The
            result has the gradient's type, and no more digits than the noise.
        specs: PartitionSpecs of the gradients (a tree, or one for all leaves), if this is called inside shard_map.
            Under jit none are needed: buffers lie as the parameters that `init` gets, and each device makes its part.
        auditor: the auditor that the loop tells of each batch before its update; see `factorize.client.NoiseGenerator`.
            Under jit the device is behind the loop, so a batch that got no noise is not noticed there (`make_private`
            does).

    Raises:
        InvalidParameter: the calibration is of another factorization, JAX would read float64 as float32, the roundings
            cannot be bounded (factorize/noise/allowances.py): use float64; or another transformation of this noise is
            alive. `update` raises it for gradients that are not real, of float16 or bfloat16, of other parameters than
            the state's or of a part of them, for the state of another run or one that was used before, and under vmap.
            Where only the running program can see it, JAX raises a JaxRuntimeError with the same sentence.
        TooLarge: the coefficients of a tree or of coupled states are too many.
    """
    held = check_own(calibration, factors)
    told = calibration.accept_auditor(auditor, held.steps)
    return NoiseTransformation.of(_CorrelatedNoise(held, calibration, seed, checked_dtype(dtype), specs, told))


class _CorrelatedNoise(Secret):
    """The noise of `correlated_noise`, whose arguments it takes."""

    def __init__(
        self,
        held: CertifiedFactors,
        calibration: Calibration,
        seed: int,
        kind: np.dtype,
        specs: Any,
        auditor: Auditor | None,
    ) -> None:
        self._key, self._kind, self._specs = _key(seed, held.digest), kind, specs
        self._divisor = calibration.divisor or 1
        source = source_of(held)
        self._states: int | None = None
        if isinstance(source, Streamable):
            sigma = raised(calibration.sigma_of_sums, _allowance(source, calibration, kind))
            steps, self._states, self._row = _streamed(plan_table(source), sigma, kind)
        else:
            inverse = _inverse(source)
            sigma = raised(calibration.sigma_of_sums, _rows_allowance(inverse, kind))
            steps, self._row = len(inverse), _replayed(SplitDouble.of(inverse * sigma, kind), kind)
        first = normals(self._key, 0, 0, jax.ShapeDtypeStruct((_COMMITTED_NUMBERS,), kind), kind)
        commitment = committed(keyed("jax", seed, held.digest), np.asarray(first).tobytes())
        self._stated = {"noise": commitment, "sigma": sigma.hex(), "dtype": str(kind)}
        refuse_other_noise(self._stated)
        self._guard = StepGuard(noise_commitment(held, seed), steps, auditor, calibration.clip_norm)
        self._drawn = jax.jit(self._draw, static_argnames="specs")  # one program, also for a loop that is not jitted

    def init(self, params: optax.Params) -> NoiseState:
        """Return the state before step 0."""
        own, states, step = self._commitment(params), self._states, jnp.array(0, jnp.int32)
        buffers = jax.tree.map(lambda p: zeros_beside(states, p, self._kind), params) if states is not None else ()
        return NoiseState(step, buffers, sealed(own, seal_of(step, buffers)))

    def update(
        self, updates: optax.Updates, state: NoiseState, params: optax.Params | None = None, **others: object
    ) -> tuple[optax.Updates, NoiseState]:
        """Return sums with the noise of the state's step, divided, and the next state."""
        refuse_data(others)
        checked_state(state, NoiseState)
        own, seal = self._commitment(updates), seal_of(state.step, state.buffers)
        for leaf in jax.tree.leaves(updates):
            refuse_unfit(leaf)
        specs = tuple(specs_of(self._specs, updates))
        updates, step = self._guard.take(updates, state.step, state.commitment, own, seal, specs)
        # 32 bits have no 64 leading zeros, so this adds 0. It makes XLA read what the seal is of before the buffers are
        # written, which it would copy otherwise.
        step = step + (jax.lax.clz(seal) >> 6).astype(step.dtype)
        leaves, shape = jax.tree.flatten(jax.tree.map(jnp.asarray, updates))
        streams = self._states is not None
        try:
            held = shape.flatten_up_to(state.buffers) if streams else [None] * len(leaves)
        except ValueError as reason:
            message = f"the gradients do not match the parameters that init was given: {str(reason)[:200]}"
            raise InvalidParameter(message, field="parameters") from None
        draw = partial(self._drawn, specs=specs)
        noisy, kept = with_auto_axes(draw, step, leaves, held, lies_as=(leaves, held))
        after = shape.unflatten(kept) if streams else ()
        return shape.unflatten(noisy), NoiseState(step + 1, after, sealed(own, seal_of(step + 1, after)))

    def _draw(
        self,
        step: jax.Array,
        leaves: Sequence[jax.Array],
        held: Sequence[Buffers],
        *,
        specs: Sequence[PartitionSpec | None],
    ) -> tuple[list[jax.Array], list[Buffers]]:
        """Return each leaf with its noise, and its buffers after the step."""
        noisy, kept = [], []
        for i, (leaf, buffers, spec) in enumerate(zip(leaves, held, specs, strict=True)):
            normal = partial(normals, self._key, leaf=i, like=leaf, kind=self._kind, spec=spec)
            drawn, after = self._row(step, normal, buffers)
            noisy.append(_released(leaf, drawn, self._divisor))
            kept.append(after)
        return noisy, kept

    def close(self) -> None:
        """Let another transformation make the same noise."""
        self._guard.close()

    def _commitment(self, tree: optax.Params) -> np.ndarray:
        """Return a name of noise and parameters, shape (8,), uint32.

        Raises:
            InvalidParameter: see `real_leaves` and `refuse_alone`.
        """
        named = real_leaves(tree)
        refuse_alone(tree, "parameters")
        shapes = [whole_shape(leaf, spec) for (_, leaf), spec in zip(named, specs_of(self._specs, tree), strict=True)]
        about = {name: shape for (name, _), shape in zip(named, shapes, strict=True)}
        return np.frombuffer(hashlib.sha256(canonical_json({**self._stated, "parameters": about})).digest(), "<u4")


def noising_matrix(factors: object, *, dtype: Precision = "float64") -> Any:
    """Return C^-1 for `jax_privacy`: a `StreamingMatrix` where C has a recurrence, else an array of shape (n, n).

    For sums of clipped gradients, use it as
    `matrix_factorization_privatizer(noising_matrix(factors), stddev=raised_sigma_of_sums(factors, calibration))`.
    Rows n and after are NaN in a `StreamingMatrix`; of an array jax_privacy repeats row n - 1, so do not go on there.

    Args:
        factors: the result of `factorize.client.load` or `solvers.solve`.
        dtype: type of the numbers; float64 needs `jax_enable_x64`, float32 deliberately rounds C^-1.

    Raises:
        InvalidParameter: JAX would read float64 as float32.
        UnsupportedProblem: the noise draws again from earlier steps.
        TooLarge: the coefficients of a tree or of coupled states are too many.
    """
    kind = checked_dtype(dtype)
    source = source_of(certified(factors))
    if not isinstance(source, Streamable):
        return jnp.asarray(_inverse(source), dtype=kind)
    if source.recurrence().redraws:
        raise UnsupportedProblem(
            "the noise of this C draws again from earlier steps, which jax_privacy's StreamingMatrix does not "
            "support; use correlated_noise, or pass C^-1 as an array: factors.rows('C_inv', 0, n)",
            field="factors",
        )
    from jax_privacy.matrix_factorization.streaming_matrix import StreamingMatrix

    plan = plan_table(source)
    table, states = on_device(plan, kind), plan.reads.shape[1]

    def init(value: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.array(0, jnp.int32), jnp.zeros((states, *value.shape), kind)

    def multiply(value: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        refuse_unfit(value)
        step, buffers = state
        x, buffers = advance(table, step, value.astype(kind), buffers)
        return x, (step + 1, buffers)

    return StreamingMatrix.from_array_implementation(init, multiply)


def raised_sigma_of_sums(
    factors: object,
    calibration: Calibration,
    *,
    dtype: Precision = "float64",
    auditor: Auditor | Literal["not_looked_at"] | None = None,
) -> float:
    """Return the standard deviation of Z that pays for the roundings, for code that multiplies Z by `noising_matrix`.

    It is for sums of clipped gradients. Divide after the noise is added, or this by your own public divisor.

    Args:
        factors: the result of `factorize.client.load` or `solvers.solve`.
        calibration: the calibration of these factors.
        dtype: type of the noising matrix and of the arithmetic with it.
        auditor: the auditor of the job's batches, which your loop asks before each release (`check_release`): noise
            that another library draws asks no auditor. See `factorize.client.NoiseGenerator`.

    Raises:
        InvalidParameter: the calibration is of another factorization, it relies on sampling without an auditor of the
            batches, or the roundings cannot be bounded.
    """
    held = check_own(calibration, factors)
    _told = calibration.accept_auditor(auditor, held.steps)
    kind, source = checked_dtype(dtype), source_of(held)
    if isinstance(source, Streamable):
        return raised(calibration.sigma_of_sums, _allowance(source, calibration, kind))
    return raised(calibration.sigma_of_sums, _rows_allowance(_inverse(source), kind, terms=source.steps))


def _allowance(source: Streamable, calibration: Calibration, kind: np.dtype) -> float:
    """Return the allowance of a recurrence: without float64, every product of a pair rounds three times."""
    single = kind == np.float32
    recurrence, arithmetic = source.recurrence(), 3 * SINGLE if single else DOUBLE
    unit = SINGLE if single else DOUBLE
    allowance = rounding_of(recurrence, calibration, unit, 4 * unit, arithmetic)
    return check_allowance(allowance, str(kind))


def _rows_allowance(inverse: np.ndarray, kind: np.dtype, terms: int = 1) -> float:
    """Return that of a sum of rows: X off by e |X| makes C (I + C E)^-1, |C E| at most e times the norm of |C| |X|."""
    sizes, back = np.abs(inverse), np.abs(lower_inverse(inverse))
    norm = math.sqrt((back @ sizes.sum(axis=1)).max() * (back.sum(axis=0) @ sizes).max()) * 1.001
    unit = SINGLE if kind == np.float32 else DOUBLE
    off = (8 + terms) * unit * norm
    return check_allowance(math.inf if off >= 0.5 else 1 / (1 - off) / (1 - 4 * SINGLE) - 1, str(kind))


def _streamed(table: PlanTable[np.ndarray], sigma: float, kind: np.dtype) -> tuple[int, int, Row]:
    """Return n, the number of states, and the function that makes a row from them."""
    loads = table.loads * np.r_[1.0, np.full(table.takes.shape[1], sigma)]
    scaled = replace(table, gain=table.gain * sigma, takes=table.takes * sigma, loads=loads)
    there, again = on_device(scaled, kind), jnp.asarray(table.steps)

    def row(step: jax.Array, normal: Normal, buffers: Buffers) -> tuple[jax.Array, Buffers]:
        # Where no earlier draw is taken again, the table has one whose coefficients are 0.
        earlier = [normal(again.at[step, m].get(mode="clip")) for m in range(again.shape[1])]
        return advance(there, step, normal(step), buffers, earlier)

    return table.reads.shape[0], table.reads.shape[1], row


def _replayed(rows: SplitDouble, kind: np.dtype) -> Row:
    """Return the function that draws all earlier rows of Z again in each step; it carries roundings of sums, too."""

    def row(step: jax.Array, normal: Normal, buffers: Buffers) -> tuple[jax.Array, Buffers]:
        weights = rows.at(step)

        def add(s: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
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
    """Return the sum, rounded to the digits of the noise (further digits would show a gradient of float64), divided."""
    return ((leaf + drawn).astype(drawn.dtype) / divisor).astype(leaf.dtype)


def _inverse(source: ComputedRows) -> np.ndarray:
    return np.stack([source.make()(step) for step in range(source.steps)])


def noise_commitment(factors: object, seed: int) -> str:
    """Return a hash that tells the noise of a seed and a factorization from any other and reveals nothing of it.

    Raises:
        InvalidParameter: the seed is no integer >= 0.
    """
    return committed(keyed("jax", seed, certified(factors).digest), b"")


def _key(seed: int, digest: str) -> jax.Array:
    hashed = np.frombuffer(keyed("jax", seed, digest)[:8], "<u4")
    return jnp.asarray(hashed)
