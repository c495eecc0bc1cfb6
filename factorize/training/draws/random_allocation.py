"""Random allocation: each example takes part in k of all n steps, every choice as likely as any other."""

from __future__ import annotations

import hashlib
from typing import ClassVar, NoReturn

import numpy as np

from factorize.errors import InvalidParameter
from factorize.training.draws.bin_keys import draw_bins
from factorize.training.draws.redrawn_bins import RedrawnBins

_DOMAIN = b"factorize random allocation 1\0"


class RandomAllocation(RedrawnBins):
    """Batches of random allocation; make it with `factorize.training.orders.random_allocation`, which says what it is.

    The steps of example i are a function of (key, n, k, i) alone: Floyd's choice (Bentley, Floyd, A sample of
    brilliance, 1987) from uniform draws of a key of its own. All steps are held, k numbers for each example.

    Attributes:
        sampling: the law of participation.
        covered: whose calibrations hold for these draws.
        epochs: k, steps of each example; they are not one in each pass.
        tau: probability, rounded up, that a key is refused since some step overflows.
    """

    sampling: ClassVar[str] = "random_allocation"
    covered: ClassVar[tuple[str, ...]] = ("random_allocation",)

    __slots__ = ()

    def _draw(self, epoch: int) -> None:
        """Hold the examples of all steps."""
        if self._drawn == 0:
            return
        steps = self.steps_of_each().reshape(-1)
        by_step = np.argsort(steps, kind="stable")
        self._members = by_step // self.epochs
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(steps, minlength=len(self)))])
        self._drawn = 0

    def __getitem__(self, step: int) -> np.ndarray:
        """Return the indices of the examples of one step, ascending. They are secret, and so is their number."""
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} is outside 0..{len(self) - 1}")
        start, stop = self._starts[step : step + 2]
        return self._members[start:stop]

    def steps_of_each(self) -> np.ndarray:
        """Return the steps of each example, in no order, shape (examples, k). They are secret, for ever."""
        key = hashlib.sha256(_DOMAIN + len(self._key).to_bytes(8, "little") + self._key).digest()
        chosen = np.empty((self.examples, self.epochs), dtype=np.int64)
        for i in range(self.epochs):
            last = len(self) - self.epochs + i
            drawn = draw_bins(key, self.examples, last + 1)
            taken = (chosen[:, :i] == drawn[:, None]).any(axis=1)
            chosen[:, i] = np.where(taken, last, drawn)
        return chosen

    def bin_of_each(self, epoch: int = 0) -> NoReturn:
        """Refuse: an example may have several steps of an epoch, or none.

        Raises:
            InvalidParameter: always.
        """
        raise InvalidParameter("an example has no bin of an epoch under random allocation; ask steps_of_each()")
