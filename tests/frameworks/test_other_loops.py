"""Loops as other libraries write them: several optimizers, Accelerate's wrappers, and loops that count batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from itertools import islice
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from private_cases import EPOCHS, SIZE, N, bins_noise, factors
from test_private import flat, network, private, steps, train

from factorize.adapters.private import Private
from factorize.errors import InvalidParameter, InvalidParticipation

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")
SGD = torch.optim.SGD
LOSS = torch.nn.functional.cross_entropy


def alone(model: Any, batch: Any) -> torch.Tensor:
    return LOSS(model(batch[0]), batch[1], reduction="none")


def weights(made: Private) -> torch.Tensor:
    made.optimizer.close()
    return flat(made.model.parameters())


def by_sides(parameters: list[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """Return the matrices, and the rest."""
    return [[p for p in parameters if (p.ndim == 2) == wanted] for wanted in (True, False)]


def several(*kinds: Callable[..., torch.optim.Optimizer], **options: Any) -> Private:
    """A job with an optimizer for matrices and another one for the rest."""

    def optimizers(parameters: Any, lr: float) -> list[torch.optim.Optimizer]:
        return [kind(part, lr=lr) for kind, part in zip(kinds, by_sides(parameters), strict=True)]

    return private(kind=optimizers, **options)


class TestSeveralOptimizers:
    def test_they_step_as_one(self) -> None:
        """As one optimizer with as many groups, which take their noise in the same order."""

        def grouped(parameters: Any, lr: float) -> torch.optim.Optimizer:
            return SGD([{"params": part} for part in by_sides(parameters)], lr=lr)

        one, made = private(kind=grouped), several(SGD, SGD)
        train(one)
        train(made)
        assert torch.equal(weights(made), weights(one))

    def test_a_checkpoint_holds_the_states_of_all(self) -> None:
        made = several(torch.optim.Muon, torch.optim.AdamW)
        train(made, 1)
        kept = made.optimizer.state_dict(), made.model.state_dict()
        kept = torch.utils._pytree.tree_map(lambda each: each.clone() if torch.is_tensor(each) else each, kept)
        train(made, EPOCHS - 1)
        first = weights(made)
        again = several(torch.optim.Muon, torch.optim.AdamW)
        again.optimizer.load_state_dict(kept[0])
        again.model.load_state_dict(kept[1])
        train(again, EPOCHS - 1)
        assert torch.equal(weights(again), first)
        other = several(torch.optim.Muon, torch.optim.AdamW)
        with pytest.raises(InvalidParameter, match="of 1 optimizers, not 2"):
            other.optimizer.load_state_dict({**kept[0], "parts": kept[0]["parts"][:1]})
        other.optimizer.close()

    def test_each_may_have_a_schedule_that_a_rehearsal_does_not_move(self) -> None:
        parts: list[torch.optim.Optimizer] = []
        kinds = [
            lambda *given, kind=kind, **more: parts.append(kind(*given, **more)) or parts[-1] for kind in (SGD,) * 2
        ]
        made = several(*kinds)
        schedules = [torch.optim.lr_scheduler.ExponentialLR(part, 0.5) for part in parts]
        for x, y in islice(made.loader, 4):
            LOSS(made.model(x), y).backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
            for schedule in schedules:
                schedule.step()
        assert made.optimizer.noise.step == 2
        assert [group["lr"] for group in made.optimizer.param_groups] == [0.025, 0.025]
        with pytest.raises(InvalidParameter, match=r"step\(\) of the private optimizer"):
            parts[0].step()
        made.optimizer.close()

    @pytest.mark.parametrize(
        ("make", "said"),
        [
            (lambda p: [], "list of optimizers is empty"),
            (lambda p: [SGD(p, lr=1.0), "adam"], "holds a str"),
            (lambda p: {"all": SGD(p, lr=1.0)}, "the optimizer is a dict; give an optimizer of torch, or a list"),
            (lambda p: [SGD(p, lr=1.0), SGD(p[:1], lr=1.0)], "two optimizers have one parameter"),
            (lambda p: [SGD(p[:2], lr=1.0), torch.optim.LBFGS(p[2:])], "LBFGS computes several gradients"),
            (lambda p: [SGD(p[:2], lr=1.0), SGD(p[2:3], lr=1.0)], "leaves out 2.bias"),
            (lambda p: SGD(p[:2], lr=1.0), r"leaves out 2.weight, 2.bias.*\[Muon, AdamW\]"),
        ],
    )
    def test_what_is_no_list_of_them_is_refused(self, make: Callable[[Any], Any], said: str) -> None:
        with pytest.raises(InvalidParameter, match=said):
            private(kind=lambda parameters, lr: make(parameters))


class TestAccelerate:
    @pytest.mark.parametrize("first", [True, False])
    def test_what_it_has_prepared_trains_as_without_it(self, first: bool) -> None:
        """Its own loader would fetch batches past the auditor, and its optimizer leave out half of the releases."""
        helper = Accelerator(cpu=True, gradient_accumulation_steps=2 if first else 1)
        plain, made = private(), private(kind=lambda p, lr: helper.prepare(SGD(p, lr=lr))) if first else private()
        model, optimizer, loader = made[:3] if first else helper.prepare(*made[:3])
        for x, y in (batch for _ in range(EPOCHS) for batch in loader):
            with helper.accumulate(model):
                LOSS(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        train(plain)
        assert made.optimizer.noise.step == N and torch.equal(weights(made), weights(plain))

    def test_its_scaler_is_refused(self) -> None:
        wrapped = Accelerator(cpu=True).prepare(SGD(network().parameters(), lr=0.1))
        wrapped.scaler = torch.amp.GradScaler("cpu")
        with pytest.raises(InvalidParameter, match="GradScaler"):
            private(kind=lambda parameters, lr: wrapped)

    def test_accumulation_is_refused_with_the_way_out(self) -> None:
        helper, made = Accelerator(cpu=True, gradient_accumulation_steps=2), private()
        helper.gradient_state._set_sync_gradients(False)
        optimizer = helper.prepare(made.optimizer)
        with pytest.raises(InvalidParticipation, match="without accumulation of gradients .physical_batch_size="):
            for x, y in made.loader:
                LOSS(made.model(x), y).backward()
                optimizer.step()
        helper.gradient_state._set_sync_gradients(True)
        made.optimizer.close()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("whole", [False, True])
def test_a_loop_may_be_compiled(whole: bool) -> None:
    """Opacus's hooks would keep tensors of the compiled program, whose memory it uses again."""
    plain, made = private(), private()
    model = made.model if whole else torch.compile(made.model, backend="aot_eager")

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        LOSS(model(x), y).backward()
        made.optimizer.step()
        made.optimizer.zero_grad()

    step = torch.compile(step, backend="aot_eager") if whole else step
    for x, y in made.loader:
        step(x, y)
    train(plain, 1)
    assert torch.equal(weights(made), weights(plain))


