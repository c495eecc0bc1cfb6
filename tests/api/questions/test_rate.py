"""The rate of a recommendation: by hand from the noise of the row, the same in every line of code, and unknown else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from factorize.api.questions.job_code import codes
from factorize.api.questions.rate import Rates
from factorize.api.questions.training_job import FleetRequest, Job, RecommendRequest, read_job
from factorize.structures.layouts import build_matrix
from factorize.training.learning_rate import (
    LIMITS,
    MEAN_GAIN,
    Limits,
    best_rate,
    noise_moved,
    noise_of_steps,
    share_of_data,
)

LOSS = {"rmse": 4.0, "last_iterate": 6.0}
ROW = {"rmse_at_privacy": 50.0, "sigma_of_sums": 10.0, "noise_of_steps": 1.2, "loss": LOSS}
COSINE = {"kind": "cosine"}


def rates(**changes: Any) -> Rates:
    usual = {"examples": 4000, "batch_size": 10, "epochs": 1, "epsilon": 2.0, "delta": 1e-5, "parameters": 400}
    return Rates(read_job(usual | changes, RecommendRequest), ROW)


def test_the_noise_of_the_weights_and_of_single_steps_bound_the_rate() -> None:
    limits = Limits(walk=2.0, reach=1.0, step=1.5, mean=4.0, divided=1.0)
    # A schedule whose mean is half of its largest rate may leave noise of twice 2; four steps allow jumps of twice 1.5.
    last, step = 4.0, 3.0
    shape: dict[str, Any] = {"steps": 4, "average": 0.5, "limits": limits}
    assert best_rate("sgd", 0.0, 16_000, last, step, **shape) == pytest.approx(1 / math.sqrt(2))
    assert best_rate("sgd", 0.9, 16_000, last, step, **shape) == pytest.approx(0.1 / math.hypot(1, 1 / 1.9))
    found = best_rate("adamw", 0.0, 16, last, step, **shape)
    assert found == pytest.approx(math.hypot(3, 4 / 4) / math.sqrt(3))  # second moments of 3 and 1; three limits of 1


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_constant_rate_is_larger_where_the_mean_of_the_last_weights_is_left(optimizer: str) -> None:
    one, other = (best_rate(optimizer, 0.0, 400, 0.1, 0.2, steps=90, average=1.0, checked=x) for x in (True, False))
    assert one == pytest.approx(MEAN_GAIN * other)
    falling = (best_rate(optimizer, 0.0, 400, 0.1, 0.2, steps=90, average=0.99, checked=x) for x in (True, False))
    assert next(falling) == next(falling)


def test_the_noise_of_single_steps_is_that_of_the_rows_of_the_inverse() -> None:
    lower = np.tril(np.random.default_rng(1).uniform(0, 0.3, (40, 40)), -1) + np.eye(40)
    rows = np.linalg.inv(lower)
    assert noise_of_steps(build_matrix("dense", {"": lower}, 40)) == pytest.approx(
        math.sqrt((rows**2).sum() / 40), rel=0.1
    )


@pytest.mark.parametrize("second", [None, 0.99])
def test_the_noise_that_moves_weights_is_that_of_the_optimizer_itself(second: float | None) -> None:
    """Each step's weights as coefficients of the entries of Z, by the recursion of the optimizer."""
    luck = np.random.default_rng(2)
    lower = np.tril(luck.uniform(0, 0.3, (50, 50)), -1) + np.eye(50)
    rates, noise = luck.uniform(0.5, 1.0, 20), np.linalg.inv(lower)
    first, seconds, weights = np.zeros(50), 0.0, np.zeros(50)
    for step, rate in enumerate(rates):
        weights = weights * (1 - 0.3 * rate)
        if second is None:
            first = 0.9 * first + noise[step]
            weights = weights - rate * first
        else:
            first = 0.9 * first + 0.1 * noise[step]
            seconds = second * seconds + (1 - second) * (0.2**2 * (noise[step] ** 2).sum() + LIMITS.mean**2 / 300)
            weights = weights - rate * first / (1 - 0.9 ** (step + 1)) / math.sqrt(seconds / (1 - second ** (step + 1)))
    found = noise_moved(build_matrix("dense", {"": lower}, 50), 0.2, 300, rates, 0.9, second, 0.3)
    assert found == pytest.approx(0.2 * math.sqrt(300) * np.linalg.norm(weights))


