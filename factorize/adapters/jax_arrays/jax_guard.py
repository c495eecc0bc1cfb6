"""Guards of a noise in JAX: each step is taken once, by the run that owns the state, with the sums of its batch.

A state of JAX is a value: `update` may be called with it twice, `vmap` gives many members one step, and a program that
was traced once runs for ever. Whatever shows in the tracing is refused there; the rest is checked on the host when the
program runs, and a refusal stops it.
"""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import jax
import numpy as np
import optax
from jax import numpy as jnp
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from factorize.adapters.jax_arrays.jax_hashes import hash_bits
from factorize.adapters.jax_arrays.jax_programs import is_traced
from factorize.adapters.jax_arrays.jax_table import manual_axes, place_of, replica_axes, with_auto_axes
from factorize.errors import InvalidParameter
from factorize.noise.single_use import NoiseUse
from factorize.privacy import refuse_infinite
from factorize.training.auditor import Auditor


class StepGuard:
    """The guard of one noise's use by one transformation.

    Args:
        commitment: hash of seed and factorization.
        steps: n.
        auditor: auditor of the job's batches, or None.
        clip_norm: bound on the norm of one contribution to a sum.

    Raises:
        InvalidParameter: another transformation of this noise is alive.
    """

    def __init__(self, commitment: str, steps: int, auditor: Auditor | None, clip_norm: float) -> None:
        self._use, self._noise, self._steps = NoiseUse(commitment), commitment, steps
        self._auditor, self._clip_norm = auditor, clip_norm

    def take(
        self,
        updates: optax.Updates,
        step: jax.Array,
        commitment: jax.Array,
        own: np.ndarray,
        seal: jax.Array,
        specs: Sequence[PartitionSpec | None],
    ) -> tuple[optax.Updates, jax.Array]:
        """Return updates and step, if the step is the next one of this run; call it for each of them.

        Args:
            updates: a tree.
            step: step of the state.
            commitment: commitment of the state.
            own: the commitment that the state must have, before it is sealed.
            seal: the seal of the state.
            specs: PartitionSpec of each leaf inside shard_map, None outside.

        Raises:
            InvalidParameter: vmap; or, where their values are known, a step that was taken, another run's state, one
                that was changed, or updates that are not finite, or not the same on all devices that hold them.
            InvalidParticipation: the auditor has recorded another step, or a batch that has no such sum.
        """
        updates, step, commitment = _refuse_vmap((updates, step, commitment))
        leaves = jax.tree.leaves(updates)
        finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()
        norm = jnp.sqrt(jnp.stack([jnp.square(leaf).sum() for leaf in leaves]).sum()) if self._auditor else 0.0
        if not any(map(is_traced, (step, commitment, finite, seal))):
            self._take(own, step, commitment, finite, seal, 0, norm, lags=False)
        elif type(finite).__name__ == "ShardMapTracer":
            raise InvalidParameter(
                "this shard_map runs without jit, where JAX goes on after a device's refusal; put jax.jit around it",
                field="updates",
            )
        else:
            place = place_of(manual_axes())
            values = step, commitment, finite, seal, place, norm, _alike(leaves, specs)
            io_callback(lambda *values: self._take(own, *values), None, *values)
        return updates, step

    def close(self) -> None:
        """Let another transformation make the noise, or this one make it again."""
        self._use.close()

    def _take(
        self,
        own: np.ndarray,
        step: ArrayLike,
        commitment: ArrayLike,
        finite: ArrayLike,
        seal: ArrayLike,
        place: ArrayLike,
        norm: ArrayLike,
        alike: ArrayLike = True,
        *,
        lags: bool = True,
    ) -> None:
        refuse_infinite("sum", finite=bool(finite))
        if not alike:
            raise InvalidParameter(
                "by specs= the sums are whole on several devices, which hold different ones, so their differences "
                "would have no noise; add them up over the devices before: jax.lax.psum(sums, axis_name)",
                field="specs",
            )
        held = np.asarray(commitment)
        if not np.array_equal(held[1:], own[1:]):
            raise InvalidParameter(
                "the noise cannot continue from this state, which is of another seed, factorization, scale or dtype, "
                "or of other parameters; restore this run's own state, or begin with init(params)",
                field="commitment",
            )
        if int(step) >= self._steps:
            raise InvalidParameter(
                f"step {int(step) + 1} is past n={self._steps}, the last step covered; stop, or solve for a larger n",
                field="step",
            )
        if int(held[0]) not in (int(own[0]), (int(own[0]) + int(seal)) % 2**32):  # states of 0.1.0 have no seal
            raise InvalidParameter(
                f"the state of the noise at step {int(step)} was changed: its buffers or its step were averaged, reset "
                "or rounded, so that the noise of later steps would no longer cancel that of earlier ones; use the "
                "state that update returned, and average or reset only what comes after the noise in optax.chain",
                field="state",
            )
        if self._auditor is not None:
            self._auditor.check_release(int(step), float(norm), self._clip_norm, lags=lags, noise=self._noise)
        self._use.take(int(step), int(place))


