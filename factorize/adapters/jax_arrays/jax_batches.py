"""Batches of a job in JAX, and the sums over them: noise takes only the sums of the batch that comes next."""

import hashlib
from collections.abc import Iterator, Mapping

import jax
import numpy as np
import optax
from jax import numpy as jnp
from jax.experimental import io_callback
from jax.typing import ArrayLike

from factorize.adapters.data.keyed_mark import keyed_mark, refuse_other_data
from factorize.adapters.jax_arrays.jax_hashes import hash_bits
from factorize.adapters.jax_arrays.jax_orders import are_moved
from factorize.adapters.jax_arrays.jax_processes import number_of_first, refuse_other_process
from factorize.adapters.jax_arrays.jax_programs import is_traced
from factorize.adapters.jax_arrays.jax_sums import disclose, enclose
from factorize.adapters.jax_arrays.jax_table import with_auto_axes
from factorize.encoding import JsonObject
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.training.auditor import Auditor
from factorize.training.batches import AuditedBatches, Batches, MicroBatches


class GuardedBatches(AuditedBatches):
    """The batches of a job whose noise takes only the sums of the next batch.

    Gradients and noise are values of the caller's program, which may hand over sums of another batch, or those of one
    batch twice. So sums are marked with their own bits, and the noise takes only the sums that were marked last. In
    between they are enclosed (jax_sums.py), so that nothing computes with them.

    A checkpoint has a mark of the data and of their order, unless they change from step to step.

    Args:
        order: see `AuditedBatches`.
        auditor: see there.
        physical: see there.
        examples: number of examples in the data.
        secret: a secret key, without which the mark reveals no example.

    Attributes:
        examples: number of examples in the data.
    """

    def __init__(self, order: Batches, auditor: Auditor, *, physical: int | None, examples: int, secret: int) -> None:
        super().__init__(order, auditor, physical=physical)
        self.examples, self._secret = examples, secret
        self._handed: dict[int, bytes] = {}
        self._next, self._begun = auditor.step, auditor.state_dict()
        self._marked: tuple[int, bytes] | None = None  # hashes of sums and of their examples
        self._order: np.ndarray | None = None  # hashes of examples in the last step
        self._data: dict[str, str] = {}  # the mark of the data, as in a checkpoint

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
        self._order, self._data = None, {key: str(state[key]) for key in ("data",) if key in state}

    def state_dict(self) -> JsonObject:
        """Return the state of the steps whose noise was taken; batches that were drawn beyond them come again.

        Raises:
            InvalidParameter: it is asked for on another process than the first.
        """
        refuse_other_process("batches.state_dict()")
        jax.effects_barrier()  # steps may still run whose noise is taken
        drawn, auditor = super().state_dict(), self.auditor
        if self._next == self.step:
            return drawn | self._data
        count_step, auditor.on_step = auditor.on_step, None
        try:
            auditor.load_state_dict(self._begun)
            while self.step < self._next:
                auditor.record(self.order[self.step])
            return super().state_dict() | self._data
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
        bits = with_auto_axes(hash_bits, jax.tree.leaves(sums))
        if not any(map(is_traced, (bits, indices, mask, order))):
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
        bits = with_auto_axes(hash_bits, jax.tree.leaves(sums))
        if not any(map(is_traced, (bits, step))):
            self._take(bits, step)
        else:
            io_callback(self._take, None, bits, step)
        return sums

    def _mark(self, bits: ArrayLike, indices: ArrayLike, mask: ArrayLike, order: ArrayLike) -> ArrayLike:
        found = np.asarray(order)
        if self._order is None:
            mark = keyed_mark(self._secret, found.tobytes())
            refuse_other_data(mark, self._data)
            self._data = {"data": mark}
        elif are_moved(self._order, found):
            raise InvalidParameter(
                "the examples of the data are in another order than in the last step, as after a shuffle, so that an "
                "index names another example and some take part more often than the participation allows; give the "
                "arrays in one order in every step (the batches are an order of their own)",
                field="data",
            )
        elif not np.array_equal(self._order, found):
            self._data = {}
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
                "the updates are not the sums over examples that gradients(...) returned last; give update all of "
                "those sums, unchanged, before the next batch is summed (flax's nnx.Optimizer leaves out those of what "
                "is no nnx.Param: give gradients nnx.state(model, nnx.Param))",
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
