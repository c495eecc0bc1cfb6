"""The passes of a rehearsal over batches with other examples in some places, and what they tell together."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch

from factorize.adapters.checks.loop_state import LoopState, difference_of_states
from factorize.adapters.checks.model_changes import difference_of_buffers
from factorize.adapters.data.altered_batches import Altered
from factorize.adapters.gradients.gradient_rows import (
    MAX_PASSES_BETWEEN,
    TOLERANCE,
    TOLERANCE_OF_REPEATS,
    GradientRows,
    difference_of_passes,
)
from factorize.errors import InvalidParameter


class Pass(NamedTuple):
    """A batch that the loop has taken, with its gradients and what the loop has changed."""

    altered: Altered
    rows: GradientRows
    state: LoopState


class Passes:
    """The passes that a rehearsal has taken so far.

    Attributes:
        taken: the passes.
        pairs: the batch as it is and with other shapes, both without dropout.
    """

    def __init__(self) -> None:
        self.taken: list[Pass] = []
        self.pairs: list[tuple[Pass, Pass]] = []

    @property
    def alike(self) -> bool:
        """Whether the first pass has the shapes of the batch, and examples without a gradient in both can be told."""
        return bool(self.taken) and self.taken[0].altered.alike

    @property
    def idle(self) -> bool:
        """Whether an example of the first pass has no gradient, which others may have decided."""
        return self.alike and any(self.taken[0].rows.idle)

    def _states(self) -> list[LoopState]:
        """Return what other examples changed, then what the batch as it is did; [] if nothing may depend on them."""
        states = [each.state for each in self.taken[:1] if each.altered.alike]
        states += [each.state for each in self.taken[1:] if not each.altered.other]
        return states if states and states[0].late else []

    def need_repeat(self, ranks: int) -> bool:
        """Return whether the batch has to come as it is, to tell whether what the loop changes depends on examples.

        Several ranks take as many passes, whatever each has seen.
        """
        states = self._states()
        return len(states) == 1 or (len(states) == 2 and (ranks > 1 or difference_of_states(*states) is not None))

    def difference_of_loops(self) -> InvalidParameter | None:
        """Return the error if the loop changes other things for other examples, and not for the same ones again."""
        states = self._states()
        told = len(states) == 3 and difference_of_states(*states[1:]) is None
        return difference_of_states(*states[:2]) if told else None

    def may_be_rounded(self, rows: GradientRows) -> bool:
        """Return whether other examples moved a gradient by so little that only a repeat tells it from roundings."""
        if not all(each.altered.other for each in self.taken):
            return False
        moved = [rows.moved(each.rows, each.altered.kept) for each in self.taken if each.altered.alike]
        return any(TOLERANCE_OF_REPEATS < each < MAX_PASSES_BETWEEN * TOLERANCE for each in moved)

    def difference_of_gradients(
        self, rows: GradientRows, counted: torch.Tensor | None, clip_norm: float, *, examined: bool
    ) -> InvalidParameter | None:
        """Return the error if an example's gradient is another one beside other examples, or None.

        Args:
            rows: gradients of the batch as it is.
            counted: False for rows that pad.
            clip_norm: the clip norm.
            examined: whether the passes show if the others decide which examples have no gradient.
        """
        again = [rows.moved(each.rows, each.altered.kept) for each in self.taken if not each.altered.other]
        compare = partial(difference_of_passes, counted=counted, clip_norm=clip_norm, examined=examined)
        for each in self.taken:
            found = compare(rows, each.rows, each.altered, spread=max(again, default=None))
            found = found or (difference_of_buffers(each.state.early) if each.altered.alike else None)
            if found is not None:
                return found
        differences = (compare(mine.rows, other.rows, other.altered) for mine, other in self.pairs)
        return next((found for found in differences if found is not None), None)
