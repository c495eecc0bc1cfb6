"""Per-example gradients, row by row, and their clipped sums, in float64 whatever the gradients are in.

An example is clipped by its norm over all parameters, so that row i has to be example i's in each of them.

A rounding before the noise is no post-processing, because the calibrated sensitivity is that of the exact sum. The
losses in float16 or bfloat16, in a norm that float32 adds up (torch's is low by 1e-2 at 7 x 10^7 entries, and by more
for some strides), or in a matrix product that TF32 makes, let one example move the sum farther than the clip norm. The
losses of float64 are bounded, and the clip norm is smaller by as much (docs/notes/clipping.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby

import numpy as np
import torch

from factorize.adapters.gradients.clipped_sums import CLIP_FACTOR, MAX_ADDED_EXAMPLES
from factorize.adapters.gradients.clipping_kernels import add_squares, add_weighted
from factorize.adapters.gradients.layer_rows import LayerRows, Rows, iterate_rows
from factorize.errors import InvalidParameter
from factorize.noise.normals import BLOCK
from factorize.numbers.compiling import HAS_COMPILER

SCALED_LOSS = (
    "a GradScaler multiplied the loss (at first by 65,536), so clipping leaves only directions; call loss.backward() "
    "and optimizer.step() without it, and use bfloat16, which needs none"
)
_FLOAT32_DIGITS = 24
"""The binary digits of float32, below which sums are refused."""
_COMPILED_TYPES = {torch.float32, torch.float64}
"""The types for which there are compiled loops."""
MAX_WIDENED_ENTRIES = 1 << 18
"""The most entries that are widened at a time on a CPU: 2 MiB, which its caches hold. A GPU takes 64 times as many."""
MIN_COMPILED_ENTRIES = 1 << 20
"""The fewest entries of gradients that are worth the second which a process takes to load compiled loops."""
MIN_SHARE_ENTRIES = 1 << 19
"""The fewest entries that are worth a thread of their own."""


def example_rows(parameters: Sequence[tuple[str, torch.nn.Parameter]], examples: int | None = None) -> list[Rows]:
    """Return the gradients of all parameters by example, shapes (examples, *shape), of all backward passes together.

    Passes over parts of the batch follow one another. Passes over the whole batch, as of losses that are not added up
    before `backward()`, are added row by row.

    Args:
        parameters: names, and parameters with Opacus's `grad_sample`.
        examples: number of examples of the batch; if nobody told it, or no parameter has as many, the parameters must
            agree.

    Raises:
        InvalidParameter: a parameter has no gradients, or other rows than the batch has examples.
    """
    found = [(name, p, _join_whole(_passes(name, p, examples), examples)) for name, p in parameters]
    rows = [tuple(len(each) for each in passes) for _, _, passes in found]
    as_told = [each for each in rows if sum(each) == examples]
    expected = Counter(as_told or rows).most_common(1)[0][0]
    for (name, p, passes), own in zip(found, rows, strict=True):
        if own != expected:
            counts = [" + ".join(map(str, each)) for each in (own, expected)]
            raise InvalidParameter(
                f"{name} has {counts[0]} per-example gradients, but the batch has {counts[1]} examples. Inputs of its "
                "layer do not begin with the batch axis (a table of relative positions, position ids that all examples "
                "share, words without their padding, rows that a router chooses); expand them to (batch, ...) (run "
                "experts on all, weighted by zeros), give make_private the smallest module around that takes and "
                "returns examples (whole=['encoder'], or [''] for the whole model), or batch_first=False if the "
                "inputs begin with time, or freeze the layer before you make the job private (requires_grad_(False)), "
                "which costs a table of positions little",
                field="model",
            )
        if any(each.shape[1:] != p.shape for each in passes):
            shapes = [tuple(each.shape[1:]) for each in passes]
            raise InvalidParameter(f"{name} has shape {tuple(p.shape)}, but gradients of shape {shapes}", field="model")
    return [passes[0] if len(passes) == 1 else torch.cat([*map(_whole, passes)]) for _, _, passes in found]


def _join_whole(passes: list[Rows], examples: int | None) -> list[Rows]:
    """Return backward passes that each have a row for all examples as one of their sums; others as they are."""
    if len(passes) < 2 or any(len(each) != examples for each in passes):
        return passes
    kept = [each for each in passes if isinstance(each, LayerRows)]
    if len(kept) == len(passes):
        return [LayerRows(kept[0].parameter, [one for each in kept for one in each.passes])]
    first, *others = map(_whole, passes)
    return [sum(others, first)]


def all_idle(parameters: Sequence[torch.nn.Parameter]) -> bool:
    """Return whether no example's gradient has an entry that is finite and not zero; mostly the first entries have."""
    for p in sorted(parameters, key=torch.Tensor.numel):
        held = getattr(p, "grad_sample", None)
        for rows in map(_whole, held if isinstance(held, list) else [] if held is None else [held]):
            if not len(rows) or bool((rows.isfinite() & (rows != 0)).any()):
                return False
    return True


