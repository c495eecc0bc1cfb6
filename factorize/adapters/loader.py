"""A data loader over a public or sampled order, which has every batch audited when it is handed out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from opacus.data_loader import wrap_collate_with_empty
from torch.utils.data import DataLoader, default_collate

from factorize.adapters.opacus import CorrelatedOptimizer
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.numbers.scalars import whole_number
from factorize.training.bins import BallsInBins
from factorize.training.orders import Order
from factorize.training.sampling import CyclicPoisson


class PrivateLoader:
    """Batches in the order that the sensitivity covers; each pass goes on from the optimizer's step.

    Args:
        dataset: with `__len__` and `__getitem__`.
        order: indices of every step.
        optimizer: whose auditor checks each batch.
        passes: number of equal passes that the order is cut into.
        physical: examples per part of a batch, None for whole batches; balls in bins have their own.
        loading: arguments of the `DataLoader` that fetches them.
        share: (rank, ranks): of every batch, the examples rank, rank + ranks and so on.

    Raises:
        InvalidParameter: no example for a part, or a batch with fewer examples than ranks.
    """

    def __init__(
        self,
        dataset: Any,
        order: Order | CyclicPoisson | BallsInBins,
        optimizer: CorrelatedOptimizer,
        *,
        passes: int,
        physical: int | None,
        loading: dict[str, Any],
        share: tuple[int, int] = (0, 1),
    ) -> None:
        if physical is not None:
            whole_number("physical_batch_size", physical)
        if share[1] > 1 and min(len(order[step]) for step in range(len(order))) < share[1]:
            message = f"a batch has fewer examples than the {share[1]} ranks; use larger ones"
            raise InvalidParameter(message, field="batch_size")
        self.dataset, self.order, self._shared = dataset, order, share
        self._optimizer, self._physical = optimizer, physical
        self._per_pass = len(order) // passes
        collate = wrap_collate_with_empty(collate_fn=loading.pop("collate_fn", None) or default_collate)
        collate([dataset[0]])  # what an empty batch looks like
        self._loading = {**loading, "collate_fn": collate}

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
        step = self._optimizer.noise.step
        if step >= len(self.order):
            raise InvalidParticipation(f"all {len(self.order)} steps are taken; no sensitivity covers another pass")
        stop = min(len(self.order), (step // self._per_pass + 1) * self._per_pass)
        parts = [self._parts(t) for t in range(step, stop)]
        flat = [part.tolist() for some, _ in parts for part in some]
        fetched = iter(DataLoader(self.dataset, batch_sampler=flat, **self._loading))
        for t, (some, masks) in zip(range(step, stop), parts, strict=True):
            self._optimizer.expect(self._share(t), masks=masks)
            yield self._signalled(fetched, len(some))

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
