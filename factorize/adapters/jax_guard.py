"""Guards of a noise in JAX: each step is taken once, by the run that owns the state, with the sums of its batch.

A state of JAX is a value: `update` may be called with it twice, `vmap` gives many members one step, and a program that
was traced once runs for ever. Whatever shows in the tracing is refused there; the rest is checked on the host when the
program runs, and a refusal stops it.
"""

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
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

from factorize.adapters.jax_orders import are_moved
from factorize.adapters.jax_processes import number_of_first, refuse_other_process
from factorize.adapters.jax_sums import disclose, enclose
from factorize.adapters.jax_table import manual_axes, place_of, replica_axes, with_auto_axes
from factorize.client.single_use import NoiseUse
from factorize.encoding import JsonObject
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.privacy import refuse_infinite
from factorize.training.auditor import Auditor
from factorize.training.batches import AuditedBatches, Batches, MicroBatches


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
        if _known(step, commitment, finite, seal):
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
        bits = _bits([leaf for leaf, own in zip(leaves, held, strict=True) if own == axes])
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
    return _bits([step, *firsts])


def _refused(size: int, batched: object, values: object) -> NoReturn:
    raise InvalidParameter(
        f"under vmap all {size} members would get the same noise, so their differences would have none; give each its "
        "own transformation and seed, outside of vmap",
        field="updates",
    )


_refuse_vmap: Any = custom_vmap(lambda values: values)
_refuse_vmap.def_vmap(_refused)


