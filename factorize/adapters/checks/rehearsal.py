"""A rehearsal of the first step: does one example change the gradients of others, through a layer or through the loss?

The clip norm bounds what an example adds to the sum only if its gradient is a function of the example alone. Class
weights under a mean, `ignore_index`, contrastive losses, Mixup and layers that subtract a batch's mean break that, and
one backward pass does not show it. So before a model's first step its first batch is taken twice more, with about half
of its examples replaced by another one and then the other half, under the same random numbers: no single example stays,
such as the largest, on which others may depend. Nothing of these passes is released. In the step that follows, the
gradients of the examples that stayed must be the same.
"""

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, Self

import torch

from factorize.adapters.checks.kept_states import Attributes, attributes_of, left_by_pass, rehearse_states
from factorize.adapters.checks.loop_state import LoopState
from factorize.adapters.checks.model_changes import difference_of_weights, refuse_weights_beside, sizes_of
from factorize.adapters.checks.passes import Pass, Passes
from factorize.adapters.checks.trained_parameters import TrainedParameters
from factorize.adapters.data.altered_batches import Altered, BatchMarks, Part, tensors_of
from factorize.adapters.data.data_reads import difference_of_reads
from factorize.adapters.gradients.clipping import all_idle, example_rows
from factorize.adapters.gradients.gradient_rows import (
    MAX_PASSES_BETWEEN,
    TOLERANCE_OF_REPEATS,
    WAY_OUT,
    GradientRows,
    difference_of_autograd,
)
from factorize.adapters.gradients.layer_rows import Rows
from factorize.adapters.gradients.raw_gradients import are_accumulated
from factorize.adapters.ranks.agreement import on_any_rank
from factorize.errors import InvalidParameter, InvalidParticipation

Loss = Callable[[Any, Any], torch.Tensor]
"""A function from the model and a batch of the loader to one loss for each example, shape (examples,)."""


