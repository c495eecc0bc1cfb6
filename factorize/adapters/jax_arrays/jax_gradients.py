"""Sums of clipped gradients of a loss in JAX, one example at a time, and a check of the loss before the first sum."""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import numpy as np
import optax
from jax import numpy as jnp
from jax.typing import ArrayLike

from factorize.adapters.gradients.clipped_sums import CLIP_FACTOR, check_roundings, shrink_for_float32
from factorize.adapters.jax_arrays.jax_batches import GuardedBatches
from factorize.adapters.jax_arrays.jax_copies import refuse_copies
from factorize.adapters.jax_arrays.jax_leaves import real_leaves
from factorize.adapters.jax_arrays.jax_orders import order_of
from factorize.adapters.jax_arrays.jax_processes import refuse_alone
from factorize.adapters.jax_arrays.jax_programs import are_alike, constants, fixed_values, is_traced
from factorize.adapters.jax_arrays.jax_table import with_auto_axes
from factorize.errors import InvalidParameter

MAX_CHECKED_EXAMPLES = 4
"""The most examples that are computed together and alone: a mixture of examples shows in two of them."""
MAX_RELATIVE_ROUNDING = 2.0**-5
"""The largest relative rounding of gradients of the loss: bfloat16 has 8 bits, and batches add up in other orders."""