class GuardedBatches(AuditedBatches):
    """The batches of a job whose noise takes only the sums of the next batch.

    Gradients and noise are values of the caller's program, which may hand over sums of another batch, or those of one
    batch twice. So sums are marked with their own bits, and the noise takes only the sums that were marked last. In
    between they are enclosed (jax_sums.py), so that nothing computes with them.

    Attributes:
        examples: number of examples in the data.
    """

    def __init__(self, order: Batches, auditor: Auditor, *, physical: int | None, examples: int) -> None:
        super().__init__(order, auditor, physical=physical)
        self.examples = examples
        self._handed: dict[int, bytes] = {}
        self._next, self._begun = auditor.step, auditor.state_dict()
        self._marked: tuple[int, bytes] | None = None  # hashes of sums and of their examples
        self._order: np.ndarray | None = None  # hashes of examples in the last step

    def __iter__(self) -> Iterator[MicroBatches]:
        """Yield each step that is left, and keep its examples until its noise is taken.

        A batch whose noise was not taken comes again: a look at the first one, or Ctrl-C, has ended the loop before.
        """
        if self._handed:
            jax.effects_barrier()  # steps may still run whose noise was taken
        self._next = number_of_first(self._next)
        self._handed = {step: examples for step, examples in self._handed.items() if step >= self._next}
        again = sorted(self._handed)
        yield from map(self.in_parts, again)
        if again and self.step >= len(self):
            return
        for batch in super().__iter__():
            step = self.step - 1
            if step - 1 not in {self._next - 1, *self._handed}:
                self._handed, self._next, self._marked = {}, step, None
            self._handed[step] = _examples(*batch)
            yield batch

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go to the position of a checkpoint; restore model and noise with it."""
        super().load_state_dict(state)
        self._handed, self._next, self._marked, self._begun = {}, self.step, None, super().state_dict()

    def state_dict(self) -> JsonObject:
        """Return the state of the steps whose noise was taken; batches that were drawn beyond them come again.

        Raises:
            InvalidParameter: it is asked for on another process than the first.
        """
        refuse_other_process("batches.state_dict()")
        jax.effects_barrier()  # steps may still run whose noise is taken
        drawn, auditor = super().state_dict(), self.auditor
        if self._next == self.step:
            return drawn
        count_step, auditor.on_step = auditor.on_step, None
        try:
            auditor.load_state_dict(self._begun)
            while self.step < self._next:
                auditor.record(self.order[self.step])
            return super().state_dict()
        finally:
            auditor.load_state_dict(drawn)
            auditor.on_step = count_step

    def mark(self, sums: optax.Updates, indices: jax.Array, mask: jax.Array, order: jax.Array) -> optax.Updates:
        """Return the sums of some examples, enclosed; they exist once the host knows their bits.

        Args:
            sums: the sums.
            indices: indices of the examples, and of padding.
            mask: True where there is an example.
            order: the data's `order_of`.

        Raises:
            InvalidParameter: the data are in another order than before.
        """
        bits = with_auto_axes(_bits, jax.tree.leaves(sums))
        if _known(bits, indices, mask, order):
            self._mark(bits, indices, mask, order)
            return enclose(sums)
        seen = io_callback(self._mark, jax.ShapeDtypeStruct((), np.uint32), bits, indices, mask, order)
        leaves, shape = jax.tree.flatten(sums)
        return enclose(shape.unflatten([jnp.where(seen == bits, leaves[0], jnp.nan), *leaves[1:]]))

    def take(self, enclosed: optax.Updates, step: jax.Array) -> optax.Updates:
        """Return the sums, if they belong to the next batch.

        Raises:
            InvalidParameter: they are others.
            InvalidParticipation: they are sums of other examples, or the state is that of another step.
        """
        sums = disclose(enclosed)
        bits = with_auto_axes(_bits, jax.tree.leaves(sums))
        if _known(bits, step):
            self._take(bits, step)
        else:
            io_callback(self._take, None, bits, step)
        return sums

    def _mark(self, bits: ArrayLike, indices: ArrayLike, mask: ArrayLike, order: ArrayLike) -> ArrayLike:
        found = np.asarray(order)
        if self._order is not None and are_moved(self._order, found):
            raise InvalidParameter(
                "the examples of the data are in another order than in the last step, as after a shuffle, so that an "
                "index names another example and some take part more often than the participation allows; give the "
                "arrays in one order in every step (the batches are an order of their own)",
                field="data",
            )
        self._order = found
        self._marked = int(bits), _examples(np.asarray(indices), np.asarray(mask))
        return bits

    def _take(self, bits: ArrayLike, step: ArrayLike) -> None:
        bits, step = int(bits), int(step)
        if step >= len(self):
            return  # the noise refuses this
        if step != self._next:
            raise InvalidParticipation(
                f"the noise is at step {step}, but the next batch is that of step {self._next}; use the batches in "
                "order with the newest state, or restore the optimizer's state and batches.state_dict() from one "
                "checkpoint",
                field="step",
            )
        if self._marked is None or bits != self._marked[0]:
            raise InvalidParameter(
                "the updates are not the sums over examples that gradients(...) returned last; give update those sums, "
                "unchanged, before the next batch is summed",
                field="updates",
            )
        if self._handed.get(step) != self._marked[1]:
            raise InvalidParticipation(
                f"gradients(...) did not sum the examples of step {step}; give it the indices and mask of every batch "
                "as handed out, in order, and give the noise the sums of every batch, first in optax.chain and under "
                "no condition",
                field="indices",
            )
        self._handed.pop(step)
        self._next, self._marked = step + 1, None


def _examples(indices: np.ndarray, mask: np.ndarray) -> bytes:
    """Return a name of a batch's examples that does not depend on how the batch is cut into parts."""
    return hashlib.sha256(np.sort(indices[mask].astype(np.int64), axis=None).tobytes()).digest()


def _known(*values: object) -> bool:
    return not any(isinstance(each, jax.core.Tracer) for each in values)


@partial(jax.jit, inline=True)
def _bits(leaves: Sequence[jax.Array]) -> jax.Array:
    """Return the sum of a hash of each entry's bits and place, modulo 2^32.

    A sum of the bits alone would not change when all entries are multiplied by a power of two, since that adds one
    number to the bits of each.
    """
    total = jnp.zeros((), jnp.uint32)
    for place, leaf in enumerate(leaves):
        kind = jnp.result_type(leaf)
        wide = jnp.asarray(leaf, jnp.float32 if jnp.issubdtype(kind, jnp.floating) and kind.itemsize < 4 else kind)
        bits = jax.lax.bitcast_convert_type(wide, jnp.uint32).ravel()
        mixed = bits ^ (jnp.arange(bits.size, dtype=jnp.uint32) + jnp.uint32(place)) * jnp.uint32(2654435761)
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            mixed = (mixed ^ mixed >> shift) * jnp.uint32(factor)
        total += jnp.sum(mixed ^ mixed >> 16, dtype=jnp.uint32)
    return total
