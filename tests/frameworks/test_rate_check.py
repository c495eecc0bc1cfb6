"""A rate at which noise moves the weights further than the data do is lowered, once, and the weights with it.

Where the rate is constant, the last step leaves the mean of the weights of the last quarter.
"""

from __future__ import annotations

import secrets
from typing import Any

import pytest
import torch

import factorize
from factorize.adapters.private import Private, make_private
from factorize.adapters.rate_check import RateCheck
from factorize.errors import InvalidParameter
from factorize.training.learning_rate import MIN_SHARE

STEPS, AT = 10, 2
SPEC = {
    "workload": {"kind": "prefix", "n": STEPS},
    "participation": {"kind": "single"},
    "mechanism": {"kind": "blt", "buffers": 2},
}
FACTORS = factorize.solve(SPEC)
OPTIMIZERS: dict[str, Any] = {"SGD": {"momentum": 0.5}, "AdamW": {"weight_decay": 0.0}}


def private(optimizer: str, epsilon: float, adaptive: Any = "plain", **options: Any) -> Private:
    model = torch.nn.Linear(500, 4)
    data = torch.utils.data.TensorDataset(torch.ones(40, 500), torch.zeros(40, dtype=torch.long))
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
        before = [p.detach().clone() for p in job.model.parameters()]
        check.step()
        if schedule is not None:
            schedule.step()
        job.optimizer.zero_grad()
        after = [p.detach().clone() for p in job.model.parameters()]
        if len(weights) == AT:
            for start, old, new in zip(weights[0], before, after, strict=True):
                torch.testing.assert_close(new, start + check.factor * (old - start), atol=1e-6, rtol=1e-5)
        elif len(weights) == STEPS and schedule is None:
            for place, new in enumerate(after):
                past = [one[place] for one in (*weights[STEPS - 2 :], before)]
                torch.testing.assert_close(new, torch.stack(past).mean(0), atol=1e-6, rtol=1e-5)
        else:
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        weights.append(after)
    return weights


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_where_noise_is_all_that_moves_the_weights_the_rate_becomes_the_least(optimizer: str) -> None:
    job = private(optimizer, 0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(job.optimizer.original_optimizer, lambda step: 1 - step / 20)
    check = RateCheck(job.optimizer, schedule)
    train(job, check, schedule)
    # 2004 weights: their squared movement is that of the noise to about 5 %.
    assert MIN_SHARE <= check.factor < 2 * MIN_SHARE
    assert schedule.base_lrs == [check.factor]
    assert job.optimizer.param_groups[0]["lr"] == pytest.approx(check.factor * 0.5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_where_noise_is_small_nothing_changes(optimizer: str) -> None:
    job = private(optimizer, 1e6)
    check = RateCheck(job.optimizer)
    train(job, check)
    assert check.factor == 1.0 and job.optimizer.param_groups[0]["lr"] == 1.0


def test_what_is_not_known_is_refused_and_a_run_that_was_not_seen_is_told() -> None:
    for job in (
        private("RMSprop", 2.0),
        private("SGD", 2.0, momentum=0.5, dampening=0.1),
        private("Adam", 2.0, "joint"),
    ):
        with pytest.raises(InvalidParameter, match="at step 0 of 10: train without the check"):
            RateCheck(job.optimizer)
    job = private("SGD", 2.0)
    late = RateCheck(job.optimizer)
    job.optimizer.param_groups.append({"params": [], "lr": 3.0})
    with pytest.raises(InvalidParameter, match=r"the groups have \[1.0, 3.0\]"):
        RateCheck(job.optimizer)
    job.optimizer.param_groups.pop()
    for x, y in job.loader:
        torch.nn.functional.cross_entropy(job.model(x), y).backward()
        job.optimizer.step()
        job.optimizer.zero_grad()
        if job.optimizer.noise.step == 3:
            break
    with pytest.warns(UserWarning, match="saw 1 of 3 steps"):
        late.step()
    assert late.factor == 1.0
    with pytest.raises(InvalidParameter, match="at step 3 of 10"):
        RateCheck(job.optimizer)