class Rehearsal:
    """A check of a model and its loss before their first step, and again if the model was changed.

    Args:
        model: a model in Opacus's `GradSampleModule`.
        parameters: the parameters that have noise.
        loss: `rehearsed` checks the caller's loop; a function is computed here; `not_looked_at` checks only the model's
            parameters.
        reduction: reduction of the caller's loss over a batch.
        ranks: number of ranks of the job, which all take as many passes, since their loops may wait for one another.

    Attributes:
        trained: the parameters that have noise.
        examples: number of examples that count in the part that the loader has handed out, None where it has handed out
            none.
        again: whether a step was not taken because the model had been changed, so that its batch has to come again.
        fault: the error that a rehearsal found, to be raised before anything is released.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        parameters: Sequence[torch.nn.Parameter],
        loss: Loss | Literal["rehearsed", "not_looked_at"],
        reduction: str = "mean",
        ranks: int = 1,
    ) -> None:
        self._model, self._loss, self._reduction, self._ranks = model, loss, reduction, ranks
        self.trained = TrainedParameters(model, parameters)
        self._seen: Hashable = None  # names the model whose gradients were checked
        self._rehearsed: Hashable = None  # names the model of the passes that are kept
        self._part: Part | None = None
        self._passes = Passes()
        self._still = True  # whether the last pass drew no random numbers
        self._doubted = False  # whether the next rehearsal takes the batch as it is, too
        self._state: LoopState | None = None
        self._sizes: dict[str, float] = {}
        self._before, self._left = Attributes(), Attributes()  # in plain attributes, before the first pass and by it
        self._handed: Altered | None = None
        self._marks = BatchMarks()
        self._depth = 0  # of the modules that run, since a loop may call some by themselves
        self._compared: list[int] = []  # holds the steps whose gradients were compared
        self.examples: int | None = None
        self.again = False
        self.fault: InvalidParameter | None = None
        inner = getattr(model, "_module", model)  # its hooks serve the model that the caller may still use directly
        hooks = [inner.register_forward_hook(refuse_eval)]
        for each in inner.modules():
            hooks.append(each.register_forward_pre_hook(_Hook(self._before_forward), with_kwargs=True))
            hooks.append(each.register_forward_hook(_Hook(self._after_forward), always_call=True))
        model.autograd_grad_sample_hooks.extend(hooks)  # remove_hooks() then lets another job have the model

    def _before_forward(self, inputs: object) -> None:
        """Refuse a parameter that breaks Opacus's hooks, and examples of an earlier step.

        Raises:
            InvalidParticipation: the model gets examples that were handed out before this batch.
        """
        self._depth += 1
        if self._depth > 1 or not torch.is_grad_enabled():
            return
        self.trained.check()
        if self.trained.training and not self.rehearsing and self._marks.are_earlier(inputs):
            raise InvalidParticipation(
                "the model was given examples of an earlier step, which would take part more often than the "
                "participation allows; train on each batch once, as it comes, and measure under torch.no_grad()"
            )
        if self.trained.training and self._marks.are_returned(inputs):
            raise InvalidParticipation(
                "the model was given what it returned for an earlier batch, such as a hidden state, so the examples of "
                "that batch would take part in later steps, too; begin each batch with a new state"
            )

    def _after_forward(self, given: Sequence[object]) -> None:
        self._depth = max(0, self._depth - 1)
        if not self._depth:
            self._marks.note_returned(given[-1])

    def hand_out(self, examples: int, batch: object) -> None:
        """Remember the batch that is handed out for a step, and how many of its examples count."""
        self.examples, self.again, self._depth = examples, False, 0
        self.trained.forget_forward()
        self._marks.hand_out(batch)

    @property
    def rehearsing(self) -> bool:
        """Whether the batch that was handed out last is one of a rehearsal."""
        return self._handed is not None

    @property
    def wanted(self) -> bool:
        """Whether a rehearsal has to come before the next batch."""
        return self._loss != "not_looked_at" and self._seen is None

    def begin_pass(self, step: int) -> None:
        """Want another rehearsal at the first step of a pass, since losses may follow a schedule, or draw what they do.

        At least as many steps lie between two rehearsals as there were before.
        """
        ready = self._loss == "rehearsed" or self.trained.training  # a loop may call train() when it has the batch
        if ready and self._compared and step - self._compared[-1] >= len(self._compared):
            self._seen = None

    def passes(self, part: Part) -> Generator[Any, None, Any]:
        """Take the altered batches of a part: by the given loss here, or by yielding them to the caller's loop.

        Returns:
            The batch to take next, with the random numbers that it was made with: that of the same part as before, if a
            loop makes one iterator after another.

        Raises:
            InvalidParticipation: an altered batch was handed out, but no step taken with it.
            InvalidParameter: the losses are not one for each example.
        """
        if self._part is None or self._part.place != part.place or self.rehearsing:
            self._part, self._passes = part, Passes()
        part = self._part
        self._put_back()  # undoes a pass whose iterator was given up
        for altered in part.altered[len(self._passes.taken) :]:
            if altered.alike or not self._passes.taken or self._still:
                before = {} if self._passes.taken else attributes_of(self._model)
                part.randomness.restore()
                yield from self._pass(altered)
                if before:
                    self._before, self._left = before, left_by_pass(before, self._model)
            else:
                yield from self._pair(part, altered)
        if self._doubted or (callable(self._loss) and self._passes.taken and (self._ranks == 1 or part.on_all_ranks)):
            yield from self._repeat(part)
        while self._passes.need_repeat(self._ranks):
            yield from self._repeat(part)
        self.fault = self.fault or self._passes.difference_of_loops()
        yield from self._passes_of_idle(part)
        if part.reads.seen and self._ranks == 1:
            yield from self._swap_reads(part)
        if self._on_any_rank(bool(self._left) and self.trained.training):
            found = yield from rehearse_states(
                self._model, self._before, self._left, partial(self._repeat, part), self._on_any_rank
            )
            self.fault = self.fault or found
        self._before, self._left = {}, {}
        part.randomness.restore()
        return part.batch

    def _repeat(self, part: Part) -> Generator[object, None, GradientRows]:
        """Take a batch as it is, and return its gradients."""
        part.randomness.restore()
        yield from self._pass(part.unaltered())
        return self._passes.taken[-1].rows

    def _swap_reads(self, part: Part) -> Generator[object, None, None]:
        """Take a batch as it is, and with other rows where the loop reads the data set, and keep a difference."""
        found, taken = list[GradientRows](), [*self._passes.taken]
        for part.reads.swaps in (False, False, True):
            found.append((yield from self._repeat(part)))
        part.reads.swaps, self._passes.taken = False, taken
        kept = part.unaltered().kept
        spread, moved = (found[1].moved(each, kept) for each in found[::2])
        allowed = TOLERANCE_OF_REPEATS + 4 * found[1].rounding + MAX_PASSES_BETWEEN * spread
        self.fault = self.fault or difference_of_reads(moved, allowed)

    def _passes_of_idle(self, part: Part) -> Iterator[object]:
        """Take batches that show whether others decide which examples have no gradient."""
        if not self._on_any_rank(self._passes.idle):
            return
        rows = yield from self._repeat(part)
        beside = [*part.beside_idle(rows.idle)]
        while self._ranks > 1 and len(beside) < 2:
            beside.append(part.unaltered())
        for altered in beside:
            part.randomness.restore()
            yield from self._pass(altered)

    def _on_any_rank(self, here: bool) -> bool:
        """Return whether something that asks for more passes holds on a rank; False where not all ranks ask."""
        if self._ranks == 1:
            return here
        return self._part is not None and self._part.on_all_ranks and on_any_rank("the passes of a rehearsal", here)

    def _pair(self, part: Part, altered: Altered) -> Iterator[object]:
        """Take a batch as it is and with other shapes, both without dropout, whose draws fall on other entries."""
        kept, rehearsed = len(self._passes.taken), self._rehearsed
        for each in (part.unaltered(), altered._replace(alike=True)):
            part.randomness.restore()
            yield from self._pass(each, dropout=False)
        if self._still:
            mine, other = self._passes.taken[kept:]
            self._passes.pairs.append((mine, other._replace(altered=altered)))
        del self._passes.taken[kept:]
        self._still, self._rehearsed = False, rehearsed

    def _pass(self, altered: Altered, *, dropout: bool = True) -> Iterator[Any]:
        self.trained.begin_pass()
        others = self._passes.taken[-1].state.others if self._passes.taken else ()
        self._state = LoopState(self._model, others, dropout=dropout)
        self._sizes = sizes_of(self._model)
        assert self._part is not None
        self._handed = altered
        self._marks.hand_out(altered.batch, rehearsal=True)
        if self._loss == "rehearsed":
            try:
                with self._part.reads.on():
                    yield altered.batch
            finally:
                if not self.rehearsing:
                    self._put_back()
            if self.rehearsing:
                raise InvalidParticipation(
                    "the batch that rehearses the first step was handed out, but no step was taken, so noise would "
                    "meet the wrong examples; call step() once per batch, before the next is fetched (no prefetching), "
                    "without accumulation of gradients (physical_batch_size= divides a batch that is too large)"
                )
        elif self.trained.training:
            with self._part.reads.on():
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
                f"the loss has shape {tuple(losses.shape)} for {altered.rows} examples; return one loss per example, "
                "before any mean over the batch (reduction='none')",
                field="loss",
            )
        if not losses.requires_grad:
            raise InvalidParameter(
                "the loss has no gradient: it uses no trained parameter, or a layer (a quantised one, for example) "
                "passes none on; quantise only weights (4 bits, or int8 weights), not activations",
                field="loss",
            )
        refuse_weights_beside(losses, self._model)
        return losses

    def _put_back(self) -> None:
        """Undo a pass, except for gradients: buffers, other optimizers' weights, schedules of learning rates."""
        if self._state is not None:
            self._state.end()
        self._state = None

    def capture(self, optimizers: Sequence[torch.optim.Optimizer] = ()) -> None:
        """Keep the gradients of the altered batch in place of a step, and clear them.

        Args:
            optimizers: the optimizers whose schedules a loop moves after its step.

        Raises:
            InvalidParameter: a parameter has other rows than the batch, or has no noise.
            InvalidParticipation: the gradients are not those of the batch.
        """
        altered, part = self._handed, self._part
        assert altered is not None and part is not None and self._state is not None
        self.trained.check()
        named = self.trained.named()
        samples = example_rows(named, altered.rows)
        _refuse_other_rows(len(samples[0]), altered.rows)
        found = GradientRows.of(samples)
        self._still = part.randomness.still()
        self.fault = self.fault or difference_of_autograd(named, samples)
        self.fault = self.fault or difference_of_weights(self._sizes, sizes_of(self._model))
        if not altered.alike and not self._still:
            self.fault = self.fault or InvalidParameter(
                "the loop draws random numbers, and no two collated batches have the same shape, so the gradients of "
                f"examples cannot be compared; {WAY_OUT}",
                field="loss",
            )
        self._state.note_step()
        self._passes.taken.append(Pass(altered, found, self._state))
        self._rehearsed = self.trained.model_key()
        self.trained.clear_gradients()
        for each in optimizers:
            self._state.hold_schedules(each)
            each._opt_called = True  # as the loop sees it; otherwise torch warns of the schedule's next step
        self._handed = None

    def postpone(self, rows: int | None) -> bool:
        """Take no step with the present gradients if it has to wait: the loader repeats their batch after a rehearsal.

        Args:
            rows: number of examples of the batch, padding included; None where nobody knows the batch.

        Returns:
            Whether the step has to wait: the model was changed, no example of these has a gradient, or other examples
            moved theirs by so little that only the same batch, taken again, tells that from roundings.

        Raises:
            InvalidParticipation: it has to, and the loader has not handed out the batch, so it could not repeat it.
        """
        if rows is None or not self._due(self.examples or rows):
            return False
        if self.examples is None:
            raise InvalidParticipation(
                "nobody checked the loss: this batch is not from the loader of make_private, which rehearses the "
                "first step; take it from there, or give loss='not_looked_at'"
            )
        self._seen = self._seen if self.trained.model_key() == self._seen else None
        self._part, self._passes, self.again = None, Passes(), True
        self.trained.clear_gradients()
        return True

    def _due(self, examples: int) -> bool:
        if self._loss == "not_looked_at" or examples < 2:
            return False
        if self.trained.model_key() != (self._rehearsed if self._passes.taken else self._seen):
            return True
        if self._loss != "rehearsed" or self.examples is None or self._ranks > 1:
            return False
        if not self._passes.taken:
            return all_idle(self.trained.parameters)
        rows = GradientRows.of(example_rows(self.trained.named(), self._passes.taken[0].altered.rows))
        self._doubted = self._passes.may_be_rounded(rows)
        return self._doubted

    def compare(self, samples: Sequence[Rows], counted: torch.Tensor | None, clip_norm: float) -> None:
        """Compare a step's gradients with those of the rehearsal, and keep a difference as `fault`."""
        if not self._passes.taken:
            return
        if self.examples is not None and len(samples[0]) < self.examples:
            _refuse_other_rows(len(samples[0]), self.examples)
        rows = GradientRows.of(samples)
        examined = self._passes.alike and self._part is not None and self._part.on_all_ranks
        self.fault = self.fault or difference_of_weights(self._sizes, sizes_of(self._model))  # a loop that none saw
        self.fault = self.fault or self._passes.difference_of_gradients(rows, counted, clip_norm, examined=examined)
        if rows.norms.count_nonzero():  # gradients of zero prove nothing
            self._seen = self._rehearsed
            self._compared += [] if self._part is None else [self._part.place[0]]
        self._part, self._passes, self._doubted = None, Passes(), False