class ClippedGradients:
    """The sum of clipped gradients over all parts of a batch; padding is computed like examples and counts as zero.

    It may be jitted: shapes are the same in every step, so that neither compilation nor time shows the size of a batch.
    Gradients are clipped and summed in float64. The sum is rounded to float32 unless the parameters are wider, and the
    clip norm is smaller to pay for the roundings (docs/notes/clipping.md).

    The loss is checked whenever parameters or data have new shapes, and whenever it reads another value beside its
    arguments, before their first sum. Its gradient over a few examples together must be the sum, or the mean, of their
    own, since otherwise another loss would be trained. And none of them may move the clipped sum by more than the clip
    norm. Under jit this is done with numbers drawn here for the parameters and for data that are arguments.

    Args:
        loss: a function of params and a batch of each array of the data that returns one number.
        clip_norm: bound on the norm of an example's gradient over all parameters.
        squares: whether the squares of the entries of clipped gradients are summed, too.
        batches: batches of the job whose noise takes the sums, None where there is none.
    """

    def __init__(
        self,
        loss: Callable[..., object],
        clip_norm: float,
        *,
        squares: bool = False,
        batches: GuardedBatches | None = None,
    ) -> None:
        self._loss, self._clip_norm, self._squares, self._batches = loss, clip_norm, squares, batches
        self._seen: dict[tuple[str, str], list[object]] = {}
        self._compile()

    def __call__(
        self, params: optax.Params, data: Sequence[ArrayLike], indices: ArrayLike, mask: ArrayLike
    ) -> optax.Updates:
        """Return the sum over a batch, shaped like the parameters; with `squares` a pair of sums.

        With `batches` the sums are enclosed: their noise reads them, and nothing else computes with them.

        Args:
            params: the trained parameters.
            data: arrays whose first axis is the examples.
            indices: indices of the parts, shape (parts, physical batch size).
            mask: True where there is an example, same shape.

        Raises:
            InvalidParameter: the loss mixes examples or is not one number, a parameter is not real, the data are no
                arrays of the job's examples, or in another order than before, or indices and mask have other shapes.
            InvalidParticipation: the data are copies of fewer examples.
        """
        arrays, rows, present = self._arrays(data), jnp.asarray(indices), jnp.asarray(mask)
        if rows.ndim != 2 or rows.shape != present.shape:
            raise InvalidParameter(
                f"indices have shape {rows.shape} and the mask {present.shape}; give both as batches hand them out, "
                "of shape (parts, physical batch size)",
                field="indices",
            )
        self._look(params, arrays)
        sums = self._program(params, arrays, rows, present)
        return sums if self._batches is None else self._batches.mark(sums, rows, present, order_of(arrays))

    def _compile(self) -> None:
        """Forget the compiled program: the next call traces the loss anew.

        The loss that was checked is the one that runs, and without a jit of the caller's every call would compile anew.
        JAX keeps programs by function, also where the globals have changed; here and below each partial is a new one.
        """
        self._program = jax.jit(partial(self._rounded_sums))

    def _arrays(self, data: Sequence[ArrayLike]) -> list[jax.Array]:
        """Return the data as arrays.

        Raises:
            InvalidParameter: they are no sequence of arrays, have another number of examples than the job, or are those
                of one of several processes.
        """
        given = list(data) if isinstance(data, (tuple, list)) else []
        try:
            with jax.ensure_compile_time_eval():  # arrays of numpy would have no values under jit
                arrays = [each if isinstance(each, jax.Array) else jnp.asarray(each) for each in given]
        except (TypeError, ValueError):
            arrays = []
        if not arrays:
            kinds = ", ".join(str(getattr(each, "dtype", type(each).__name__)) for each in given)
            raise InvalidParameter(
                f"the data are {type(data).__name__} ({kinds}); give a tuple of arrays of numbers "
                "whose first axis is the examples, one for each argument that the loss has after the parameters",
                field="data",
            )
        refuse_alone(arrays, "data")
        examples = None if self._batches is None else self._batches.examples
        for each in arrays if examples is not None else ():
            if each.shape[:1] != (examples,):
                raise InvalidParameter(
                    f"an array of the data has shape {each.shape}, but the job was made for examples={examples}, and "
                    "JAX would repeat the last row for each missing one; give the whole arrays",
                    field="data",
                )
        return arrays

    def _rounded_sums(
        self, params: optax.Params, data: Sequence[jax.Array], indices: jax.Array, mask: jax.Array
    ) -> optax.Updates:
        """Return the sums in the types that the noise takes."""
        like = (params, params) if self._squares else params
        sums = with_auto_axes(self._sums, params, data, indices, mask, lies_as=like)
        return jax.tree.map(lambda leaf, kind: leaf.astype(kind), sums, jax.tree.map(_wide, like))

    def _sums(
        self, params: optax.Params, data: Sequence[jax.Array], indices: jax.Array, mask: jax.Array
    ) -> optax.Updates:
        """Return the sums in float64, to which XLA adds one example after another."""
        check_roundings(indices.size, len(indices), indices.shape[1])
        narrow = any(_wide(leaf) != jnp.float64 for leaf in jax.tree.leaves(params))
        wide = jax.config.read("jax_enable_x64")  # the loss sees the caller's setting, by which random numbers differ
        bound = self._clip_norm * (shrink_for_float32(indices.size) if narrow else CLIP_FACTOR)

        def add_part(total: optax.Updates, part: tuple[jax.Array, jax.Array]) -> tuple[optax.Updates, None]:
            rows, present = part
            with jax.enable_x64(wide):
                gradients = jax.vmap(lambda *example: self._alone(params, *example))(*(each[rows] for each in data))
            with jax.enable_x64(True):
                flat = [leaf.reshape(len(rows), -1).astype(jnp.float64) for leaf in jax.tree.leaves(gradients)]
                norms = jnp.sqrt(sum(jnp.sum(jnp.square(leaf), axis=1) for leaf in flat))
                counts = present & jnp.isfinite(norms)  # no factor can clip a gradient that is not finite
                factors = jnp.where(counts, jnp.minimum(1.0, bound / norms), 0.0)
                zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], jnp.float64), gradients)
                own = jax.lax.scan(add_example, (zero, zero) if self._squares else zero, (gradients, factors))[0]
                return jax.tree.map(jnp.add, total, own), None

        def add_example(total: optax.Updates, example: tuple[optax.Updates, jax.Array]) -> tuple[optax.Updates, None]:
            gradient, factor = example
            clipped = jax.tree.map(lambda leaf: jnp.where(factor > 0, leaf.astype(jnp.float64), 0.0) * factor, gradient)
            terms = (clipped, jax.tree.map(jnp.square, clipped)) if self._squares else clipped
            return jax.tree.map(jnp.add, total, terms), None

        with jax.enable_x64(True):
            zero = jax.tree.map(
                lambda p: jnp.zeros(jnp.shape(p), jnp.float64), (params, params) if self._squares else params
            )
            return jax.lax.scan(add_part, zero, (indices, mask))[0]

    def _alone(self, params: optax.Params, *example: jax.Array) -> optax.Updates:
        """Return the gradient of one example."""
        return self._gradient(params, *(part[None] for part in example))

    def _gradient(self, params: optax.Params, *batch: jax.Array) -> optax.Updates:
        return with_auto_axes(jax.grad(self._loss), params, *batch, lies_as=params)

    def _value(self, params: optax.Params, *batch: jax.Array) -> jax.Array:
        return with_auto_axes(self._loss, params, *batch)

    def _look(self, params: optax.Params, data: Sequence[jax.Array]) -> None:
        """Refuse a loss whose gradients are not those of single examples, see the class, and copies of examples.

        Raises:
            InvalidParameter: the loss mixes examples, or is not one number.
            InvalidParticipation: the data are copies of fewer examples.
        """
        real_leaves(params)
        shapes = jax.tree.map(lambda leaf: (jnp.shape(leaf), str(jnp.result_type(leaf))), (params, list(data)))
        known = str(shapes), str(jax.tree.structure((params, list(data))))
        if known in self._seen:
            if are_alike(self._seen[known], self._beside(params, data)):
                return
            self._seen.clear()
            self._compile()
        count = min(MAX_CHECKED_EXAMPLES, *(len(each) for each in data))
        value = jax.eval_shape(self._value, params, *_one_of(data))
        shape, kind = getattr(value, "shape", type(value).__name__), getattr(value, "dtype", None)
        if shape != () or not jnp.issubdtype(kind, jnp.floating):
            shown = kind if shape == () else shape
            message = f"the loss of a batch of one example is {shown}, not one number; return its mean"
            raise InvalidParameter(message, field="loss")
        if self._batches is not None and self._batches.auditor.unit == "example":
            refuse_copies(data)
        self._refuse_closure(params, data)  # before anything is evaluated, which would hide what it was made of
        with jax.ensure_compile_time_eval():
            first = [with_auto_axes(lambda each: each[:count], each) for each in data]
            examples = [jnp.asarray(_drawn(each) if is_traced(each) else each) for each in first]
            alone = jax.jit(partial(self._alone))  # one compilation is cheaper than hundreds for single operations
            for drawn, positive in itertools.product((False, True), (False, True)):
                if drawn:  # an example that is not finite says nothing of the loss, and must not stop the job
                    examples = [_drawn(each, positive=positive) for each in examples]
                own = jax.tree.map(
                    lambda p, positive=positive: _drawn(p, positive=positive) if is_traced(p) else p, params
                )
                rows = [_flat(alone(own, *(each[i] for each in examples))) for i in range(count)]
                if np.isfinite(rows).all():
                    break
            else:
                raise InvalidParameter(
                    "the gradients of the loss for one example are not finite, nor are they at random parameters and "
                    "data; leave out what one example does not have, such as a deviation over the batch, which would "
                    "mix examples. If only random ones break the loss, call gradients(params, data, indices, mask) "
                    "once outside of jit, with your own",
                    field="loss",
                )
            self._refuse_mixing(own, examples, rows)
        self._seen[known] = self._beside(params, data)

    def _refuse_closure(self, params: optax.Params, data: Sequence[jax.Array]) -> None:
        """Refuse a loss that reads other data than the given example, as the arrays that it closes over show.

        Parameters that hold examples are refused, too.

        Data that are arguments of a jitted program have no values here, and are recognised by shape alone. So is what
        was made of the data, such as features of all examples, by an axis as long as theirs.
        """
        examples = len(data[0])
        if any(_have_common_rows(leaf, each, 3) for leaf in jax.tree.leaves(params) for each in data):
            raise InvalidParameter(
                "a parameter has examples of the data among its rows, as centres that begin at examples, and would be "
                "released with little noise upon them; begin at public data or random numbers",
                field="params",
            )
        for constant in constants(jax.make_jaxpr(partial(self._gradient))(params, *_one_of(data))):
            if callable(constant):
                raise InvalidParameter(
                    "the loss calls a function on the host (pure_callback, io_callback), and nobody sees which data "
                    "that reads; write it in JAX, or compute what it returns for each example and give that as data",
                    field="loss",
                )
            if examples in jnp.shape(constant) or any(_have_common_rows(constant, each) for each in data):
                raise InvalidParameter(
                    f"the loss closes over an array of shape {jnp.shape(constant)}, which looks like the data, or like "
                    f"something with an entry for each of the {examples} examples, and would enter every example's "
                    "gradient; pass all that the loss reads of the data as arguments. Close over public numbers of "
                    "that length in two parts, or leave one example out",
                    field="loss",
                )

    def _beside(self, params: optax.Params, data: Sequence[jax.Array]) -> list[object]:
        """Return what a new trace of the loss reads beside its arguments."""
        return list(fixed_values(jax.make_jaxpr(partial(self._value))(params, *_one_of(data))))

    def _refuse_mixing(self, params: optax.Params, examples: Sequence[jax.Array], rows: list[np.ndarray]) -> None:
        """Compare gradients of examples, one vector each, with that of their batch and with their parts in a sum."""
        count, total = len(rows), np.sum(rows, axis=0)
        try:
            together = _flat(jax.jit(partial(self._gradient))(params, *examples))
        except Exception:  # any error will do: a loss for one example mixes none
            together = total
        off = min(float(np.linalg.norm(together * times - total)) for times in (1, count))
        if not off <= MAX_RELATIVE_ROUNDING * sum(map(np.linalg.norm, rows)):
            raise InvalidParameter(
                f"the loss mixes examples: its gradient over {count} of them is neither the sum nor the mean of their "
                "own gradients. Return a mean, or a sum, of one term per example, which no other example changes; "
                "random numbers must come from keys among the data, each used by its own example (jax.vmap over both), "
                "not the first of them by all (keys[0])",
                field="loss",
            )
        parts = jnp.arange(count)[None]
        present = ~np.vstack([np.zeros((1, count), dtype=bool), np.eye(count, dtype=bool)])
        sums = [self._program(params, examples, parts, each[None]) for each in present]
        whole, *others = (_flat(each[0] if self._squares else each) for each in sums)
        for i, (row, without) in enumerate(zip(rows, others, strict=True)):
            norm, moved = float(np.linalg.norm(row)), float(np.linalg.norm(whole - without))
            wrong = float(np.linalg.norm(whole - without - row * min(1.0, self._clip_norm / max(norm, 1e-300))))
            rounding = MAX_RELATIVE_ROUNDING * min(norm, self._clip_norm) + 1e-5 * self._clip_norm * count
            if not (moved <= self._clip_norm * (1 + 1e-4 * count) and wrong <= rounding):
                raise InvalidParameter(
                    f"example {i} changes the sum of clipped gradients by more than clip_norm={self._clip_norm:g}, or "
                    "not by its own gradient; let no other example change its term of the loss",
                    field="loss",
                )


