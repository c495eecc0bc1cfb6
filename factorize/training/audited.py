"""Audited batches: each step of an order in equal parts with masks, checked when it is handed out."""

from collections.abc import Iterator, Mapping
from typing import Any

from factorize.auditor import Auditor
from factorize.errors import InvalidParameter
from factorize.numbers.scalars import whole_number
from factorize.training.batches import Batches, MicroBatches


class AuditedBatches:
    """The batches of one run, for jobs that keep shapes fixed; iterating goes on from the auditor's step.

    Args:
        order: a fixed order, or balls in bins with a physical batch size.
        auditor: that checks each step.
        physical: examples per part of a fixed order's batch, None for whole batches; balls in bins have their own.

    Raises:
        InvalidParameter: balls in bins without a physical batch size, or one below 1.
    """

    def __init__(self, order: Batches, auditor: Auditor, *, physical: int | None = None) -> None:
        if order.drawn and order.physical_batch is None:
            message = f"batches of {order.sampling} come in parts here; give the order a physical_batch"
            raise InvalidParameter(message, field="physical_batch")
        if physical is not None:
            whole_number("physical_batch_size", physical)
        self.order, self.auditor = order, auditor
        self._shape = 0, 0  # parts of the largest batch, and their size
        if order.physical_batch is None:
            largest = max(1, max(map(len, order)))
            size = physical or largest
            self._shape = -(-largest // size), size

    def __len__(self) -> int:
        """Return the number of steps, n."""
        return len(self.order)

    @property
    def step(self) -> int:
        """The step that is handed out next, from 0."""
        return self.auditor.step

    def __iter__(self) -> Iterator[MicroBatches]:
        """Yield the indices and masks of each step that is left, shape (parts, physical batch size).

        Raises:
            InvalidParticipation: the calibration does not cover the step.
        """
        for step in range(self.auditor.step, len(self.order)):
            self.auditor.record(self.order[step])
            if self.order.physical_batch is None:
                yield MicroBatches.of(self.order[step], *self._shape)
            else:
                yield self.order.micro_batches(step)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, after a step and before the next batch."""
        return self.auditor.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go to the position of a checkpoint; restore model and noise with it.

        Raises:
            InvalidParameter: it belongs to another run.
        """
        self.auditor.load_state_dict(state)