class _Hook:
    """A call before each forward pass; copies and files of the model leave it out, since a rehearsal holds data."""

    def __init__(self, call: Callable[[Any], None] | None = None) -> None:
        self._call = call

    def __call__(self, _: object, *inputs: object) -> None:
        if self._call is not None:
            self._call(inputs)

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


def _refuse_other_rows(found: int, examples: int) -> None:
    if found != examples:
        raise InvalidParticipation(
            f"the step has gradients of {found} examples, but its batch has {examples}; call the model on each whole "
            "batch, and once for each view of it, and on no other example; if its inputs begin with time, give "
            "make_private batch_first=False"
        )


def refuse_eval(model: torch.nn.Module, _: object, output: object) -> None:
    """Refuse a backward pass through a model in eval mode, as a hook of its forward pass."""
    for tensor in [] if model.training else tensors_of(output):
        if tensor.requires_grad:
            tensor.register_hook(partial(_refuse_gradient, model))


def _refuse_gradient(model: torch.nn.Module, _: torch.Tensor) -> None:
    if are_accumulated(model.parameters()):
        raise InvalidParameter(
            "the model is in eval mode, where Opacus has no per-example gradients; call model.train() before the "
            "forward pass of a step, and use torch.no_grad() for a pass without a step, or torch.autograd.grad for "
            "gradients of inputs",
            field="model",
        )
