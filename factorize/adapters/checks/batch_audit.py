"""The audit of a torch job's batches: is each step's gradient that of the examples that the auditor was told of?"""

import numpy as np
import torch

from factorize.adapters.gradients.clipped_sums import check_roundings
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.training.auditor import Auditor


class BatchAudit:
    """The batch of the next step, as the auditor was told of it, and the rows of gradients that were made of it.

    A row is the gradient of an example, or of padding, which is computed like examples so that its amount shows in no
    time.

    Args:
        auditor: the auditor of the job; None where the order is the caller's promise alone.
        ranks: number of processes whose sums are added up.
        sampled: whether nobody is told of batches that were sampled, which may be larger than the divisor.

    Attributes:
        auditor: this auditor.
        rows: number of rows that the batch has on this rank; None where no batch was expected for this step.
    """

    def __init__(self, auditor: Auditor | None, ranks: int, *, sampled: bool = False) -> None:
        self.auditor, self._ranks, self._sampled = auditor, ranks, sampled
        self.rows: int | None = None
        self._indices: np.ndarray | None = None  # of the batch that the auditor was told of last
        self._masks: list[np.ndarray] = []  # of the parts that have no gradients yet
        self._counted, self._parts = 0, 0  # rows and parts whose gradients are in the sums
        self._several = False  # whether some of these rows came by several backward passes

    def is_ahead(self, step: int) -> bool:
        """Return whether a batch was handed out, but its step not taken, if that of the next noise is `step`."""
        return self.auditor is not None and self.auditor.step != step

    def comes_again(self, step: int, indices: np.ndarray) -> bool:
        """Return whether a batch is that of a step which was begun, and of which nothing was released.

        Several ranks could not tell that they all begin anew.
        """
        if self.auditor is None or self._indices is None or self._ranks > 1:
            return False
        return self.auditor.step == step + 1 and np.array_equal(indices, self._indices)

    def expect(self, step: int, indices: np.ndarray, *, masks: np.ndarray | None, divisor: int | None) -> None:
        """Have the batch of a step audited; `check` then needs the gradients of as many examples.

        Args:
            step: the step of the next noise.
            indices: indices of the examples.
            masks: the parts of the batch, shape (parts, rows): False for rows that pad. None where nothing pads.
            divisor: the divisor of the job's means, None for sums.

        Raises:
            InvalidParticipation: the batch breaks the participation, or the step before it was not taken.
            InvalidParameter: there is no auditor.
        """
        if self.auditor is None:
            raise InvalidParameter("the optimizer has no auditor; give it one (auditor=)", field="auditor")
        if self.comes_again(step, indices):
            self._counted, self._parts = 0, 0
        elif self.is_ahead(step):
            raise InvalidParticipation(
                f"batch {self.auditor.step} was handed out, but step {step} was not taken, so the next noise would "
                "meet the wrong examples; call step() once per batch"
            )
        else:
            self.auditor.record(indices, divisor=divisor)
            self._indices = np.array(indices)
        self.rows = len(indices) if masks is None else masks.size
        self._masks = [] if masks is None else list(masks)

    def rows_of_part(self, handed_out: int | None) -> int | None:
        """Return the number of rows that the next part's gradients must have; None where nobody knows.

        Args:
            handed_out: number of examples of the part that a loader has handed out, None where there is no loader.
        """
        return len(self._masks[0]) if self._masks else handed_out or self.rows

    def begin_part(self, step: int, rows: int) -> torch.Tensor | None:
        """Return which rows of the next part do not pad, shape (rows,); None where nothing pads.

        Raises:
            InvalidParticipation: the part has another number of rows.
        """
        if not self._masks:
            return None
        mask = self._masks.pop(0)
        if len(mask) != rows:
            raise InvalidParticipation(
                f"a part of step {step} has gradients of {rows} rows, not {len(mask)}; use each whole part once, and "
                "call step() after each"
            )
        return torch.from_numpy(mask.copy())

    def end_part(self, rows: int, *, several: bool = False) -> None:
        """Count the rows of a part, which are in the sums now, by one backward pass or by several."""
        self._counted, self._parts = self._counted + rows, self._parts + 1
        self._several = self._several or several

    def check(self, step: int, divisor: int | None) -> None:
        """Refuse to release sums that are not of the examples of the step's batch.

        Args:
            step: the step.
            divisor: the divisor of the job's means, None for sums.

        Raises:
            InvalidParticipation: the batch was not audited, or the sums have other rows than it.
            InvalidParameter: there are more examples than the clip norm pays for.
        """
        check_roundings(self._counted * self._ranks, self._parts + self._ranks)
        if self.auditor is None:
            if divisor is not None and self._counted * self._ranks > divisor and (self._several or not self._sampled):
                raise InvalidParticipation(
                    f"step {step} has {self._counted} gradients, but a mean is over {divisor} examples, so an example "
                    "may have several, each as large as the clip norm; add the losses up before one backward(), call "
                    "the model once for each of two views or windows of an example, not once for all, call the model's "
                    "disable_hooks() around a gradient of inputs, or give an auditor (auditor=) and call "
                    "expect(indices), which tells losses of one batch from others"
                )
            return
        if self.rows is None or self.auditor.step != step + 1:
            raise InvalidParticipation(
                f"step {step} has gradients of a batch that the auditor has not seen; take batches from the loader of "
                "make_private, or call expect(indices)"
            )
        if self._counted != self.rows:
            raise InvalidParticipation(
                f"step {step} has gradients of {self._counted} examples, but its batch has {self.rows}; use each "
                "whole batch once, and no other example (put zeros in the place of one that cannot be read)"
            )

    def end_step(self) -> None:
        """Forget the batch, whose step is taken."""
        self._counted, self._parts, self.rows, self._several = 0, 0, None, False
