"""A rate is lowered where noise moves the weights further than the data do, and Adam's without warm-up begins low.

Where the rate is constant, the last step leaves the mean of the weights of the last quarter.
"""

from __future__ import annotations

import secrets
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import factorize
from factorize.adapters.private import Private, make_private
from factorize.adapters.rate_check import RateCheck
from factorize.errors import InvalidParameter
from factorize.training.learning_rate import MIN_SHARE
from factorize.training.rate_check import ArrayRateCheck

STEPS = 20
SPEC = {
    "workload": {"kind": "prefix", "n": STEPS},
    "participation": {"kind": "single"},
    "mechanism": {"kind": "blt", "buffers": 2},
}
FACTORS = factorize.solve(SPEC)
OPTIMIZERS: dict[str, Any] = {"SGD": {"momentum": 0.5}, "AdamW": {"weight_decay": 0.0}}
BEGUN = {"SGD": 1.0, "AdamW": MIN_SHARE}


def private(optimizer: str, epsilon: float, adaptive: Any = "plain", **options: Any) -> Private:
    model = torch.nn.Linear(500, 4)
    data = torch.utils.data.TensorDataset(torch.ones(80, 500), torch.zeros(80, dtype=torch.long))
    inner = getattr(torch.optim, optimizer)(
        model.parameters(), **{"lr": 1.0, **OPTIMIZERS.get(optimizer, {}), **options}
    )
    size = {"epochs": 1, "batch_size": 4, "seed": secrets.randbits(128), "clip_norm": 0.5, "adaptive": adaptive}
    given = FACTORS if adaptive == "plain" else "auto"
    return make_private(
        model, inner, data, given, epsilon=epsilon, delta=1e-5, loss="not_looked_at", solve=factorize.solve, **size
    )