def _alike(leaves: Sequence[jax.Array], specs: Sequence[PartitionSpec | None]) -> ArrayLike:
    """Return whether the devices that hold the same entries hold the same numbers, by hashes of their bits."""
    alike, held = jnp.array(True), [replica_axes(leaf, spec) for leaf, spec in zip(leaves, specs, strict=True)]
    for axes in {axes for axes in held if axes}:
        bits = hash_bits([leaf for leaf, own in zip(leaves, held, strict=True) if own == axes])
        largest = jax.lax.pmax(jnp.stack([bits, ~bits]), axes)
        alike &= largest[0] == ~largest[1]
    return alike


_RAW_ARGUMENTS = ("value", "grad", "loss")
"""Names under which optax's transformations take losses and gradients that have no noise, whatever their types."""
_KNOWN_WRAPPERS = frozenset(
    "chain named_chain partition multi_transform masked flatten with_extra_args_support split_real_and_imaginary "
    "inject_hyperparams inject_stateful_hyperparams schedule_free lookahead sam "
    "apply_if_finite conditionally_transform conditionally_mask maybe_update".split()
)
"""Transformations of optax around another one that use only what it returns, or show in the sums that they give it."""


def refuse_data(others: Mapping[str, object]) -> None:
    """Refuse what computes from the data beside a noise: extra arguments of optax, and what sees or changes the sums.

    Raises:
        InvalidParameter: an argument is a loss, a gradient without noise, or a function, such as `value_fn`; or a
            transformation of optax comes before the noise, or is around it and may use the sums that it hands on.
    """
    frame: FrameType | None = sys._getframe()  # only the calls on the way show what is around the noise
    while frame is not None:
        name = frame.f_code.co_qualname.split(".")[0]
        theirs = frame.f_globals.get("__name__", "").startswith("optax.")
        if theirs and name not in _KNOWN_WRAPPERS:
            raise InvalidParameter(
                f"optax's {name} is around the noise, and sees the sums of clipped gradients before they have noise "
                f"(mechanize computes its rate from them). Put it after the noise: optax.chain(noise, {name}(...))",
                field="updates",
            )
        if theirs and name.endswith("chain") and frame.f_locals.get("new_state"):
            raise InvalidParameter(
                "the noise is not first in optax.chain, so what comes before it changes the sums of clipped gradients "
                "(a momentum, Adam or a scale, say), and no sensitivity covers the result; put the noise first",
                field="updates",
            )
        frame = frame.f_back
    raw = [
        name
        for name, value in others.items()
        if name in _RAW_ARGUMENTS or callable(value) or any(map(_is_real, jax.tree.leaves(value)))
    ]
    if raw:
        raise InvalidParameter(
            f"update was given {', '.join(raw)}: losses or gradients of the data, to which no noise is added, would "
            "move the weights. Use an optimizer that needs the noisy gradient alone, such as Adam (no line search, "
            "LBFGS, SAM or Sophia); a transformation that takes losses of public data, or other public numbers, is "
            "called by itself, after the noise",
            field="updates",
        )


def _is_real(value: object) -> bool:
    """Return whether a value is no key, integer or text, and so may be a loss or a gradient by another name."""
    return isinstance(value, float) or jnp.issubdtype(getattr(value, "dtype", np.int32), jnp.inexact)


def checked_state(state: object, kind: type) -> Any:
    """Return a state of a transformation.

    Raises:
        InvalidParameter: it is of another kind, as a dict from a checkpoint that was restored without a template.
    """
    if not isinstance(state, kind):
        raise InvalidParameter(
            f"the state is a {type(state).__name__}, not a {kind.__name__}; restore it into the state that "
            "optimizer.init(params) returns, as with orbax's StandardRestore(state) or flax's from_bytes(state, data)",
            field="state",
        )
    return state


def sealed(own: np.ndarray, seal: ArrayLike) -> jax.Array:
    """Return a commitment with the seal of a state."""
    return jnp.asarray(own).at[0].add(jnp.asarray(seal, jnp.uint32))


def seal_of(step: ArrayLike, buffers: optax.Updates) -> jax.Array:
    """Return a hash of a step and of the first entry of each buffer, uint32, the same on one device and on several.

    Buffers that were averaged, reset, scaled or rounded have others, and to read one entry costs nothing.
    """
    step, axes = jnp.asarray(step, jnp.int32), manual_axes()
    seal = with_auto_axes(_first_bits, step, jax.tree.leaves(buffers))
    # Inside shard_map the first device has the first entries of the whole arrays.
    return jax.lax.psum(jnp.where(place_of(axes) == 0, seal, jnp.uint32(0)), axes) if axes else seal


@partial(jax.jit, inline=True)  # one program, also for a loop that is not jitted
def _first_bits(step: jax.Array, buffers: Sequence[jax.Array]) -> jax.Array:
    firsts = [leaf[(slice(None), *(0,) * (jnp.ndim(leaf) - 1))] for leaf in buffers if jnp.size(leaf)]
    return hash_bits([step, *firsts])


def _refused(size: int, batched: object, values: object) -> NoReturn:
    raise InvalidParameter(
        f"under vmap all {size} members would get the same noise, so their differences would have none; give each its "
        "own transformation and seed, outside of vmap",
        field="updates",
    )


_refuse_vmap: Any = custom_vmap(lambda values: values)
_refuse_vmap.def_vmap(_refused)
