"""A data loader over a public or sampled order, which has every batch audited when it is handed out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Sampler, default_collate

from factorize.adapters.given import EmptyCollate, GivenData, empty_like
from factorize.adapters.opacus import CorrelatedOptimizer
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.numbers.scalars import whole_number
from factorize.training.bins import BallsInBins
from factorize.training.orders import Order
from factorize.training.sampling import CyclicPoisson


class _Pass(Sampler[list[int]]):
    """The indices of each part of a batch that is left of a loader's pass."""

    def __init__(self, loader: PrivateLoader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return sum(len(parts) for _, parts, _ in self._loader.parts_left())

    def __iter__(self) -> Iterator[list[int]]:
        for _, parts, _ in self._loader.parts_left():
            yield from (part.tolist() for part in parts)


class PrivateLoader(DataLoader[Any]):
    """Batches in the order that the sensitivity covers; each pass goes on from the optimizer's step.

    Args:
        given: data set, batch size, and arguments of the `DataLoader` that fetches.
        order: indices of every step.
        optimizer: whose auditor checks each batch.
        passes: number of equal passes that the order is cut into.
        physical: examples per part of a batch, None for whole batches; balls in bins have their own.
        axis: of the examples in a batch.
        share: (rank, ranks): of every batch, the examples rank, rank + ranks and so on.

    Raises:
        InvalidParameter: no example for a part, a batch with fewer examples than ranks, or with a field that an empty
            batch cannot have, where batches may be empty.
    """

    def __init__(
        self,
        given: GivenData,
        order: Order | CyclicPoisson | BallsInBins,
        optimizer: CorrelatedOptimizer,
        *,
        passes: int,
        physical: int | None,
        axis: int = 0,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        if physical is not None:
            whole_number("physical_batch_size", physical)
        if share[1] > 1 and min(len(order[step]) for step in range(len(order))) < share[1]:
            message = f"a batch has fewer examples than the {share[1]} ranks; use larger ones"
            raise InvalidParameter(message, field="batch_size")
        padded = isinstance(order, BallsInBins) and order.physical_batch is not None
        loading = given.loading
        if not isinstance(order, Order) and not padded:
            collate = loading.get("collate_fn") or default_collate
            loading = {**loading, "collate_fn": EmptyCollate(collate, empty_like(collate([given.dataset[0]]), axis))}
        super().__init__(given.dataset, batch_sampler=_Pass(self), **loading)
        self.__dict__["batch_size"] = given.batch_size  # a batch sampler has torch leave it out, and others look for it
        self.order, self._shared = order, share
        self._optimizer, self._physical = optimizer, physical
        self._per_pass = len(order) // passes

    def __len__(self) -> int:
        """Return the number of steps of one pass."""
        return self._per_pass

    def __iter__(self) -> Iterator[Any]:
        """Yield what is left of this pass, a batch or a part of one at a time.

        Raises:
            InvalidParticipation: the order is at its end, or a step was not taken.
        """
        for parts in self.steps():
            yield from parts

    def steps(self) -> Iterator[Iterator[Any]]:
        """Yield the batches that are left of this pass, each as its parts, which have to be taken in this order.

        Raises:
            InvalidParticipation: the order is at its end, or a step was not taken.
        """
        left = self.parts_left()
        if not left:
            raise InvalidParticipation(f"all {len(self.order)} steps are taken; no sensitivity covers another pass")
        fetched = super().__iter__()
        for t, some, masks in left:
            self._optimizer.expect(self._share(t), masks=masks)
            yield self._signalled(fetched, len(some))

    def parts_left(self) -> list[tuple[int, list[np.ndarray], np.ndarray | None]]:
        """Return each step that is left of this pass, the indices of its parts, and which of them do not pad."""
        step = self._optimizer.noise.step
        stop = min(len(self.order), (step // self._per_pass + 1) * self._per_pass)
        return [(t, *self._parts(t)) for t in range(step, stop)]

    def _signalled(self, fetched: Iterator[Any], count: int) -> Iterator[Any]:
        """Yield the parts of one step, and tell the optimizer of each whether it is the last."""
        for i in range(count):
            if count > 1:
                self._optimizer.signal_skip_step(do_skip=i < count - 1)
            yield next(fetched)

    def _parts(self, step: int) -> tuple[list[np.ndarray], np.ndarray | None]:
        """Return the indices of each part of a step, and which of them do not pad; None where nothing does."""
        if isinstance(self.order, BallsInBins) and self.order.physical_batch is not None:
            indices, mask = self.order.micro_batches(step)
            return list(indices), mask
        batch = self._share(step)
        if self._physical is None or len(batch) <= self._physical:
            return [batch], None
        return np.array_split(batch, -(-len(batch) // self._physical)), None

    def _share(self, step: int) -> np.ndarray:
        """Return the examples of a step that are this rank's."""
        rank, ranks = self._shared
        return self.order[step][rank::ranks]