def _whole(rows: Rows) -> torch.Tensor:
    return rows.rows(0, len(rows)) if isinstance(rows, LayerRows) else rows


def _passes(name: str, parameter: torch.nn.Parameter, examples: int | None) -> list[Rows]:
    """Return a parameter's per-example gradients by backward pass; a batch of no example needs no pass."""
    samples = getattr(parameter, "grad_sample", None)
    if samples is None and examples == 0:
        return [parameter.new_zeros(0, *parameter.shape)]
    if samples is None:
        raise InvalidParameter(
            f"{name} has no per-example gradient: the loss does not use it, no example of the batch reaches its layer "
            "(run experts on all, weighted by zeros), its weights are read outside of its layer (name a module around "
            "both: make_private(whole=['encoder'])), LayerDrop skipped its layer (set it to 0), its layer is in eval "
            "mode, its forward pass ran again (gradient checkpointing, or a second call without torch.no_grad()), "
            "step() was called twice, or the model called is not the private one. Call model.train(), call the private "
            "model and step() once per batch, and before you make the job private freeze (requires_grad=False) what a "
            "step may leave out",
            field="model",
        )
    return samples if isinstance(samples, list) else [samples]


def clipped_sums(samples: Sequence[Rows], clip_norm: float, counted: torch.Tensor | None = None) -> list[torch.Tensor]:
    """Return the sums over examples of gradient * min(1, clip norm / its norm), in float64.

    An example whose gradient is not finite counts as zero: no factor can clip it, and it would make the sum NaN.

    Args:
        samples: gradients by parameter, shapes (examples, *shape).
        clip_norm: bound on the norm of an example's gradient over all parameters.
        counted: False for examples that count as zero, shape (examples,).

    Returns:
        Shapes (*shape), on the devices of the samples; on the CPU for a device without float64.
    """
    return list(use_up(list(samples), clip_norm, counted))


def use_up(samples: list[Rows], clip_norm: float, counted: torch.Tensor | None = None) -> Iterator[torch.Tensor]:
    """Yield the sums of `clipped_sums`, and take each parameter's gradients off the list before they are added up.

    If nobody else keeps them, the sums take the memory of earlier parameters' gradients.

    Args:
        samples: see `clipped_sums`.
        clip_norm: see there.
        counted: see there.
    """
    weights = _Weights.of(samples, clip_norm, counted)
    if any(isinstance(sample, LayerRows) for sample in samples):  # these rows are made for all parameters together
        yield from _add_up(samples, weights)
        samples.clear()
    while samples:
        sample = samples.pop(0)
        (total,) = _zeros([sample])
        weights.add(sample, total)
        yield total.view_as(total)