def test_the_rate_is_lowered_to_where_data_move_weights_as_far_as_noise() -> None:
    assert [share_of_data(moved, 4.0) for moved in (5.0, 9.0, 4.0, 3.0)] == [0.75, 1.0, 0.25, 0.25]
    assert share_of_data(0.0, 0.0) == 1.0  # a warm-up that begins with rates of zero


def test_every_line_of_code_has_the_rate_of_its_own_optimizer() -> None:
    asked = rates(workload={"kind": "adamw", "learning_rates": COSINE})
    spec = {"workload": {**asked.job.sums, "n": 400}, "mechanism": {"kind": "identity"}}
    code = codes(asked.job, spec, "fixed", asked.of)
    document = asked.document()
    assert document["value"] == asked.of("adamw") != asked.of("sgd") and "no job of the study" not in document["basis"]
    for name, rate in (("torch", asked.of("adamw")), ("jax", asked.of("adamw")), ("numpy", asked.of("sgd"))):
        assert f"\nrate = {rate!r}     #" in code[name], name
    assert "weight_decay=0.0" in code["torch"]  # of the library it would be 0.01
    # By hand: the noise of averages of gradients at the end, for means of 10, over 400 weights.
    expected = best_rate("adamw", 0.9, 400, 0.1 * 50 * 6 / 4 / 10, 10 * 1.2 / 10, steps=400, average=0.5)
    assert document["value"] == pytest.approx(expected, rel=0.05)


def test_rates_that_are_listed_are_multiplied_by_what_is_advised() -> None:
    listed = [0.0, *np.linspace(0, 2, 399).tolist()]  # zero, and rising
    once, ten = (
        Rates(rates(workload={"kind": "schedule", "learning_rates": [scale * one for one in listed]}).job, row)
        for scale, row in ((1.0, ROW), (10.0, ROW | {"rmse_at_privacy": 500.0}))
    )
    assert once.of("sgd") == pytest.approx(10 * (ten.of("sgd") or 0.0), rel=0.05)


@pytest.mark.parametrize(
    ("changes", "way"),
    [
        ({"parameters": None}, "give --parameters"),
        ({"workload": {"kind": "lion"}}, "only with sgd, adam, adamw, not with lion"),
        ({"workload": {"kind": "window", "width": 3}}, "nothing that sums as window does"),
    ],
)
def test_a_rate_that_is_unknown_says_why(changes: dict[str, Any], way: str) -> None:
    found = rates(**changes).document()
    assert found["value"] is None and found["basis"].startswith("unknown: ") and way in found["basis"]


def test_a_federated_job_has_no_rate() -> None:
    fleet = {"clients": 30, "clients_a_round": 6, "rounds": 16, "epsilon": 2.0, "delta": 1e-2, "parameters": 9}
    job: Job = read_job(fleet, FleetRequest)
    assert Rates(job, ROW).document()["value"] is None


def test_a_weight_decay_that_the_rate_makes_large_is_told() -> None:
    told = rates(workload={"kind": "adamw", "weight_decay": 0.01})
    rate = told.of("adamw")
    assert rate is not None and not rates(workload={"kind": "adamw", "weight_decay": 1e-5}).notes()
    (note,) = told.notes()
    assert f"leaves {math.exp(-0.01 * rate * 400):.0%} of" in note and f"at most {0.5 / (rate * 400):.1g}" in note
    falling = rates(workload={"kind": "adamw", "weight_decay": 0.01, "learning_rates": COSINE})
    assert f"leaves {math.exp(-0.01 * (falling.of('adamw') or 0) * 200):.0%} of" in falling.notes()[0]
    assert not rates(workload={"kind": "sgd", "weight_decay": 0.01}).notes()


@pytest.mark.parametrize("epsilon", [0.01, 50.0])
def test_jobs_far_from_the_study_say_so(epsilon: float) -> None:
    found = rates(epsilon=epsilon, examples=10, parameters=7).document()  # one epoch of one batch
    assert found["value"] > 0
    assert f"no job of the study had steps 1 or parameters 7 or epsilon {epsilon:g}" in found["basis"]
