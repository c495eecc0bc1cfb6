"""Gradients without noise are hidden as long as a job exists, in loops of any form, and no longer."""

from __future__ import annotations

import copy
import gc
import io
from typing import Any

import numpy as np
import pytest
import torch
from handmade import handmade
from torch.utils.data import TensorDataset

from factorize.adapters.private import Private, make_private
from factorize.errors import InvalidParameter
from factorize.structures.toeplitz import ToeplitzMatrix

SIZE, STEPS = 8, 3
X = torch.randn(SIZE * STEPS, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(len(X)) % 3


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def job(model: torch.nn.Module, seed: int, **options: Any) -> Private:
    factors = handmade(ToeplitzMatrix(np.array([1.0, 0.5, 0.25]), STEPS), value=2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-2, "epochs": 1, "batch_size": SIZE, **options}
    return make_private(model, optimizer, TensorDataset(X + seed % 10, Y), factors, seed=seed, **settings)


def largest(model: torch.nn.Module) -> float:
    return max(float(p.grad.abs().max()) for p in model.parameters())


@pytest.mark.parametrize("to_none", [False, True])
@pytest.mark.parametrize("mode", ["hooks", "functorch", "streamed"])
def test_no_step_shows_any_and_each_leaves_what_is_released(mode: Any, to_none: bool) -> None:
    model, before, after = network(), [], []
    made = job(model, 1 << 90, grad_sample_mode=mode)
    for x, y in made.loader:
        for _ in range(2):  # the first gradients are not used
            made.optimizer.zero_grad(to_none)
            torch.nn.functional.cross_entropy(made.model(x), y).backward()
            before.append(largest(model))
        made.optimizer.step()
        after.append(largest(model))
        made.optimizer.zero_grad(to_none)
    assert len(after) == STEPS + 2 and not any(before)
    assert not any(after[:2]) and all(after[2:])


def test_public_training_after_the_job_sees_its_own_gradients() -> None:
    """Copies and files of the model have no part of the job, either."""
    model = network()
    made = job(model, 2 << 90)
    for x, y in made.loader:
        torch.nn.functional.cross_entropy(made.model(x), y).backward()
        made.optimizer.step()
        made.optimizer.zero_grad()
    made.model.to_standard_module()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for each in (model, copy.deepcopy(model), torch.load(file, weights_only=False)):
        each.zero_grad()
        torch.nn.functional.cross_entropy(each(X), Y).backward()
        assert largest(each) > 0
    del made
    gc.collect()
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_a_second_job_may_train_the_model_of_the_first_on_other_data() -> None:
    model, jobs = network(), list[Private]()
    for number in (3, 4):
        made = job(model, (number << 90) + number)
        for x, y in made.loader:
            torch.nn.functional.cross_entropy(made.model(x), y).backward()
            assert not largest(model)
            made.optimizer.step()
            made.optimizer.zero_grad()
        made.model.to_standard_module()
        jobs.append(made)
    assert [each.optimizer.noise.step for each in jobs] == [STEPS, STEPS]


def test_gradients_of_public_data_between_steps_are_those_of_autograd() -> None:
    """While Opacus's hooks are disabled; the next private step is what it was."""
    released = []
    for public in (False, True):
        model = network()
        made = job(model, 5 << 90)
        for x, y in made.loader:
            if public:
                made.model.disable_hooks()
                torch.nn.functional.cross_entropy(made.model(X + 9), Y).backward()
                assert largest(model) > 0
                made.model.enable_hooks()
                made.optimizer.zero_grad()
            torch.nn.functional.cross_entropy(made.model(x), y).backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
        made.optimizer.close()
        released.append([p.detach().clone() for p in model.parameters()])
    assert all(map(torch.equal, *released))


@pytest.mark.parametrize("when", ["before the job", "before its first step", "after a step"])
def test_hooks_that_see_gradients_without_noise_are_refused(when: str) -> None:
    """As of wandb.watch; a loop that clips with hooks would change nothing that is released."""
    model, shown = network(), list[float]()

    def watch() -> None:
        next(model.parameters()).register_hook(lambda gradient: shown.append(float(gradient.norm())))

    def train() -> None:
        if when == "before the job":
            watch()
        made = job(model, 6 << 90)
        if when == "before its first step":
            watch()
        for x, y in made.loader:
            torch.nn.functional.cross_entropy(made.model(x), y).backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
            if made.optimizer.noise.step == 1:
                watch()

    with pytest.raises(InvalidParameter, match="hooks that run in the backward pass, where they see"):
        train()
    assert not shown
