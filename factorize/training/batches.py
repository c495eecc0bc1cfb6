"""Batches of a run: the indices of every step's examples, in a public order or in one that is drawn in secret.

Audited batches are checked when they are handed out, in equal parts with masks.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from factorize.encoding import JsonObject
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.numbers.scalars import whole_number
from factorize.training.auditor import Auditor


class MicroBatches(NamedTuple):
    """One step's batch in equal parts, padded.

    Attributes:
        indices: indices of the examples, shape (parts, physical_batch); 0 where the mask is False.
        mask: True where there is an example, False where there is padding; same shape.
    """

    indices: np.ndarray
    mask: np.ndarray

    @classmethod
    def of(cls, batch: np.ndarray, parts: int, size: int) -> MicroBatches:
        """Return a batch in this number of parts of one size."""
        indices, mask = np.zeros(parts * size, dtype=np.intp), np.zeros(parts * size, dtype=bool)
        indices[: len(batch)], mask[: len(batch)] = batch, True
        return cls(indices.reshape(parts, size), mask.reshape(parts, size))


class Batches(ABC):
    """The batches of one run: a sequence of arrays of indices of examples, one for each step.

    Attributes:
        sampling: name of the law that they follow.
        drawn: whether the batches and their sizes are drawn in secret.
        period: number of steps after which a user's next example has its turn, if users are drawn (`take_turns`).
        physical_batch: examples per part of a batch, if every step comes in padded parts (`micro_batches`).
    """

    __slots__ = ()
    sampling: str
    drawn: bool = True
    period: int = 1
    physical_batch: int | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of steps, n."""

    @abstractmethod
    def batch(self, step: int) -> np.ndarray:
        """Return the indices of the examples of a step from 0 to n - 1."""

    @property
    @abstractmethod
    def participation(self) -> JsonObject:
        """The spec's participation for this order."""

    def __getitem__(self, step: int) -> np.ndarray:
        """Return the indices of the examples of one step. If they are drawn they are secret, and so is their number."""
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} is outside 0..{len(self) - 1}")
        return self.batch(step)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield the batch of every step."""
        return (self[step] for step in range(len(self)))

    def micro_batches(self, step: int) -> MicroBatches:
        """Return one step's batch in parts of `physical_batch`; raise InvalidParameter where there are none."""
        raise InvalidParameter("the order has no physical_batch, so no parts; give it one", field="physical_batch")

    def used(self, examples: int) -> int:
        """Return the number of examples that may take part."""
        return examples

    def check(self, participation: Mapping[str, object], steps: int | None = None) -> None:
        """Refuse an order that the sensitivity does not cover.

        Args:
            participation: participation of the calibration's sensitivity, in the contract's JSON form.
            steps: n of the factorization; there may be fewer steps, but not more.

        Raises:
            InvalidParticipation: more steps than n, or an example takes part in steps that the participation excludes.
        """
        n = len(self) if steps is None else steps
        if len(self) > n:
            raise InvalidParticipation(f"the order has {len(self)} steps, more than n={n}; solve for n={len(self)}")
        reason = self.breach(participation, n)
        if reason:
            raise InvalidParticipation(
                f"the order breaks the participation {dict(participation)} of the sensitivity: {reason}", field="order"
            )

    @abstractmethod
    def breach(self, participation: Mapping[str, object], n: int) -> str | None:
        """Return why a sensitivity over n steps does not cover the order, and the way out; None where it does."""


def epochs_of(epochs: int) -> dict[str, object]:
    """Return the participation of the same steps in every epoch."""
    return {"kind": "single"} if epochs == 1 else {"kind": "fixed_epochs", "epochs": epochs}


class AuditedBatches:
    """The batches of one run, for jobs that keep shapes fixed; iterating goes on from the auditor's step.

    Args:
        order: a fixed order, or balls in bins with a physical batch size.
        auditor: the auditor that checks each step.
        physical: examples per part of a fixed order's batch, None for whole batches; balls in bins have their own.

    Raises:
        InvalidParameter: balls in bins without a physical batch size, or one below 1.
    """

    def __init__(self, order: Batches, auditor: Auditor, *, physical: int | None = None) -> None:
        if order.drawn and order.physical_batch is None:
            message = f"this job takes batches of {order.sampling} in equal parts; give the order a physical_batch"
            raise InvalidParameter(message, field="physical_batch")
        if physical is not None:
            whole_number("physical_batch_size", physical)
        self.order, self.auditor = order, auditor
        self._shape = 0, 0  # number of parts of the largest batch, and their size
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
        if self.step >= len(self):
            message = f"all {len(self)} steps of this run were taken, so no batch is left; make another run private"
            warnings.warn(message, stacklevel=2)
        for step in range(self.auditor.step, len(self.order)):
            self.auditor.record(self.order[step])
            yield self.in_parts(step)

    def in_parts(self, step: int) -> MicroBatches:
        """Return the indices and masks of a step."""
        if self.order.physical_batch is None:
            return MicroBatches.of(self.order[step], *self._shape)
        return self.order.micro_batches(step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, after a step and before the next batch."""
        return self.auditor.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go to the position of a checkpoint; restore model and noise with it.

        Raises:
            InvalidParameter: the state belongs to another run.
        """
        self.auditor.load_state_dict(state)
