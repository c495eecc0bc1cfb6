"""A data loader over a public or sampled order, which has every batch audited when it hands it out."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import cached_property, partial
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Sampler, default_collate

from factorize.adapters.checks.rehearsal import Rehearsal
from factorize.adapters.data.altered_batches import Part, Randomness, alter_batches, rare_examples
from factorize.adapters.data.data_mark import DataMark
from factorize.adapters.data.data_reads import DataReads
from factorize.adapters.data.empty_batches import collate_or_empty, empty_like
from factorize.adapters.data.given_data import GivenData
from factorize.adapters.data.mixed_data import refuse_mixed_data
from factorize.adapters.jobs import Planned
from factorize.adapters.opacus import CorrelatedOptimizer
from factorize.adapters.ranks.agreement import agree, own_rank, refuse_other_ranks
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.numbers.scalars import whole_number


class _Pass(Sampler[list[int]]):
    """The indices of each part of a batch that is left in a loader's pass."""

    def __init__(self, loader: PrivateLoader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return sum(len(parts) for _, parts, _ in self._loader.parts_left())

    def __iter__(self) -> Iterator[list[int]]:
        for _, parts, _ in self._loader.parts_left():
            yield from (part.tolist() for part in parts)


class _Examples(Sampler[int]):
    """The indices of the examples that are left in a loader's pass."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return sum(map(len, self._batches))

    def __iter__(self) -> Iterator[int]:
        return itertools.chain.from_iterable(self._batches)


class PrivateLoader(DataLoader[Any]):
    """Batches in the order that the sensitivity covers; each pass continues from the optimizer's step.

    Args:
        given: data set, batch size, and arguments of the `DataLoader` that fetches.
        planned: the plan with the order, which is cut into as many equal passes as there are epochs. Of every batch,
            each of its ranks gets the examples rank, rank + ranks and so on, in parts of the physical batch size.
        optimizer: the optimizer whose auditor checks each batch.
        rehearsal: rehearsal of the optimizer, for which the loader first hands out batches of its own.
        mark: mark of the data set, which each pass checks.
        axis: axis of the examples in a batch.

    Attributes:
        order: the order of the whole run.
        steps_of_pass: number of steps of one pass.

    Raises:
        InvalidParameter: there is no example for a part, or a batch has fewer examples than ranks, or a field that an
            empty batch cannot have, while batches may be empty.
    """

    def __init__(
        self,
        given: GivenData,
        planned: Planned,
        optimizer: CorrelatedOptimizer,
        rehearsal: Rehearsal,
        mark: DataMark,
        *,
        axis: int = 0,
    ) -> None:
        order, batching = planned.order, planned.job.batching
        physical, ranks = batching.physical, batching.ranks
        if physical is not None:
            whole_number("physical_batch_size", physical)
        if ranks > 1 and min(map(len, order)) < ranks:
            message = f"a batch has fewer examples than there are ranks ({ranks}); use larger ones"
            raise InvalidParameter(message, field="batch_size")
        sampled = order.drawn and order.physical_batch is None
        loading = given.loading
        if sampled:
            collate = loading.get("collate_fn") or default_collate
            empty = empty_like(collate([given.dataset[0]]), axis)
            loading = {**loading, "collate_fn": partial(collate_or_empty, collate, empty)}
        super().__init__(given.dataset, batch_sampler=_Pass(self), **loading)
        self.order, self._shared, self._axis = order, (own_rank(), ranks), axis
        self._optimizer, self._rehearsal, self._mark, self._physical = optimizer, rehearsal, mark, physical
        self.steps_of_pass = len(order) // batching.epochs
        left_out = not order.drawn and sum(len(order[t]) for t in range(self.steps_of_pass)) < len(given.dataset)
        # With a batch sampler torch leaves these attributes out, and other code looks for them.
        self.__dict__.update(batch_size=given.batch_size, sampler=_Examples(self.batch_sampler), drop_last=left_out)
        self._sampled = sampled  # sizes of batches depend on their examples
        self._rare: list[int] | None = None
        self._usual: int | None = None  # the first example that was rehearsed
        self._began: int | None = None  # the first step whose batch was handed out
        self._handed, self._rehearsals, self._entered = 0, 0, 0  # in the last iteration, which began at this step
        self._is_accelerate_prepared = True  # Accelerate would fetch the batches itself, past the auditor

    @cached_property
    def _parts_of_pass(self) -> int:
        """The number of batches, or parts of them, that a pass hands out beside rehearsals."""
        if self._physical is None or self._sampled:  # sampled sizes, and so numbers of parts, are secret
            return self.steps_of_pass
        if self.order.drawn:
            return self.steps_of_pass * len(self._parts(0)[0])
        return sum(-(-len(self._share(t)) // self._physical) for t in range(self.steps_of_pass))

    def __len__(self) -> int:
        """Return the number of batches, or of parts of batches, of one pass; rehearsals come on top."""
        return self._parts_of_pass

    def __iter__(self) -> Iterator[Any]:
        """Yield the rest of this pass, a batch or a part of one at a time.

        Raises:
            InvalidParticipation: the order is at its end, or a step was not taken.
        """
        step, counted = self._optimizer.noise.step, self._handed - len(self) in (0, 1)  # zip fetches one more
        if self._rehearsals and counted and (step % self.steps_of_pass or step == self._entered):
            warnings.warn(
                f"the loop ended its last pass after len(loader) = {len(self)} batches. {self._rehearsals} of them "
                "rehearsed the loss, so the pass goes on, and the run may end before all the steps that its noise is "
                "for. If your loop counts batches, as Lightning's Trainer does, give make_private(loss=...), a "
                "function that returns one loss for each example: it is rehearsed before the first batch",
                stacklevel=2,
            )
        self._handed, self._rehearsals, self._entered = 0, 0, step
        for parts in self.steps():
            with closing(parts):
                for part in parts:
                    self._handed, self._rehearsals = self._handed + 1, self._rehearsals + self._rehearsal.rehearsing
                    yield part

    def steps(self) -> Iterator[Generator[object, None, None]]:
        """Yield the batches that are left in this pass, each as its parts, which must be taken in this order.

        Raises:
            InvalidParticipation: the order is at its end, a step was not taken, or the data are in another order.
        """
        left = self.parts_left()
        if not left:
            raise InvalidParticipation(f"all {len(self.order)} steps are taken; no sensitivity covers more")
        self._refuse_another_order()
        fetched = super().__iter__()
        for t, some, masks in left:
            if t != self._optimizer.noise.step:
                raise InvalidParticipation(
                    f"the batch of step {t - 1} was handed out, but its step was not taken, so the next noise would "
                    "meet the wrong examples; call step() once per batch, before the next is fetched (no prefetching), "
                    "without accumulation of gradients (physical_batch_size= divides a batch that is too large)"
                )
            yield self._signal(t, some, masks, fetched)

    def _refuse_another_order(self) -> None:
        """Refuse data that have been moved on this rank or another."""

        def check() -> tuple[None, dict[str, object]]:
            self._mark.check()
            return None, {}

        refuse_other_ranks(self._shared[1])
        agree("the order of the data", check)

    def parts_left(self) -> list[tuple[int, list[np.ndarray], np.ndarray | None]]:
        """Return each step that is left in this pass, the indices of its parts, and which of them do not pad."""
        step = self._optimizer.noise.step
        stop = min(len(self.order), (step // self.steps_of_pass + 1) * self.steps_of_pass)
        return [(t, *self._parts(t)) for t in range(step, stop)]

    def _signal(
        self, step: int, parts: list[np.ndarray], masks: np.ndarray | None, fetched: Iterator[object]
    ) -> Generator[object, None, None]:
        """Yield the parts of a step, after their rehearsals, and tell the optimizer for each whether it is the last."""
        rehearsal, audited = self._rehearsal, False
        self._began = step if self._began is None else self._began
        self._optimizer.begin_parts()
        if step % self.steps_of_pass == 0:
            rehearsal.begin_pass(step)
        for i, indices in enumerate(parts):
            wanted = rehearsal.wanted and i == 0
            before = Randomness.now() if wanted else None
            batch = next(fetched)
            if len(parts) > 1:
                self._optimizer.signal_skip_step(do_skip=i < len(parts) - 1)
            examples = len(indices) if masks is None else int(masks[i].sum())
            while True:
                if wanted and examples > 1:
                    batch = yield from rehearsal.passes(self._part((step, i), indices, before or Randomness.now()))
                if not audited:
                    self._optimizer.expect(self._share(step), masks=masks)
                    audited = True
                rehearsal.hand_out(examples, batch)
                yield batch
                rehearsal.examples = None
                wanted, before = rehearsal.again, None
                if not wanted:
                    break

    def _part(self, place: tuple[int, int], indices: np.ndarray, before: Randomness) -> Part:
        """Return a part with the batches that rehearse it, made of one reading of its examples."""
        after, ranks = Randomness.now(), self._shared[1]
        # Later rehearsals may be of some ranks alone, as are those of batches in which others have a single example.
        first = self._rare is None and place[0] == self._began
        on_all_ranks = ranks == 1 or (first and len(self.order[place[0]]) >= 2 * ranks and self._physical != 1)
        if self._rare is None:
            refuse_mixed_data(self.dataset, self.collate_fn, self._axis)
            self._rare = rare_examples(self.dataset)
        before.restore()
        read = getattr(self.dataset, "__getitems__", None)
        items = [self.dataset[i] for i in indices.tolist()] if read is None else read(indices.tolist())
        self._usual = int(indices[0]) if self._usual is None else self._usual
        *others, usual = (self.dataset[i] for i in (*self._rare, self._usual))
        options = {"drop": self._sampled, "shapes": ranks == 1}
        batch, altered, replace = alter_batches(items, self.collate_fn, others, usual, **options)
        after.restore()
        return Part(place, batch, altered, after, replace, on_all_ranks, DataReads(self.dataset, indices))

    def _parts(self, step: int) -> tuple[list[np.ndarray], np.ndarray | None]:
        """Return the indices of each part of a step, and which of them do not pad; None where nothing does."""
        if self.order.physical_batch is not None:
            indices, mask = self.order.micro_batches(step)
            return list(indices), mask
        batch = self._share(step)
        if self._physical is None or len(batch) <= self._physical:
            return [batch], None
        return np.array_split(batch, -(-len(batch) // self._physical)), None

    def _share(self, step: int) -> np.ndarray:
        """Return this rank's examples of a step."""
        rank, ranks = self._shared
        return self.order[step][rank::ranks]