def _wide(leaf: ArrayLike) -> np.dtype:
    return jnp.promote_types(jnp.result_type(leaf), jnp.float32)


def _flat(tree: optax.Updates) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, dtype=np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def _have_common_rows(constant: ArrayLike, data: jax.Array, values: int = 2) -> bool:
    """Return whether an array has examples of the data among its rows; rows of fewer different values do not count.

    The columns of a matrix count as rows, too: a kernel multiplies by the transposed examples.
    """
    if is_traced(constant) or is_traced(data) or data.ndim < 2:
        return False
    shape = jnp.shape(constant)
    forms = [shape[1:] == data.shape[1:], len(shape) == 2 and shape[:1] == data.shape[1:]]
    if not any(forms):
        return False
    with jax.ensure_compile_time_eval():  # under jit an array of numpy would become one without values
        own, examples = (np.asarray(jnp.asarray(each).astype(data.dtype)) for each in (constant, data))
    known = {row.tobytes() for form, fits in zip((own, own.T), forms, strict=True) if fits for row in form}
    return any(row.tobytes() in known and len(np.unique(row)) >= values for row in examples)


def _one_of(data: Sequence[jax.Array]) -> list[jax.ShapeDtypeStruct]:
    """Return a batch of one example, as shapes."""
    return [jax.ShapeDtypeStruct((1, *each.shape[1:]), each.dtype) for each in data]


def _drawn(like: jax.Array, *, positive: bool = False) -> jax.Array:
    """Return numbers of a shape and type, drawn here: integers are 0 and 1, which every vocabulary and class has."""
    rng, kind = np.random.default_rng(1), jnp.result_type(like)
    if jnp.issubdtype(kind, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(1), like.shape)
    if not jnp.issubdtype(kind, jnp.floating):
        return jnp.asarray(rng.integers(0, 2, like.shape), kind)
    numbers = rng.standard_normal(like.shape) / math.sqrt(max([1, *like.shape[-1:]]))
    return jnp.asarray(abs(numbers) if positive else numbers, kind)