def train(job: Private, check: RateCheck, schedule: Any = None) -> list[list[torch.Tensor]]:
    """Return the weights before the run and after each step with its check."""
    weights = [[p.detach().clone() for p in job.model.parameters()]]
    for x, y in job.loader:
        torch.nn.functional.cross_entropy(job.model(x), y).backward()
        job.optimizer.step()
        before, factor = [p.detach().clone() for p in job.model.parameters()], check.factor
        check.step()
        if schedule is not None:
            schedule.step()
        job.optimizer.zero_grad()
        after = [p.detach().clone() for p in job.model.parameters()]
        if check.factor < factor:
            for start, old, new in zip(weights[0], before, after, strict=True):
                torch.testing.assert_close(new, start + check.factor / factor * (old - start), atol=1e-6, rtol=1e-5)
        elif len(weights) == STEPS and schedule is None:
            for place, new in enumerate(after):
                past = [one[place] for one in (*weights[STEPS - 4 :], before)]
                torch.testing.assert_close(new, torch.stack(past).mean(0), atol=1e-6, rtol=1e-5)
        else:
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        weights.append(after)
    return weights


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_where_noise_is_all_that_moves_the_weights_the_rate_becomes_the_least(optimizer: str) -> None:
    job = private(optimizer, 0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(job.optimizer.original_optimizer, lambda step: 1 - step / 40)
    check = RateCheck(job.optimizer, schedule)
    begun = check.factor
    assert begun == job.optimizer.param_groups[0]["lr"] == BEGUN[optimizer]
    train(job, check, schedule)
    # 2004 weights: their squared movement is that of the noise to about 5 %; of Adam's first steps to about 15 %.
    assert begun * MIN_SHARE <= check.factor < 2 * MIN_SHARE
    assert schedule.base_lrs == [check.factor]
    assert job.optimizer.param_groups[0]["lr"] == pytest.approx(check.factor * 0.5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_where_noise_is_small_the_first_look_gives_the_whole_rate(optimizer: str) -> None:
    job = private(optimizer, 1e6)
    check = RateCheck(job.optimizer)
    assert check.factor == job.optimizer.param_groups[0]["lr"] == BEGUN[optimizer]
    train(job, check)
    assert check.factor == 1.0 and job.optimizer.param_groups[0]["lr"] == 1.0


def test_what_is_not_known_is_refused_and_a_run_that_was_not_seen_is_told() -> None:
    for job in (
        private("RMSprop", 2.0),
        private("SGD", 2.0, momentum=0.5, dampening=0.1),
        private("Adam", 2.0, "joint"),
    ):
        with pytest.raises(InvalidParameter, match="at step 0 of 20. Train without the check"):
            RateCheck(job.optimizer)
        with pytest.raises(
            InvalidParameter, match="optimizer is of type .*; give the optimizer that make_private returned"
        ):
            RateCheck(job.optimizer.original_optimizer)  # type: ignore[arg-type]
    job = private("SGD", 2.0)
    RateCheck(job.optimizer)
    job.optimizer.param_groups.append({"params": [], "lr": 3.0})
    with pytest.raises(InvalidParameter, match=r"the groups have \[1.0, 3.0\]"):
        RateCheck(job.optimizer)
    job = private("AdamW", 2.0)
    late = RateCheck(job.optimizer)
    for x, y in job.loader:
        torch.nn.functional.cross_entropy(job.model(x), y).backward()
        job.optimizer.step()
        job.optimizer.zero_grad()
        if job.optimizer.noise.step == 3:
            break
    with pytest.warns(UserWarning, match="saw 1 of 3 steps"):
        late.step()
    assert late.factor == 1.0 == job.optimizer.param_groups[0]["lr"], "the rate is the user's own again"
    with pytest.raises(InvalidParameter, match="at step 3 of 20"):
        RateCheck(job.optimizer)


@pytest.mark.parametrize("warmup", [0, 5])
def test_a_schedule_that_warms_up_begins_at_its_own_rate_whether_torch_or_the_spec_has_it(warmup: int) -> None:
    job = private("AdamW", 2.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        job.optimizer.original_optimizer, lambda step: min(1.0, (step + 1) / (warmup + 1))
    )
    begun = 1.0 if warmup else MIN_SHARE
    assert RateCheck(job.optimizer, schedule).factor == begun
    rates = {"kind": "warmup_cosine", "warmup": warmup} if warmup else {"kind": "cosine"}
    factors = factorize.solve({**SPEC, "workload": {"kind": "schedule", "n": STEPS, "learning_rates": rates}})
    weights = [np.zeros(3)]
    assert ArrayRateCheck(factors, 1.0, weights, 0.9, 0.999).factor == begun
    assert ArrayRateCheck(factors, 1.0, weights, 0.9).factor == 1.0, "of SGD"


def test_schedules_of_torch_with_a_warm_up_of_their_own_begin_at_the_whole_rate() -> None:
    for kind, rates in (
        (torch.optim.lr_scheduler.OneCycleLR, {"max_lr": 1.0, "total_steps": STEPS, "cycle_momentum": False}),
        (torch.optim.lr_scheduler.CyclicLR, {"base_lr": 0.1, "max_lr": 1.0, "cycle_momentum": False}),
    ):
        job = private("AdamW", 0.05)
        schedule = kind(job.optimizer.original_optimizer, **rates)
        check = RateCheck(job.optimizer, schedule)
        begun = job.optimizer.param_groups[0]["lr"]
        assert check.factor == 1.0
        with pytest.raises(InvalidParameter, match="two would lower it twice; keep one"):
            RateCheck(job.optimizer, schedule)
        assert job.optimizer.param_groups[0]["lr"] == begun
        check._multiply(0.5)
        schedule.optimizer._opt_called = True  # as after a step; else torch warns
        for _ in range(STEPS // 2):
            schedule.step()
            assert job.optimizer.param_groups[0]["lr"] <= 0.5
        assert job.optimizer.param_groups[0]["lr"] > 0.05


@pytest.mark.parametrize("second", [None, 0.999])
@pytest.mark.parametrize("steps", [1, 2, 7, 19, 20, 40])
def test_arrays_of_every_framework_are_checked_alike(steps: int, second: float | None) -> None:
    """Runs of less than 20 steps begin at the rate itself."""
    factors = factorize.solve({**SPEC, "workload": {"kind": "prefix", "n": steps}})
    walk = np.cumsum(np.random.default_rng(0).normal(size=(steps + 1, 30, 4)), axis=0)
    found = []
    for made in (np.asarray, torch.tensor, jnp.asarray):
        check = ArrayRateCheck(factors, 1.0, [made(walk[0])], second=second)
        assert check.factor == (MIN_SHARE if second and steps >= 20 else 1.0)
        seen = []
        for now in walk[1:]:
            (left,) = check.step([made(now)], 0.1 * check.factor)
            seen.append(np.append(np.asarray(left), check.factor))
        found.append(np.array(seen))
    for one in found[1:]:
        np.testing.assert_allclose(one, found[0], rtol=1e-4, atol=1e-4)