def taken(made: Private, count: int | None = None) -> int:
    """Train for a pass of a loop that takes so many batches, as Lightning does, and return how many were no rehearsal."""
    found = 0
    for x, y in islice(made.loader, count):
        found += not made.optimizer.rehearsal.rehearsing
        LOSS(made.model(x), y).backward()
        made.optimizer.step()
        made.optimizer.zero_grad()
    return found


class TestCounts:
    @pytest.mark.parametrize(
        ("size", "options"),
        [
            (SIZE, {}),
            (SIZE, {"physical_batch_size": 3}),
            (12, {"physical_batch_size": 5, "remainder": "pad", "spec": factors(12)}),
            (SIZE, {"physical_batch_size": 12, "sampling": "balls_in_bins", "calibration": bins_noise()}),
        ],
    )
    def test_a_loader_is_as_long_as_what_it_hands_out_beside_rehearsals(self, size: int, options: Any) -> None:
        made = private(batch_size=size, **options)
        assert [taken(made) for _ in range(EPOCHS)] == [len(made.loader)] * EPOCHS
        assert made.optimizer.noise.step == len(made.loader.order) == EPOCHS * made.loader.steps_of_pass
        made.optimizer.close()

    def test_a_loop_that_counts_batches_is_told_how_to_take_all_steps(self) -> None:
        made = private()
        assert taken(made, len(made.loader)) == 3
        with pytest.warns(UserWarning, match=r"after len\(loader\) = 5 batches. 2 of them rehearsed .*loss=\.\.\."):
            assert taken(made, len(made.loader)) == 2
        made.optimizer.close()
        made, public = private(), range(3)  # shorter than the loader, which hands out one batch more
        made.loader.__dict__["_parts_of_pass"] = len(public)
        for (x, y), _ in zip(made.loader, public, strict=False):
            LOSS(made.model(x), y).backward()
            made.optimizer.step()
        with pytest.warns(UserWarning, match=r"after len\(loader\) = 3 batches. 2 of them rehearsed"):
            next(iter(made.loader))
        made.optimizer.close()
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "the loop ended its")
            made = private(loss=alone, physical_batch_size=3)
            assert [taken(made, len(made.loader)) for _ in range(EPOCHS)] == [len(made.loader)] * EPOCHS
            made.optimizer.close()
            made = private()
            assert [taken(made, 3), taken(made)] == [1, 4]  # this one stops on the way on purpose
            made.optimizer.close()