def clipped_moments(
    samples: Sequence[Rows], clip_norm: float, counted: torch.Tensor | None = None
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the sums of clipped gradients, and those of the squares of their entries; see `clipped_sums`."""
    weights = _Weights.of(samples, clip_norm, counted)
    return _add_up(samples, weights), _add_up(samples, weights, squared=True)


def _add_up(samples: Sequence[Rows], weights: _Weights, *, squared: bool = False) -> list[torch.Tensor]:
    """Return the weighted sums of all examples, or of squares, by the groups that are in memory together."""
    group = totals = _zeros(samples)
    for rows, part in iterate_rows(samples):
        if rows.start and rows.start % MAX_ADDED_EXAMPLES == 0:
            group = _zeros(samples)
        own = weights.of_rows(rows)
        for sample, total in zip(part, group, strict=True):
            own.add(sample, total, fresh=rows.start == 0, squared=squared)
        if group is not totals and (rows.stop % MAX_ADDED_EXAMPLES == 0 or rows.stop == len(weights.factors)):
            for total, more in zip(totals, group, strict=True):
                total += more
    return [total.view_as(total) for total in totals]


def tensors_of(name: str, values: object) -> list[torch.Tensor]:
    """Return tensors as a list; raise InvalidParameter for anything else, such as named parameters."""
    listed = list(values) if isinstance(values, Iterable) else [values]
    others = [type(each).__name__ for each in listed if not isinstance(each, torch.Tensor)]
    if others:
        message = f"{name} have a {others[0]} among them; give tensors, one for each parameter, in order"
        raise InvalidParameter(message, field="parameters")
    return listed


def refuse_narrow(sums: Sequence[torch.Tensor]) -> None:
    """Refuse sums of clipped gradients that are rounded to fewer digits than those of float32.

    Raises:
        InvalidParameter: a sum has fewer digits.
    """
    for kind in {total.dtype for total in sums}:
        if not kind.is_floating_point or torch.finfo(kind).eps > 2.0 ** (1 - _FLOAT32_DIGITS):
            raise InvalidParameter(
                f"the sum of clipped gradients is {kind}, and rounding it before the noise is added raises its "
                "sensitivity; clip and sum in float32 or float64",
                field="parameters",
            )


@dataclass
class _Weights:
    """The weights of the gradients of examples, shape (examples,): zero for a gradient that is not finite."""

    factors: torch.Tensor
    spoilt: torch.Tensor
    compiled: bool

    @classmethod
    def of(cls, samples: Sequence[Rows], clip_norm: float, counted: torch.Tensor | None) -> _Weights:
        """Return the weights that clip gradients, and leave out examples that do not count."""
        squares = squared_norms(samples)
        spoilt = ~squares.isfinite()
        factors = (clip_norm * CLIP_FACTOR / squares.sqrt()).clamp(max=1.0)
        left_out = spoilt if counted is None else spoilt | ~counted.to(squares.device)
        return cls(factors.masked_fill(left_out, 0.0), spoilt, _takes_loops(samples))

    def of_rows(self, rows: slice) -> _Weights:
        """Return the weights of some examples."""
        return _Weights(self.factors[rows], self.spoilt[rows], self.compiled)

    @cached_property
    def _has_spoilt(self) -> bool:
        return bool(self.spoilt.any())

    @cached_property
    def _places(self) -> np.ndarray | None:
        """The rows that replace those that are not finite, since 0 times NaN is NaN; None where all are finite."""
        if not self._has_spoilt:
            return np.arange(len(self.spoilt))
        bad = self.spoilt.numpy()
        return None if bad.all() else np.where(bad, np.argmin(bad), np.arange(len(bad)))

    def add(self, sample: torch.Tensor, total: torch.Tensor, *, fresh: bool = True, squared: bool = False) -> None:
        """Add the sum of factor * gradient, or of its squares, to a total, or to zeros; padding takes the same time.

        The products are in float64, which torch never makes in TF32 or bfloat16.
        """
        plain = _plain_rows(sample) if self.compiled and not squared else None
        if plain is not None and self._places is not None:
            self._add_plain(plain, self._places, total, fresh)
            return
        if fresh:
            total.zero_()
        factors, flat = self.factors.to(total.device), total.view(-1)
        dropped = self.spoilt.to(total.device)[:, None] if self._has_spoilt else None
        for rows, columns, part in _widened(sample):
            if dropped is not None:
                part.masked_fill_(dropped[rows], 0.0)
            if squared:
                flat[columns].addmv_(part.square_().T, factors[rows].square())
            else:
                flat[columns].addmv_(part.T, factors[rows])

    def _add_plain(self, plain: np.ndarray, places: np.ndarray, total: torch.Tensor, fresh: bool) -> None:
        """Add the sum to a total by a compiled loop."""
        factors = self.factors.numpy()
        for first in range(0, len(plain), MAX_ADDED_EXAMPLES):
            rows = slice(first, first + MAX_ADDED_EXAMPLES)
            part = torch.zeros_like(total) if first else total
            out = part.numpy().reshape(-1)
            _share(
                plain.shape[1],
                plain.size,
                partial(add_weighted, plain, places[rows], factors[rows], fresh and not first, out),
            )
            if first:
                total += part


def squared_norms(samples: Sequence[Rows]) -> torch.Tensor:
    """Return the squared norm of each example's gradient over all parameters, float64, shape (examples,).

    Raises:
        InvalidParameter: parameters have different numbers of examples, which broadcasting would add up.
    """
    compiled = _takes_loops(samples)
    return torch.cat([_squares_of_all(part, compiled) for _, part in iterate_rows(samples)])


def _squares_of_all(samples: Sequence[torch.Tensor], compiled: bool) -> torch.Tensor:
    """Return the squared norms of the examples that are in memory."""
    rows = sorted({len(sample) for sample in samples})
    if len(rows) > 1:
        message = f"parameters have gradients of {rows} examples and of others; give each one row per example"
        raise InvalidParameter(message, field="model")
    squares = torch.zeros(rows[0], dtype=torch.float64, device=_home(samples[0].device))
    for sample in samples:
        if not compiled or (plain := _plain_rows(sample)) is None:
            squares += _squares(sample).to(squares.device)
        else:
            _share(len(plain), plain.size, partial(add_squares, plain, squares.numpy()))
    return squares


def _squares(sample: torch.Tensor) -> torch.Tensor:
    """Return the squared norm of each example's gradient by one parameter."""
    total = torch.zeros(len(sample), dtype=torch.float64, device=_home(sample.device))
    for rows, _, part in _widened(sample):
        total[rows] += torch.linalg.vector_norm(part, dim=1).square()
    return total


def load_loops(parameters: Sequence[torch.Tensor]) -> None:
    """Load the compiled loops that gradients of parameters may need, before there are any.

    The compiler keeps many small objects. Among gradients, which come and go, these would leave holes that no gradient
    of the next step fits.
    """
    if HAS_COMPILER and sum(p.numel() for p in parameters) >= BLOCK:
        for dtype in {p.dtype for p in parameters if p.is_cpu} & _COMPILED_TYPES:
            row, one = torch.zeros(1, 1, dtype=dtype).numpy(), np.zeros(1)
            add_squares(row, one, 0, 1)
            add_weighted(row, np.zeros(1, int), one, True, np.zeros(1), 0, 1)


def _zeros(samples: Sequence[Rows]) -> list[torch.Tensor]:
    """Return memory for the sums of gradients over their examples, in one piece on a device, which leaves no holes."""
    totals: list[torch.Tensor] = []
    for home, own in groupby(samples, lambda each: _home(each.device)):
        shapes = [each.shape[1:] for each in own]
        flat = torch.zeros(sum(map(torch.Size.numel, shapes)), dtype=torch.float64, device=home)
        parts = flat.split([shape.numel() for shape in shapes])
        totals += [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
    return totals


def _takes_loops(samples: Sequence[Rows]) -> bool:
    """Return whether compiled loops are the faster way for a batch of gradients."""
    entries = sum(sample.shape.numel() for sample in samples)
    return HAS_COMPILER and entries >= MIN_COMPILED_ENTRIES and all(each.device.type == "cpu" for each in samples)


def _plain_rows(sample: torch.Tensor) -> np.ndarray | None:
    """Return gradients as an array, shape (examples, entries), if a compiled loop can read them."""
    fits = sample.dtype in _COMPILED_TYPES and sample.is_contiguous()
    return flat_rows(sample.detach()).numpy() if fits else None


def _share(count: int, entries: int, work: Callable[[int, int], object]) -> None:
    """Call work(first, last) for all of `count` rows or columns, on torch's number of threads where that pays."""
    threads = max(1, min(torch.get_num_threads(), entries // MIN_SHARE_ENTRIES, count))
    ends = [count * i // threads for i in range(threads + 1)]
    if threads == 1:
        work(0, count)
        return
    with ThreadPoolExecutor(threads, "factorize-clipping") as pool:
        list(pool.map(work, ends[:-1], ends[1:]))


def _widened(sample: torch.Tensor) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Yield the gradients by parts, as (rows, columns, float64 copy of them), few enough for a cache."""
    flat = flat_rows(sample)
    entries = MAX_WIDENED_ENTRIES * (1 if sample.device.type == "cpu" else 64)
    for first in range(0, len(flat), MAX_ADDED_EXAMPLES):
        rows = slice(first, first + MAX_ADDED_EXAMPLES)
        count = max(1, entries // len(flat[rows]))
        for start in range(0, flat.shape[1], count):
            columns = slice(start, start + count)
            part = flat[rows, columns].to(_home(flat.device))
            yield rows, columns, part.to(torch.float64, copy=True, memory_format=torch.contiguous_format)


def flat_rows(sample: torch.Tensor) -> torch.Tensor:
    """Return gradients as a matrix, shape (examples, entries)."""
    return sample.flatten(1) if sample.dim() > 1 else sample[:, None]


def _home(device: torch.device) -> torch.device:
    """Return a device that has float64: the given one, or the CPU."""
    return torch.device("cpu") if device.type == "mps" else device
