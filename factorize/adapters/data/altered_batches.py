"""Altered batches: a batch with other examples in about half of its places, made under the same random numbers."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from factorize.adapters.data.data_reads import DataReads
from factorize.errors import InvalidParameter

MAX_SCANNED_EXAMPLES = 64
"""The most examples that are searched for one with rare labels: few enough to be read in the time of a step."""
MAX_MARKED_ENTRIES = 1 << 16
"""The most entries by which a tensor is recognised: two batches differ in more, and reading as many costs nothing."""
MAX_MARKED_ROW_ENTRIES = 1 << 6
"""The most entries by which an example's row is recognised: there are hundreds of rows in a step."""
MIN_TELLING_NUMBERS = 8
"""The fewest whole numbers, beside the least and the largest of a row, that tell it from others: words, no padding."""
MAX_MARKS = 1 << 17
"""The most tensors and rows of earlier batches that are remembered: some 16 megabytes of marks."""
MAX_KEPT_EXAMPLES = 8
"""The number of examples that stay if most of a batch is left out: a wrong factor shows in each, at little cost."""


class Altered(NamedTuple):
    """A batch of which some examples were replaced or left out.

    Attributes:
        batch: the batch as the loader collates it.
        rows: number of its examples.
        kept: (place in the batch, place here) of the examples that stayed.
        alike: whether its tensors have the shapes of the batch, so that random numbers fall on the same entries.
        other: whether one of its tensors differs from the batch's.
    """

    batch: Any
    rows: int
    kept: list[tuple[int, int]]
    alike: bool
    other: bool = True


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

    @classmethod
    @contextmanager
    def keep(cls) -> Iterator[None]:
        """Go back to the present state when the block, or the function that this decorates, ends."""
        before = cls.now()
        try:
            yield
        finally:
            before.restore()

    def restore(self) -> None:
        """Go back to this state."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)

    def still(self) -> bool:
        """Return whether no number was drawn since."""
        now = Randomness.now()
        same = all(map(np.array_equal, self.numpy, now.numpy)) and self.python == now.python
        return same and torch.equal(self.torch, now.torch) and all(map(torch.equal, self.cuda, now.cuda))


Replace: TypeAlias = Callable[[Sequence[int], int | None], Altered | None]
"""A function that returns a batch in which only some places keep their examples; the others get that of a place, or the
usual item for None. It returns None where these cannot be collated."""


class Part(NamedTuple):
    """The part that the loader hands out next.

    Attributes:
        place: step, and number of the part in it.
        batch: batch of the part.
        altered: the batches to take before it.
        randomness: the random state when it is handed out.
        replace: a function that makes more altered batches.
        on_all_ranks: whether every rank of the job rehearses this step, so that all can take as many more passes.
        reads: a watch for reads of the data beside the batch.
    """

    place: tuple[int, int]
    batch: Any
    altered: list[Altered]
    randomness: Randomness
    replace: Replace
    on_all_ranks: bool
    reads: DataReads

    def unaltered(self) -> Altered:
        """Return a copy of the batch as an altered one in which every example stays."""
        rows = self.altered[0].rows
        return Altered(deepcopy(self.batch), rows, [(i, i) for i in range(rows)], alike=True, other=False)

    def beside_idle(self, idle: Sequence[bool]) -> Iterator[Altered]:
        """Yield batches that show whether others decide which examples have no gradient.

        Losses that choose, or that drop a batch for one bad example, leave examples without a gradient. These come
        again beside copies of one of them; where no example has a gradient, each half comes beside a usual example.
        """
        places = [i for i, each in enumerate(idle) if each]
        halves = [(places[0::2], None), (places[1::2], None)]
        for kept, new in halves if all(idle) else [(places, i) for i in {*places[:1], *places[-1:]}]:
            altered = self.replace(kept, new)
            if altered is not None and altered.alike:
                yield altered


class BatchMarks:
    """The marks of the batches that were handed out, by which a batch is recognised that comes to a model again."""

    def __init__(self) -> None:
        self._now: set[Hashable] = set()
        self._earlier: dict[Hashable, None] = {}  # keys are in the order in which they were handed out
        self._returned: tuple[set[Hashable], set[Hashable]] = (set(), set())  # by the model, before and now

    def hand_out(self, batch: object, *, rehearsal: bool = False) -> None:
        """Keep the marks of a batch; the marks of the one before count as earlier ones from now on.

        Examples of a rehearsal may all come in a step, so it leaves no mark of single ones.
        """
        self._earlier.update(dict.fromkeys(self._now))
        for mark in [*itertools.islice(self._earlier, max(0, len(self._earlier) - MAX_MARKS))]:
            del self._earlier[mark]
        tensors = tensors_of(batch)
        rows = () if rehearsal else itertools.chain.from_iterable(map(_row_marks, tensors))
        self._now = {*map(_mark, tensors), *rows} - {None}
        self._returned = self._returned[1] or self._returned[0], set()

    def note_returned(self, outputs: object) -> None:
        """Keep the marks of what the model returns for the batch."""
        self._returned[1].update(_mark(tensor) for tensor in tensors_of(outputs) if tensor.requires_grad)

    def are_returned(self, inputs: object) -> bool:
        """Return whether a model is given what it returned for the batch before, such as a hidden state.

        What it returns for both is the same for all batches, or the same batch comes again.
        """
        given = {_mark(tensor) for tensor in tensors_of(inputs)} if self._returned[0] else set()
        return bool(given & (self._returned[0] - self._returned[1] - {None}))

    def are_earlier(self, inputs: object) -> bool:
        """Return whether the largest tensor that a model is given belongs to an earlier batch, and not to this one.

        Or half of its rows do, each to some batch, as those that are drawn from a replay buffer: a row alone may be the
        like of an earlier one, as where a loop leaves out words.
        """
        largest = max(tensors_of(inputs), key=torch.Tensor.numel, default=None)
        if largest is None or not self._earlier:
            return False
        marks = [_mark(largest), *_row_marks(largest)]
        whole, *rows = (mark in self._earlier and mark not in self._now for mark in marks)
        return whole or (any(rows) and 2 * sum(rows) >= len(rows))


def _mark(tensor: torch.Tensor) -> Hashable:
    """Return a mark that tells a tensor from others; None where all of its entries are one number."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    flat = tensor.detach().reshape(-1)
    some = flat[:: -(-len(flat) // MAX_MARKED_ENTRIES) or 1].cpu()
    if not len(some) or bool((some == some[0]).all()):
        return None
    return tensor.shape, hashlib.sha256(some.contiguous().view(torch.uint8).numpy()).digest()


def _row_marks(tensor: torch.Tensor) -> list[Hashable]:
    """Return a mark for each row of a tensor; None for a row of few whole numbers, which others may equal by chance."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.dim() < 2 or not tensor.numel():
        return []
    flat = tensor.detach().reshape(len(tensor), -1)
    some = flat[:, :: -(-flat.shape[1] // MAX_MARKED_ROW_ENTRIES)].cpu().contiguous()
    some = torch.view_as_real(some).flatten(1) if some.is_complex() else some
    if some.is_floating_point():
        some = some.float()
        telling = (some != some.round()).any(1)
    else:
        some = some.long()
        inner = (some != some.amin(1, keepdim=True)) & (some != some.amax(1, keepdim=True))
        telling = inner.sum(1) >= MIN_TELLING_NUMBERS
    marks = (hashlib.blake2b(row, digest_size=16).digest() for row in some.numpy())
    return [(tensor.shape[1:], mark) if tells else None for mark, tells in zip(marks, telling.tolist(), strict=True)]


def alter_batches(
    items: Sequence[object],
    collate: Callable[[Sequence[object]], object],
    instead: Sequence[object],
    usual: object = None,
    *,
    drop: bool,
    shapes: bool,
) -> tuple[Any, list[Altered], Replace]:
    """Return a batch, batches in which about half of the examples are replaced, and a function that makes more of them.

    Every replaced example becomes the same other one, because a batch of the same labels in another order would hide
    weights of classes. Each example is replaced in one of two batches, because others may depend on it alone, as on the
    largest. Draws of the collation fall on the same examples in all of them.

    Args:
        items: the items of the batch.
        collate: the function that makes a batch of items.
        instead: items to replace examples by, one of them in each batch.
        usual: an item that is known to have a gradient, for batches without any.
        drop: whether to leave out most examples, too, if the sizes of batches depend on the examples.
        shapes: whether to have two more batches, one with the other half replaced and one with another padding.

    Raises:
        InvalidParameter: the collation draws random numbers that cannot be drawn again, or for other entries.
    """
    before = Randomness.now()
    batch = collate(_copies(items))
    after = Randomness.now()
    before.restore()
    if not all(map(_same, tensors_of(batch), tensors_of(collate(_copies(items))))):
        raise InvalidParameter(
            "the collation makes another batch of the same examples each time, as with a generator of its own, so the "
            "gradients of examples cannot be compared; let it draw from the global generators (leave out its seed=)",
            field="data",
        )
    size, wanted = len(items), [tensor.shape for tensor in tensors_of(batch)]

    def replace(kept: Sequence[int], new: object) -> Altered | None:
        before.restore()
        try:
            made = collate(_copies([items[i] if i in kept else new for i in range(size)]))
        except Exception:  # examples of other shapes than the batch's cannot always be stacked
            return None
        alike = [tensor.shape for tensor in tensors_of(made)] == wanted
        if not (alike or after.still()):  # the collation drew for another shape, so its draws fell on other entries
            return None
        other = not (alike and all(map(torch.equal, tensors_of(made), tensors_of(batch))))
        return Altered(made, size, [(i, i) for i in kept], alike, other)

    found: dict[bool, Altered] = {}
    for kept, new in _replacements(items, instead) if size > 1 else ():
        made = replace(kept, new)
        if made is not None:
            found.setdefault(made.alike, made)
            if made.alike and (len(found) == 2 or not shapes):
                break
    if size > 1 and not found:
        raise InvalidParameter(
            "the collation draws random numbers, and no two batches have the same shape, so the gradients of examples "
            "cannot be compared; pad all examples to one length (pad_to_multiple_of=)",
            field="data",
        )
    altered = [found[alike] for alike in (True, False) if alike in found and (alike or shapes or len(found) == 1)]
    if True in found and shapes:
        others = sorted(set(range(size)) - {i for i, _ in found[True].kept})
        more = (replace(others, new) for new in (*instead, *(items[i] for i in others)))
        again = found[True]._replace(batch=deepcopy(found[True].batch))  # a loop or a model may change what it is given
        altered[1:1] = [next((each for each in more if each is not None and each.alike and each.other), again)]
    if drop and size > 1:
        before.restore()
        pairs = [(i, place) for place, i in enumerate(range(0, size, max(2, size // MAX_KEPT_EXAMPLES)))]
        altered.append(Altered(collate(_copies([items[i] for i, _ in pairs])), len(pairs), pairs, False))
    after.restore()
    return batch, altered, lambda kept, new: replace(kept, usual if new is None else items[new])


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same entries; NaN is the same as NaN."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def _replacements(items: Sequence[object], instead: Sequence[object]) -> list[tuple[list[int], Any]]:
    """Return places that stay and the example for all others, first those that change the divisors of losses most.

    An odd number of places is replaced, or stays, and most are drawn: no mixing of pairs, or of halves of the batch, is
    within each of both. Last come all examples but the largest ones, which have less padding without these.
    """
    size, marks = len(items), [_marks(item) for item in items]
    known: set[tuple[int, float]] = set()
    diverse: list[int] = []  # holds every label of the batch, as far as half of it can hold them
    for i, own in enumerate(marks):
        if len(diverse) < size // 2 and not known.issuperset(enumerate(own)):
            diverse.append(i)
            known.update(enumerate(own))
    order, odd = np.random.default_rng(size).permutation(size).tolist(), (size // 2 - 1) | 1
    others = [i for i in order if i not in diverse]
    halves = [set(order[:odd]), {*diverse, *others[: max(odd - len(diverse), 1 - len(diverse) % 2)]}]
    ranked = []
    for replaced in (each for half in halves for each in (half, set(range(size)) - half)):
        kept = [i for i in range(size) if i not in replaced]
        for new in (*instead, *(items[i] for i in (kept[0], kept[-1], kept[len(kept) // 2]))):
            leaves = list(zip(_marks(new), *(marks[i] for i in replaced), strict=False))
            moved = sum(size * (sum(old) != len(old) * own) + len({own, *old}) for own, *old in leaves)
            ranked.append((moved, kept, new))
    ranked.sort(key=lambda each: -each[0])
    even = len(set(map(_shapes, (*items, *instead)))) == 1
    sizes = [_total(_shapes(item)) for item in items]
    smaller = sorted((i for i in range(size) if sizes[i] < max(sizes)), key=lambda i: sizes[i])
    last = [(smaller, items[smaller[0]])] if smaller else []
    return [each[1:] for each in ranked[: 2 if even else None]] + last


def _shapes(item: Any) -> Hashable:
    """Return the shapes of what an item holds, by which it may be padded with others: lists and texts have lengths."""
    if isinstance(item, Mapping):
        return tuple(_shapes(each) for each in item.values())
    if isinstance(item, (list, tuple)):
        return len(item), *(_shapes(each) for each in item if not isinstance(each, (int, float)))
    return len(item) if isinstance(item, str) else tuple(getattr(item, "shape", ()))


def _copies(items: Sequence[object]) -> list[object]:
    """Return copies of the items, which a collation may change."""
    return [{**item} if isinstance(item, dict) else item for item in items]


def rare_examples(dataset: Any) -> list[int]:
    """Return an example whose labels, or numbers of ignored entries, are rare among examples all over the data.

    The largest one comes with it, if it has another shape: batches may be padded to it, though the first one is not.
    """
    size = len(dataset)
    places = {int(i) for i in np.linspace(0, size - 1, min(size, MAX_SCANNED_EXAMPLES))}
    for column in getattr(dataset, "tensors", ()):
        if torch.is_tensor(column) and column.dim() == 1 and not column.is_floating_point():
            _, inverse, counts = torch.unique(column, return_inverse=True, return_counts=True)
            places.add(int((inverse == counts.argmin()).nonzero()[0]))
    marks, shapes = dict[int, list[float]](), dict[int, Hashable]()
    for i in sorted(places):
        item = dataset[i]
        marks[i], shapes[i] = _marks(item), _shapes(item)

    def commonness(place: int) -> int:
        return sum(sum(own[k] == mark for own in marks.values() if k < len(own)) for k, mark in enumerate(marks[place]))

    rare, largest = min(marks, key=commonness), max(marks, key=lambda place: _total(shapes[place]))
    return [rare, largest] if shapes[rare] != shapes[largest] else [rare]


def _total(shape: Hashable) -> int:
    """Return the sum of the lengths in shapes of `_shapes`."""
    return sum(map(_total, shape)) if isinstance(shape, tuple) else shape if isinstance(shape, int) else 0


def _marks(item: Any) -> list[float]:
    """Return numbers by which losses tell examples apart, for a sequence its length and how often it has its least."""
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


def tensors_of(batch: object) -> list[torch.Tensor]:
    """Return the tensors of a batch, in dicts, lists and tuples."""
    if torch.is_tensor(batch):
        return [batch]
    if isinstance(batch, Mapping):
        return [tensor for key in batch for tensor in tensors_of(batch[key])]
    return [tensor for each in batch for tensor in tensors_of(each)] if isinstance(batch, (list, tuple)) else []