def test_a_loop_that_nobody_rehearses_moves_no_weights_before_its_step() -> None:
    """By gradients of examples, which have no noise."""
    made = private(loss=alone)
    x, y = next(iter(made.loader))
    LOSS(made.model(x), y).backward()
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter -= 0.1 * parameter.grad_sample.mean(0)
    with pytest.raises(InvalidParameter, match=r"loop before step\(\), changes the parameter 0.weight"):
        made.optimizer.step()
    assert made.optimizer.noise.step == 0
    made.optimizer.close()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            lambda model, x, y: LOSS(model(x[:4]), y[:4]),
            "gradients of 4 examples, but its batch has 8; call the model on",
        ),
        (lambda model, x, y: 8 * LOSS(model(x), y), "as loss= has to compute the loss of your loop"),
    ],
)
def test_a_loop_computes_the_loss_that_was_given_as_a_function(wrong: Callable[..., torch.Tensor], said: str) -> None:
    made = private(loss=alone)
    x, y = next(iter(made.loader))
    wrong(made.model, x, y).backward()
    with pytest.raises((InvalidParameter, InvalidParticipation), match=said):
        made.optimizer.step()
    made.optimizer.close()


class TestAnInterruptedPass:
    """A notebook's cell that Ctrl-C ends, and that runs again: nothing was released of the step that was not taken."""

    @pytest.mark.parametrize("options", [{}, {"physical_batch_size": SIZE // 2}])
    def test_begins_its_step_anew(self, options: Any) -> None:
        """In the first pass that batch is one of a rehearsal; the last pass ends after a step, or a part of one."""
        plain, made = private(**options), private(**options)
        train(plain)
        for place in ("batch", "forward", "backward"):
            assert self.ended(made, at=place, after=0)
        for place in ("batch", "forward", "backward", "step"):
            assert self.ended(made, at=place, after=1)
        train(made)
        assert torch.equal(weights(made), weights(plain))

    @staticmethod
    def ended(made: Private, at: str, after: int) -> bool:
        """Train until Ctrl-C comes at a place of the first step after so many."""

        def reach(place: str) -> None:
            if place == at and made.optimizer.noise.step >= after:
                raise KeyboardInterrupt

        try:
            for x, y in made.loader:
                reach("batch")
                loss = LOSS(made.model(x), y)
                reach("forward")
                loss.backward()
                reach("backward")
                made.optimizer.step()
                made.optimizer.zero_grad()
                reach("step")
        except KeyboardInterrupt:
            return True
        return False

    def test_other_batches_than_the_one_that_was_handed_out_are_refused(self) -> None:
        made = private()
        for number, (x, y) in enumerate(made.loader):
            if number == 3:
                break
            LOSS(made.model(x), y).backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
        assert made.optimizer.noise.step == 1
        with pytest.raises(InvalidParticipation, match="batch 2 was handed out, but step 1 was not taken"):
            made.optimizer.expect(made.loader.order[2])
        made.optimizer.close()

    def test_a_forward_pass_without_a_backward_pass_is_forgotten(self) -> None:
        plain, made = private(), private()
        train(plain)
        for x, y in made.loader:
            LOSS(made.model(x), y).backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
            made.model(torch.zeros_like(x))  # a test, without no_grad
        train(made, EPOCHS - 1)
        assert torch.equal(weights(made), weights(plain))


class TestClients:
    """A client of federated training that protects its own examples, as docs/federated.md says."""

    def test_one_that_ends_between_rounds_goes_on_as_one_that_stays(self) -> None:
        """Each round begins with the server's model, which averages what clients have released."""

        def averaged(model: torch.nn.Module) -> dict[str, Any]:
            return {name: each.clone() / 2 for name, each in model.state_dict().items()}

        staying = private()
        for _ in range(EPOCHS):
            list(steps(staying))
            staying.model.load_state_dict(averaged(staying.model))
        kept: Any = None
        for _ in range(EPOCHS):
            made = private()
            if kept is not None:
                own, state, server = kept
                made.model.load_state_dict(own)
                made.optimizer.load_state_dict(state)
                made.model.load_state_dict(server)
                made.optimizer.load_state_dict(made.optimizer.state_dict())
            list(steps(made))
            kept = deepcopy([made.model.state_dict(), made.optimizer.state_dict(), averaged(made.model)])
            made.optimizer.close()
        made.model.load_state_dict(kept[2])
        assert torch.equal(weights(made), weights(staying))
