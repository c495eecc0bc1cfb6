"""A rehearsal of the first step: does one example change the gradients of others, through a layer or through the loss?

The clip norm bounds what an example adds to the sum only if its gradient is a function of the example alone. Class
weights under a mean, `ignore_index`, contrastive losses, Mixup and layers that subtract a batch's mean break that, and
one backward pass does not show it. So before a model's first step its first batch is taken once more with half of its
examples replaced by another one, under the same random numbers. Nothing of that pass is released. In the step that
follows, the gradients of the examples that stayed must be the same.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler

from factorize.adapters.clipping import example_rows
from factorize.errors import InvalidParameter, InvalidParticipation

Loss = Callable[[Any, Any], torch.Tensor]
"""From the model and a batch of the loader to one loss for each example, shape (examples,)."""

MAX_SKETCH_ENTRIES = 1 << 16
"""Rows longer than this are folded with random signs, so that a rehearsal keeps 256 kB for each example."""
MAX_SCANNED_EXAMPLES = 64
"""Examples that are searched for one with rare labels: few enough to be read in the time of a step."""
MAX_LEFT_EXAMPLES = 8
"""Examples of a batch of which most are left out: a wrong factor shows in each of them, and few cost little."""
TOLERANCE = 1e-3
"""Clip norms that other examples may move the sum by, beyond roundings: one example moves it by 1.001 at most."""
TOLERANCE_OF_SHAPES = 2e-2
"""The same between batches of different shapes, whose matrix products add up in other orders."""
SHARE_OF_LARGEST = 1e-3
"""Gradients below this part of the largest are compared with that, since roundings of small ones are larger."""

WAY_OUT = (
    "take one loss for each example (reduction='none', without weights of classes that a mean divides by) and its mean "
    "over the batch, keep layers and losses from comparing examples, and draw random numbers from global generators "
    "alone; loss='not_looked_at' goes on, and the statement then says so"
)


class Altered(NamedTuple):
    """A batch of which some examples were replaced or left out.

    Attributes:
        batch: as the loader collates it.
        rows: its number of examples.
        kept: (place in the batch, place here) of the examples that stayed.
        alike: whether its tensors have the shapes of the batch, so that random numbers fall on the same entries.
    """

    batch: Any
    rows: int
    kept: list[tuple[int, int]]
    alike: bool


class GradientRows(NamedTuple):
    """Gradients of one pass by example.

    Attributes:
        sketch: linear in the gradients and of about their norms, exact for short ones, shape (examples, entries).
        norms: of the sketch, float64, shape (examples,).
        rounding: relative, of the arithmetic that made the gradients.
    """

    sketch: torch.Tensor
    norms: torch.Tensor
    rounding: float

    @classmethod
    def of(cls, samples: Sequence[torch.Tensor]) -> GradientRows:
        """Return the rows of per-example gradients by parameter."""
        sketch = _sketch(samples)
        norms = torch.linalg.vector_norm(sketch.float() if sketch.device.type == "mps" else sketch.double(), dim=1)
        return cls(sketch, norms, max(_rounding(sample) for sample in samples))

    def clipped(self, unit: float, places: list[int]) -> torch.Tensor:
        """Return the sketch of some gradients that are clipped to `unit`; zero where one is not finite."""
        norms = self.norms[places]
        counts = norms.isfinite() & (norms > 0)
        weight = torch.where(counts, (unit / norms).clamp(max=1.0), 0.0).to(self.sketch)[:, None]
        return (self.sketch[places] * weight).masked_fill_(weight == 0, 0.0)


@dataclass(frozen=True)
class Randomness:
    """The state of every global generator: Python's, numpy's, torch's on the CPU and on CUDA devices."""

    python: Any
    numpy: Any
    torch: torch.Tensor
    cuda: list[torch.Tensor]

    @classmethod
    def now(cls) -> Randomness:
        """Return the present state."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Go back to this state."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)

    def still(self) -> bool:
        """Whether no number was drawn since."""
        now = Randomness.now()
        same = all(map(np.array_equal, self.numpy, now.numpy)) and self.python == now.python
        return same and torch.equal(self.torch, now.torch) and all(map(torch.equal, self.cuda, now.cuda))


class Part(NamedTuple):
    """What the loader hands out next.

    Attributes:
        place: step, and number of the part in it.
        batch: of the part.
        altered: batches to take before it.
        randomness: when it is handed out.
    """

    place: tuple[int, int]
    batch: Any
    altered: list[Altered]
    randomness: Randomness


class Rehearsal:
    """Looks at a model and its loss before their first step, and again when the model was changed.

    Args:
        model: in Opacus's `GradSampleModule`.
        parameters: that have noise.
        loss: `rehearsed` looks at what the caller's loop does; a function is computed here; `not_looked_at` looks at
            the model's parameters alone.
        reduction: of the caller's loss over a batch.

    Attributes:
        examples: that count in the part that the loader has handed out, None where it has handed out none.
        again: whether a step was not taken since the model had been changed, and its batch has to come again.
        fault: what a rehearsal found, to be raised before anything is released.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        parameters: Sequence[torch.nn.Parameter],
        loss: Loss | Literal["rehearsed", "not_looked_at"],
        reduction: str = "mean",
    ) -> None:
        self._model, self._parameters = model, list(parameters)
        self._loss, self._reduction = loss, reduction
        self._names = {id(p): name.removeprefix("_module.") for name, p in model.named_parameters()}
        self._known: Hashable = None  # the model whose parameters were compared with those that have noise
        self._seen: Hashable = None  # the model whose gradients were looked at
        self._rehearsed: Hashable = None  # the model of the passes that are kept
        self._part: Part | None = None
        self._passes: list[tuple[Altered, GradientRows]] = []
        self._handed: Altered | None = None
        self._undo: list[Callable[[], Any]] = []
        self.examples: int | None = None
        self.again = False
        self.fault: InvalidParameter | None = None
        inner = getattr(model, "_module", model)  # hooks of the model that the caller may still use directly
        inner.register_forward_pre_hook(self._before_forward)
        inner.register_forward_hook(_after_forward)

    def _before_forward(self, *_: Any) -> None:
        """Refuse a parameter that Opacus's hooks would stumble over."""
        if torch.is_grad_enabled():
            self.check_parameters()

    @property
    def rehearsing(self) -> bool:
        """Whether the batch that was handed out last is one of a rehearsal."""
        return self._handed is not None

    @property
    def wanted(self) -> bool:
        """Whether a rehearsal has to come before the next batch."""
        return self._loss != "not_looked_at" and self._seen is None

    def names(self, parameters: Sequence[Any]) -> list[tuple[str, Any]]:
        """Return parameters with their names in the model."""
        return [(self._names.get(id(p), f"parameter {i}"), p) for i, p in enumerate(parameters)]

    def passes(self, part: Part) -> Generator[Any, None, Any]:
        """Take the altered batches of a part: by the given loss here, else by yielding them to the caller's loop.

        Returns:
            The batch to take next, with the random numbers that it was made with: of the same part as before, where a
            loop makes one iterator after another.

        Raises:
            InvalidParticipation: an altered batch was handed out, and no step taken with it.
            InvalidParameter: the losses are not one for each example.
        """
        if self._part is None or self._part.place != part.place or self.rehearsing:
            self._part, self._passes = part, []
        part = self._part
        self._put_back()  # what a pass left whose iterator was given up
        for altered in part.altered[len(self._passes) :]:
            if altered.alike or not self._passes or self._still:
                part.randomness.restore()
                yield from self._pass(altered)
        part.randomness.restore()
        return part.batch

    def _pass(self, altered: Altered) -> Iterator[Any]:
        for p in self._parameters:
            p.grad, p.grad_sample = None, None
        self._undo = [partial(_copy, each, each.clone()) for each in self._model.buffers()]
        self._handed = altered
        if self._loss == "rehearsed":
            try:
                yield altered.batch
            finally:
                if not self.rehearsing:
                    self._put_back()
            if self.rehearsing:
                raise InvalidParticipation(
                    "the batch that rehearses the first step was handed out, and no step taken with it; call step() "
                    "once for each batch, or examples and noise part ways"
                )
        elif self._model.training:
            losses = self._losses(altered)
            (losses.mean() if self._reduction == "mean" else losses.sum()).backward()
            self.capture()
        self._handed = None
        self._put_back()

    def _losses(self, altered: Altered) -> torch.Tensor:
        assert callable(self._loss)
        losses = self._loss(self._model, altered.batch)
        if losses.shape != (altered.rows,):
            raise InvalidParameter(
                f"the loss has shape {tuple(losses.shape)} for {altered.rows} examples; return one for each, before "
                "any mean over the batch (reduction='none')",
                field="loss",
            )
        return losses

    def _put_back(self) -> None:
        """Undo what a pass did beside gradients: random numbers, buffers, schedules of learning rates."""
        for undo in self._undo:
            undo()
        self._undo = []

    def _clear(self) -> None:
        """Forget gradients that must not be released; a loop that logs `p.grad` finds zeros."""
        for p in self._parameters:
            p.grad, p.grad_sample = torch.zeros_like(p), None

    def capture(self, optimizers: Sequence[Any] = ()) -> None:
        """Keep the gradients of the altered batch in place of a step, and clear them.

        Args:
            optimizers: whose schedules a loop moves on after its step.

        Raises:
            InvalidParameter: a parameter has other rows than the batch, or has no noise.
            InvalidParticipation: the gradients are not those of the batch.
        """
        altered, part = self._handed, self._part
        assert altered is not None and part is not None
        self.check_parameters()
        named = self.names(self._parameters)
        samples = example_rows(named, altered.rows)
        if len(samples[0]) != altered.rows:
            raise InvalidParticipation(
                f"the step has gradients of {len(samples[0])} examples, its batch holds {altered.rows}; use each batch "
                "whole, once, and nothing beside it"
            )
        found = GradientRows.of(samples)
        self._still = part.randomness.still()
        self.fault = self.fault or difference_of_autograd(named, samples, found)
        if not altered.alike and not self._still:
            self.fault = self.fault or InvalidParameter(
                "the loop draws random numbers, and no two batches of the collation have one shape, so that the "
                f"gradients of examples cannot be compared; {WAY_OUT}",
                field="loss",
            )
        self._passes.append((altered, found))
        self._rehearsed = self._fingerprint()
        self._clear()
        self._undo.append(part.randomness.restore)
        for each in optimizers:
            self._undo += [partial(kept.update, {**kept}) for kept in _schedules(each)]
            each._opt_called = True  # as the loop sees it; else torch warns of the schedule's step after this one
        self._handed = None

    def check_parameters(self) -> None:
        """Refuse a model whose trained parameters are not those that have noise.

        Raises:
            InvalidParameter: one was frozen, thawed, added or replaced, or is in a layer in eval mode.
        """
        now = self._fingerprint()
        if now == self._known:
            return
        for name, layer in self._model.named_modules() if self._model.training else ():
            if not layer.training and any(p.requires_grad for p in layer.parameters(recurse=False)):
                raise InvalidParameter(
                    f"{name.removeprefix('_module.')} is in eval mode, where Opacus has no gradients of examples; call "
                    "model.train() before the forward pass, or freeze its parameters before the job is made private",
                    field="model",
                )
        trained = {
            id(p): name.removeprefix("_module.") for name, p in self._model.named_parameters() if p.requires_grad
        }
        own = {id(p) for p in self._parameters}
        bare = next((name for key, name in trained.items() if key not in own), None)
        gone = next((name for name, p in self.names(self._parameters) if id(p) not in trained), None)
        if bare is not None:
            raise InvalidParameter(
                f"{bare} is trained and has no noise: the optimizer does not have it, or it was added, replaced or "
                "thawed after the job was made private; freeze it, or make the job private with it",
                field="model",
            )
        if gone is not None:
            raise InvalidParameter(
                f"{gone} has noise and is not trained any more: it was frozen, replaced or removed; keep it to the end "
                "of the run (a learning rate of 0 stops it)",
                field="model",
            )
        self._known = now

    def due(self, examples: int) -> bool:
        """Return whether a step with so many examples has to wait for a rehearsal of the model as it is now."""
        if self._loss == "not_looked_at" or examples < 2:
            return False
        return self._fingerprint() != (self._rehearsed if self._passes else self._seen)

    def postpone(self) -> None:
        """Take no step with the gradients that are there: the loader repeats their batch after a rehearsal."""
        self._seen, self._part, self._passes, self.again = None, None, [], True
        self._clear()

    def compare(self, samples: Sequence[torch.Tensor], counted: torch.Tensor | None, clip_norm: float) -> None:
        """Compare a step's gradients with those of the rehearsal, and keep what is wrong as `fault`."""
        if not self._passes:
            return
        rows = GradientRows.of(samples)
        for altered, other in self._passes:
            self.fault = self.fault or _difference(rows, other, altered, counted, clip_norm)
        if rows.norms.count_nonzero():  # gradients of zero show nothing
            self._seen = self._rehearsed
        self._part, self._passes = None, []

    def _fingerprint(self) -> Hashable:
        """Return what changes with the layers, their modes, the parameters and which of them are trained."""
        layers = tuple((id(each), each.training) for each in self._model.modules())
        return layers, tuple((id(p), p.requires_grad) for p in self._model.parameters())


def alter_batches(
    items: Sequence[Any], collate: Callable[[Sequence[Any]], Any], other: Any, *, drop: bool, shapes: bool
) -> tuple[Any, list[Altered]]:
    """Return a batch, and batches of which every second example is another one.

    Every replaced example becomes the same other one: a batch of the same labels in another order would hide weights of
    classes. Draws of the collation fall on the same examples in all of them.

    Args:
        items: of the batch.
        collate: to a batch.
        other: an item to replace examples by.
        drop: also leave out most examples, where the sizes of batches depend on the examples.
        shapes: also have a batch whose padding is another, where there is one.
    """
    before = Randomness.now()
    batch = collate(_copies(items))
    after = Randomness.now()
    size, wanted = len(items), [tensor.shape for tensor in _tensors(batch)]
    found: dict[bool, Altered] = {}
    for kept, new in _replacements(items, other) if size > 1 else ():
        before.restore()
        try:
            made = collate(_copies([items[i] if i in kept else new for i in range(size)]))
        except Exception:  # examples of other shapes than the batch's do not always stack
            continue
        alike = [tensor.shape for tensor in _tensors(made)] == wanted
        found.setdefault(alike, Altered(made, size, [(i, i) for i in kept], alike))
        if alike and (len(found) == 2 or not shapes):
            break
    altered = [found[alike] for alike in (True, False) if alike in found and (alike or shapes or len(found) == 1)]
    if drop and size > 1:
        before.restore()
        pairs = [(i, place) for place, i in enumerate(range(0, size, max(2, size // MAX_LEFT_EXAMPLES)))]
        altered.append(Altered(collate(_copies([items[i] for i, _ in pairs])), len(pairs), pairs, False))
    after.restore()
    return batch, altered


def _replacements(items: Sequence[Any], other: Any) -> list[tuple[list[int], Any]]:
    """Return places that stay and the example for all others, first those that change most of what losses divide by."""
    size, marks = len(items), [_marks(item) for item in items]
    known: set[tuple[int, float]] = set()
    diverse: list[int] = []  # every label of the batch is among them, as far as half of it can hold them
    for i, own in enumerate(marks):
        if len(diverse) < size // 2 and not known.issuperset(enumerate(own)):
            diverse.append(i)
            known.update(enumerate(own))
    halves = [set(range(0, size, 2)), set(range(1, size, 2)), {*diverse, *range(size // 2 - len(diverse))}]
    ranked = []
    for replaced in (*halves, set(range(size)) - halves[2]):
        kept = [i for i in range(size) if i not in replaced]
        for new in (other, *(items[i] for i in (kept[0], kept[-1], kept[len(kept) // 2]))):
            leaves = list(zip(_marks(new), *(marks[i] for i in replaced), strict=False))
            moved = sum(size * (sum(old) != len(old) * own) + len({own, *old}) for own, *old in leaves)
            ranked.append((moved, kept, new))
    ranked.sort(key=lambda each: -each[0])
    even = len({tuple(tensor.shape for tensor in _tensors(item)) for item in (*items, other)}) == 1
    return [each[1:] for each in ranked[: 2 if even else None]]


def _copies(items: Sequence[Any]) -> list[Any]:
    """Return items that a collation may write to."""
    return [{**item} if isinstance(item, dict) else item for item in items]


def rare_example(dataset: Any) -> int:
    """Return an example whose labels, or numbers of ignored entries, are rare among examples all over the data."""
    size = len(dataset)
    places = {int(i) for i in np.linspace(0, size - 1, min(size, MAX_SCANNED_EXAMPLES))}
    for column in getattr(dataset, "tensors", ()):
        if torch.is_tensor(column) and column.dim() == 1 and not column.is_floating_point():
            _, inverse, counts = torch.unique(column, return_inverse=True, return_counts=True)
            places.add(int((inverse == counts.argmin()).nonzero()[0]))
    marks = {i: _marks(dataset[i]) for i in sorted(places)}

    def commonness(place: int) -> int:
        return sum(sum(own[k] == mark for own in marks.values() if k < len(own)) for k, mark in enumerate(marks[place]))

    return min(marks, key=commonness)


def _marks(item: Any) -> list[float]:
    """Return numbers by which losses tell examples apart, of a sequence its length and how often it has its least."""
    if isinstance(item, Mapping):
        return [mark for key in item for mark in _marks(item[key])]
    numbers = isinstance(item, list) and all(isinstance(each, (int, float)) for each in item)
    if isinstance(item, (list, tuple)) and not numbers:
        return [mark for each in item for mark in _marks(each)]
    values = item.detach().cpu().double().numpy() if torch.is_tensor(item) else item
    if not isinstance(values, (bool, int, float, list, np.ndarray, np.generic)):
        return []
    values = np.asarray(values)
    if values.dtype.kind not in "iufb":
        return []
    if values.ndim == 0:
        return [float(values)]
    return [float(values.size), float((values == values.min()).sum()) if values.size else 0.0]


def _tensors(batch: Any) -> list[torch.Tensor]:
    if torch.is_tensor(batch):
        return [batch]
    if isinstance(batch, Mapping):
        return [tensor for key in batch for tensor in _tensors(batch[key])]
    return [tensor for each in batch for tensor in _tensors(each)] if isinstance(batch, (list, tuple)) else []


def _after_forward(model: torch.nn.Module, _: Any, output: Any) -> None:
    """Have a backward pass through a model in eval mode refused."""
    for tensor in [] if model.training else _tensors(output):
        if tensor.requires_grad:
            tensor.register_hook(_refuse_eval)


def _refuse_eval(_: torch.Tensor) -> None:
    raise InvalidParameter(
        "the model is in eval mode, where Opacus has no gradients of examples; call model.train() before the forward "
        "pass of a step, and torch.no_grad() where none follows",
        field="model",
    )


def _copy(buffer: torch.Tensor, value: torch.Tensor) -> None:
    with torch.no_grad():
        buffer.copy_(value)


def _rounding(sample: torch.Tensor) -> float:
    """Return the relative rounding of a gradient; CUDA devices may make products of float32 in TF32."""
    own = torch.finfo(sample.dtype).eps
    return max(own, 2.0**-11) if sample.is_cuda and sample.dtype == torch.float32 else own


def _sketch(samples: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return rows of at most `MAX_SKETCH_ENTRIES`, of the norms of the gradients in expectation."""
    total = sum(sample[0].numel() for sample in samples) if len(samples[0]) else 0
    width, device = min(total, MAX_SKETCH_ENTRIES), samples[0].device
    out = torch.zeros(len(samples[0]), width, device=device, dtype=torch.float64 if total == width else torch.float32)
    laps = -(-total // max(width, 1))
    signs = torch.randint(0, 2, (width + laps,), generator=torch.Generator().manual_seed(0)).to(out) * 2 - 1
    at, lap = 0, 0  # each lap has the signs of the one before, one place on: those of one column are independent
    for sample in samples:
        flat, start = sample.flatten(1) if sample.dim() > 1 else sample[:, None], 0
        while start < flat.shape[1]:
            count = min(flat.shape[1] - start, width - at)
            part = flat[:, start : start + count].to(out)
            out[:, at : at + count].addcmul_(part, signs[at + lap : at + lap + count])
            start, at = start + count, at + count
            if at == width:
                at, lap = 0, lap + 1
    return out


def _difference(
    rows: GradientRows, other: GradientRows, altered: Altered, counted: torch.Tensor | None, clip_norm: float
) -> InvalidParameter | None:
    """Return what is wrong if the examples that stayed have other gradients."""
    counts = [True] * len(rows.norms) if counted is None else counted.tolist()
    kept = [(mine, theirs) for mine, theirs in altered.kept if counts[mine]]
    if not kept:
        return None
    mine, theirs = (list(each) for each in zip(*kept, strict=True))
    norms = [each.norms.nan_to_num(0, 0, 0) for each in (rows, other)]
    largest = max(float(each.max()) for each in norms)
    if largest == 0:
        return None
    unit = min(clip_norm, largest)  # gradients far below the clip norm would hide it
    moved = rows.clipped(unit, mine) - other.clipped(unit, theirs)
    by = max(float(moved.sum(0).norm()), float(moved.norm(dim=1).max())) / unit
    own = torch.maximum(norms[0][mine], norms[1][theirs]).clamp(min=SHARE_OF_LARGEST * largest)
    whole = rows.clipped(largest, mine) - other.clipped(largest, theirs)  # clipping hides what scales a gradient
    share = float((whole.norm(dim=1) / own).max())
    rounding = max(rows.rounding, other.rounding)
    allowed = (TOLERANCE if altered.alike else TOLERANCE_OF_SHAPES) + 4 * rounding * len(kept) ** 0.5
    with_gradient = [int(norms[0].count_nonzero()), int(norms[1][theirs].count_nonzero())]
    if max(by, share) <= allowed and with_gradient[0] == 1 < len(kept) and with_gradient[1] <= 1:
        return InvalidParameter(
            f"one of {len(rows.norms)} examples has a gradient, and all others have none: the loss takes one example "
            f"of a batch (its largest, say), and which one depends on the others; {WAY_OUT}",
            field="loss",
        )
    if max(by, share) <= allowed:
        return None
    what = "replacing" if altered.rows == len(rows.norms) else "leaving out"
    return InvalidParameter(
        f"{what} {len(rows.norms) - len(altered.kept)} of {len(rows.norms)} examples moved the sum of the clipped "
        f"gradients of the others by {by:.3g} clip norms, and one of these gradients by {share:.3g} of its norm "
        f"(rounding explains {allowed:.1g}): the loss or a layer mixes the examples of a batch, so that one of them "
        f"can move the sum by more than the clip norm; {WAY_OUT}",
        field="loss",
    )


def difference_of_autograd(
    named: Sequence[tuple[str, Any]], samples: Sequence[torch.Tensor], rows: GradientRows
) -> InvalidParameter | None:
    """Return what is wrong if the gradients of examples do not add up to plain autograd's gradient of the batch.

    Args:
        named: parameters with their names; `p.grad` is of this batch alone.
        samples: their gradients by example.
        rows: of the samples.
    """
    if any(p.grad is None or isinstance(p.grad_sample, list) for _, p in named) or not len(samples[0]):
        return None
    allowed = (TOLERANCE + 4 * rows.rounding) * float(rows.norms.sum())  # within 1 %, since a sketch has them
    whole = rows.sketch.sum(0, dtype=torch.float64), _sketch([p.grad[None] for _, p in named])[0].double()
    factors = 1, len(samples[0])  # of sums, and of means, whose gradients Opacus multiplies by the examples
    near = min(float((whole[0] - whole[1] * factor).norm()) for factor in factors)
    if near <= allowed / 2 or not np.isfinite(near):
        return None
    sums = [sample.sum(0, dtype=torch.float64) for sample in samples]
    pairs = [list(zip(sums, [p.grad.double() * factor for _, p in named], strict=True)) for factor in factors]
    errors = min(([float((own - other).norm()) for own, other in each] for each in pairs), key=np.linalg.norm)
    if not np.linalg.norm(errors) > allowed:
        return None
    worst = int(np.argmax(errors))
    share = errors[worst] / max(float(sums[worst].norm()), 1e-300)
    return InvalidParameter(
        f"the gradients of examples that Opacus has for {named[worst][0]} add up to another gradient than that of the "
        f"batch by plain autograd (they differ by {share:.3g} of its norm): it is used outside of its own layer, tied "
        "to another parameter, or penalized in the loss; use it in its layer alone, and the optimizer's weight_decay "
        "for penalties",
        field="model",
    )


def _schedules(optimizer: Any) -> Iterator[dict[str, Any]]:
    """Yield the attributes of every scheduler of an optimizer, and of its groups, that a step of theirs changes."""
    yield from optimizer.param_groups
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        for each in gc.get_objects():
            if issubclass(type(each), LRScheduler) and getattr(each, "optimizer", None) is optimizer:
                yield vars(each)
